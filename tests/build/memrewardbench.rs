//! MemoryRewardBench pairs: where they differ, their lengths and outcomes, and what rules that read nothing get.

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
    then(&Setting { spec, stage, with: all, pool: &Pool::default(), count: tokens.as_ref(), embed: &embed })
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
                failed.into_iter().map(&mut refuse).count() == 0
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
    let traces =
        (0..6).map(|nth| trace(draws, &format!("ship{nth}"), [0, 0, 2, 3][draws.index(4)])).collect();
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
fn contexts_are_cut_at_sentences_and_never_inside_a_key() {
    let sentence = |nth: usize| format!("Sentence {nth} tells of a harbour with {nth} boats.");
    let mut all: Vec<String> = (0..40).map(sentence).collect();
    let key = "The mate took the compass. He put it into locker 17.";
    all.insert(17, key.to_owned());
    let whole = all.join(" ");
    let case = row(&json!({"id": "c", "question": "?", "answer": "locker 17", "keys": [key], "text": whole}));
    for most in [12, 30, 100, 10_000] {
        let made = only(make("chunks", json!({"chunk_tokens": most}), &[case.clone()]));
        let chunks: Vec<String> = made.read("chunks").unwrap();
        assert_eq!(chunks.join(" "), whole);
        assert_eq!(chunks.iter().filter(|chunk| chunk.contains(key)).count(), 1);
        assert!(chunks.iter().all(|chunk| chunk.ends_with('.')));
        assert_eq!(chunks.len() == 1, most == 10_000);
        if most < 10_000 {
            let rest = only(make("without-keys", json!({}), std::slice::from_ref(&made)));
            let left: Vec<String> = rest.read("chunks").unwrap();
            assert!(left.len() == chunks.len() - 1 && left.iter().all(|chunk| !chunk.contains("compass")));
        }
    }
    let lost = row(
        &json!({"id": "c", "question": "?", "answer": "a", "keys": ["nowhere"], "chunks": ["one", "two"]}),
    );
    assert_eq!(
        make("chunks", json!({}), &[lost]),
        Err(RowError::Rejected("a key is in no chunk".to_owned()))
    );
}

#[test]
fn parts_are_equal_groups_with_one_more_after_them_and_are_joined_again() {
    let case = |chunks: usize| {
        let chunks: Vec<String> = (0..chunks).map(|nth| format!("chunk {nth}")).collect();
        row(
            &json!({"id": "c", "case": "c", "question": "?", "answer": "a", "keys": ["chunk 1"], "chunks": chunks}),
        )
    };
    for p in [2, 3] {
        for count in p + 1..14 {
            let parts = make("parts", json!({"parts": [p]}), &[case(count)]).unwrap();
            assert_eq!(parts.len(), p);
            let mut all: Vec<String> = Vec::new();
            let mut sizes = BTreeSet::new();
            for part in &parts {
                let own: Vec<String> = part.read("chunks").unwrap();
                sizes.insert(own.len());
                all.extend(own);
            }
            let tail: Vec<String> = parts[0].read("tail").unwrap();
            sizes.insert(tail.len());
            all.extend(tail.clone());
            assert_eq!(all, case(count).read::<Vec<String>>("chunks").unwrap());
            assert!(sizes.last().unwrap() - sizes.first().unwrap() <= 1, "{sizes:?}");
            // Read by a scripted agent, grouped as the engine does, and joined.
            let read = |part: &Row| {
                let mut fields = part.fields.clone();
                let chunks: Vec<String> = part.read("chunks").unwrap();
                fields
                    .insert("trace".to_owned(), chunks.iter().map(|chunk| format!("read {chunk}")).collect());
                fields.insert("wrong".to_owned(), chunks.iter().map(|_| json!(["nonsense"])).collect());
                Value::Object(fields)
            };
            let group = row(&json!({"id": "c.mixed", "rows": parts.iter().map(read).collect::<Vec<_>>()}));
            let joined = only(make("join", json!({}), &[group]));
            assert_eq!(joined.read::<Vec<String>>("chunks").unwrap(), tail);
            assert_eq!(joined.list("parts").unwrap().len(), p);
            assert_eq!(joined.text("parts.0.trace.0").unwrap(), "read chunk 0");
            assert_eq!(joined.text("parts.1.wrong.0.0").unwrap(), "nonsense");
            assert!(joined.get("trace").is_none() && joined.text("case").unwrap() == "c.mixed");
        }
        let few = make("parts", json!({"parts": [p]}), &[case(p)]);
        assert!(matches!(few, Err(RowError::Rejected(_))), "{few:?}");
    }
    let missing = row(&json!({"id": "g", "rows": [{"parallel": 2, "chunks": [], "trace": [], "tail": []}]}));
    assert_eq!(make("join", json!({}), &[missing]), Err(RowError::Rejected("a part is missing".to_owned())));
}

/// A trace as the full preset's stages leave it.
fn scripted(wrong: &Value) -> Row {
    row(&json!({
        "id": "s", "case": "s", "question": "Where is the key?", "answer": "in the safe", "keys": ["put the key into the safe"],
        "chunks": ["Fog lay on the sea.", "The captain put the key into the safe.", "The cook sang."],
        "trace": ["nothing yet", "the key is in the safe", "the key is in the safe"],
        "wrong": wrong, "final": "It is in the safe.",
    }))
}

#[test]
fn refused_updates_are_in_the_rejected_trace_alone() {
    let row =
        scripted(&json!([[], ["the captain has the key", "the key is lost"], ["the cook has the key"]]));
    let pair = only(make("corrected", json!({}), &[row.clone()]));
    assert_eq!(text(&pair, "subtask"), "Sequential-Noise");
    assert!(
        !text(&pair, "chosen").contains("wrong")
            && text(&pair, "chosen").ends_with("Answer: It is in the safe.")
    );
    let [gone, added] = apart(&pair);
    let update = |text: &str| ["<wrong-updated-memory>", text, "</wrong-updated-memory>"].map(str::to_owned);
    let wanted = ["the captain has the key", "the key is lost", "the cook has the key"].map(update).concat();
    assert!(gone.is_empty());
    assert_eq!(added, wanted);
    assert_eq!(pair.read::<Vec<String>>("added").unwrap().len(), 3);
    // One that was never wrong takes a repeat, not its updates.
    let never = scripted(&json!([[], [], []]));
    assert_eq!(
        make("corrected", json!({}), &[never.clone()]),
        Err(RowError::Rejected("no update was wrong".to_owned()))
    );
    assert_eq!(make("repeat", json!({}), &[row]), Err(RowError::Rejected("an update was wrong".to_owned())));
    assert_eq!(make("repeat", json!({}), &[never]).unwrap().len(), 1);
    let mut short = scripted(&json!([]));
    short.fields.insert("trace".to_owned(), json!(["one"]));
    let Err(RowError::Fault(what)) = make("repeat", json!({}), &[short]) else { panic!() };
    assert!(what.contains("3 chunks and 1 memories"), "{what}");
}

#[test]
fn a_trace_over_the_rest_is_set_against_the_one_over_the_whole() {
    let whole = scripted(&json!([[], ["a wrong one"], []]));
    let mut rest = only(make("without-keys", json!({}), &[whole.clone()]));
    for (name, value) in [("trace", json!(["nothing yet", "nothing yet"])), ("final", json!(UNKNOWN))] {
        rest.fields.insert(name.to_owned(), value);
    }
    rest.fields.shift_remove("wrong");
    let group = |rows: &[&Row]| {
        let rows: Vec<Value> = rows.iter().map(|row| Value::Object(row.fields.clone())).collect();
        row(&json!({"id": "s", "rows": rows}))
    };
    // In any order.
    for rows in [[&whole, &rest], [&rest, &whole]] {
        let pair = only(make("against", json!({}), &[group(&rows)]));
        assert_eq!(text(&pair, "subtask"), "Sequential-Drop");
        assert!(text(&pair, "question").contains("put the key into the safe"));
        assert!(
            text(&pair, "chosen").contains("put the key into the safe")
                && !text(&pair, "chosen").contains("a wrong one")
        );
        assert!(!text(&pair, "rejected").contains("safe") && text(&pair, "rejected").ends_with(UNKNOWN));
        let passes = |name: &str, with: Value| {
            let with = with.as_object().unwrap().clone();
            within(&noise(), "s", &json!({}), |setting| {
                check(NAME, name).unwrap()(setting, &with, &pair).unwrap()
            })
        };
        assert_eq!(passes("no-keys", json!({})), None);
        assert_eq!(passes("outcomes", json!({"chosen": true, "rejected": false})), None);
        assert_eq!(
            passes("outcomes", json!({"rejected": true})).as_deref(),
            Some("the rejected answer is wrong")
        );
    }
    let alone = make("against", json!({}), &[group(&[&whole])]);
    assert_eq!(alone, Err(RowError::Rejected("one of the two traces is missing".to_owned())));
}

#[test]
fn what_a_check_should_refuse_it_refuses() {
    let mut pair = only(make("repeat", json!({}), &[scripted(&json!([]))]));
    let refused = |name: &str, pair: &Row| {
        within(&noise(), "s", &json!({}), |setting| {
            check(NAME, name).unwrap()(setting, &serde_json::Map::new(), pair).unwrap()
        })
    };
    assert_eq!(refused("differs", &pair), None);
    assert_eq!(refused("lengths", &pair).as_deref(), Some("the lengths differ too much"));
    let longer = format!("{}\nand one line more", text(&pair, "rejected"));
    pair.fields.insert("rejected".to_owned(), json!(longer));
    assert_eq!(refused("differs", &pair).as_deref(), Some("the traces differ elsewhere too"));
    let chosen = pair.fields["chosen"].clone();
    pair.fields.insert("rejected".to_owned(), chosen);
    assert_eq!(refused("differs", &pair).as_deref(), Some("the traces are equal"));
    assert_eq!(refused("lengths", &pair), None);
    assert_eq!(refused("no-keys", &pair).as_deref(), Some("a key is in the wrong trace"));
}

#[test]
fn an_answer_from_a_skipped_memory_decides_between_mem_and_out() {
    let base = json!({
        "id": "d.0", "copy": 0, "question": "Where does Ada live?", "answer": "Tarn", "keys": ["I moved to Tarn"],
        "turns": ["Ada: I moved to Tarn.", "Ben: Good.", "Ada: Yes.", "Ben: Bye."],
        "notes": ["Ada lives in Tarn", "Ben is glad", "Ada agrees", "Ben leaves"], "final": "Tarn",
    });
    let with = json!({"systems": ["Mem0", "A-Mem"], "run": [2, 2], "over_keys": true});
    let skipped = only(make("skip", with.clone(), &[row(&base)]));
    assert_eq!(skipped.read::<Vec<String>>("kept").unwrap(), ["", "", "Ada agrees", "Ben leaves"]);
    for (said, setting) in [("In Tarn, I think.", "Mem0-Mem"), ("In Velby.", "Mem0-Out")] {
        let mut answered = skipped.clone();
        answered.fields.insert("kept_final".to_owned(), json!(said));
        let pair = only(make("dialogue", json!({}), &[answered]));
        assert_eq!(text(&pair, "subtask"), setting);
        assert_eq!(
            text(&pair, "rejected"),
            format!("[turn 3]\nAda agrees\n\n[turn 4]\nBen leaves\n\nAnswer: {said}")
        );
        differs_by_answer(&pair);
    }
    let mut silent = base.clone();
    silent["notes"] = json!(["", "", "Ada agrees", ""]);
    let none = make("skip", with, &[row(&silent)]);
    assert_eq!(none, Err(RowError::Rejected("no run of turns can be skipped".to_owned())));
}

fn differs_by_answer(pair: &Row) {
    let [gone, added] = apart(pair);
    assert_eq!(gone, ["[turn 1]", "Ada lives in Tarn", "[turn 2]", "Ben is glad", "Answer: Tarn"]);
    assert_eq!(added.len(), 1);
}

#[test]
fn texts_differ_in_the_sections_of_the_constraints_that_were_picked() {
    let constraints: Vec<String> = (0..7).map(|nth| format!("Section {nth} names {nth} birds.")).collect();
    let right: Vec<String> =
        (0..7).map(|nth| format!("Here are {nth} birds.\nThey sing for {nth} hours.")).collect();
    let instruction = row(&json!({
        "id": "i", "question": "Title: Birds", "constraints": constraints, "scheme": "Parallel", "blocks": right,
    }));
    for (change, share, count) in [("altered", 0.34, 2), ("dropped", 0.01, 1)] {
        let with = json!({"change": change, "spoiled": share});
        let mut picked = only(make("pick", with, std::slice::from_ref(&instruction)));
        let places: Vec<usize> = picked.read("picked").unwrap();
        let texts: Vec<String> = picked.read("to_alter").unwrap();
        assert!(places.len() == count && places.is_sorted(), "{places:?}");
        assert_eq!(texts, places.iter().map(|nth| constraints[*nth].clone()).collect::<Vec<_>>());
        assert_eq!(picked.get("altered").cloned(), (change == "dropped").then(|| json!(vec![""; count])));
        let wrong: Vec<String> = places.iter().map(|nth| format!("No birds in {nth}.")).collect();
        picked.fields.insert("spoiled_blocks".to_owned(), json!(wrong));
        let pair = only(make("blocks", json!({}), &[picked]));
        assert_eq!(text(&pair, "subtask"), "Parallel");
        let [gone, added] = apart(&pair);
        let lost: Vec<&str> = places.iter().flat_map(|nth| lines(&right[*nth])).collect();
        assert_eq!((gone, added), (owned(&lost), wrong));
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
