//! Whether the mass tells the cause: what is drawn and said of a run's causes, against plain definitions.
use std::collections::BTreeMap;

use palimpsest::attention::AttentionStore;
use palimpsest::run::cause_rows::{CauseRow, read_causes, read_totals};
use palimpsest::run::session_measures::{SessionMeasures, measures_path};
use serde_json::json;

use super::knockouts::fixture;
use super::*;

/// Windows beside layers that see everything, a gate and linear layers, sinks.
const MODELS: [&str; 4] = ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny", "gpt-oss-tiny"];

/// A run of some cases of the sample by a tiny model, its causes measured.
fn caused(name: &str, cases: usize, dir: &Path, more: &[&str]) {
    caused_within("4096", name, cases, dir, more);
}

fn caused_within(context: &str, name: &str, cases: usize, dir: &Path, more: &[&str]) {
    let mut run = command(["run", "--data", "sample", "--context", context, "--max-new-tokens", "6"]);
    run.args(["--allow-longer", "--limit", &cases.to_string(), "--model"]).arg(fixture(name));
    run.arg("--out").arg(dir);
    let done = ended(run);
    assert_eq!(done.code, Some(0), "{name}: {}", done.err);
    let mut causes = command(["causes"]);
    causes.arg(dir).arg("--model").arg(fixture(name)).args(more);
    if name.starts_with("qwen35") {
        causes.arg("--softmax-only");
    }
    let done = ended(causes);
    assert_eq!(done.code, Some(0), "{name}: {}", done.err);
}

fn stores(dir: &Path) -> Vec<AttentionStore> {
    let folder = RunFolder::read(dir).unwrap();
    let stores = folder.answers.iter().filter_map(|row| folder.attention(row).unwrap());
    stores.filter(|store| !store.generated.is_empty()).collect()
}

fn measures(dir: &Path, store: &AttentionStore) -> SessionMeasures {
    SessionMeasures::open(&measures_path(dir, &store.case, &store.probe, &store.condition)).unwrap()
}

fn rows(dir: &Path, figure: &str) -> Vec<BTreeMap<String, String>> {
    let mut csv = csv::Reader::from_path(dir.join(format!("figures/{figure}.csv"))).unwrap();
    csv.deserialize().map(Result::unwrap).collect()
}

#[test]
fn what_is_read_of_each_session_is_what_the_raw_instrument_says() {
    let root = tempfile::tempdir().unwrap();
    for name in MODELS {
        let dir = root.path().join(name);
        caused(name, 1, &dir, &[]);
        let store = stores(&dir).remove(0);
        let found = measures(&dir, &store);
        assert!(found.spans.len() > 2, "{name}: {:?}", found.spans);
        let n = store.tokens.len();
        let all = [&store.tokens[..], &store.generated[..store.generated.len() - 1]].concat();
        let mut spans = serde_json::Map::new();
        for span in store.keys.iter().filter(|span| found.spans.contains(&span.label)) {
            spans.insert(span.label.clone(), json!([span.start, span.end]));
        }
        let query = store.keys.iter().find(|span| span.is("query")).unwrap();
        spans.insert("the question".to_owned(), json!([query.start, query.end]));
        // The last position of the prompt is in no other span: it is where the answer's rows begin.
        assert!(query.end < n, "{name}");
        spans.insert("the answer".to_owned(), json!([n - 1, all.len()]));
        let target = |(i, token): (usize, &u32)| json!({"position": n - 1 + i, "token": token});
        let targets: Vec<_> = store.generated.iter().enumerate().map(target).collect();
        let file = json!({
            "tokens": all, "spans": spans, "rows": ["the question", "the answer"], "logits": 1,
            "measures": ["mass", "share", "value_norm", "output_norm"], "targets": targets
        });
        let (tokens, out) = (root.path().join("tokens.json"), root.path().join("out.safetensors"));
        std::fs::write(&tokens, file.to_string()).unwrap();
        let mut trace = command(["trace", "--allow-longer", "--model"]);
        trace.arg(fixture(name)).arg("--tokens").arg(&tokens).arg("--out").arg(&out);
        let done = ended(trace);
        assert_eq!(done.code, Some(0), "{name}: {}", done.err);
        let expected = candle_core::safetensors::load(&out, &candle_core::Device::Cpu).unwrap();
        let numbers = |key: &str| expected[key].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (layers, heads, rows, sessions) = found.mass.dim();
        // The trace has two spans more, and attribution a third: what is in none.
        let places: Vec<String> = spans.keys().cloned().collect();
        let place = |session: usize| places.iter().position(|label| *label == found.spans[session]).unwrap();
        let close = |what: &str, a: f32, b: f32| {
            assert!((a - b).abs() <= 2e-5 * b.abs().max(0.05), "{name}, {what}: {a} is not {b}");
        };
        let norms =
            [("mass", &found.mass), ("value_norm", &found.value_norm), ("output_norm", &found.output_norm)];
        for (key, values) in norms {
            let expected = numbers(key);
            for ((l, h, r, s), &value) in values.indexed_iter() {
                let at = ((l * heads + h) * rows + r) * places.len() + place(s);
                close(key, value, expected[at]);
            }
        }
        let share = numbers("share");
        for ((l, r, s), &value) in found.share.indexed_iter() {
            close("share", value, share[(l * rows + r) * places.len() + place(s)]);
        }
        let attribution = numbers("attribution");
        let width = places.len() + 1;
        for ((l, h, s), &value) in found.attribution.indexed_iter() {
            let of_target = |t: usize| attribution[((t * layers + l) * heads + h) * width + place(s)];
            let mean = (0..targets.len()).map(of_target).sum::<f32>() / targets.len() as f32;
            close("attribution", value, mean);
        }
        assert_eq!((rows, sessions), (2, found.spans.len()));
        assert!(found.attribution.iter().any(|x| x.abs() > 1e-4), "{name}");
    }
}

/// Spearman's correlation of numbers without ties, by its textbook form.
fn textbook(first: &[f64], second: &[f64]) -> f64 {
    let rank = |all: &[f64], x: f64| all.iter().filter(|other| **other < x).count() as f64;
    let n = first.len() as f64;
    let squares = first.iter().zip(second).map(|(a, b)| (rank(first, *a) - rank(second, *b)).powi(2));
    1.0 - 6.0 * squares.sum::<f64>() / (n * (n * n - 1.0))
}

#[test]
fn figures_of_causes_hold_the_numbers_of_their_definitions_and_the_page_says_them() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    caused("llama-tiny", 8, &dir, &[]);
    let drawn = ended({
        let mut figures = command(["figures"]);
        figures.arg(&dir);
        figures
    });
    assert_eq!(drawn.code, Some(0), "{}", drawn.err);

    // A point a session: its effect is what was measured, its mass the mean over layers and heads.
    let causes = read_causes(&dir).unwrap();
    let points = rows(&dir, "causes-points");
    assert_eq!(points.len(), causes.len());
    let stores = stores(&dir);
    type Answer = (Vec<f64>, Vec<Vec<f64>>, Vec<f64>, Vec<bool>);
    let mut by_case: BTreeMap<String, Vec<Answer>> = BTreeMap::new();
    for store in &stores {
        let measured = measures(&dir, store);
        let (layers, heads, ..) = measured.mass.dim();
        let own = |point: &&BTreeMap<String, String>| {
            (&point["case"], &point["probe"]) == (&store.case, &store.probe)
        };
        let mut effects = Vec::new();
        let mut masses = vec![Vec::new(); layers];
        let (mut overall, mut old) = (Vec::new(), Vec::new());
        for point in points.iter().filter(own) {
            let cause = causes.iter().find(|row| {
                (&row.case, &row.probe, &row.span) == (&store.case, &store.probe, &point["session"])
            });
            let effect: f64 = point["effect"].parse().unwrap();
            assert!((effect + cause.unwrap().effect.log_p).abs() < 1e-12);
            let s = measured.spans.iter().position(|span| *span == point["session"]).unwrap();
            let of_layer = |l: usize| {
                (0..heads).map(|h| f64::from(measured.mass[[l, h, 0, s]])).sum::<f64>() / heads as f64
            };
            let mean = (0..layers).map(of_layer).sum::<f64>() / layers as f64;
            assert!((point["mass"].parse::<f64>().unwrap() - mean).abs() < 1e-9);
            effects.push(effect);
            (0..layers).for_each(|l| masses[l].push(of_layer(l)));
            overall.push(mean);
            old.push(point["role"] == "old");
        }
        by_case.entry(store.case.clone()).or_default().push((effects, masses, overall, old));
    }
    let over_cases = |of: &dyn Fn(&Answer) -> f64| {
        let mean = |all: &Vec<Answer>| all.iter().map(of).sum::<f64>() / all.len() as f64;
        by_case.values().map(mean).sum::<f64>() / by_case.len() as f64
    };
    let by_layer = rows(&dir, "causes-ranks-by-layer");
    let layers = stores[0].layers.len();
    for l in 0..layers {
        let expected = over_cases(&|(effects, masses, ..)| textbook(&masses[l], effects));
        let row = by_layer.iter().find(|row| row["line"] == "mass" && row["layer"] == l.to_string()).unwrap();
        assert!(
            (row["mean"].parse::<f64>().unwrap() - expected).abs() < 1e-9,
            "layer {l}: {row:?}, not {expected}"
        );
        let (low, high): (f64, f64) = (row["lo"].parse().unwrap(), row["hi"].parse().unwrap());
        assert!(low <= expected && expected <= high && low < high);
    }
    let rank = |label: &str| {
        let rows = rows(&dir, "causes-ranks");
        rows.into_iter().find(|row| row["line"] == label).unwrap_or_else(|| panic!("no line {label}"))
    };
    let expected = over_cases(&|(effects, _, overall, _)| textbook(overall, effects));
    assert!((rank("mass from the question")["value"].parse::<f64>().unwrap() - expected).abs() < 1e-9);
    // Eight cases are enough for a fit on four and a look at the other four.
    assert_eq!(rank("ridge over heads (held out)")["n"], "8");

    let first_three = |values: &[f64], old: &[bool]| {
        let larger = |at: usize| values.iter().filter(|other| **other > values[at]).count();
        let playing: Vec<usize> = (0..old.len()).filter(|&at| old[at]).collect();
        playing.iter().filter(|&&at| larger(at) < 3).count() as f64 / playing.len() as f64
    };
    let found = rows(&dir, "causes-found");
    let line = |label: &str| found.iter().find(|row| row["group"] == "old" && row["line"] == label).unwrap();
    for (label, expected) in [
        ("mass from the question", over_cases(&|(_, _, overall, old)| first_three(overall, old))),
        ("effect itself", over_cases(&|(effects, _, _, old)| first_three(effects, old))),
    ] {
        assert!((line(label)["value"].parse::<f64>().unwrap() - expected).abs() < 1e-9, "{label}");
    }
    let chance = over_cases(&|(effects, ..)| 3.0 / effects.len() as f64);
    assert!((line("effect itself")["mark"].parse::<f64>().unwrap() - chance).abs() < 1e-9);

    // The page says it, with its caveat.
    let report = |dir: &Path| {
        let mut report = command(["report"]);
        report.arg(dir);
        ended(report)
    };
    assert_eq!(report(&dir).code, Some(0));
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    for words in [
        "What made it answer",
        "Does the mass tell the cause?",
        "Only direct paths were blocked",
        "id=\"causes-found\"",
    ] {
        assert!(page.contains(words), "{words}");
    }

    // A damaged file is named with its remedy.
    let file = measures_path(&dir, &stores[0].case, &stores[0].probe, "");
    std::fs::write(&file, b"nothing").unwrap();
    let refused = report(&dir);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("delete it and measure the causes again"), "{}", refused.err);
    std::fs::remove_file(&file).unwrap();
    let mut again = command(["causes"]);
    again.arg(&dir).arg("--model").arg(fixture("llama-tiny"));
    assert_eq!(ended(again).code, Some(0));
    assert_eq!(report(&dir).code, Some(0));
}

#[test]
fn windows_of_layers_have_a_figure_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    caused("llama-tiny", 2, &dir, &["--windows", "2"]);
    let mut figures = command(["figures"]);
    figures.arg(&dir);
    assert_eq!(ended(figures).code, Some(0));
    let causes = read_causes(&dir).unwrap();
    let drawn = rows(&dir, "causes-by-window");
    for row in drawn.iter().filter(|row| row["line"] == "new") {
        let layer: usize = row["layer"].parse().unwrap();
        let mut by_case: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let holds = |layers: [usize; 2]| (layers[0]..layers[1]).contains(&layer);
        for cause in
            causes.iter().filter(|row| row.role.as_deref() == Some("new") && row.layers.is_some_and(holds))
        {
            by_case.entry(&cause.case).or_default().push(-cause.effect.log_p);
        }
        let mean = |all: &Vec<f64>| all.iter().sum::<f64>() / all.len() as f64;
        let expected = by_case.values().map(mean).sum::<f64>() / by_case.len() as f64;
        assert!((row["mean"].parse::<f64>().unwrap() - expected).abs() < 1e-9, "layer {layer}");
    }
    assert!(drawn.iter().any(|row| row["line"] == "new"));
    assert!(!dir.join("figures/causes-points.svg").exists(), "no session was blocked at all layers");

    // Of each answer, its sessions in the history's order with their effects at a layer.
    type Sessions<'a> = Vec<(usize, &'a str, Option<&'a str>, f64)>;
    let sessions = |layer: usize| {
        let mut answers: BTreeMap<(&str, &str), Sessions<'_>> = BTreeMap::new();
        let holds = |layers: [usize; 2]| (layers[0]..layers[1]).contains(&layer);
        for row in causes.iter().filter(|row| row.layers.is_some_and(holds)) {
            let session = (row.tokens[0], row.span.as_str(), row.role.as_deref(), -row.effect.log_p);
            answers.entry((&row.case, &row.probe)).or_default().push(session);
        }
        answers.values_mut().for_each(|sessions| sessions.sort_by_key(|session| session.0));
        answers
    };
    // One case session by session, and the mean over cases at places of the history.
    let of_case = rows(&dir, "causes-map-case");
    let case = of_case[0]["case"].clone();
    assert!(of_case.iter().all(|row| row["case"] == case));
    let mut compared = 0;
    for row in &of_case {
        let answers = sessions(row["layer"].parse().unwrap());
        let all = &answers[&(row["case"].as_str(), row["probe"].as_str())];
        let own = all.iter().find(|session| session.1 == row["session"]).unwrap();
        assert_eq!(own.2.unwrap_or_default(), row["role"]);
        assert!((row["value"].parse::<f64>().unwrap() - own.3).abs() < 1e-12, "{row:?}");
        compared += 1;
    }
    let all: usize = causes.iter().filter(|row| row.case == case).map(|row| width(row.layers)).sum();
    assert_eq!(compared, all);
    let mean = rows(&dir, "causes-map-mean");
    let mut places = std::collections::BTreeSet::new();
    for row in &mean {
        let answers = sessions(row["layer"].parse().unwrap());
        let at = |all: &Sessions<'_>| -> Option<f64> {
            let of = |role: &str| all.iter().position(|session| session.2 == Some(role));
            let (old, new) = (of("old")?, of("new")?);
            let at = match row["place"].as_str() {
                "old" => Some(old),
                "new" => Some(new),
                "old_minus_1" => old.checked_sub(1),
                "new_plus_1" => Some(new + 1),
                _ => None,
            };
            Some(all.get(at?).filter(|session| at == Some(old) || at == Some(new) || session.2.is_none())?.3)
        };
        let values: Vec<f64> = (answers.iter())
            .filter(|((_, probe), _)| *probe == row["probe"])
            .filter_map(|(_, all)| at(all))
            .collect();
        if !values.is_empty() {
            let expected = values.iter().sum::<f64>() / values.len() as f64;
            assert!((row["value"].parse::<f64>().unwrap() - expected).abs() < 1e-9, "{row:?}");
            assert_eq!(row["n"], values.len().to_string(), "{row:?}");
            places.insert(row["place"].clone());
        }
    }
    assert!(places.contains("old") && places.contains("new") && places.len() > 2, "{places:?}");
    let mut page = command(["report"]);
    page.arg(&dir);
    assert_eq!(ended(page).code, Some(0));
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.contains("Through which layers answers take from one history"));

    // Windows of another width take their place.
    let mut wider = command(["causes", "--windows", "3", "--controls", "none"]);
    wider.arg(&dir).arg("--model").arg(fixture("llama-tiny"));
    let done = ended(wider);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let mut figures = command(["figures"]);
    figures.arg(&dir);
    assert_eq!(ended(figures).code, Some(0));
    let wide = read_causes(&dir).unwrap().into_iter().filter(|row| row.layers == Some([0, 3]));
    let wide: BTreeMap<_, _> = wide.map(|row| ((row.case, row.probe, row.span), -row.effect.log_p)).collect();
    for row in rows(&dir, "causes-map-case") {
        let own = wide[&(row["case"].clone(), row["probe"].clone(), row["session"].clone())];
        assert!((row["value"].parse::<f64>().unwrap() - own).abs() < 1e-12, "{row:?}");
    }
}

/// Layers of a window.
fn width(layers: Option<[usize; 2]>) -> usize {
    layers.map_or(0, |[start, end]| end - start)
}

#[test]
fn controls_are_given_to_the_sessions_that_are_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let effects = |controls: &str| {
        let dir = root.path().join(controls);
        // Room for stretches as long as the evidence.
        caused_within("16384", "llama-tiny", 1, &dir, &["--controls", controls]);
        read_causes(&dir).unwrap()
    };
    let [all, evidence, none] = ["all", "evidence", "none"].map(effects);
    // Of long sessions in a short history there may be no room for one.
    assert!(all.iter().any(|row| row.control.is_some() && row.role.is_none()));
    assert!(none.iter().all(|row| row.control.is_none()));
    assert!(evidence.iter().all(|row| row.role.is_some() || row.control.is_none()));
    assert!(evidence.iter().any(|row| row.control.is_some()));
    // The same sessions, the same effects, and of evidence the same controls.
    for ((all, evidence), none) in all.iter().zip(&evidence).zip(&none) {
        assert_eq!((&all.span, &all.case, &all.probe), (&none.span, &none.case, &none.probe));
        assert!((all.effect.log_p - none.effect.log_p).abs() < 1e-6);
        if evidence.role.is_some() {
            let tokens = |row: &CauseRow| row.control.map(|control| control.tokens);
            assert_eq!(tokens(all), tokens(evidence));
        }
    }
    let mut refused = command(["causes", "--total", "--controls", "none"]);
    refused.arg(root.path().join("all"));
    assert_eq!(ended(refused).code, Some(2));
}

#[test]
fn total_effects_stand_beside_the_direct_ones() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    caused("llama-tiny", 1, &dir, &[]);
    let mut total = command(["causes", "--total"]);
    total.arg(&dir).arg("--model").arg(fixture("llama-tiny"));
    let done = ended(total);
    assert_eq!(done.code, Some(0), "{}", done.err);
    for command_of in ["figures", "report"] {
        let mut drawn = command([command_of]);
        drawn.arg(&dir);
        assert_eq!(ended(drawn).code, Some(0));
    }
    let totals = read_totals(&dir).unwrap();
    let points = rows(&dir, "causes-points");
    assert!(!points.is_empty() && totals.len() == points.len(), "{} and {}", totals.len(), points.len());
    for point in &points {
        let own = totals.iter().find(|row| {
            (&row.case, &row.probe, &row.span) == (&point["case"], &point["probe"], &point["session"])
        });
        let found: f64 = point["total_effect"].parse().unwrap();
        assert!((found + own.unwrap().total.log_p).abs() < 1e-12, "{point:?}");
    }
    let mean = |role: &str| {
        let of_role: Vec<f64> = totals
            .iter()
            .filter(|row| row.role.as_deref() == Some(role))
            .map(|row| -row.total.log_p)
            .collect();
        of_role.iter().sum::<f64>() / of_role.len() as f64
    };
    let drawn = rows(&dir, "causes-effects");
    let line = drawn.iter().find(|row| row["line"] == "old, removed").unwrap();
    assert!((line["value"].parse::<f64>().unwrap() - mean("old")).abs() < 1e-9);
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.contains("the total effect, in which indirect paths count"));
}
