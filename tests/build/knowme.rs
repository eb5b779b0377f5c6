//! KnowMe-Bench builds: the makers and checks of each module against plain definitions, and the files against our reader.

mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use palimpsest::benchmarks::dataset::cases_in_memory;
use palimpsest::benchmarks::knowme::KNOWME;
use palimpsest::build::expression::{holds, render};
use palimpsest::build::kind::Maker;
use palimpsest::build::knowme::{Operation, borders, diverges, fault, placed};
use palimpsest::build::pool::Pool;
use palimpsest::build::table::{check, maker};
use palimpsest::build::{Row, RowError, Setting, Spec, Stage};
use palimpsest::case::draw::Draws;
use palimpsest_core::text::CharsPerToken;
use serde_json::{Map, Value, json};

const TEXT: &str = include_str!("../fixtures/build/nobody.txt");

fn preset(name: &str) -> Spec {
    let kind = palimpsest::build::knowme::KIND;
    let (_, text) = kind.presets.iter().find(|(known, _)| *known == name).unwrap();
    Spec::parse(name, text).unwrap()
}

fn fields(value: Value) -> Map<String, Value> {
    let Value::Object(fields) = value else { panic!("{value} is no object") };
    fields
}

fn row(id: &str, value: Value) -> Row {
    Row { id: id.to_owned(), parents: Vec::new(), fields: fields(value) }
}

fn with_setting<T>(spec: &Spec, stage: &str, run: impl FnOnce(&Setting<'_>) -> T) -> T {
    let (pool, count) = (Pool::default(), CharsPerToken::new(4.0).unwrap());
    let with = spec.settings.clone();
    let embed = |_: &[&str]| Err("there is no embedder".to_owned());
    run(&Setting { spec, stage, with, pool: &pool, count: &count, embed: &embed, reviews: &[] })
}

/// The rows that a maker makes of one row.
fn made(spec: &Spec, name: &str, row: &Row) -> Result<Vec<Row>, RowError> {
    let Some(Maker::Each(make)) = maker("knowme", name) else { panic!("{name}") };
    with_setting(spec, name, |setting| make(setting, row))
}

fn found(spec: &Spec, name: &str, with: Value, row: &Row) -> Option<String> {
    with_setting(spec, name, |setting| check("knowme", name).unwrap()(setting, &fields(with), row)).unwrap()
}

/// Runs stages that need no model. Rows of all stages by name; reasons of those that were rejected.
fn built(spec: &Spec, mut rows: BTreeMap<String, Vec<Row>>) -> (BTreeMap<String, Vec<Row>>, Vec<String>) {
    let mut rejected = Vec::new();
    for stage in &spec.stages {
        let mut taken: Vec<Row> = stage.rows.iter().flat_map(|name| rows[name].clone()).collect();
        let ids: BTreeSet<&String> = taken.iter().map(|row| &row.id).collect();
        assert_eq!(ids.len(), taken.len(), "ids of {}", stage.name);
        if let [by] = stage.group.as_slice() {
            let id = taken.first().map_or("", |row| row.text(by).unwrap()).to_owned();
            let list: Vec<Value> = taken.iter().map(|row| json!(row.fields)).collect();
            taken = vec![row(&id, json!({by.as_str(): id, "rows": list}))];
        }
        taken.iter_mut().for_each(|row| row.fields.extend(stage.set.clone()));
        let made = with_setting(spec, &stage.name, |setting| run(setting, stage, &taken));
        let mut sound = Vec::new();
        for made in made {
            match made {
                Ok(row) => sound.push(row),
                Err((_, reason)) => rejected.push(reason),
            }
        }
        rows.insert(stage.name.clone(), sound);
    }
    (rows, rejected)
}

fn run(setting: &Setting<'_>, stage: &Stage, rows: &[Row]) -> Vec<Result<Row, (String, String)>> {
    match maker("knowme", stage.make.as_deref().unwrap()).unwrap() {
        Maker::All(make) => make(setting, rows).unwrap(),
        Maker::Each(make) => {
            let of = |row: &Row| match make(setting, row) {
                Ok(rows) => rows.into_iter().map(Ok).collect(),
                Err(RowError::Rejected(reason)) => vec![Err((row.id.clone(), reason))],
                Err(RowError::Fault(fault)) => panic!("{fault}"),
            };
            rows.iter().flat_map(of).collect()
        }
    }
}

/// The files that the rows are written to, by name.
fn written(spec: &Spec, rows: &[Row]) -> (Vec<(String, Vec<u8>)>, Vec<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let write = palimpsest::build::knowme::KIND.write;
    let published = with_setting(spec, "assemble", |setting| write(setting, rows, dir.path())).unwrap();
    assert_eq!(published.len(), rows.len());
    let source = spec.sources.values().next().unwrap();
    for row in &published {
        assert_eq!(row.details["sources"][0]["licence"], json!(source.licence));
    }
    let mut files = Vec::new();
    for folder in ["input", "question", "answer"] {
        for file in std::fs::read_dir(dir.path().join(folder)).unwrap() {
            let path = file.unwrap().path();
            let name = path.strip_prefix(dir.path()).unwrap().to_str().unwrap().replace('\\', "/");
            files.push((name, std::fs::read(path).unwrap()));
        }
    }
    files.sort();
    let details = published.into_iter().map(|row| json!({"uid": row.uid, "details": row.details}));
    (files, details.collect())
}

/// `data check` finds nothing but that there are tasks without questions.
fn assert_sound(files: &[(String, Vec<u8>)], without: &[&str]) {
    let cases = cases_in_memory(&KNOWME, files.to_vec());
    let report = KNOWME.check(Box::new(cases.into_iter()), &mut |_| {});
    assert!(report.is_sound(), "{:?}", report.problems);
    let (tasks, others): (Vec<_>, Vec<_>) =
        report.findings.iter().partition(|finding| finding.check.name == "no-questions");
    assert!(others.is_empty(), "{}", others.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    let tasks: Vec<&str> = tasks.iter().filter_map(|finding| finding.message.split(' ').next()).collect();
    assert_eq!(tasks, without);
}

fn list(files: &[(String, Vec<u8>)], name: &str) -> Vec<Value> {
    let file = files.iter().find(|(known, _)| Path::new(known).ends_with(name));
    file.map_or(Vec::new(), |(_, bytes)| serde_json::from_slice(bytes).unwrap())
}

#[test]
fn presets_parse_and_their_kinds_of_questions_have_five_templates_each() {
    for name in ["full", "search"] {
        let spec = preset(name);
        let questions = spec.settings["questions"].as_object().unwrap();
        let kinds: BTreeSet<&str> = questions.keys().map(String::as_str).collect();
        assert_eq!(kinds, BTreeSet::from(["how-long", "order", "what", "when", "where"]));
        assert!(questions.values().all(|kind| kind.as_array().unwrap().len() >= 5), "{name}");
    }
    let asks = preset("search").stages.iter().filter(|stage| stage.ask.is_some()).count();
    assert_eq!(asks, 0);
    let mut few = preset("search");
    few.settings["questions"]["order"].as_array_mut().unwrap().truncate(4);
    let Err(RowError::Fault(fault)) = made(&few, "orders", &row("life", json!({"rows": []}))) else {
        panic!()
    };
    assert!(fault.contains("`questions.order` has 4 templates"), "{fault}");
}

#[test]
fn a_text_is_cut_where_a_sentence_begins_outside_quotations() {
    let cut = |text: &str| {
        let starts = [0].into_iter().chain(borders(text).into_iter().map(|border| border.at));
        let ends = borders(text).into_iter().map(|border| border.at).chain([text.len()]);
        starts.zip(ends).map(|(from, to)| text[from..to].trim().to_owned()).collect::<Vec<_>>()
    };
    for (text, parts) in [
        ("It rained. I read.", vec!["It rained.", "I read."]),
        ("I met Mr. Dahl and W. Bilkson. We spoke.", vec!["I met Mr. Dahl and W. Bilkson.", "We spoke."]),
        ("“Go. Go now.” I went.", vec!["“Go. Go now.”", "I went."]),
        ("\"Go. Now!\" Anna said. I went.", vec!["\"Go. Now!\" Anna said.", "I went."]),
        ("“One. Two.\n\n“Three. Four.” I slept.", vec!["“One. Two.\n\n“Three. Four.”", "I slept."]),
        ("“One. Two.\n\nThree. Four.", vec!["“One. Two.", "Three.", "Four."]),
        ("‘It’s late. Don’t go.’ She left.", vec!["‘It’s late. Don’t go.’", "She left."]),
        (
            "A heading\n\nIt was 3.5 miles, etc. and more.",
            vec!["A heading", "It was 3.5 miles, etc. and more."],
        ),
    ] {
        assert_eq!(cut(text), parts, "{text}");
    }
}

#[test]
fn blocks_and_segments_are_the_text_to_the_letter() {
    let mut spec = preset("full");
    for words in [1, 20, 60, 200, 10_000] {
        spec.settings.insert("block_words".to_owned(), json!(words));
        let blocks = made(&spec, "blocks", &row("text", json!({"text": TEXT, "data": "life"}))).unwrap();
        let mut segments = Vec::new();
        for mut block in blocks {
            let said = block.list("sentences").unwrap().len();
            let size = block.text("text").unwrap().split_whitespace().count();
            assert!(said == 1 || size <= words, "{size} words in {said} sentences of {words}");
            block.fields.insert("starts".to_owned(), json!([1, said, said.div_ceil(2)]));
            segments.extend(made(&spec, "segments", &block).unwrap());
        }
        let mut end = 0;
        for segment in &segments {
            let (from, to) = (segment.number("start_index").unwrap(), segment.number("end_index").unwrap());
            assert_eq!(segment.text("text").unwrap(), &TEXT[from..to]);
            assert!(from >= end && TEXT[end..from].trim().is_empty(), "{from}");
            assert_eq!(segment.text("data").unwrap(), "life");
            assert!(from == 0 || borders(TEXT).iter().any(|border| border.at == from), "{from}");
            end = to;
        }
        assert!(TEXT[end..].trim().is_empty());
    }
    let block = row("t", json!({"text": "It rained. I read.", "starts": [3]}));
    let refused = RowError::Rejected("no sentence has the number 3".to_owned());
    assert_eq!(made(&spec, "segments", &block), Err(refused));
}

#[test]
fn slices_of_a_model_are_refused_by_the_rule_that_they_break() {
    let text = "It rained. “Stay. Do stay.” I read.";
    let slice = |from: usize, to: usize| json!({"start_index": from + 7, "end_index": to + 7, "text": text[from..to]});
    let quote = text.find('“').unwrap();
    let (inside, last) = (text.find("Do").unwrap(), text.find("I read").unwrap());
    assert_eq!(fault(text, 7, &[slice(0, 10), slice(quote, last - 1), slice(last, text.len())]), None);
    let mut other = slice(0, 10);
    other["text"] = json!("It snowed.");
    for (slices, rule) in [
        (vec![other], "a slice that is not the text between its offsets"),
        (
            vec![json!({"start_index": 3, "end_index": 12, "text": "x"})],
            "a slice without start_index and end_index",
        ),
        (vec![slice(0, last - 1), slice(quote, text.len())], "slices that overlap or are out of order"),
        (vec![slice(quote, text.len()), slice(0, 10)], "text between two slices"),
        (vec![slice(0, 10), slice(last, text.len())], "text between two slices"),
        (vec![slice(0, 2), slice(3, text.len())], "a border inside a sentence or a quotation"),
        (vec![slice(0, inside - 1), slice(inside, text.len())], "a border inside a sentence or a quotation"),
        (vec![slice(0, 10)], "text behind the last slice"),
    ] {
        assert_eq!(fault(text, 7, &slices).as_deref(), Some(rule));
        let row = row("t", json!({"text": text, "start": 7, "segments": slices}));
        assert_eq!(found(&preset("full"), "segments", json!({}), &row).as_deref(), Some(rule));
        assert_eq!(made(&preset("full"), "segments", &row), Err(RowError::Rejected(rule.to_owned())));
    }
}

#[test]
fn equation_2_is_exact_at_its_thresholds() {
    // (facts of the source, in both, of the output), d = .4 * missed / source + .6 * added / output in hundredths
    for (source, common, output, hundredths) in [
        (10, 9, 10, 10.0),
        (14, 13, 13, 2.857_143),
        (13, 12, 12, 3.076_923),
        (19, 19, 20, 3.0),
        (0, 0, 0, 0.0),
        (0, 0, 5, 60.0),
    ] {
        let above = |most: f64| diverges(source, common, output, most / 100.0);
        assert!(
            !above(hundredths + 1e-4) && (hundredths == 0.0 || above(hundredths - 1e-4)),
            "{source} {common} {output}"
        );
    }
    assert!(!diverges(19, 19, 20, 0.03) && !diverges(14, 13, 13, 0.03) && diverges(13, 12, 12, 0.03));
    let spec = preset("full");
    for (stage, most) in [("units", 0.05), ("narrative", 0.03)] {
        let stage = spec.stages.iter().find(|known| known.name == stage).unwrap();
        let accept = &stage.judges[0].accept;
        let equation = accept.strip_prefix("not added and ").unwrap();
        for (both, missing, added) in
            (0..21).flat_map(|n| (0..3).flat_map(move |m| (0..3).map(move |a| (n, m, a))))
        {
            let reply =
                json!({"both": vec!["x"; both], "missing": vec!["x"; missing], "added": vec!["x"; added]});
            let passes = !diverges(both + missing, both, both + added, most);
            assert_eq!(
                holds(equation, &fields(reply.clone())),
                Ok(passes),
                "{both} {missing} {added} {most}"
            );
            assert_eq!(holds(accept, &fields(reply)), Ok(passes && added == 0));
        }
    }
}

fn time(second: i64) -> String {
    format!(
        "1890-04-{:02} {:02}:{:02}:{:02}",
        1 + second / 86400,
        second / 3600 % 24,
        second / 60 % 60,
        second % 60
    )
}

fn operation(action: &str, second: i64) -> Operation {
    serde_json::from_value(json!({"action": action, "time": time(second)})).unwrap()
}

/// Tells a layer of time by its definition, without a stack. Its last time.
fn tell(draws: &mut Draws, depth: usize, mut now: i64, all: &mut Vec<(Operation, String)>) -> i64 {
    for _ in 0..draws.index(5) {
        match draws.index(4) {
            0 if depth < 3 => {
                let then = now - 1 - draws.index(9000) as i64;
                all.push((operation("PUSH", then), time(then)));
                tell(draws, depth + 1, then, all);
                now += draws.index(3) as i64;
                all.push((operation("POP", now), time(now)));
            }
            1 => all.push((operation("TRANSIENT", now - 500), time(now))),
            _ => {
                now += draws.index(3) as i64;
                all.push((operation("MAINTAIN", now), time(now)));
            }
        }
    }
    now
}

#[test]
fn the_stack_of_times_is_its_definition_and_refuses_each_violation_by_its_rule() {
    let spec = preset("full");
    for seed in 0..200 {
        let mut draws = Draws::new("test", seed, "timeline");
        let mut all = vec![(operation("MAINTAIN", 400_000), time(400_000))];
        let now = tell(&mut draws, 0, 400_000, &mut all);
        let (operations, times): (Vec<Operation>, Vec<String>) = all.into_iter().unzip();
        let units: Vec<Value> = (0..times.len()).map(|nth| json!({"text": nth})).collect();
        let told = row("life", json!({"rows": units, "operations": operations}));
        let rows = made(&spec, "timeline", &told).unwrap();
        let placed_at: Vec<&str> = rows.iter().map(|row| row.text("timestamp").unwrap()).collect();
        assert_eq!(placed_at, times, "seed {seed}");
        // Both orders are kept: ids count the telling, `order` is a stable sort by time.
        let mut sorted: Vec<usize> = (0..times.len()).collect();
        sorted.sort_by(|a, b| times[*a].cmp(&times[*b]).then(a.cmp(b)));
        for (place, nth) in sorted.into_iter().enumerate() {
            assert_eq!((rows[nth].number("id"), rows[nth].number("order")), (Ok(nth), Ok(place)));
        }
        let after = |more: &[Operation]| placed(&[operations.as_slice(), more].concat()).map(|_| ());
        let n = operations.len();
        let push = operation("PUSH", now - 100);
        let no_time = Operation { time: None, ..operation("MAINTAIN", now) };
        let no_date = Operation { time: Some("that evening".to_owned()), ..push.clone() };
        for (more, at, rule) in [
            (vec![operation("MAINTAIN", now - 1)], n, "MAINTAIN goes back in time"),
            (vec![operation("PUSH", now)], n, "PUSH goes to no earlier time"),
            (vec![operation("PUSH", now + 1)], n, "PUSH goes to no earlier time"),
            (vec![operation("POP", now)], n, "POP at the base"),
            (
                vec![push.clone(), operation("POP", now - 1)],
                n + 1,
                "POP goes behind the time that it returns to",
            ),
            (
                vec![push.clone(), operation("TRANSIENT", 5), operation("MAINTAIN", now - 101)],
                n + 2,
                "MAINTAIN goes back in time",
            ),
            (vec![no_time], n, "an operation has no time"),
            (vec![no_date], n, "a time is no YYYY-MM-DD HH:MM:SS"),
        ] {
            assert_eq!(after(&more), Err((at, rule)), "seed {seed}");
            let (last, before) = more.split_last().unwrap();
            let mut step = fields(json!(last));
            step.insert("operations".to_owned(), json!([operations.as_slice(), before].concat()));
            let step = Row { fields: step, ..Row::default() };
            assert_eq!(found(&spec, "operation", json!({}), &step).as_deref(), Some(rule));
        }
        let back = Operation { time: None, ..operation("POP", 0) };
        assert_eq!(
            placed(&[operations.as_slice(), &[push.clone(), back]].concat()).unwrap()[n + 1]
                .time
                .to_string()
                .replace('T', " "),
            time(now)
        );
        for action in ["PUSH", "POP", "TRANSIENT"] {
            assert_eq!(placed(&[operation(action, 5)]), Err((0, "the first operation is no MAINTAIN")));
        }
    }
    let short = row("life", json!({"rows": [{}, {}], "operations": [operation("MAINTAIN", 0)]}));
    assert_eq!(
        made(&spec, "timeline", &short),
        Err(RowError::Rejected("1 operations for 2 units".to_owned()))
    );
}

fn units() -> Vec<Value> {
    let unit = |anchor: &str, place: &str, action: &[&str], environment: &str, mind: &str| json!({"t_anchor": anchor, "location": place, "action": action, "dialogue": [], "environment": environment, "background": "", "mind": mind});
    vec![
        unit(
            "April 3",
            "The Laurels",
            &["Tradesmen called for custom", "the narrator promised Farmerson a turn"],
            "",
            "the bells must be seen to",
        ),
        unit(
            "Dear friend Gowing\ndropped in",
            "The Laurels",
            &["friend Gowing dropped in"],
            "smell of paint",
            "",
        ),
        unit(
            "In the evening",
            "parlour",
            &["Cummings showed a meerschaum pipe", "Cummings fell over the scraper"],
            "",
            "",
        ),
    ]
}

#[test]
fn units_are_held_against_their_segment() {
    let spec = preset("full");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut all = units();
        change(&mut all[1]);
        found(&spec, "units", json!({}), &row("s", json!({"text": TEXT, "units": all})))
    };
    assert_eq!(with(&|_| {}), None);
    for (name, value, rule) in [
        ("t_anchor", json!("April 5"), "unit 2: the text does not have its anchor \"April 5\""),
        ("t_anchor", json!(""), "unit 2: it has no anchor"),
        ("location", json!(" "), "unit 2: it has no location"),
        (
            "action",
            json!(["a", "b", "c", "d"]),
            "unit 2: its action has 4 parts; split it so that none has more than 3",
        ),
        (
            "dialogue",
            json!("One. Two. Three. Four."),
            "unit 2: its dialogue has 4 parts; split it so that none has more than 3",
        ),
    ] {
        assert_eq!(with(&|unit| unit[name] = value.clone()).as_deref(), Some(rule));
    }
    let emptied = with(&|unit| ["action", "environment"].iter().for_each(|name| unit[*name] = json!("None")));
    assert_eq!(emptied.as_deref(), Some("unit 2: it has no content"));
    assert_eq!(
        found(&spec, "units", json!({}), &row("s", json!({"text": TEXT, "units": []}))).as_deref(),
        Some("there are no units")
    );
}

/// Words that module D may use for the scripted units.
fn narratives() -> [Value; 3] {
    [
        json!({"action": "Tradesmen called for custom, and I promised Farmerson a turn.", "dialogue": "", "environment": "", "background": "", "inner_thought": "I thought the bells must be seen to."}),
        json!({"action": "My friend Gowing dropped in.", "dialogue": "", "environment": "I noticed a smell of paint.", "background": "", "inner_thought": ""}),
        json!({"action": "In the evening Cummings showed me a meerschaum pipe. Cummings fell over the scraper.", "dialogue": null, "environment": "", "background": "", "inner_thought": ""}),
    ]
}

#[test]
fn scripted_replies_become_events_and_questions_that_our_reader_reads() {
    let mut spec = preset("full");
    spec.settings.insert("window".to_owned(), json!(2));
    let segment = row(
        "text.0.0",
        json!({"data": "life", "text": TEXT, "start_index": 0, "end_index": TEXT.len(), "units": units()}),
    );
    let told = made(&spec, "told", &segment).unwrap();
    let rows: Vec<Value> = told.iter().map(|row| json!(row.fields)).collect();
    let operations = [operation("MAINTAIN", 200_000), operation("PUSH", 100_000), operation("POP", 230_000)];
    let timeline = row("life", json!({"data": "life", "rows": rows, "operations": operations}));
    let narrative = spec.stages.iter().find(|stage| stage.name == "narrative").unwrap();
    let with = || json!(narrative.checks[0].with);
    let mut events = Vec::new();
    for (mut row, said) in made(&spec, "timeline", &timeline).unwrap().into_iter().zip(narratives()) {
        row.fields.extend(fields(said));
        assert_eq!(found(&spec, "narrative", with(), &row), None, "{row:?}");
        let changed = |name: &str, text: &str| {
            let mut other = row.clone();
            other.fields.insert(name.to_owned(), json!(text));
            found(&spec, "narrative", with(), &other)
        };
        assert_eq!(changed("action", "").as_deref(), Some("`action` is left out"));
        assert_eq!(changed("dialogue", "Hello.").as_deref(), Some("the unit has nothing for `dialogue`"));
        let sad = format!("{} I was melancholy.", row.text("action").unwrap());
        assert_eq!(changed("action", &sad).as_deref(), Some("it adds melancholy"));
        assert!(changed("action", "I did.").unwrap().starts_with("it lacks "));
        events.extend(made(&spec, "events", &row).unwrap());
    }
    let all: Vec<Value> = events.iter().map(|row| json!(row.fields)).collect();
    let life = row("life", json!({"data": "life", "rows": all}));
    let windows = made(&spec, "windows", &life).unwrap();
    assert_eq!(windows.len(), 2 * 5, "two windows, five tasks");
    let asked = |task: &str, value: Value| {
        let mut row = windows.iter().find(|row| row.text("task") == Ok(task)).unwrap().clone();
        row.fields.extend(fields(value));
        row
    };
    let ranking = json!([{"rank": 2, "event": "The paint.", "reasoning": "r"}, {"rank": 1, "event": "The bells.", "reasoning": "r"}]);
    let questions = [
        asked(
            "T1",
            json!({"question": "Whom did the narrator promise a turn, when tradesmen called for custom?", "answer": "Farmerson", "evidence": [0], "given": ["tradesmen called for custom"], "reasoning": "r"}),
        ),
        asked(
            "T4",
            json!({"question": "Rank two troubles of the house by how soon a guest notices them.", "answer": ranking, "evidence": ["0", 1], "given": [], "reasoning": "r"}),
        ),
        asked(
            "T5",
            json!({"question": "Which memory does the talk of bells bring back?", "answer": "The visit of Gowing.", "evidence": [0, 1], "given": [], "reasoning": "r"}),
        ),
    ];
    for question in &questions {
        assert_eq!(found(&spec, "cites", json!({}), question), None);
        let mut wrong = question.clone();
        wrong.fields.insert("evidence".to_owned(), json!([2]));
        assert_eq!(
            found(&spec, "cites", json!({}), &wrong).as_deref(),
            Some("there is no event 2"),
            "of the other window"
        );
    }
    let mut unranked = questions[1].clone();
    unranked.fields["answer"][0]["rank"] = json!(1);
    assert_eq!(
        found(&spec, "cites", json!({}), &unranked).as_deref(),
        Some("its answer does not rank two or more events from 1 on")
    );
    // Two events tell of Cummings or Gowing each; a question that fits several has no unique answer.
    let twin = |id: &str, change: Value| {
        let mut row = questions[0].clone();
        row.id = id.to_owned();
        row.fields.extend(fields(change));
        row
    };
    let open = twin(
        "open",
        json!({"question": "Who came to the house of the narrator in April?", "given": ["April"]}),
    );
    let same = twin(
        "same",
        json!({"question": "Whom did the narrator promise a turn when tradesmen called for custom"}),
    );
    let stray =
        twin("stray", json!({"question": "Which tradesman hopes for nails and tools?", "evidence": [7]}));
    let rows: Vec<Row> = events.iter().chain(&questions).chain([&open, &same, &stray]).cloned().collect();
    let Some(Maker::All(assemble)) = maker("knowme", "assemble") else { panic!() };
    let (kept, rejected): (Vec<_>, Vec<_>) =
        with_setting(&spec, "assemble", |setting| assemble(setting, &rows))
            .unwrap()
            .into_iter()
            .partition(Result::is_ok);
    let kept: Vec<Row> = kept.into_iter().map(Result::unwrap).collect();
    let rejected: Vec<(String, String)> = rejected.into_iter().map(Result::unwrap_err).collect();
    let reasons = [
        ("open", "its answer is not unique"),
        ("same", "nearly an earlier question"),
        ("stray", "its evidence is no event"),
    ];
    assert_eq!(rejected, reasons.map(|(id, reason)| (id.to_owned(), reason.to_owned())));
    assert_eq!(kept.len(), 6);
    let (files, details) = written(&spec, &kept);
    assert_sound(&files, &["T2", "T3", "T6", "T7"]);
    let written = list(&files, "life.json");
    let ids: Vec<&Value> = written.iter().map(|event| &event["id"]).collect();
    assert_eq!(ids, [1, 0, 2], "in the order of time; ids tell the order of the telling");
    assert_eq!(
        written[0],
        json!({"id": 1, "timestamp": time(100_000), "location": "The Laurels", "action": "My friend Gowing dropped in.", "dialogue": null, "environment": "I noticed a smell of paint.", "background": null, "inner_thought": null})
    );
    let first = &details[0]["details"];
    assert_eq!((&first["operation"], &first["trigger_time"]), (&json!("PUSH"), &json!(time(200_000))));
    assert_eq!(
        details[3],
        json!({"uid": "T1-1", "details": {"sources": first["sources"], "places": [1], "events_after": 1}})
    );
}

#[test]
fn templates_of_the_full_preset_render_from_what_their_stages_have() {
    let spec = preset("full");
    let unit = &units()[0];
    let rows = json!([{"unit": unit}, {"unit": unit}]);
    let past = ["MAINTAIN", "PUSH", "TRANSIENT", "PUSH", "POP"].iter().zip([500, 300, 100, 200, 301]);
    let past: Vec<Operation> = past.map(|(action, second)| operation(action, second)).collect();
    let mut row = fields(json!({
        "settings": spec.settings, "failures": [{"reply": "{}", "why": "schema"}], "text": "It rained.", "sentences": ["It rained."],
        "units": [unit], "unit": unit, "rows": rows, "operations": past, "item": {"t_anchor": "a", "location": "b", "unit": unit}, "step": 5,
    }));
    row.extend(fields(json!({
        "time": time(1), "reasoning": "r", "dialogue": "", "environment": "", "background": "", "inner_thought": "", "action": "PUSH",
        "task": "T5", "events": [{"id": 3, "action": "x"}, {"id": 4, "action": "y"}], "question": "q", "answer": "a", "evidence": [4], "given": [],
    })));
    for stage in &spec.stages {
        let judges = stage.judges.iter().map(|judge| (&judge.name, &judge.ask));
        for (name, ask) in stage.ask.iter().map(|ask| (&stage.name, ask)).chain(judges) {
            let text = render(&ask.template, &row).unwrap_or_else(|error| panic!("{name}: {error}"));
            let stack = format!("Stack, lowest layer first: {}, {}\n", time(500), time(301));
            assert!(name != "operations" || text.contains(&stack), "{text}");
            assert!(name != "follows" || (text.contains("\"y\"") && !text.contains("\"x\"")), "{text}");
        }
    }
    row.insert("operations".to_owned(), json!([]));
    let ask = spec.stages.iter().find(|stage| stage.name == "operations").unwrap().ask.as_ref().unwrap();
    assert!(render(&ask.template, &row).unwrap().contains("lowest layer first: empty\n"));
}
