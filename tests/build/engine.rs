//! The engine of builds: yields, resumption, shards, local models.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use palimpsest::builds::stage_file::{Attempt, Line, Outcome, attempts, outcomes, read};
use serde_json::Value;

use super::endpoint::Erring;
use crate::cli::resume::{interrupt, signal};
use crate::cli::{Ended, assert_same_files, command, done, ended, files, palimpsest, shown};

/// The replies to a row's attempts, and its outcome. No three rows that end in errors stand together, and none ends a shard.
const SCRIPT: [(&str, &str); 18] = [
    ("fine", "accepted"),
    ("prose", "accepted"),
    ("broken wrong fine", "accepted"),
    ("wrong", "schema"),
    ("refuse fine", "accepted"),
    ("refuse", "error"),
    ("filter", "refused"),
    ("busy", "accepted"),
    ("repeat repeat fine", "accepted"),
    ("repeat", "check distinct"),
    ("empty", "empty"),
    ("cut", "cut"),
    ("contradict", "judge implicit"),
    ("undecided", "judge plausible"),
    ("late", "error"),
    ("odd contradict fine", "accepted"),
    ("twice", "schema"),
    ("fine", "accepted"),
];

/// A spec over rows; its last stage is never run, since these rows are no data of a benchmark.
pub(super) fn spec(rows: &[(String, &str)]) -> String {
    let mut text = "kind = \"stale\"\nseed = 3\nlicence = \"CC0-1.0\"\n".to_owned();
    for (name, does) in rows {
        text += &format!("[[tables.things]]\nname = \"{name}\"\ndoes = \"{does}\"\n");
    }
    text + r#"
[[stage]]
name = "facts"
rows = ["things"]
checks = [{ check = "distinct", fields = ["fact", "value"] }]
[stage.ask]
of = "generator"
system = "You write facts."
template = "Row {{ name }}: {{ does }} / {{ failures | length }}"
schema = { type = "object", properties = { fact = { type = "string" }, value = { type = "string" } }, required = ["fact", "value"] }
[[stage.judge]]
name = "plausible"
accept = "verdict == 'yes'"
ask = { of = "checker", template = "Judge plausible: {{ fact }}", schema = { type = "object", properties = { verdict = { enum = ["yes", "no"] } }, required = ["verdict"] } }
[[stage.judge]]
name = "implicit"
accept = "verdict == 'yes'"
ask = { of = "checker", template = "Judge implicit: {{ fact }}", schema = { type = "object", properties = { verdict = { enum = ["yes", "no"] } }, required = ["verdict"] } }

[[stage]]
name = "lines"
rows = ["facts"]
times = 2
ask = { of = "generator", template = "Line of {{ name }}", temperature = 0.7, into = "line" }
[stage.steps]
into = "lines"
most = 3
until = "lines | length == copy + 1"

[[stage]]
name = "even"
rows = ["lines"]
checks = [{ check = "holds", expression = "copy == 0" }]

[[stage]]
name = "rest"
rows = ["even"]
"#
}

pub(super) fn named(script: &[(&'static str, &str)]) -> Vec<(String, &'static str)> {
    script.iter().enumerate().map(|(nth, (does, _))| (format!("r{nth}"), *does)).collect()
}

pub(super) fn write_spec(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("spec.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// A build up to the stage before the last one.
pub(super) fn build(spec: &Path, out: &Path, server: &Erring, more: &[&str]) -> Command {
    let address = server.address();
    let mut command = command(["build", "stale", shown(spec), "--out", shown(out), "--model", &address]);
    command.args(["--one-model", "--until", "even", "--retries", "1"]).args(more);
    command
}

pub(super) fn lines(dir: &Path, file: &str) -> Vec<Line> {
    read(dir, &format!("stages/{file}.jsonl")).unwrap()
}

pub(super) fn outcomes_of(dir: &Path, file: &str) -> BTreeMap<String, Outcome> {
    outcomes(&lines(dir, file)).map(|outcome| (outcome.id.clone(), outcome.clone())).collect()
}

#[test]
fn yields_equal_what_the_endpoints_script_says() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let (path, out) = (write_spec(root.path(), &spec(&named(&SCRIPT))), root.path().join("built"));
    let told = done(ended(build(&path, &out, &server, &[])));
    let stage = lines(&out, "01-facts");
    for (nth, (does, expected)) in SCRIPT.iter().enumerate() {
        let id = format!("r{nth}");
        let outcome = &outcomes_of(&out, "01-facts")[&id];
        let of_row: Vec<&Attempt> = attempts(&stage).filter(|attempt| attempt.row == id).collect();
        let found = outcome.rejected.first().map_or("accepted", |rejected| &rejected.reason);
        assert_eq!(found, *expected, "{does}");
        assert_eq!(outcome.made.len(), usize::from(*expected == "accepted"), "{does}");
        let words = does.split(' ').count();
        let tries = if *expected == "accepted" { words } else { 3 };
        assert_eq!(of_row.len(), tries, "{does}");
        assert_eq!(of_row.last().unwrap().verdict, *expected);
    }
    let survive = SCRIPT.iter().filter(|(_, expected)| *expected == "accepted").count();
    let yields = std::fs::read_to_string(out.join("yield.csv")).unwrap();
    let rows: Vec<Vec<&str>> = yields.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0], ["stage", "rows", "attempts", "asks", "accepted", "made", "rejected", "reasons"]);
    let survived = survive.to_string();
    assert_eq!((rows[1][1], rows[1][4], rows[1][5]), ("18", survived.as_str(), survived.as_str()));
    let reasons = "check distinct: 1; cut: 1; empty: 1; error: 2; judge implicit: 1; judge plausible: 1; refused: 1; schema: 2";
    assert_eq!((rows[1][6], rows[1][7]), ("10", reasons));
    // Copies 0 and 1 have one and two lines.
    let of_lines =
        [2 * survive, 3 * survive, 3 * survive, 2 * survive, 2 * survive, 0].map(|n| n.to_string());
    assert_eq!(rows[2][1..7], of_lines.each_ref().map(String::as_str));
    assert_eq!((rows[3][5], rows[3][7]), (survived.as_str(), format!("check holds: {survive}").as_str()));
    assert!(told.out.contains(reasons), "{}", told.out);
    let kept = &outcomes_of(&out, "02-lines")["r0.1"].made[0];
    assert_eq!(kept.list("lines").unwrap().len(), 2);
    assert!(kept.get("line").is_none(), "only the list is kept of steps");
}

#[test]
fn a_refused_answer_is_told_to_the_next_attempt_and_its_seed_is_its_own() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let rows = [("a".to_owned(), "wrong repeat fine")];
    let (path, out) = (write_spec(root.path(), &spec(&rows)), root.path().join("built"));
    done(ended(build(&path, &out, &server, &[])));
    let stage = lines(&out, "01-facts");
    let all: Vec<&Attempt> = attempts(&stage).collect();
    assert!(all[0].why.contains("`fact`: a value of type number") && all[1].why.contains("fact"), "{all:?}");
    let seeds: Vec<u64> = all.iter().map(|attempt| attempt.asked.as_ref().unwrap().seed).collect();
    assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2]);
    let shows = done(palimpsest(["build", "show", shown(&out), "a"])).out;
    for part in ["Row a: wrong repeat fine / 2", "You write facts.", "Judge plausible: a fine", "why: "] {
        assert!(shows.contains(part), "{part}: {shows}");
    }
    assert!(!shows.contains("cannot be rendered"), "{shows}");
}

#[test]
fn shows_render_every_prompt_as_it_was() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let (path, out) = (write_spec(root.path(), &spec(&named(&SCRIPT))), root.path().join("built"));
    done(ended(build(&path, &out, &server, &[])));
    for id in (0..SCRIPT.len()).map(|nth| format!("r{nth}")).chain(["r0.1".to_owned()]) {
        let shows = done(palimpsest(["build", "show", shown(&out), &id])).out;
        assert!(shows.contains("Row r") && !shows.contains("cannot be rendered"), "{shows}");
    }
    let none = palimpsest(["build", "show", shown(&out), "nobody"]);
    assert!(none.code == Some(1) && none.err.contains("has no row \"nobody\""), "{}", none.err);
}

#[test]
#[cfg(unix)]
fn a_build_killed_ten_times_and_resumed_ends_with_the_bytes_of_an_unbroken_one() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::from_millis(25)));
    let path = write_spec(root.path(), &spec(&named(&SCRIPT)));
    let (whole, broken) = (root.path().join("whole"), root.path().join("broken"));
    done(ended(build(&path, &whole, &server, &["--jobs", "1"])));
    let mut hit = 0;
    for nth in 0..10_u64 {
        let mut child = build(&path, &broken, &server, &["--jobs", "3"]).spawn().unwrap();
        // Moments from before the folder is there to well into the second stage.
        std::thread::sleep(Duration::from_millis(20 + (nth * 7919) % 260));
        hit += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(hit > 0, "every build ended before it was killed");
    done(ended(build(&path, &broken, &server, &[])));
    assert_same_files(&whole, &broken);
}

#[test]
#[cfg(unix)]
fn torn_tails_and_ctrl_c_resume_to_the_same_bytes() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::from_millis(10)));
    let path = write_spec(root.path(), &spec(&named(&SCRIPT)));
    let (whole, broken) = (root.path().join("whole"), root.path().join("broken"));
    done(ended(build(&path, &whole, &server, &[])));
    let file = broken.join("stages/01-facts.jsonl");
    let reached = || std::fs::read(&file).is_ok_and(|bytes| bytes.len() > 2000);
    let Ended { code, out, .. } = interrupt(build(&path, &broken, &server, &[]), reached, signal("-INT"));
    assert!(code == Some(130) && out.contains("the same command resumes"), "{code:?}: {out}");
    // An attempt without its outcome, and half a line.
    let text = std::fs::read_to_string(&file).unwrap();
    let attempt = text.lines().find(|line| line.starts_with("{\"attempt\"")).unwrap();
    std::fs::write(&file, format!("{text}{attempt}\n{}", &attempt[..40])).unwrap();
    done(ended(build(&path, &broken, &server, &[])));
    assert_same_files(&whole, &broken);
    // Asks nobody: all is there.
    let before = server.asked.load(std::sync::atomic::Ordering::Relaxed);
    done(ended(build(&path, &broken, &server, &[])));
    assert_eq!(server.asked.load(std::sync::atomic::Ordering::Relaxed), before);
    // The last stages again.
    done(ended(build(&path, &broken, &server, &["--from", "lines"])));
    assert_same_files(&whole, &broken);
}

#[test]
fn shards_have_the_rows_of_the_whole_build_and_another_row_changes_none() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let path = write_spec(root.path(), &spec(&named(&SCRIPT)));
    let of = |path: &Path, name: &str, more: &[&str]| {
        let out = root.path().join(name);
        done(ended(build(path, &out, &server, more)));
        ["01-facts", "02-lines", "03-even"].map(|file| outcomes_of(&out, file))
    };
    let whole = of(&path, "whole", &[]);
    let parts = [0, 1, 2].map(|i| of(&path, &format!("part{i}"), &["--shard", &format!("{i}/3")]));
    for (stage, whole) in whole.iter().enumerate() {
        let mut all = BTreeMap::new();
        for part in &parts {
            all.extend(part[stage].clone());
        }
        assert_eq!(&all, whole);
    }
    let mut more = named(&SCRIPT);
    more.insert(0, ("before".to_owned(), "wrong fine"));
    let longer = of(&write_spec(root.path(), &spec(&more)), "longer", &[]);
    for (longer, whole) in longer.iter().zip(&whole) {
        assert!(longer.len() > whole.len());
        assert!(whole.iter().all(|(id, outcome)| longer.get(id) == Some(outcome)));
    }
    let some = of(&write_spec(root.path(), &spec(&named(&SCRIPT))), "some", &["--limit", "2"]);
    assert_eq!(some[0].keys().collect::<Vec<_>>(), ["r0", "r1"]);
}

#[test]
fn three_rows_that_only_err_end_the_build_and_are_asked_again() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let rows = named(&[("fine", ""), ("refuse", ""), ("late", ""), ("refuse", ""), ("fine", "")]);
    let (path, out) = (write_spec(root.path(), &spec(&rows)), root.path().join("built"));
    let told = ended(build(&path, &out, &server, &["--jobs", "1"]));
    assert_eq!(told.code, Some(1), "{}", told.err);
    assert!(told.err.contains("stage facts") && told.err.contains("this server refuses"), "{}", told.err);
    assert_eq!(outcomes_of(&out, "01-facts").keys().collect::<Vec<_>>(), ["r0"]);
    server.healed.store(true, std::sync::atomic::Ordering::Relaxed);
    done(ended(build(&path, &out, &server, &[])));
    assert!(outcomes_of(&out, "01-facts").values().all(|outcome| outcome.made.len() == 1));
}

#[test]
fn a_folder_of_another_build_is_refused_with_the_fields_that_differ() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let text = spec(&named(&SCRIPT[..2]));
    let (path, out) = (write_spec(root.path(), &text), root.path().join("built"));
    done(ended(build(&path, &out, &server, &[])));
    let before = files(&out);
    let refused = |path: &Path, more: &[&str], said: &str| {
        let told = ended(build(path, &out, &server, more));
        assert!(told.code == Some(1) && told.err.contains(said), "{}", told.err);
    };
    refused(&path, &["--seed", "4"], "spec.seed: 3 in the folder, 4 asked for");
    refused(&path, &["--limit", "1"], "limit: null in the folder, 1 asked for");
    refused(&path, &["--distance", "7"], "spec.settings.distance: null in the folder, 7 asked for");
    let other = write_spec(root.path(), &text.replace("You write facts.", "You write lies."));
    refused(&other, &[], "spec.stage.facts.ask.system: \"You write facts.\" in the folder");
    assert!(files(&out) == before, "a refused command changes nothing");
    // Another model, where one is asked.
    let path = write_spec(root.path(), &text);
    let another = Erring::start(Duration::ZERO);
    let told = ended(build(&path, &out, &another, &["--from", "lines"]));
    assert!(told.code == Some(1) && told.err.contains("generator.name"), "{}", told.err);
    let foreign = root.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("letter.txt"), "mine").unwrap();
    let told = ended(build(&path, &foreign, &server, &[]));
    assert!(told.code == Some(1) && told.err.contains("letter.txt"), "{}", told.err);
}

#[test]
fn models_that_are_missing_or_check_themselves_are_refused_before_anything_is_asked() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let path = write_spec(root.path(), &spec(&named(&SCRIPT[..2])));
    let address = server.address();
    let told = |more: &[&str]| {
        let out = root.path().join("built");
        palimpsest(
            ["build", "stale", shown(&path), "--out", shown(&out), "--until", "even"].iter().chain(more),
        )
    };
    let missing = told(&[]);
    assert!(missing.code == Some(2) && missing.err.contains("--model is missing"), "{}", missing.err);
    let missing = told(&["--model", &address]);
    assert!(missing.code == Some(2) && missing.err.contains("--checker is missing"), "{}", missing.err);
    let same = told(&["--model", &address, "--checker", &address]);
    assert!(same.code == Some(1) && same.err.contains("--one-model"), "{}", same.err);
    assert_eq!(server.asked.load(std::sync::atomic::Ordering::Relaxed), 0);
    let estimate = done(told(&["--estimate"])).out;
    assert!(estimate.starts_with("facts: 2 rows, 18 asks at most, "), "{estimate}");
    assert!(estimate.contains("lines: about 4 rows, 36 asks at most"), "{estimate}");
    done(told(&["--model", &address, "--one-model"]));
    let estimate = done(told(&["--estimate"])).out;
    assert!(estimate.contains("facts: 2 rows, 18 asks at most, 6 as in the folder"), "{estimate}");
}

#[test]
fn an_estimate_counts_a_list_by_the_middle_of_its_bounds_or_says_that_it_is_a_lower_bound() {
    let root = tempfile::tempdir().unwrap();
    let text = r#"
kind = "stale"
licence = "CC0-1.0"
tables.things = [{ name = "tea", given = [1] }, { name = "milk", given = [1, 2, 3] }]
[[stage]]
name = "lists"
rows = ["things"]
checks = [{ check = "size", field = "all.sized", least = 1, most = 5 }]
[stage.ask]
of = "generator"
template = "Lists"
into = "all"
schema = { type = "object", properties = { bound = { type = "array", minItems = 2, maxItems = 6 }, sized = { type = "array" }, bare = { type = "array", minItems = 2 } } }
[[stage]]
name = "bound"
rows = ["lists"]
each = "all.bound"
ask = { of = "generator", template = "One", into = "one" }
[[stage]]
name = "sized"
rows = ["lists"]
ask = { of = "generator", template = "One" }
steps = { over = "all.sized", into = "kept" }
[[stage]]
name = "kept"
rows = ["sized"]
each = "kept"
times = 2
[[stage]]
name = "bare"
rows = ["lists"]
each = "all.bare"
ask = { of = "generator", template = "One", into = "one" }
[[stage]]
name = "after"
rows = ["bound", "bare"]
[[stage]]
name = "given"
rows = ["things"]
ask = { of = "generator", template = "One" }
steps = { over = "given", into = "kept" }
[[stage]]
name = "later"
rows = ["given"]
each = "given"
"#;
    let (path, out) = (write_spec(root.path(), text), root.path().join("built"));
    let told = done(palimpsest(["build", "stale", shown(&path), "--out", shown(&out), "--estimate"])).out;
    let lines: Vec<&str> = told.lines().collect();
    let unknown = "; a lower bound: `all.bare` has an unknown length and counts as one";
    for (line, (said, is_least)) in lines.iter().zip([
        ("lists: 2 rows, 6 asks at most, ", false),
        ("bound: about 8 rows, 24 asks at most, ", false),
        ("sized: about 2 rows, 18 asks at most, ", false),
        ("kept: about 12 rows, 0 asks at most, ", false),
        ("bare: about 2 rows, 6 asks at most, ", true),
        ("after: about 10 rows, 0 asks at most, ", true),
        ("given: 2 rows, 12 asks at most, ", false),
        ("later: about 4 rows, 0 asks at most, ", false),
        ("in all: 66 asks, ", false),
    ]) {
        assert!(line.starts_with(said) && line.ends_with(unknown) == is_least, "{line}");
    }
    assert_eq!(lines.len(), 9);
}

#[test]
fn rows_are_grouped_spread_copied_and_read_from_files() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.jsonl"), "{\"name\": \"x\", \"kind\": \"k\", \"list\": [1, {\"b\": 2}]}\n\n{\"name\": \"y\", \"kind\": \"k\", \"list\": []}\n")
        .unwrap();
    std::fs::write(root.path().join("b.json"), "[{\"id\": 7, \"kind\": \"l\", \"list\": [3]}]").unwrap();
    std::fs::write(root.path().join("c.txt"), "a text\n").unwrap();
    let text = r#"
kind = "stale"
licence = "CC0-1.0"
sources.a = { file = "a.jsonl", licence = "CC0-1.0" }
sources.b = { file = "b.json", licence = "CC0-1.0" }
sources.c = { file = "c.txt", licence = "CC0-1.0" }
[[stage]]
name = "elements"
rows = ["a", "b"]
each = "list"
set = { mark = "m" }
[[stage]]
name = "groups"
rows = ["elements"]
group = ["kind"]
times = 2
[[stage]]
name = "texts"
rows = ["c"]
checks = [{ check = "holds", expression = "text | trim == 'a text'" }]
[[stage]]
name = "rest"
rows = ["texts"]
"#;
    let (path, out) = (write_spec(root.path(), text), root.path().join("built"));
    done(palimpsest(["build", "stale", shown(&path), "--out", shown(&out), "--until", "texts"]));
    let elements = outcomes_of(&out, "01-elements");
    assert_eq!(elements.keys().collect::<Vec<_>>(), ["7.0", "x.0", "x.1"]);
    let [first, second] = ["x.0", "x.1"].map(|id| elements[id].made[0].fields.clone());
    assert_eq!((&first["item"], &second["b"], &first["mark"]), (&1.into(), &2.into(), &Value::from("m")));
    let groups = outcomes_of(&out, "02-groups");
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["k.0", "k.1", "l.0", "l.1"]);
    let of_k = &groups["k.1"];
    assert_eq!(
        (&of_k.parents, &of_k.made[0].fields["copy"]),
        (&vec!["x.0".to_owned(), "x.1".to_owned()], &1.into())
    );
    assert_eq!(of_k.made[0].list("rows").unwrap()[1]["id"], "x.1");
    assert_eq!(outcomes_of(&out, "03-texts")["0"].made.len(), 1);
    std::fs::write(root.path().join("b.json"), "[{\"id\": \"x\", \"kind\": \"l\", \"list\": [3]}]").unwrap();
    let changed = palimpsest(["build", "stale", shown(&path), "--out", shown(&out), "--until", "texts"]);
    assert!(changed.code == Some(1) && changed.err.contains("sources.b"), "{}", changed.err);
    let twice = root.path().join("twice");
    let twice = palimpsest(["build", "stale", shown(&path), "--out", shown(&twice), "--until", "texts"]);
    assert!(twice.code == Some(1) && twice.err.contains("two rows have the id \"x.0\""), "{}", twice.err);
}

#[test]
fn a_small_local_model_under_a_schema_fits_in_all_attempts_and_scores_choices() {
    let root = tempfile::tempdir().unwrap();
    let text = r#"
kind = "stale"
licence = "CC0-1.0"
[[tables.things]]
name = "tea"
[[stage]]
name = "forms"
rows = ["things"]
times = 4
tries = 1
[stage.ask]
of = "generator"
template = "Say {{ name }}."
temperature = 1.0
max_tokens = 700
schema = { type = "object", properties = { kind = { enum = ["old", "new"] }, count = { type = "integer", minimum = 0, maximum = 9 } }, required = ["kind", "count"], additionalProperties = false }
[[stage]]
name = "choices"
rows = ["forms"]
ask = { of = "generator", template = "Is it {{ kind }}?", choices = ["yes", "no"] }
[[stage]]
name = "rest"
rows = ["choices"]
"#;
    let (path, out) = (write_spec(root.path(), text), root.path().join("built"));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
    let mut build = command(["build", "stale", shown(&path), "--out", shown(&out), "--until", "choices"]);
    build.args(["--model", shown(&model), "--context", "1024"]);
    done(ended(build));
    let stage = lines(&out, "01-forms");
    let verdicts: Vec<&str> = attempts(&stage).map(|attempt| attempt.verdict.as_str()).collect();
    assert_eq!(verdicts, ["accepted"; 4]);
    for outcome in outcomes_of(&out, "02-choices").values() {
        let row = &outcome.made[0];
        let p = ["yes", "no"].map(|word| row.get("p").unwrap()[word].as_f64().unwrap());
        assert!((p[0] + p[1] - 1.0).abs() < 1e-9);
        let likelier = if p[0] >= p[1] { "yes" } else { "no" };
        assert_eq!(row.text("choice").unwrap(), likelier);
    }
}

#[test]
fn data_are_published_once_with_the_rows_of_every_stage_that_they_come_from() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("built");
    let haystack = ["build", "stale", "haystack", "--out", shown(&out), "--sessions", "8", "--limit", "3"];
    let build = || done(palimpsest(haystack.iter().chain(&["--tokenizer", "o200k_base"]))).out;
    let said = build();
    let provenance = std::fs::read_to_string(out.join("provenance.jsonl")).unwrap();
    let rows: Vec<Value> = provenance.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!((1..=3).contains(&rows.len()) && said.contains(&format!("data: {} rows", rows.len())), "{said}");
    for row in &rows {
        let stages: Vec<&String> = row["stages"].as_object().unwrap().keys().collect();
        assert_eq!(stages, ["scenarios", "candidates", "place", "haystack", "times"]);
        assert!(row["seed"] == 0 && row["digest"].as_str().is_some_and(|digest| digest.len() == 64), "{row}");
    }
    let uid = rows[0]["uid"].as_str().unwrap();
    let shows = done(palimpsest(["build", "show", shown(&out), uid])).out;
    assert!(shows.contains("== scenarios") && shows.contains("check told: passed"), "{shows}");
    let whole = files(&out);
    build();
    assert!(files(&out) == whole, "a whole build changes nothing");
    // Killed before the provenance was there.
    std::fs::remove_file(out.join("provenance.jsonl")).unwrap();
    std::fs::create_dir(out.join(".tmp-data")).unwrap();
    std::fs::write(out.join("data/half"), "half").unwrap();
    build();
    assert!(files(&out) == whole, "unfinished data are written again");
}
