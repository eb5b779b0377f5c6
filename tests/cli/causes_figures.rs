//! Does attention mass predict causal effect? Figures, tables and printed text of a run's causes against plain definitions.
use std::collections::BTreeMap;

use palimpsest::runs::causes::rows::{CauseRow, CauseRows};
use palimpsest::runs::causes::session_measures::{SessionMeasures, measures_file};
use palimpsest::runs::rows::AnswerKey;
use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::AttentionStore;
use serde_json::json;

use super::knockouts::{fixture, think};
use super::*;

/// Sliding windows beside full attention, a gate and linear layers, sinks.
const MODELS: [&str; 4] = ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny", "gpt-oss-tiny"];

/// A run of some sample cases by a tiny model, with causes measured.
pub(super) fn caused(name: &str, cases: usize, dir: &Path, more: &[&str]) {
    caused_within("4096", name, cases, dir, more);
}

pub(super) fn caused_within(context: &str, name: &str, cases: usize, dir: &Path, more: &[&str]) {
    caused_behind(0, context, name, cases, dir, more);
}

/// Same, with `thought` thought tokens before each answer.
fn caused_behind(thought: usize, context: &str, name: &str, cases: usize, dir: &Path, more: &[&str]) {
    let mut run = command(["run", "--data", "sample", "--context", context, "--max-new-tokens", "6"]);
    run.args(["--allow-longer", "--limit", &cases.to_string(), "--model"]).arg(fixture(name));
    run.arg("--out").arg(dir);
    let done = ended(run);
    assert_eq!(done.code, Some(0), "{name}: {}", done.err);
    think(dir, thought);
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
    SessionMeasures::open(dir, &measures_file(Measure::LogP, AnswerKey::of_store(store))).unwrap()
}

pub(super) fn rows(dir: &Path, figure: &str) -> Vec<BTreeMap<String, String>> {
    let mut csv = csv::Reader::from_path(dir.join(format!("figures/{figure}.csv"))).unwrap();
    csv.deserialize().map(Result::unwrap).collect()
}

#[test]
fn what_is_read_of_each_session_is_what_the_raw_instrument_says() {
    let root = tempfile::tempdir().unwrap();
    // The answer's rows and targets come after a thought, which has its own row.
    let models = crate::left_out::few_or_all(&MODELS[3..], &MODELS);
    let thinking = models.iter().map(|&name| (name, 0)).chain([("llama-tiny", 2)]);
    for (name, thought) in thinking {
        let dir = root.path().join(format!("{name}-{thought}"));
        caused_behind(thought, "4096", name, 1, &dir, &[]);
        let store = stores(&dir).remove(0);
        assert_eq!(store.thought(), thought);
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
        // The last prompt position is in no other span: the answer's rows begin there.
        assert!(query.end < n, "{name}");
        let first = n - 1 + thought;
        spans.insert("the answer".to_owned(), json!([first, all.len()]));
        let mut rows = vec!["the question", "the answer"];
        if thought > 0 {
            spans.insert("the thought".to_owned(), json!([n - 1, first]));
            rows.push("the thought");
        }
        let target = |(i, token): (usize, &u32)| json!({"position": first + i, "token": token});
        let targets: Vec<_> = store.generated[thought..].iter().enumerate().map(target).collect();
        let file = json!({
            "tokens": all, "spans": spans, "rows": rows, "logits": 1,
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
        // The trace has the row spans too; attribution has one more span for the remaining tokens.
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
        assert_eq!((rows, sessions), (if thought > 0 { 3 } else { 2 }, found.spans.len()));
        assert_eq!(
            found.rows.last().map(String::as_str),
            Some(if thought > 0 { "thought" } else { "answer" })
        );
        assert!(found.attribution.iter().any(|x| x.abs() > 1e-4), "{name}");
    }
}

#[test]
fn measures_of_the_older_format_are_refused_and_made_anew() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    caused("llama-tiny", 1, &dir, &["--controls", "0"]);
    let store = stores(&dir).remove(0);
    let name = measures_file(Measure::LogP, AnswerKey::of_store(&store));
    let path = dir.join(&name);
    let whole = std::fs::read(&path).unwrap();
    let (now, before) = (&b"session measures 2"[..], &b"session measures 1"[..]);
    let at = whole.windows(now.len()).position(|window| window == now).unwrap();
    let older = [&whole[..at], before, &whole[at + now.len()..]].concat();
    std::fs::write(&path, older).unwrap();
    let error = SessionMeasures::open(&dir, &name).unwrap_err().to_string();
    assert!(error.contains("measures 1") && error.contains("measure the causes again"), "{error}");
    let mut again = command(["causes", "--controls", "0"]);
    again.arg(&dir).arg("--model").arg(fixture("llama-tiny"));
    assert_eq!(ended(again).code, Some(0));
    assert!(std::fs::read(&path).unwrap() == whole);
}

/// Textbook Spearman correlation of values without ties.
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

    // One point per session: the measured effect, and the mass averaged over layers and heads.
    let causes = CauseRows::read(&dir).unwrap().blocked;
    let points = rows(&dir, "causes-points");
    assert_eq!(points.len(), causes.len());
    let controls = CauseRows::read(&dir).unwrap().controls;
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
                (&row.answer.case, &row.answer.probe, &row.span)
                    == (&store.case, &store.probe, &point["session"])
            });
            let cause = cause.unwrap();
            let number = |column: &str| point[column].parse::<f64>().unwrap();
            let effect = number("effect");
            assert!((effect - cause.effect.log_p_drop).abs() < 1e-12);
            assert!((number("kl") - cause.effect.kl).abs() < 1e-12);
            assert!((number("kl_answer") - cause.effect.kl_answer).abs() < 1e-12);
            match control_of(cause, &controls) {
                Some(control) => assert!((number("control") - control).abs() < 1e-12, "{point:?}"),
                None => assert_eq!(point["control"], ""),
            }
            let s = measured.spans.iter().position(|span| *span == point["session"]).unwrap();
            let of_layer = |l: usize| {
                (0..heads).map(|h| f64::from(measured.mass[[l, h, 0, s]])).sum::<f64>() / heads as f64
            };
            let mean = (0..layers).map(of_layer).sum::<f64>() / layers as f64;
            assert!((number("mass") - mean).abs() < 1e-9);
            // For norms, the mean over layers of the session's share of the norm of all sessions.
            for (column, norm) in
                [("value_norm", &measured.value_norm), ("output_norm", &measured.output_norm)]
            {
                let over_heads =
                    |l: usize, s: usize| (0..heads).map(|h| f64::from(norm[[l, h, 0, s]])).sum::<f64>();
                let of_layer = |l: usize| {
                    over_heads(l, s) / (0..measured.spans.len()).map(|s| over_heads(l, s)).sum::<f64>()
                };
                let expected = (0..layers).map(of_layer).sum::<f64>() / layers as f64;
                assert!((number(column) - expected).abs() < 1e-9, "{column} of {point:?}, not {expected}");
            }
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
    // Eight cases: fit on four, evaluate on the other four.
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

    // Means by role, beside length-matched controls of the same sessions, over cases that have one.
    let by_role = |role: &str, of: &dyn Fn(&CauseRow) -> Option<f64>| {
        let mut cases: BTreeMap<&str, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
        for row in causes.iter().filter(|row| row.role.as_deref().unwrap_or("others") == role) {
            let probes = cases.entry(&row.answer.case).or_default();
            if let Some(value) = of(row) {
                probes.entry(&row.answer.probe).or_default().push(value);
            }
        }
        cases.retain(|_, probes| !probes.is_empty());
        let mean = |all: Vec<f64>| all.iter().sum::<f64>() / all.len() as f64;
        let of_case = |probes: &BTreeMap<&str, Vec<f64>>| mean(probes.values().cloned().map(mean).collect());
        (mean(cases.values().map(of_case).collect()), cases.len().to_string())
    };
    let line_of = |figure: &str, group: &str, label: &str| {
        let all = rows(&dir, figure);
        let found = all.into_iter().find(|row| row["group"] == group && row["line"] == label);
        found.unwrap_or_else(|| panic!("{figure} has no line {label}"))
    };
    for role in ["old", "new", "others"] {
        let (first, all) = ("first token of the answer", "all tokens of the answer, mean");
        let expected = [
            ("causes-effects", "", role.to_owned(), by_role(role, &|row| Some(row.effect.log_p_drop))),
            (
                "causes-effects",
                "",
                format!("{role}, control of the same length"),
                by_role(role, &|row| control_of(row, &controls)),
            ),
            ("causes-kl", first, role.to_owned(), by_role(role, &|row| Some(row.effect.kl))),
            ("causes-kl", all, role.to_owned(), by_role(role, &|row| Some(row.effect.kl_answer))),
        ];
        for (figure, group, label, (mean, n)) in expected {
            let line = line_of(figure, group, &label);
            assert!(
                (line["value"].parse::<f64>().unwrap() - mean).abs() < 1e-9,
                "{figure}, {label}: {line:?}"
            );
            assert_eq!(line["n"], n, "{figure}, {label}");
        }
    }

    // Sessions with the largest effects, by name.
    let mut largest: Vec<&CauseRow> = causes.iter().collect();
    largest.sort_by(|a, b| b.effect.log_p_drop.abs().total_cmp(&a.effect.log_p_drop.abs()));
    let drawn = rows(&dir, "causes-largest");
    assert_eq!(drawn.len(), 12);
    for (row, expected) in drawn.iter().zip(&largest) {
        assert_eq!(
            (&row["case"], &row["probe"], &row["session"]),
            (&expected.answer.case, &expected.answer.probe, &expected.span)
        );
        assert!((row["effect"].parse::<f64>().unwrap() - expected.effect.log_p_drop).abs() < 1e-12);
    }
    let span = largest[0].span.replace('[', " ").replace(']', "");
    let named = format!("{span} of {}, {}", largest[0].answer.case, largest[0].answer.probe);
    let svg = std::fs::read_to_string(dir.join("figures/causes-largest.svg")).unwrap();
    assert!(svg.contains(&named), "{named}");

    // The report shows it with its caveat.
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
        &format!("The largest effects: {named}"),
        "at the answer&#x27;s first token and over all its tokens (mean)",
        "measured on the half that did not choose",
    ] {
        assert!(page.contains(words), "{words}");
    }

    // The layers with the largest loss are chosen on half of the eight cases and measured on the other half.
    let mut windows = command(["causes", "--windows", "1", "--controls", "0"]);
    windows.arg(&dir).arg("--model").arg(fixture("llama-tiny"));
    assert_eq!(ended(windows).code, Some(0));
    assert_eq!(report(&dir).code, Some(0));
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    let chosen = "By windows of 1 layer, chosen on one half of the cases and measured on the other, both ways, an answer loses most";
    assert!(page.contains(&format!("{chosen} without the old session at layer ")), "{page}");

    // The error on a damaged file names it and the remedy.
    let file = dir.join(measures_file(Measure::LogP, AnswerKey::of_store(&stores[0])));
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
    let causes = CauseRows::read(&dir).unwrap().blocked;
    let drawn = rows(&dir, "causes-by-window");
    for row in drawn.iter().filter(|row| row["line"] == "new") {
        let layer: usize = row["layer"].parse().unwrap();
        let mut by_case: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let holds = |layers: [usize; 2]| (layers[0]..layers[1]).contains(&layer);
        for cause in
            causes.iter().filter(|row| row.role.as_deref() == Some("new") && row.layers.is_some_and(holds))
        {
            by_case.entry(&cause.answer.case).or_default().push(cause.effect.log_p_drop);
        }
        let mean = |all: &Vec<f64>| all.iter().sum::<f64>() / all.len() as f64;
        let expected = by_case.values().map(mean).sum::<f64>() / by_case.len() as f64;
        assert!((row["mean"].parse::<f64>().unwrap() - expected).abs() < 1e-9, "layer {layer}");
    }
    assert!(drawn.iter().any(|row| row["line"] == "new"));
    assert!(!dir.join("figures/causes-points.svg").exists(), "no session was blocked at all layers");

    // Per answer: sessions in history order with their effects at a layer.
    type Sessions<'a> = Vec<(usize, &'a str, Option<&'a str>, f64)>;
    let sessions = |layer: usize| {
        let mut answers: BTreeMap<(&str, &str), Sessions<'_>> = BTreeMap::new();
        let holds = |layers: [usize; 2]| (layers[0]..layers[1]).contains(&layer);
        for row in causes.iter().filter(|row| row.layers.is_some_and(holds)) {
            let session = (row.tokens[0], row.span.as_str(), row.role.as_deref(), row.effect.log_p_drop);
            answers.entry((&row.answer.case, &row.answer.probe)).or_default().push(session);
        }
        answers.values_mut().for_each(|sessions| sessions.sort_by_key(|session| session.0));
        answers
    };
    // One case by session, and the mean over cases by position in the history.
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
    let all: usize = causes.iter().filter(|row| row.answer.case == case).map(|row| width(row.layers)).sum();
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
    assert!(page.contains("Effects of one history by layers"));
    // Two cases are too few to choose layers, and the report says so.
    assert!(page.contains("Windows of 2 layers were blocked for 2 cases: with fewer than 8"), "{page}");
    let captions = std::fs::read_to_string(dir.join("figures/captions.json")).unwrap();
    assert!(captions.contains("blocked at 2 layers at a time"));
    // Columns use the span numbers: some sessions were dropped to fit the context.
    let spans: std::collections::BTreeSet<&str> = of_case.iter().map(|row| row["session"].as_str()).collect();
    let svg = std::fs::read_to_string(dir.join("figures/causes-map-case.svg")).unwrap();
    let numbers: Vec<&str> =
        spans.iter().map(|span| span.trim_start_matches("session[").trim_end_matches(']')).collect();
    assert!(numbers.iter().any(|number| number.parse::<usize>().unwrap() >= numbers.len()), "{numbers:?}");
    for number in numbers {
        assert!(svg.lines().any(|line| line.trim() == number), "session[{number}] has no column");
    }

    // Windows of another width replace them.
    let mut wider = command(["causes", "--windows", "3", "--controls", "0"]);
    wider.arg(&dir).arg("--model").arg(fixture("llama-tiny"));
    let done = ended(wider);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let mut figures = command(["figures"]);
    figures.arg(&dir);
    assert_eq!(ended(figures).code, Some(0));
    let wide = CauseRows::read(&dir).unwrap().blocked.into_iter().filter(|row| row.layers == Some([0, 3]));
    let wide: BTreeMap<_, _> =
        wide.map(|row| ((row.answer.case, row.answer.probe, row.span), row.effect.log_p_drop)).collect();
    for row in rows(&dir, "causes-map-case") {
        let own = wide[&(row["case"].clone(), row["probe"].clone(), row["session"].clone())];
        assert!((row["value"].parse::<f64>().unwrap() - own).abs() < 1e-12, "{row:?}");
    }
}

/// Number of layers in a window.
fn width(layers: Option<[usize; 2]>) -> usize {
    layers.map_or(0, |[start, end]| end - start)
}

/// Reference control of a session: the median effect of the five non-overlapping controls nearest in log length, and of those as near as
/// the fifth.
pub(super) fn control_of(row: &CauseRow, controls: &[CauseRow]) -> Option<f64> {
    let log = |[start, end]: [usize; 2]| ((end - start) as f64).ln();
    let far = |control: &CauseRow| (log(control.tokens) - log(row.tokens)).abs();
    let mut own: Vec<&CauseRow> = (controls.iter())
        .filter(|c| {
            (&c.answer.case, &c.answer.probe, c.layers) == (&row.answer.case, &row.answer.probe, row.layers)
        })
        .filter(|c| c.tokens[1] <= row.tokens[0] || row.tokens[1] <= c.tokens[0])
        .collect();
    own.sort_by(|a, b| far(a).total_cmp(&far(b)));
    let fifth = far(own.get(4).or(own.last())?);
    let mut effects: Vec<f64> = own.iter().filter(|c| far(c) <= fifth).map(|c| c.effect.log_p_drop).collect();
    effects.sort_by(f64::total_cmp);
    let n = effects.len();
    Some((effects[(n - 1) / 2] + effects[n / 2]) / 2.0)
}
