//! Evicting conditions beside the plain one, against plain definitions over their rows.

use std::collections::BTreeMap;
use std::path::Path;

use palimpsest::evict::{ACCURACY, AND_LEADS, AND_WRONG, CONTRAST, EFFECT, Evictions, OUTLIVED, kept};
use palimpsest::runs::header::{Identity, Machine, RunHeader};
use palimpsest::runs::judge_name::JudgeChoice;
use palimpsest::runs::rows::{AnswerRow, VerdictRow};
use palimpsest::runs::store::RunFolder;
use palimpsest::statistics::{means, wilson};
use serde_json::{Value, json};

use super::made::{self, Made};
use crate::cli::palimpsest;

/// Policy and budget, and by how much an update's contrast falls per item.
const EVICTIONS: [(&str, &str, f64); 3] = [
    ("evict-knorm-0-25", "knorm:0.25", 0.6),
    ("evict-snapkv-0-5", "snapkv:0.5", 0.1),
    ("evict-snapkv-0-25", "snapkv:0.25", 0.2),
];

/// Of the plain condition's number.
fn item(row: &AnswerRow) -> usize {
    row.labels["item"].trim_start_matches("item-").parse().unwrap()
}

fn is_update(row: &AnswerRow) -> bool {
    matches!(row.labels["twin"].as_str(), "ab" | "ba")
}

fn read<R: serde::de::DeserializeOwned>(file: &Path) -> Vec<R> {
    std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn append(file: &Path, rows: impl Iterator<Item = Value>) {
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, text + &rows.map(|row| format!("{row}\n")).collect::<String>()).unwrap();
}

/// The made run with evicting conditions: the newer session loses keys with the item's number, the older one gains.
fn write(dir: &Path) {
    made::write(dir, Made::USUAL);
    let (answers, verdicts) = (dir.join("answers.jsonl"), dir.join("verdicts.jsonl"));
    let plain: Vec<AnswerRow> = read(&answers);
    let judged: Vec<VerdictRow> = read(&verdicts);
    for (condition, evict, fall) in EVICTIONS {
        let share: f64 = evict.split_once(':').unwrap().1.parse().unwrap();
        let evicted = plain.iter().cloned().map(|mut row| {
            let item = item(&row) as f64;
            row.condition = condition.to_owned();
            row.attention = None;
            if let Some(contrast) = row.contrast.as_mut().filter(|contrast| contrast.stale.is_some()) {
                contrast.value -= fall * (item + 1.0);
            }
            let of_roles =
                [("all", 1.0), ("session", 0.9), ("old", 0.4 + 0.2 * item), ("new", 1.25 - 0.2 * item)];
            row.kept = of_roles.map(|(role, of)| (role.to_owned(), (share * of).clamp(0.0, 1.0))).into();
            if item == 0.0 {
                row.kept.insert("lure".to_owned(), 0.125);
            }
            serde_json::to_value(row).unwrap()
        });
        append(&answers, evicted);
        let verdict = |row: &VerdictRow| VerdictRow {
            condition: condition.to_owned(),
            correct: Some(row.correct == Some(true) && row.case.starts_with("item-0-")),
            ..row.clone()
        };
        append(&verdicts, judged.iter().map(verdict).map(|row| serde_json::to_value(row).unwrap()));
    }
    let header = std::fs::read_to_string(dir.join("run.json")).unwrap();
    let header: Value = serde_json::from_str(&header).unwrap();
    let mut identity = header["identity"].clone();
    let evicting = EVICTIONS.iter().map(|(name, evict, _)| json!({ "name": name, "evict": evict }));
    identity["conditions"] = [json!({ "name": "" })].into_iter().chain(evicting).collect();
    let identity: Identity = serde_json::from_value(identity).unwrap();
    let header = RunHeader::new(identity, None, Machine::default());
    std::fs::write(dir.join("run.json"), serde_json::to_string(&header).unwrap()).unwrap();
}

fn opened(dir: &Path) -> Option<Evictions> {
    let folder = RunFolder::read(dir).unwrap();
    Evictions::open(&folder, folder.benchmark().unwrap(), JudgeChoice::default()).unwrap()
}

/// A number of each row, averaged by item: what intervals are over.
fn by_item<'a>(
    rows: impl Iterator<Item = &'a AnswerRow>,
    of: impl Fn(&AnswerRow) -> Option<f64>,
) -> Vec<f64> {
    let mut items: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for row in rows {
        if let Some(value) = of(row) {
            items.entry(item(row)).or_default().push(value);
        }
    }
    items.values().map(|all| all.iter().sum::<f64>() / all.len() as f64).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn close(one: f64, other: f64) {
    assert!((one - other).abs() < 1e-9, "{one} is not {other}");
}

#[test]
fn numbers_of_evictions_are_those_of_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let rows: Vec<AnswerRow> = read(&dir.path().join("answers.jsonl"));
    let evictions = opened(dir.path()).unwrap();
    let conditions: Vec<&str> = evictions.rows.iter().map(|row| row.condition.as_str()).collect();
    assert_eq!(conditions, ["plain", "evict-knorm-0-25", "evict-snapkv-0-5", "evict-snapkv-0-25"]);
    assert_eq!((evictions.bases(), evictions.judge.as_deref()), (vec!["plain"], Some("exact")));
    let plain = &evictions.rows[0];
    assert!(
        plain.evict.is_none() && plain.number(OUTLIVED).is_none() && plain.number(&kept("all")).is_none()
    );
    let own = |name: &str| {
        let name = name.to_owned();
        rows.iter().filter(move |row| row.condition == name)
    };
    for row in &evictions.rows {
        let name = if row.evict.is_none() { "" } else { &row.condition };
        assert_eq!(row.questions, own(name).count());
        // Twins of one level have equally many rows, so that the mean of their contrasts is that of their halved sums.
        let updates = by_item(own(name), |row| Some(row.contrast.as_ref()?.value).filter(|_| is_update(row)));
        let found = row.number(EFFECT).unwrap();
        close(found.value.mean, mean(&updates));
        assert_eq!(found.value.n, Made::USUAL.items);
        let (ours, theirs) = (found.value.interval.unwrap(), means::signed(&updates).unwrap());
        close(ours.low, theirs.low);
        close(ours.high, theirs.high);
        close(row.number(CONTRAST).unwrap().value.mean, mean(&updates));
    }
    for (row, (name, evict, fall)) in evictions.rows[1..].iter().zip(EVICTIONS) {
        assert_eq!(row.evict.as_ref().unwrap().to_string(), evict);
        // The fall of an item is known: 1 to 6 times as much.
        let falls: Vec<f64> = (0..Made::USUAL.items).map(|item| -fall * (item as f64 + 1.0)).collect();
        for number in [EFFECT, CONTRAST] {
            let difference = row.number(number).unwrap().difference.unwrap();
            close(difference.mean, mean(&falls));
            close(difference.interval.unwrap().low, means::signed(&falls).unwrap().low);
        }
        for role in ["all", "session", "old", "new", "lure"] {
            let shares = by_item(own(name), |row| row.kept.get(role).copied());
            let found = row.number(&kept(role)).unwrap().value;
            close(found.mean, mean(&shares));
            assert_eq!(found.n, if role == "lure" { 1 } else { Made::USUAL.items });
        }
        // Items 3, 4 and 5 keep more of the older session: whole items, which have Wilson's interval.
        let outlived = |row: &AnswerRow| row.kept["new"] < row.kept["old"];
        let found = row.number(OUTLIVED).unwrap();
        let (held, of) = (own(name).filter(|row| outlived(row)).count(), own(name).count());
        assert_eq!(found.count, Some([held, of]));
        assert!(found.value.mean == 0.5 && found.value.interval == wilson(3, 6, 0.95));
        let replaced = |row: &AnswerRow| row.contrast.clone().filter(|contrast| contrast.stale.is_some());
        let leads = |row: &AnswerRow| Some(outlived(row) && replaced(row)?.value < 0.0);
        let found = row.number(AND_LEADS).unwrap();
        let held = own(name).filter(|row| leads(row) == Some(true)).count();
        assert_eq!(found.count, Some([held, own(name).filter_map(leads).count()]));
        close(
            found.value.mean,
            mean(&by_item(own(name), |row| leads(row).map(|held| f64::from(u8::from(held))))),
        );
        assert!(row.number(AND_WRONG).is_none());
        // Twelve rows an item are judged right by the reading, under evictions those of item 0; all others count as wrong.
        let (ours, theirs) = (row.number(ACCURACY).unwrap(), plain.number(ACCURACY).unwrap());
        assert_eq!((ours.count, theirs.count), (Some([12, of]), Some([72, of])));
        close(ours.difference.unwrap().mean, ours.value.mean - theirs.value.mean);
        assert!(ours.difference.unwrap().interval.unwrap().high < 0.0 && theirs.difference.is_none());
    }
    let knorm = evictions.rows[1].number(AND_LEADS).unwrap().count.unwrap();
    let snapkv = evictions.rows[2].number(AND_LEADS).unwrap().count.unwrap();
    assert!(knorm[0] > snapkv[0], "a larger fall turns more answers: {knorm:?}, {snapkv:?}");
}

#[test]
fn the_table_and_the_figures_show_each_policy_and_budget() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let run = dir.path().to_str().unwrap();
    let told = palimpsest(["table", run, "--evict"]);
    assert_eq!(told.code, Some(0), "{}", told.err);
    for part in
        ["Answers after evictions", "Keys that stayed", "knorm", "kept old", OUTLIVED, "accuracy by exact"]
    {
        assert!(told.out.contains(part), "no {part} in {}", told.out);
    }
    let csv = palimpsest(["table", run, "--evict", "--format", "csv"]).out;
    let records: Vec<BTreeMap<String, String>> =
        csv::Reader::from_reader(csv.as_bytes()).deserialize().map(Result::unwrap).collect();
    let evictions = opened(dir.path()).unwrap();
    assert_eq!(records.len(), evictions.rows.iter().map(|row| row.numbers.len()).sum::<usize>());
    let row = &evictions.rows[3];
    let found = records.iter().find(|one| {
        (&*one["policy"], &*one["budget"], &*one["question"], &*one["number"])
            == ("snapkv", "0.25", "false", EFFECT)
    });
    let effect = row.number(EFFECT).unwrap();
    close(found.unwrap()["value"].parse().unwrap(), effect.value.mean);
    close(found.unwrap()["difference"].parse().unwrap(), effect.difference.unwrap().mean);
    let json: Value =
        serde_json::from_str(&palimpsest(["table", run, "--evict", "--format", "json"]).out).unwrap();
    assert_eq!(json["rows"][3]["evict"], "snapkv:0.25");
    assert_eq!(json["rows"][3]["numbers"].as_array().unwrap().len(), row.numbers.len());
    for format in ["md", "latex"] {
        assert!(palimpsest(["table", run, "--evict", "--format", format]).out.contains("snapkv"));
    }

    let out = dir.path().join("out");
    let drawn = palimpsest(["figures", run, "--out", out.to_str().unwrap()]);
    assert_eq!(drawn.code, Some(0), "{}", drawn.err);
    let points = |name: &str| -> Vec<BTreeMap<String, String>> {
        let file = std::fs::read(out.join(format!("{name}.csv"))).unwrap_or_else(|_| panic!("no {name}"));
        csv::Reader::from_reader(&file[..]).deserialize().map(Result::unwrap).collect()
    };
    for name in ["evict-effect", "evict-accuracy", "evict-kept", "evict-outlived"] {
        assert!(out.join(format!("{name}.svg")).is_file() && !points(name).is_empty(), "{name}");
    }
    // Two policies of two budgets, one of which has one, and the line without an eviction.
    let lines: Vec<(String, String)> =
        points("evict-effect").iter().map(|one| (one["line"].clone(), one["level"].clone())).collect();
    let expected = [
        ("knorm", "0.25"),
        ("snapkv", "0.25"),
        ("snapkv", "0.5"),
        ("nothing evicted", "0.25"),
        ("nothing evicted", "0.5"),
    ];
    assert_eq!(lines, expected.map(|(line, level)| (line.to_owned(), level.to_owned())));
    let point = |name: &str, panel: &str, line: &str| {
        let all = points(name);
        let is = |one: &&BTreeMap<String, String>| {
            one["panel"] == panel && one["line"] == line && one["level"] == "0.25"
        };
        all.iter().find(is).unwrap_or_else(|| panic!("{all:?}"))["value"].parse::<f64>().unwrap()
    };
    close(point("evict-effect", "", "snapkv"), effect.value.mean);
    close(point("evict-kept", "snapkv", "new"), row.number(&kept("new")).unwrap().value.mean);
    close(point("evict-kept", "snapkv", "all keys"), 0.25);
    let report = palimpsest(["report", run]);
    assert_eq!(report.code, Some(0), "{}", report.err);
    let page = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.contains("What evicting keys changes") && page.contains("id=\"evict-kept\""));
}

#[test]
fn a_run_without_evictions_has_no_such_table() {
    let dir = tempfile::tempdir().unwrap();
    made::write(dir.path(), Made::USUAL);
    assert!(opened(dir.path()).is_none());
    let refused = palimpsest(["table", dir.path().to_str().unwrap(), "--evict"]);
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    assert!(refused.err.contains("has no evictions; make a run with --evict POLICY:KEEP"), "{}", refused.err);
}

/// Without contrasts the verdict says whether the answer is wrong, too.
#[test]
fn verdicts_take_the_place_of_contrasts() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let answers = dir.path().join("answers.jsonl");
    let rows: Vec<AnswerRow> = read(&answers);
    let without = rows.into_iter().map(|row| AnswerRow { contrast: None, ..row });
    let text = without.map(|row| format!("{}\n", json!(row))).collect::<String>();
    std::fs::write(&answers, text).unwrap();
    let evictions = opened(dir.path()).unwrap();
    let row = &evictions.rows[1];
    assert!(
        row.number(EFFECT).is_none() && row.number(CONTRAST).is_none() && row.number(AND_LEADS).is_none()
    );
    // 24 update twins an item are judged; those of items 3 to 5 are wrong, and keep more of the older session.
    assert_eq!(row.number(AND_WRONG).unwrap().count, Some([72, 144]));
    // The unit is then the case.
    assert_eq!(row.number(AND_WRONG).unwrap().value.n, 144);
}
