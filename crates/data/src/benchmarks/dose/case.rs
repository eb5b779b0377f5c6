//! Validates a row of `dose.jsonl` and builds its [`Case`].

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;
use serde_json::json;

use super::row::{DoseProbe, DoseRow};
use super::terms::{
    ABSENT, CURRENT, EXPECTS, ITEM, NO_VALUE, PREFIX, QUESTION, ROLES, SESSION, STALE, SWEEP, TWIN, twin,
};
use crate::benchmarks::reading::RowProblems;
use crate::benchmarks::shape::{Checker, Field, Node, Others, Pairs, Shape, TURN, needed, optional, quote};
use crate::case::{Case, Contrasted, Evidence, History, JudgeOnly, Notes, Probe, Segment};

const FACTORS: &str = "factors";
const TIME: &str = "%Y-%m-%d %H:%M";

const OF_ROW: [Field; 7] = [
    needed("id", Shape::Text),
    needed(ITEM, Shape::Text),
    needed(
        TWIN,
        Shape::Where(
            |node| node.as_str().is_some_and(|name| twin(name).is_some()),
            "write ab or ba, a kind and an order such as no-update-ab (no-update, no-old, other, paraphrase), or blind",
        ),
    ),
    needed(FACTORS, Shape::By(factors)),
    needed("sessions", Shape::List("session", 1, &Shape::Fields(&OF_SESSION, Others::Refused))),
    needed("query_time", WHEN),
    needed("probes", Shape::List("question", 1, &Shape::Fields(&OF_PROBE, Others::Refused))),
];
const OF_SESSION: [Field; 3] = [
    needed("time", WHEN),
    needed("turns", Shape::List("turn", 1, &TURN)),
    optional(
        "role",
        Shape::Where(
            |node| *node == Node::Null || node.as_str().is_some_and(|role| ROLES.contains(&role)),
            "write old, mid, new, lure, echo, or leave it out",
        ),
    ),
];
const OF_PROBE: [Field; 7] = [
    needed("id", Shape::Text),
    needed("query", Shape::Text),
    needed(
        PREFIX,
        Shape::Where(
            |node| node.as_str().is_some_and(|text| text.trim_end() == text),
            "write how the answer begins, without white space behind it, or \"\"",
        ),
    ),
    needed(CURRENT, Shape::Text),
    needed(STALE, VALUES),
    needed(ABSENT, VALUES),
    needed(EXPECTS, Shape::OneOf(&[CURRENT, NO_VALUE], "write current or none")),
];
const WHEN: Shape = Shape::Where(
    |node| node.as_str().is_some_and(|text| time(text).is_some()),
    "write a date and time that exist, as \"YYYY-MM-DD HH:MM\"",
);
const VALUES: Shape = Shape::List("value", 0, &Shape::Text);

fn time(text: &str) -> Option<DateTime> {
    DateTime::strptime(TIME, text).ok()
}

pub(super) fn case_of(node: Node, mut row: Checker<'_>) -> Result<Case, RowProblems> {
    let labels = labels(&node);
    let case = row
        .read(node, &Shape::Fields(&OF_ROW, Others::Refused))
        .and_then(|read: DoseRow| case(&mut row, read))
        .map(|case| Case { labels: labels.clone(), ..case });
    row.outcome(case, labels, Vec::new())
}

fn labels(node: &Node) -> BTreeMap<String, String> {
    let own = [ITEM, TWIN].into_iter().filter_map(|name| Some((name, node.text(name)?.to_owned())));
    let factors = match node.get(FACTORS) {
        Some(Node::Object(Pairs(factors))) => factors.as_slice(),
        _ => &[],
    };
    let free = |name: &str| !is_taken(name);
    let factors = factors.iter().filter(|(name, _)| free(name));
    let factors = factors.filter_map(|(name, value)| Some((name.as_str(), level(value)?)));
    own.chain(factors).map(|(name, text)| (name.to_owned(), text)).collect()
}

fn is_taken(name: &str) -> bool {
    let of_row = ["id", ITEM, TWIN, FACTORS, "sessions", "query_time", "probes"];
    name.trim().is_empty() || of_row.contains(&name)
}

fn level(node: &Node) -> Option<String> {
    match node {
        Node::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Node::Bool(value) => Some(value.to_string()),
        Node::Number(number) => match number.as_f64() {
            Some(value) if value.fract() == 0.0 => Some(format!("{value:.0}")),
            _ => Some(number.to_string()),
        },
        _ => None,
    }
}

fn factors(row: &mut Checker<'_>, path: &str, node: &Node) -> bool {
    if !row.fits(path, node, &Shape::Fields(&[], Others::Ignored)) {
        return false;
    }
    let Node::Object(Pairs(factors)) = node else { return true };
    let before = row.problems.len();
    for (name, value) in factors {
        let path = format!("{path}.{name}");
        if level(value).is_none() {
            row.problem(path, value.describe(), "write a number, true or false, or a word");
        } else if is_taken(name) {
            row.problem(path, quote(name), "give the factor another name");
        }
    }
    if !factors.iter().any(|(name, value)| name == SWEEP && level(value).is_some()) {
        let remedy = "name the factor that is varied in this row, or base";
        row.problem(format!("{path}.{SWEEP}"), "no such field", remedy);
    }
    row.problems.len() == before
}

fn case(row: &mut Checker<'_>, read: DoseRow) -> Option<Case> {
    let (mut segments, mut evidence) = (Vec::with_capacity(read.sessions.len()), Vec::new());
    for (index, session) in read.sessions.into_iter().enumerate() {
        evidence.extend(session.role.map(|role| Evidence::segment(role, index)));
        let (kind, time) = (SESSION.to_owned(), Some(time(&session.time)?));
        segments.push(Segment { kind, index, time, turns: session.turns });
    }
    let (mut probes, mut of_probes) = (Vec::with_capacity(read.probes.len()), BTreeMap::new());
    for (nth, probe) in read.probes.into_iter().enumerate() {
        let path = format!("probes[{nth}]");
        let mut seen = BTreeSet::new();
        for value in [&probe.current].into_iter().chain(&probe.stale).chain(&probe.absent) {
            if !seen.insert(value.trim()) {
                let remedy = format!("name a value once among {CURRENT}, {STALE} and {ABSENT}");
                row.problem(&path, format!("the value {} twice", quote(value)), remedy);
            }
        }
        if of_probes.insert(probe.id.clone(), notes(&probe)).is_some() {
            row.problem(format!("{path}.id"), quote(&probe.id), "give every probe its own id");
        }
        let DoseProbe { id, query, prefix, current, stale, absent, .. } = probe;
        let (form, contrast) = (QUESTION.to_owned(), Some(Contrasted { current, stale, absent }));
        probes.push(Probe { id, form, query, prefix, contrast, ..Probe::default() });
    }
    Some(Case {
        id: read.id,
        history: History { segments, query_time: Some(time(&read.query_time)?) },
        evidence,
        probes,
        judge: JudgeOnly { notes: Notes::new(), of_probes },
        ..Case::default()
    })
}

fn notes(probe: &DoseProbe) -> Notes {
    let DoseProbe { prefix, current, stale, absent, expects, .. } = probe;
    let notes = json!({ CURRENT: current, STALE: stale, ABSENT: absent, EXPECTS: expects, PREFIX: prefix });
    notes.as_object().cloned().unwrap_or_default()
}
