//! Logbook: dated events with fields, and questions with their own evidence.
//!
//! A file is JSON lines, one logbook each: `{"id", "ship", "events": [{"time", "where", "what"}], "questions": [{"id", "about", "text",
//! "answer", "facts": [[event, field]], "cause": event}]}`.

use std::collections::BTreeMap;
use std::io::BufRead;

use palimpsest::benchmarks::reading::{Problem, ReadError};
use palimpsest::benchmarks::{
    Benchmark, Cases, Curve, Dimension, Files, JudgeUnit, LensSpec, QUERY, Rubric, VerdictKind,
};
use palimpsest::case::{Case, Evidence, History, JudgeOnly, Location, Probe, Segment, Turn};
use serde::Deserialize;

#[derive(Deserialize)]
struct Row {
    id: String,
    ship: String,
    events: Vec<Event>,
    questions: Vec<Question>,
}

#[derive(Deserialize)]
struct Event {
    time: String,
    r#where: String,
    what: String,
}

#[derive(Deserialize)]
struct Question {
    id: String,
    about: String,
    text: String,
    answer: String,
    /// (event, field) pairs that state the answer; field 0 is `where`, 1 is `what`.
    facts: Vec<(usize, usize)>,
    /// The event that caused it.
    cause: Option<usize>,
}

pub static LOGBOOK: Benchmark = Benchmark {
    name: "logbook",
    title: "Logbook",
    segment: "event",
    split: "ship",
    dimension: Dimension::Facet("about"),
    templates: &[
        ("system.j2", "You keep a ship's logbook."),
        (
            "event.j2",
            "Event {{ number }}, {{ date }}\n{% for turn in turns %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}",
        ),
        ("question.j2", "The logbook:\n\n{{ history }}\nQuestion: {{ query }}\nAnswer in a few words.\n"),
    ],
    rubrics: &[Rubric {
        name: "log",
        about: "the only one",
        template: "On the ship {{ labels.ship }}:\n{% for probe in probes %}{{ probe.id }}: {{ probe.query }}\nRight: {{ probe.right }}\n\
                   Given: {{ probe.answer }}\n{% endfor %}Reply with JSON: {\"ID\": {\"score\": 0 to 2, \"reason\": \"...\"}}.",
        unit: JudgeUnit::Probe,
        verdict: VerdictKind::Score { most: 2, grades: &[] },
        earlier: &[],
    }],
    lens: LensSpec {
        curves: &[Curve::new(QUERY, "fact"), Curve::new("fact", "cause"), Curve::new("answer", "fact")],
        ..LensSpec::DEFAULT
    },
    recognises: |files| files.first_beginning().contains("\"ship\""),
    read,
    ..Benchmark::DEFAULT
};

fn read<'a>(files: Files<'a>, _: Option<&'static str>) -> Cases<'a> {
    let failed = |row| move |source| ReadError::Read { file: None, row, source };
    let text = match files.open_first().map_err(failed(0)) {
        Ok(text) => text,
        Err(error) => return Box::new(std::iter::once(Err(error))),
    };
    Box::new(text.lines().enumerate().map(move |(row, line)| {
        case(&line.map_err(failed(row))?).map_err(|found| {
            let (field, remedy) = ("(row)".to_owned(), "write a logbook".to_owned());
            ReadError::Row(vec![Problem { file: None, row, uid: None, field, found, remedy }].into())
        })
    }))
}

/// A line's case, or its problem.
fn case(line: &str) -> Result<Case, String> {
    let row: Row = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let segment = |(index, event): (usize, Event)| -> Result<Segment, String> {
        let time = event.time.parse().map_err(|e| format!("time {}: {e}", event.time))?;
        let turns = vec![Turn::new("where", event.r#where), Turn::new("what", event.what)];
        Ok(Segment { kind: "event".to_owned(), index, time: Some(time), turns })
    };
    let (mut probes, mut judge) = (Vec::new(), JudgeOnly::default());
    for Question { id, about, text, answer, facts, cause } in row.questions {
        let fact = |(segment, turn): (usize, usize)| {
            let place = Location { segment, turn: Some(turn), bytes: None };
            Evidence { role: "fact".to_owned(), place }
        };
        let mut evidence: Vec<Evidence> = facts.into_iter().map(fact).collect();
        evidence.extend(cause.map(|event| Evidence::segment("cause", event)));
        judge.of_probes.insert(id.clone(), [("right".to_owned(), answer.into())].into_iter().collect());
        let facets = BTreeMap::from([("about".to_owned(), about)]);
        probes.push(Probe {
            id,
            form: "question".to_owned(),
            query: text,
            evidence,
            facets,
            ..Probe::default()
        });
    }
    let segments = row.events.into_iter().enumerate().map(segment).collect::<Result<_, _>>()?;
    Ok(Case {
        id: row.id,
        labels: BTreeMap::from([("ship".to_owned(), row.ship)]),
        history: History { segments, query_time: None },
        probes,
        judge,
        ..Case::default()
    })
}
