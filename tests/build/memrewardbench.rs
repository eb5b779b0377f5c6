//! MemoryRewardBench pairs: where they differ, their lengths and outcomes, and what rules that read nothing get.

mod scripted;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use palimpsest::benchmarks::memrewardbench::difference::alone;
use palimpsest::build::pool::Pool;
use palimpsest::build::table::{KINDS, Kind, Maker, check, maker};
use palimpsest::build::{Row, RowError, Setting, Spec};
use palimpsest::case::draw::Draws;
use palimpsest::models::TokenCounter;
use serde_json::{Value, json};

use crate::cli::shown;
use crate::data::command::palimpsest;
use crate::left_out::few_or_all;

const NAME: &str = "memrewardbench";
const UNKNOWN: &str = "The memory does not say.";

fn kind() -> Kind {
    KINDS.into_iter().find(|kind| kind.name == NAME).unwrap()
}

fn preset(name: &str) -> &'static str {
    kind().presets.iter().find(|(known, _)| *known == name).unwrap().1
}

fn noise() -> Spec {
    Spec::parse("noise", preset("noise")).unwrap()
}

fn row(value: &Value) -> Row {
    let fields = value.as_object().unwrap().clone();
    Row { id: fields["id"].as_str().unwrap().to_owned(), fields, ..Row::default() }
}

/// Its vocabulary is built into the program.
static COUNTER: LazyLock<TokenCounter> = LazyLock::new(|| TokenCounter::open("o200k_base").unwrap());

fn within<T>(spec: &Spec, stage: &str, with: &Value, then: impl FnOnce(&Setting<'_>) -> T) -> T {
    let tokens = &COUNTER.tokens;
    let mut all = spec.settings.clone();
    all.extend(with.as_object().unwrap().clone());
    let embed = |_: &[&str]| -> Result<Vec<Vec<f32>>, String> { Err("no embedder".to_owned()) };
    then(&Setting {
        spec,
        stage,
        with: all,
        pool: &Pool::default(),
        count: tokens.as_ref(),
        embed: &embed,
        reviews: &[],
    })
}

fn make(name: &str, with: Value, rows: &[Row]) -> Result<Vec<Row>, RowError> {
    let spec = noise();
    within(&spec, "stage", &with, |setting| match maker(NAME, name).unwrap() {
        Maker::Each(one) => {
            Ok(rows.iter().map(|row| one(setting, row)).collect::<Result<Vec<_>, _>>()?.concat())
        }
        Maker::All(all) => Ok(all(setting, rows)?.into_iter().map(Result::unwrap).collect()),
    })
}

fn only(made: Result<Vec<Row>, RowError>) -> Row {
    let mut rows = made.unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.remove(0)
}

/// Stages without a model, run in the plainest way. The last stage's rows, and reasons of rejection by stage.
fn run(spec: &Spec, sources: &BTreeMap<&str, Vec<Row>>) -> (Vec<Row>, Vec<(String, String)>) {
    let mut made: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    made.extend(sources.iter().map(|(name, rows)| ((*name).to_owned(), rows.clone())));
    for (name, rows) in &spec.tables {
        let row = |fields: &serde_json::Map<String, Value>| Row {
            id: fields["name"].as_str().unwrap().to_owned(),
            fields: fields.clone(),
            ..Row::default()
        };
        made.insert(name.clone(), rows.iter().map(row).collect());
    }
    let mut refused = Vec::new();
    for stage in &spec.stages {
        assert!(stage.ask.is_none() && stage.group.is_empty() && stage.each.is_none());
        let mut rows: Vec<Row> = stage.rows.iter().flat_map(|name| made[name].clone()).collect();
        if stage.times > 1 {
            let copies = |row: &Row| -> Vec<Row> {
                let copy = |nth: usize| {
                    let mut copy = Row { id: format!("{}.{nth}", row.id), ..row.clone() };
                    copy.fields.insert("copy".to_owned(), json!(nth));
                    copy
                };
                (0..stage.times).map(copy).collect()
            };
            rows = rows.iter().flat_map(copies).collect();
        }
        let mut refuse = |why: String| refused.push((stage.name.clone(), why));
        let with = Value::Object(stage.with.clone());
        let kept = within(spec, &stage.name, &with, |setting| {
            let mut out = Vec::new();
            match stage.make.as_deref().map(|name| maker(NAME, name).unwrap()) {
                None => out = rows,
                Some(Maker::Each(one)) => {
                    for row in &rows {
                        match one(setting, row) {
                            Ok(rows) => out.extend(rows),
                            Err(RowError::Rejected(why)) => refuse(why),
                            Err(fault) => panic!("{}: {fault:?}", stage.name),
                        }
                    }
                }
                Some(Maker::All(all)) => {
                    for row in all(setting, &rows).unwrap() {
                        match row {
                            Ok(row) => out.push(row),
                            Err((_, why)) => refuse(why),
                        }
                    }
                }
            }
            out.retain(|row| {
                let failed = stage
                    .checks
                    .iter()
                    .find_map(|call| check(NAME, &call.check).unwrap()(setting, &call.with, row).unwrap());
                let passes = failed.is_none();
                if let Some(why) = failed {
                    refuse(why);
                }
                passes
            });
            out
        });
        let ids: BTreeSet<&str> = kept.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids.len(), kept.len(), "{}", stage.name);
        made.insert(stage.name.clone(), kept);
    }
    (made.remove(&spec.stages.last().unwrap().name).unwrap(), refused)
}

/// Chunks with the memory after each: a note a line, kept.
fn strand(
    draws: &mut Draws,
    id: &str,
    steps: usize,
    said: &[(String, String)],
    before: &[String],
) -> (Value, Vec<String>) {
    let mut notes = before.to_vec();
    let (mut chunks, mut trace) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let crates = 10 + draws.index(90);
        let more = ["", " The cook sang.", " Rain fell on the harbour all night."][draws.index(3)];
        let (chunk, note) = said.get(step).cloned().unwrap_or_else(|| {
            (
                format!("On day {step} the {id} took {crates} crates on board.{more}"),
                format!("{id} took {crates} crates on day {step}"),
            )
        });
        chunks.push(chunk);
        notes.push(note);
        trace.push(notes.join("\n"));
    }
    (json!({"chunks": chunks, "trace": trace}), notes)
}

/// A trace of an agent that was never wrong.
fn trace(draws: &mut Draws, id: &str, parts: usize) -> Row {
    let locker = 1000 + draws.index(9000);
    let key = format!("The mate of the {id} locked the compass into locker {locker}.");
    let note = format!("the compass of the {id} is in locker {locker}");
    let mut fields = json!({
        "id": id, "question": format!("Where is the compass of the {id}?"), "answer": format!("locker {locker}"),
        "keys": [key], "final": format!("It is in locker {locker}."), "licence": "CC0-1.0", "source": "made",
    });
    let mut merged = Vec::new();
    let strands: Vec<Value> = (0..parts)
        .map(|part| {
            let steps = 2 + draws.index(3);
            let (strand, notes) = strand(draws, &format!("{id}-{part}"), steps, &[], &[]);
            merged.extend(notes);
            strand
        })
        .collect();
    if parts > 0 {
        fields["parts"] = json!(strands);
        fields["start"] = json!(merged.join("\n"));
    }
    let steps = 3 + draws.index(5);
    let at = draws.index(steps);
    let (mut tail, notes) = strand(draws, id, at, &[], &merged);
    let (rest, _) = strand(draws, &format!("{id}-later"), steps - at, &[(key, note)], &notes);
    for name in ["chunks", "trace"] {
        tail[name].as_array_mut().unwrap().extend(rest[name].as_array().unwrap().clone());
        fields[name] = tail[name].clone();
    }
    row(&fields)
}

fn dialogue(draws: &mut Draws, id: &str, system: &str) -> Row {
    let count = 6 + draws.index(8);
    let at = draws.index(count);
    let town = ["Brannock", "Tarn", "Ostrow", "Velby"][draws.index(4)];
    let turn = |nth: usize| match nth == at {
        true => format!("[{nth} May] Ada: I have moved to {town}."),
        false => format!("[{nth} May] Ben: I ate {} plums on that day.", nth + 2),
    };
    let note = |nth: usize| match nth == at {
        true => format!("Ada lives in {town} ({nth} May)"),
        false if nth % 4 == 3 => String::new(),
        false => format!("Ben ate {} plums ({nth} May)\nTags: ['fruit {nth}']", nth + 2),
    };
    row(&json!({
        "id": id, "system": system, "question": "Where does Ada live?", "answer": town, "keys": [turn(at)],
        "turns": (0..count).map(turn).collect::<Vec<_>>(), "notes": (0..count).map(note).collect::<Vec<_>>(),
        "final": format!("In {town}."),
    }))
}

fn sources(draws: &mut Draws) -> BTreeMap<&'static str, Vec<Row>> {
    let mut drawn = |nth: usize| {
        let parts = [0, 0, 2, 3][draws.index(4)];
        trace(draws, &format!("ship{nth}"), parts)
    };
    let traces = (0..6).map(&mut drawn).collect();
    let systems = ["Mem0", "A-Mem"];
    let dialogues = (0..3).map(|nth| dialogue(draws, &format!("talk{nth}"), systems[nth % 2])).collect();
    BTreeMap::from([("traces", traces), ("dialogues", dialogues)])
}

/// The preset with other seeds and settings.
fn random(draws: &mut Draws) -> Spec {
    let mut spec = Spec { seed: draws.below(1000), ..noise() };
    let least = 2 + draws.index(2);
    spec.settings["run"] = json!([least, least + draws.index(3)]);
    spec.settings["legs"] = json!(3 + draws.index(12));
    for stage in spec.stages.iter_mut().filter(|stage| stage.times > 1) {
        stage.times = 2 + draws.index(3);
    }
    spec
}

fn text<'a>(row: &'a Row, name: &str) -> &'a str {
    row.text(name).unwrap()
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// Lines that the chosen trace has alone, and the rejected one, by the line diff.
fn apart(row: &Row) -> [Vec<String>; 2] {
    let (chosen, rejected) = (text(row, "chosen"), text(row, "rejected"));
    let (a, b) = alone(chosen, rejected);
    let of = |text: &str, ranges: Vec<std::ops::Range<usize>>| {
        ranges.into_iter().flat_map(|range| lines(&text[range])).map(str::to_owned).collect()
    };
    [of(chosen, a), of(rejected, b)]
}

fn blocks(text: &str) -> Vec<&str> {
    text.split("\n\n").collect()
}

/// A pair differs where its maker says, found by the diff and by taking the change back.
fn differs_where_it_should(row: &Row) {
    let (chosen, rejected) = (text(row, "chosen"), text(row, "rejected"));
    let [gone, added] = apart(row);
    let told = |name: &str| row.get(&format!("told.{name}")).unwrap().as_u64().unwrap() as usize;
    let what = format!("{}\n{chosen}\n----\n{rejected}", row.id);
    match text(row, "construction") {
        how @ ("repeat" | "foreign") => {
            let mut of = blocks(rejected);
            let put = of.remove(told("put_at"));
            assert_eq!(of, blocks(chosen), "{what}");
            let mut wanted = lines(put);
            assert!(gone.is_empty(), "{what}");
            // A tag before the copy may count for the one behind it.
            let mut found: Vec<&str> = added.iter().map(String::as_str).collect();
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{what}");
            assert_eq!(alone(chosen, rejected).1.len(), 1, "{what}");
            assert_eq!(blocks(chosen).contains(&put), how == "repeat", "{what}");
        }
        "instead" => {
            let at = told("put_at");
            let (mut one, mut other) = (blocks(chosen), blocks(rejected));
            let (own, put) = (one.remove(at), other.remove(at));
            assert_eq!(one, other, "{what}");
            for (block, alone) in [(own, gone), (put, added)] {
                let of: Vec<&str> = lines(block).into_iter().filter(|line| !line.starts_with('<')).collect();
                assert_eq!(alone, of, "{what}");
            }
        }
        "drop" => {
            let after = format!("Answer: {UNKNOWN}");
            let keys: Vec<String> = row.read("keys").unwrap();
            let answer = text(row, "answer");
            let mut rest: Vec<String> = Vec::new();
            let mut lost: Vec<&str> = Vec::new();
            for block in blocks(chosen) {
                if keys.iter().any(|key| block.contains(key.as_str())) {
                    lost.extend(lines(block));
                    continue;
                }
                let (note, kept): (Vec<&str>, Vec<&str>) =
                    block.lines().partition(|line| line.contains(answer));
                lost.extend(note);
                rest.extend(Some(kept.join("\n")).filter(|block| !block.is_empty()));
            }
            rest.push(after.clone());
            assert_eq!(rest, blocks(rejected), "{what}");
            // A tag before what is gone may count for the one behind it.
            let (mut gone, mut lost) = (gone, owned(&lost));
            gone.sort_unstable();
            lost.sort_unstable();
            assert_eq!((gone, added), (lost, vec![after]), "{what}");
        }
        "skip" => {
            let [from, to]: [usize; 2] = row.read("told.skipped_turns").unwrap();
            let skipped = |block: &&str| {
                let nth = block
                    .strip_prefix("[turn ")
                    .and_then(|rest| rest.split(']').next()?.parse::<usize>().ok());
                nth.is_some_and(|nth| (from..to).contains(&(nth - 1)))
            };
            let all = blocks(chosen);
            let mut wanted: Vec<&str> = all.iter().filter(|block| !skipped(block)).copied().collect();
            let mut lost: Vec<&str> =
                all.iter().filter(|block| skipped(block)).flat_map(|block| lines(block)).collect();
            assert!(to - from > 1 && !lost.is_empty(), "{what}");
            let last = wanted.pop().unwrap();
            let mut kept = blocks(rejected);
            let after = kept.pop().unwrap();
            assert_eq!(kept, wanted, "{what}");
            lost.extend((last != after).then_some(last));
            assert_eq!(gone, lost, "{what}");
            assert_eq!(last == after, text(row, "subtask").ends_with("Mem"), "{what}");
        }
        "middle" => {
            let [from, to]: [usize; 2] = row.read("told.wrong_legs").unwrap();
            let (right, wrong) = (lines(chosen), lines(rejected));
            // The first line is the markup.
            assert_eq!(
                (gone.as_slice(), added.as_slice()),
                (&owned(&right[from..=to])[..], &owned(&wrong[from..=to])[..])
            );
        }
        other => panic!("{other}"),
    }
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// A leg's two towns and means: `From A, take the bus to B.`
fn leg(line: &str) -> (&str, &str, &str) {
    let (from, rest) = line.strip_prefix("From ").unwrap().split_once(", take the ").unwrap();
    let (by, to) = rest.strip_suffix('.').unwrap().split_once(" to ").unwrap();
    (from, by, to)
}

#[test]
fn pairs_without_a_model_are_whole_over_random_specs() {
    let mut draws = Draws::new("pairs", 51, "");
    let mut settings: BTreeMap<(String, String), usize> = BTreeMap::new();
    let (mut reasons, rounds) = (BTreeSet::new(), few_or_all(12, 100));
    for round in 0..rounds {
        let spec = random(&mut draws);
        let (rows, refused) = run(&spec, &sources(&mut draws));
        reasons.extend(refused.into_iter().map(|(stage, why)| format!("{stage}: {why}")));
        for row in &rows {
            differs_where_it_should(row);
            let key = (text(row, "construction").to_owned(), text(row, "subtask").to_owned());
            *settings.entry(key).or_default() += 1;
        }
        let folder = tempfile::tempdir().unwrap();
        let published = within(&spec, "pairs", &json!({}), |setting| {
            (kind().write)(setting, &rows, folder.path()).unwrap()
        });
        assert_eq!(published.len(), rows.len());
        let (code, out, err) = palimpsest(&["data", "check", shown(folder.path())]);
        assert!(code == 0 && err.is_empty() && out.lines().count() == 1, "{round}: {out}{err}");
        assert!(out.contains(&format!("{} rows", rows.len())) && out.contains("no problems"), "{out}");
    }
    let seen = |how: &str, setting: &str| settings.keys().any(|(a, b)| a == how && b == setting);
    for how in ["repeat", "foreign", "instead"] {
        assert!(seen(how, "Sequential-Noise") && seen(how, "Mixed-Noise"), "{how}: {settings:?}");
    }
    assert!(seen("drop", "Sequential-Drop") && seen("drop", "Mixed-Drop"), "{settings:?}");
    for setting in ["Mem0-Out", "Mem0-Mem", "A-Mem-Out", "A-Mem-Mem"] {
        assert!(seen("skip", setting), "{settings:?}");
    }
    assert!(seen("middle", "Sequential"), "{settings:?}");
    // No pair is lost to a check.
    reasons.retain(|why| !why.starts_with("pairs: "));
    let known = [
        "no other trace has a segment of the length",
        "no run of turns can be skipped",
        "routes: the lengths differ too much",
    ];
    assert!(reasons.iter().all(|why| known.iter().any(|known| why.ends_with(known))), "{reasons:?}");
}

#[test]
fn lengths_are_near_where_no_trace_may_be_told_by_length_and_are_stated_elsewhere() {
    let mut draws = Draws::new("lengths", 51, "");
    let count = |text: &str| COUNTER.tokens.count(text).unwrap();
    let mut near = 0;
    for _ in 0..few_or_all(4, 20) {
        let spec = random(&mut draws);
        let (rows, _) = run(&spec, &sources(&mut draws));
        let folder = tempfile::tempdir().unwrap();
        let published = within(&spec, "pairs", &json!({}), |setting| {
            (kind().write)(setting, &rows, folder.path()).unwrap()
        });
        for (row, told) in rows.iter().zip(&published) {
            let (chosen, rejected) = (count(text(row, "chosen")), count(text(row, "rejected")));
            let tokens = &told.details["tokens"];
            assert_eq!((&tokens["chosen"], &tokens["rejected"]), (&json!(chosen), &json!(rejected)));
            if ["instead", "middle"].contains(&text(row, "construction")) {
                assert!(chosen.abs_diff(rejected) as f64 <= 0.05 * chosen.max(rejected) as f64, "{}", row.id);
                near += 1;
            }
            if text(row, "construction") == "foreign" {
                let put = row.number("told.put_at").unwrap();
                let own = row.number("told.step").unwrap();
                let (put, own) =
                    (count(blocks(text(row, "rejected"))[put]), count(blocks(text(row, "chosen"))[own]));
                assert!(put.abs_diff(own) as f64 <= 0.05 * own as f64, "{}: {put} {own}", row.id);
            }
        }
    }
    assert!(near > 8, "{near}");
}

#[test]
fn routes_have_right_ends_a_wrong_middle_and_as_many_legs_and_letters() {
    let worlds: Vec<Row> = (0..60).map(|nth| row(&json!({"id": format!("world{nth}")}))).collect();
    for legs in [3, 4, 12, 15] {
        for row in make("routes", json!({"legs": legs}), &worlds).unwrap() {
            let question = text(&row, "question");
            let ways: BTreeMap<&str, (&str, &str)> = question
                .lines()
                .filter_map(|line| {
                    let (from, rest) = line.split_once("You can travel from ")?.1.split_once(" to ")?;
                    let (to, by) = rest.strip_suffix('.')?.split_once(" by ")?;
                    Some((from, (by, to)))
                })
                .collect();
            assert_eq!(ways.len(), 2 * legs - 1, "{question}");
            let route = |name: &str| -> Vec<(String, String, String)> {
                let text = text(&row, name);
                let inner = text.strip_prefix("<Route>\n").unwrap().strip_suffix("\n</Route>").unwrap();
                inner.lines().map(leg).map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())).collect()
            };
            let (right, wrong) = (route("chosen"), route("rejected"));
            assert_eq!((right.len(), wrong.len()), (legs, legs));
            let joined =
                |route: &[(String, String, String)]| route.windows(2).all(|pair| pair[0].2 == pair[1].0);
            assert!(joined(&right) && joined(&wrong));
            let ends = |route: &[(String, String, String)]| (route[0].0.clone(), route[legs - 1].2.clone());
            assert_eq!(ends(&right), ends(&wrong));
            let (start, end) = ends(&right);
            assert!(question.contains(&format!("from {start} to {end}")), "{question}");
            let holds = |leg: &(String, String, String)| {
                ways.get(leg.0.as_str()) == Some(&(leg.1.as_str(), leg.2.as_str()))
            };
            assert!(right.iter().all(holds), "{question}\n{right:?}");
            // It leaves the way and comes back by connections that are not there.
            assert_eq!(wrong.iter().filter(|leg| !holds(leg)).count(), 2, "{wrong:?}");
            assert_eq!(text(&row, "chosen").len(), text(&row, "rejected").len());
        }
    }
}

#[test]
fn the_rules_that_read_nothing_get_what_a_plain_count_gives() {
    let mut draws = Draws::new("shortcuts", 51, "");
    let spec = random(&mut draws);
    let (rows, _) = run(&spec, &sources(&mut draws));
    let folder = tempfile::tempdir().unwrap();
    let published =
        within(&spec, "pairs", &json!({}), |setting| (kind().write)(setting, &rows, folder.path()).unwrap());
    let file = std::fs::read_to_string(folder.path().join("memrewardbench.jsonl")).unwrap();
    let mut counts: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
    for line in file.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let [chosen, rejected] = ["chosen", "rejected"].map(|name| row[name].as_str().unwrap());
        let score = |better: f64, worse: f64| {
            if better > worse { 1.0 } else { f64::from(u8::from(better == worse)) / 2.0 }
        };
        let tokens = |text: &str| COUNTER.tokens.count(text).unwrap() as f64;
        let repeated = |text: &str| {
            let lines: Vec<&str> =
                lines(text).into_iter().filter(|line| line.split_whitespace().count() >= 3).collect();
            (0..lines.len()).filter(|at| lines[..*at].contains(&lines[*at])).count() as f64
        };
        for (rule, score) in [
            ("longer wins", score(tokens(chosen), tokens(rejected))),
            ("more repeated lines lose", score(repeated(rejected), repeated(chosen))),
        ] {
            for name in ["all", row["subtask"].as_str().unwrap()] {
                counts.entry((name.to_owned(), rule)).or_default().push(score);
            }
        }
    }
    let table = std::fs::read_to_string(folder.path().join("shortcuts.csv")).unwrap();
    let mut told = table.lines();
    assert_eq!(told.next(), Some("setting,rule,pairs,accuracy"));
    let mut seen = 0;
    for line in told {
        let cells: Vec<&str> = line.split(',').collect();
        let rule = counts.keys().find(|(_, rule)| *rule == cells[1]).unwrap().1;
        let scores = &counts[&(cells[0].to_owned(), rule)];
        assert_eq!(cells[2], scores.len().to_string(), "{line}");
        let share = scores.iter().sum::<f64>() / scores.len() as f64;
        assert!((cells[3].parse::<f64>().unwrap() - share).abs() < 1e-12, "{line}: {share}");
        seen += 1;
    }
    assert_eq!(seen, counts.len(), "{table}");
    // Each pair's part of it is in the provenance, and so is its source.
    for rule in ["longer wins", "more repeated lines lose"] {
        let sum: f64 = published.iter().map(|row| row.details["shortcuts"][rule].as_f64().unwrap()).sum();
        assert_eq!(sum, counts[&("all".to_owned(), rule)].iter().sum::<f64>());
    }
    for (row, of) in published.iter().zip(&rows) {
        assert_eq!(row.row, of.id);
        let line = file.lines().nth(row.uid.parse().unwrap()).unwrap();
        assert_eq!(row.digest, palimpsest_core::digest::sha256(line));
        let licence = if of.id.starts_with("ship") { "CC0-1.0" } else { spec.licence.as_str() };
        assert_eq!(row.details["sources"][0]["licence"], licence);
    }
}

#[test]
fn presets_parse_and_the_default_one_is_the_papers() {
    let presets = kind().presets;
    assert_eq!(presets.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["full", "noise"]);
    for (name, text) in presets {
        let spec = Spec::parse(name, text).unwrap();
        assert_eq!(spec.stages.last().unwrap().name, "pairs", "{name}");
        assert_eq!(spec.stages.iter().any(|stage| stage.ask.is_some()), *name == "full");
    }
}

#[test]
fn the_same_seed_makes_the_same_bytes_and_another_one_others() {
    let written = |seed: u64, dir: &Path| {
        let mut draws = Draws::new("bytes", 51, "");
        let spec = Spec { seed, ..noise() };
        let (rows, _) = run(&spec, &sources(&mut draws));
        within(&spec, "pairs", &json!({}), |setting| (kind().write)(setting, &rows, dir).unwrap());
        std::fs::read(dir.join("memrewardbench.jsonl")).unwrap()
    };
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [a, b, c] = [(0, 0), (0, 1), (1, 2)].map(|(seed, nth)| written(seed, folders[nth].path()));
    assert!(a == b && a != c);
}
