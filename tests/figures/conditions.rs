//! Conditions of one run: separate files, side by side, compared, and all on the page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use palimpsest::benchmarks::ALL;
use palimpsest::figures::{self, Section, overview};
use palimpsest::lens::band::Estimate;
use palimpsest::lens::{LensError, Numbers, Options, Study, table};
use palimpsest::runs::rows::AnswerRow;
use palimpsest_core::attention::AttentionStore;
use serde_json::{Value, json};

use super::palimpsest;
use crate::cli::done;
use crate::synthetic_run::{self as synthetic, Plan};

const BLOCKED: &str = "knockout-query-old-1-3";
/// Not measured under the knock-out.
const MISSING: (&str, &str) = ("case-002", "SR");

type Row = BTreeMap<String, String>;

/// A synthetic run with plain, knock-out and repetition conditions: blocked rows have half the mass on `old` at layers 1 and 2.
fn write(dir: &Path) {
    synthetic::write(dir, &Plan::small());
    let header = dir.join("run.json");
    let mut run: Value = serde_json::from_str(&std::fs::read_to_string(&header).unwrap()).unwrap();
    run["identity"]["conditions"] = json!([
        { "name": "" },
        { "name": "repeat-2", "repetition": 1 },
        { "name": BLOCKED, "knockout": "query->old@1..3" },
    ]);
    // The header holds the digest of its identity.
    let identity = serde_json::from_value(run["identity"].clone()).unwrap();
    let machine = serde_json::from_value(run["machine"].clone()).unwrap();
    let run = palimpsest::runs::header::RunHeader::new(identity, None, machine);
    std::fs::write(&header, serde_json::to_string(&run).unwrap()).unwrap();
    let (answers, verdicts) = (dir.join("answers.jsonl"), dir.join("verdicts.jsonl"));
    let plain = std::fs::read_to_string(&answers).unwrap();
    let mut all = plain.clone();
    for row in plain.lines() {
        let plain: AnswerRow = serde_json::from_str(row).unwrap();
        for condition in ["repeat-2", BLOCKED] {
            let mut row = AnswerRow { condition: condition.to_owned(), ..plain.clone() };
            let missing = condition == BLOCKED && (&*row.case, &*row.probe) == MISSING;
            if let Some(file) = row.attention.take().filter(|_| !missing) {
                let mut store = AttentionStore::load(&dir.join(&file)).unwrap();
                let old = store.keys.iter().position(|key| key.is("old")).unwrap();
                for layer in if condition == BLOCKED { 1..3 } else { 0..0 } {
                    for head in 0..store.mass.dim().1 {
                        store.mass[[layer, head, 1, old]] *= 0.5;
                    }
                }
                store.condition = condition.to_owned();
                let file = file.replace(".safetensors", &format!("-{condition}.safetensors"));
                store.save(&dir.join(&file)).unwrap();
                row.attention = Some(file);
            }
            all += &format!("{}\n", serde_json::to_value(&row).unwrap());
        }
    }
    std::fs::write(answers, all).unwrap();
    let plain = std::fs::read_to_string(&verdicts).unwrap();
    let mut all = plain.clone();
    for row in plain.lines() {
        let mut row: Value = serde_json::from_str(row).unwrap();
        row["condition"] = json!(BLOCKED);
        all += &format!("{row}\n");
    }
    std::fs::write(verdicts, all).unwrap();
}

fn options() -> Options {
    Options::default()
}

fn study(dir: &Path, conditions: &[&str]) -> Study {
    let conditions: Vec<String> = conditions.iter().map(|name| (*name).to_owned()).collect();
    Study::open(dir, &conditions, &options()).unwrap()
}

fn rows(table: &[u8]) -> Vec<Row> {
    csv::Reader::from_reader(table).deserialize().map(Result::unwrap).collect()
}

/// File contents of a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let named = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    entries.filter(|entry| entry.path().is_file()).map(named).collect()
}

#[test]
fn two_conditions_never_share_a_file_and_every_figure_names_its_own() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let (out, lens) = (dir.path().join("figures"), dir.path().join("lens"));
    let mut before: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut drawn = 0;
    for (name, asked) in [("plain", &["plain"][..]), (BLOCKED, &[BLOCKED]), ("repeat-2", &["repeat-2"])] {
        let study = study(dir.path(), asked);
        let made = figures::draw_study(&study);
        assert!(made.len() > 10);
        for figure in &made {
            assert!(figure.name.starts_with(&format!("{name}-")), "{}", figure.name);
            assert!(figure.title.starts_with(&format!("{name}: ")), "{}: {}", figure.name, figure.title);
            assert!(
                figure.svg.contains(&format!("{name}: ")),
                "{}: the picture lacks its condition",
                figure.name
            );
            assert!(figure.caption.contains(&format!("Condition: {name}: ")), "{}", figure.caption);
            let conditions: BTreeSet<String> =
                rows(&figure.csv).into_iter().map(|row| row["condition"].clone()).collect();
            assert_eq!(conditions, BTreeSet::from([name.to_owned()]), "{}", figure.name);
        }
        drawn += made.len();
        figures::write(&made, &out).unwrap();
        for path in table::write_study(&study, &lens).unwrap() {
            assert!(path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{name}-")), "{path:?}");
            let table = rows(&std::fs::read(&path).unwrap());
            assert!(!table.is_empty() && table.iter().all(|row| row["condition"] == name), "{path:?}");
        }
        let now: BTreeMap<String, Vec<u8>> = files(&out).into_iter().chain(files(&lens)).collect();
        for (file, bytes) in before.iter().filter(|(file, _)| *file != "captions.json") {
            assert!(now.get(file) == Some(bytes), "{name} changed {file}");
        }
        before = now;
    }
    let captions: BTreeMap<String, Value> = serde_json::from_slice(&before["captions.json"]).unwrap();
    assert_eq!(captions.len(), drawn, "the captions of all that lies there are kept");
    std::fs::remove_file(out.join("repeat-2-strip-mean-mass.svg")).unwrap();
    figures::write(&[], &out).unwrap();
    let captions: BTreeMap<String, Value> = serde_json::from_slice(&files(&out)["captions.json"]).unwrap();
    assert!(captions.len() == drawn - 1 && !captions.contains_key("repeat-2-strip-mean-mass"));
}

#[test]
fn conditions_are_drawn_side_by_side_and_tables_tell_their_rows_apart() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let made = figures::draw_study(&study(dir.path(), &[]));
    let names: BTreeSet<&str> = made.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names.len(), made.len());
    assert!(names.iter().all(|name| !name.contains("repeat-2")), "a repetition is drawn where it is named");
    let both = made.iter().find(|figure| figure.name == "curves-by-type-mass").unwrap();
    for name in ["plain", BLOCKED] {
        assert!(both.svg.contains(&format!("{name} · ")), "panels name their condition");
        assert!(names.contains(&*format!("{name}-curves-by-type-mass")));
        let of = |figure: &str| {
            let figure = made.iter().find(|one| one.name == figure).unwrap();
            let mut rows = rows(&figure.csv);
            rows.retain(|row| row["condition"] == name);
            let values =
                rows.iter().map(|row| (row["statistic"].clone(), row["layer"].clone(), row["mean"].clone()));
            values.collect::<Vec<_>>()
        };
        assert_eq!(of("curves-by-type-mass"), of(&format!("{name}-curves-by-type-mass")));
    }
    assert!(!both.caption.contains("Panels of different models"), "{}", both.caption);
}

/// Mass from the query to the session with this role, averaged over heads, straight from the store.
fn paid(dir: &Path, condition: &str, case: usize, probe: &str, role: &str, layer: usize) -> Option<f64> {
    let end = if condition.is_empty() { String::new() } else { format!("-{condition}") };
    let store =
        AttentionStore::load(&dir.join(format!("attention/case-{case:03}-{probe}{end}.safetensors"))).ok()?;
    let key = store.keys.iter().position(|key| key.is(role)).unwrap();
    let heads = store.mass.dim().1;
    Some((0..heads).map(|head| f64::from(store.mass[[layer, head, 1, key]])).sum::<f64>() / heads as f64)
}

#[test]
fn a_difference_is_over_the_questions_measured_under_both_and_its_interval_is_of_their_differences() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let study = study(dir.path(), &[]);
    let made = figures::draw_differences(&study);
    let names: Vec<&str> = made.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names, ["against-mass", "difference-mass", "against-density", "difference-density"]);
    assert!(made[1].title.contains(BLOCKED) && made[1].caption.contains("less plain"), "{}", made[1].caption);
    let table = rows(&made[1].csv);
    for layer in 0..Plan::small().layers {
        for (curve, role) in [("query_to_old", "old"), ("query_to_new", "new")] {
            let row =
                table.iter().find(|row| row["curve"] == curve && row["layer"] == layer.to_string()).unwrap();
            assert_eq!((&*row["condition_a"], &*row["condition_b"]), ("plain", BLOCKED));
            // By case: SR and IPA are pooled; of case 2 only IPA was measured under both.
            let (mut means, mut pairs) = (Vec::new(), 0);
            for case in 0..Plan::small().cases {
                let both: Vec<(f64, f64)> = ["SR", "IPA"]
                    .into_iter()
                    .filter_map(|probe| {
                        let of = |condition| paid(dir.path(), condition, case, probe, role, layer);
                        Some((of("")?, of(BLOCKED)?))
                    })
                    .collect();
                pairs += both.len();
                let mean = |of: fn(&(f64, f64)) -> f64| both.iter().map(of).sum::<f64>() / both.len() as f64;
                means.push([mean(|pair| pair.0), mean(|pair| pair.1), mean(|pair| pair.1 - pair.0)]);
            }
            assert_eq!((row["n"].parse(), row["questions"].parse()), (Ok(means.len()), Ok(pairs)));
            assert_eq!((means.len(), pairs), (6, 11));
            let mean = |at: usize| means.iter().map(|one| one[at]).sum::<f64>() / means.len() as f64;
            let near = |column: &str, expected: f64| {
                let found: f64 = row[column].parse().unwrap();
                assert!((found - expected).abs() < 1e-9, "{curve} {layer} {column}: {found}, not {expected}");
            };
            for (at, column) in ["mean_a", "mean_b", "difference"].into_iter().enumerate() {
                near(column, mean(at));
            }
            assert_eq!(
                mean(2) < 0.0,
                role == "old" && [1, 2].contains(&layer),
                "only what was blocked changes"
            );
            match Estimate::mean(means.iter().map(|one| one[2]), Numbers::Signed).band {
                Some((low, high)) => {
                    near("low", low);
                    near("high", high);
                }
                // No change in any case.
                None => assert!(means.iter().all(|one| one[2] == means[0][2]) && row["low"].is_empty()),
            }
        }
    }
    let lens = table::write_study(&study, &dir.path().join("lens")).unwrap();
    let kept = lens.iter().find(|path| path.ends_with("differences.csv")).unwrap();
    let kept = rows(&std::fs::read(kept).unwrap());
    assert_eq!(kept.iter().filter(|row| row["scale"] == "mass").count(), table.len());
    let one = figures::draw_differences(&self::study(dir.path(), &["plain"]));
    assert!(one.is_empty(), "one condition has nothing to differ from");
}

#[test]
fn the_page_shows_all_conditions_and_says_what_they_do() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let study = Study::whole(&ALL, dir.path(), &options()).unwrap();
    let mut sections = figures::draw_sections(&study);
    let against = figures::draw_differences(&study);
    sections.push(Section { heading: Some("Against".to_owned()), figures: against, ..Section::default() });
    let page = overview::html(&study, &sections, None).unwrap();
    for part in [
        "<h2 id=\"conditions\">Conditions</h2>",
        "Each question shown the whole history",
        "The same as plain once more (time 2)",
        "\u{201c}old\u{201d} is hidden from every token",
        "it puts the same questions again, which are attended to in the same way",
        "<h3 class=\"under\">Condition plain</h3>",
        "<h3 class=\"under\">Condition knockout-query-old-1-3</h3>",
        "<h3>plain</h3>",
        "<th scope=\"row\">repeat-2</th>",
        "id=\"difference-mass\"",
        "id=\"knockout-query-old-1-3-strip-mean-mass\"",
    ] {
        assert!(page.contains(part), "{part} is not on the page");
    }
    let ids: Vec<&str> =
        page.split("<figure id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
}

#[test]
fn plain_is_typed_like_any_other_name_and_unknown_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let run = |arguments: &[&str]| done(palimpsest(arguments, dir.path()));
    run(&["lens", "--condition", "plain"]);
    run(&["lens", "--condition", BLOCKED]);
    let both = format!("plain,{BLOCKED}");
    run(&["figures", "--difference", "--condition", &both]);
    run(&["figures", "--condition", "plain"]);
    run(&["report"]);
    let whole = std::fs::read(dir.path().join("report.html")).unwrap();
    run(&["report", "--condition", "plain"]);
    assert!(
        whole == std::fs::read(dir.path().join("report.html")).unwrap(),
        "the page of all conditions stays"
    );
    for file in [
        "lens/plain-curves.csv",
        "lens/knockout-query-old-1-3-curves.csv",
        "figures/difference-mass.svg",
        "figures/plain-strip-mean-mass.png",
        "figures/knockout-query-old-1-3-curves-by-split-mass.csv",
        "report.html",
        "plain-report.html",
    ] {
        assert!(dir.path().join(file).is_file(), "{file}");
    }
    assert!(!dir.path().join("lens/curves.csv").exists());
    let refused = |arguments: &[&str]| {
        let ended = palimpsest(arguments, dir.path());
        assert_ne!(ended.code, Some(0), "{}", ended.out);
        ended.err
    };
    let alone = refused(&["figures", "--difference", "--condition", "plain"]);
    assert!(alone.contains("--difference needs two conditions") && alone.contains("--knockout"), "{alone}");
    let unknown = refused(&["figures", "--condition", "oracle"]);
    assert!(unknown.contains("`oracle`") && unknown.contains("plain, repeat-2"), "{unknown}");
    // Without a plain condition there is no default.
    let bare = tempfile::tempdir().unwrap();
    synthetic::write(bare.path(), &Plan::small());
    let error = Study::open(bare.path(), &[BLOCKED.to_owned()], &options()).unwrap_err();
    assert!(matches!(error, LensError::Run(_)), "{error}");
    assert_eq!(study(bare.path(), &["plain"]).selection.prefix, "");
}
