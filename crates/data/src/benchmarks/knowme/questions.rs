//! Joins the questions and answers of a task to probes and judge notes.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use super::events::Events;
use super::expected::Expected;
use super::rows::{Findings, Row, describe, found, id, refuse_unknown, unknown};
use super::task::{TRAP, Task};
use super::terms::{
    ANCHOR_END, ANCHOR_START, ENTITY_TYPE, EVIDENCE, EXPECTS, INNER, OUTER, OUTER_FIELDS, REASONING,
    REFERENCE, STRATEGY, TASK, THOUGHT, TYPE,
};
use crate::benchmarks::reading::Problem;
use crate::benchmarks::shape::Checker;
use crate::case::finding::{Check, quote};
use crate::case::{Evidence, Location, Notes, Probe};
use crate::ground::order::unique;

static UNUSED_FIELD: Check = Check::warning("unused-field", "fields that are not used");

static DANGLING_EVIDENCE: Check = Check::warning(
    "dangling-evidence",
    "questions that name evidence that is not among the events; it is left out",
);

static EMPTY_GOLD: Check =
    Check::error("empty-gold", "questions whose gold is empty; they are neither asked nor scored");

/// Known fields; `question_id` is redundant.
const OF_QUESTION: [&str; 2] = ["id", "question"];
const OF_ANSWER: [&str; 8] =
    ["id", "answer", EVIDENCE, TYPE, REASONING, STRATEGY, ENTITY_TYPE, "question_id"];

pub(super) type Question = (Probe, Notes);

/// A file of a task with its rows.
pub(super) type TaskFile<'a> = (&'a str, Vec<Row<'a>>);

#[derive(Default)]
pub(super) struct Read {
    pub sound: Vec<Question>,
    pub broken: Vec<Broken>,
    /// No gold: not asked, because nobody can grade the answer.
    pub without_gold: Vec<String>,
}

pub(super) struct Broken {
    pub probe: Probe,
    pub problems: Vec<Problem>,
    /// Lacks an answer; a stray answer may belong to it.
    unanswered: bool,
}

struct Answer<'a> {
    reference: Value,
    reasoning: Option<String>,
    facets: BTreeMap<String, String>,
    evidence: Vec<String>,
    check: Checker<'a>,
}

/// A broken row in either file costs only its own question.
pub(super) fn read(
    task: &Task,
    (question_file, questions): TaskFile<'_>,
    (answer_file, answers): TaskFile<'_>,
    events: &Events,
    findings: &mut Findings,
) -> Read {
    for (field, (_, rows)) in unknown(&answers, &OF_ANSWER) {
        let what = format!("{} in {rows} rows", quote(&field));
        findings.flags.push(findings.finding(&UNUSED_FIELD, answer_file, what));
    }
    let (mut answers, mut strays) = read_answers(answers);
    let (mut read, mut seen) = (Read::default(), HashSet::new());
    let mut dangling = Vec::new();
    for (at, mut row) in questions.into_iter().enumerate() {
        let query = row.needed("question");
        refuse_unknown(std::slice::from_mut(&mut row), &OF_QUESTION);
        let Row { id, check: mut row, .. } = row;
        let again = id.as_ref().is_some_and(|id| !seen.insert(id.clone()));
        if again {
            row.problem("id", "a second question of this id", "give every question its own id");
        }
        let answer = id.as_ref().filter(|_| !again).and_then(|id| answers.remove(id));
        if answer.is_none() && !again && id.is_some() {
            let remedy = format!("add its answer to {answer_file}, or remove it");
            row.problem("id", "a question without an answer", remedy);
        }
        let name = match &id {
            Some(id) if !again => format!("{}{id}", task.prefix),
            Some(id) => format!("{}{id}-row-{at}", task.prefix),
            None => format!("{}row-{at}", task.prefix),
        };
        let mut problems = row.problems;
        match (query, answer) {
            (Some(query), Some(answer)) if problems.is_empty() && answer.check.problems.is_empty() => {
                if answer.reference.as_str().is_some_and(|text| text.trim().is_empty()) {
                    let what = format!("the gold of {} is empty", quote(&query));
                    findings.flags.push(findings.finding(&EMPTY_GOLD, answer_file, what).of([&name]));
                    read.without_gold.push(name);
                    continue;
                }
                let missing = answer.evidence.iter().filter(|id| !events.by_id.contains_key(*id));
                let missing: Vec<&str> = missing.map(String::as_str).collect();
                if !missing.is_empty() {
                    let what = format!("no event {}", missing.join(" "));
                    dangling.push(findings.finding(&DANGLING_EVIDENCE, answer_file, what).of([&name]));
                }
                read.sound.push(question(task, name, query, answer, events));
            }
            (_, answer) => {
                let unanswered = answer.is_none() && !again;
                problems.extend(answer.into_iter().flat_map(|answer| answer.check.problems));
                read.broken.push(Broken { probe: broken(task, name), problems, unanswered });
            }
        }
    }
    findings.flags.extend(dangling);
    let mut left: Vec<(String, Answer<'_>)> =
        answers.into_iter().filter(|(id, _)| !seen.contains(id)).collect();
    left.sort_by_key(|(_, answer)| answer.check.row);
    for (id, Answer { mut check, .. }) in left {
        let remedy = format!("add its question to {question_file}, or remove it");
        check.problems.clear();
        check.problem("id", "an answer without a question", remedy);
        strays.push((Some(id), check.problems));
    }
    // Pair stray answers with unanswered questions, so that none is counted twice.
    for (at, (id, problems)) in strays.into_iter().enumerate() {
        match read.broken.iter_mut().find(|broken| broken.unanswered) {
            Some(broken) => {
                broken.problems.extend(problems);
                broken.unanswered = false;
            }
            None => {
                let name = id.unwrap_or_else(|| format!("answer-{at}"));
                let probe = broken(task, format!("{}{name}", task.prefix));
                read.broken.push(Broken { probe, problems, unanswered: false });
            }
        }
    }
    read
}

fn broken(task: &Task, id: String) -> Probe {
    let facets = BTreeMap::from([(TASK.to_owned(), task.id.to_owned())]);
    Probe { id, facets, ..Probe::default() }
}

/// An answer without a known question: its id, if readable, and problems.
type Stray = (Option<String>, Vec<Problem>);

fn read_answers(rows: Vec<Row<'_>>) -> (HashMap<String, Answer<'_>>, Vec<Stray>) {
    let (mut read, mut strays): (HashMap<String, Answer<'_>>, Vec<Stray>) = (HashMap::new(), Vec::new());
    for mut row in rows {
        let reference = reference(&mut row);
        let evidence = evidence_ids(&mut row);
        let facets = [TYPE, STRATEGY, ENTITY_TYPE].into_iter();
        let facets = facets.filter_map(|name| Some((name.to_owned(), row.text(name)?.trim().to_owned())));
        let facets = facets.collect();
        let reasoning = row.text(REASONING);
        let Row { id, mut check, .. } = row;
        let Some(id) = id else {
            strays.push((None, check.problems));
            continue;
        };
        if let Some(first) = read.get_mut(&id) {
            let found = format!("the id of row {} again", first.check.row);
            check.problem("id", found, "give every answer its own id");
            // Ambiguous, so both are problems.
            first.check.problems.append(&mut check.problems);
            continue;
        }
        // Insert it even without a reference, or its question would also be reported as unanswered.
        let reference = reference.unwrap_or_default();
        read.insert(id, Answer { reference, reasoning, facets, evidence, check });
    }
    (read, strays)
}

/// A text, possibly empty, or events in rank order.
fn reference(row: &mut Row<'_>) -> Option<Value> {
    const NAME: &str = "answer";
    let items = match row.get(NAME) {
        Some(Value::Array(items)) => items,
        // An explicit null is an empty reference; a missing field is an error.
        None if row.has(NAME) => return Some(Value::String(String::new())),
        Some(Value::String(text)) if text.trim().is_empty() => return Some(Value::String(String::new())),
        Some(Value::String(text)) => return Some(Value::String(text.clone())),
        _ => return row.needed(NAME).map(Value::String),
    };
    let mut ranked: Vec<(i64, Value)> = Vec::with_capacity(items.len());
    let mut wrong = None;
    for (place, item) in items.iter().enumerate() {
        let text = |name: &str| item.get(name).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        let (rank, event) = (item.get("rank").and_then(Value::as_i64), text("event"));
        let (name, found, remedy) = match (rank, event) {
            (None, _) => ("rank", found(item.get("rank")), "write a whole number"),
            (_, None) => ("event", found(item.get("event")), "write a text that is not blank"),
            (Some(rank), _) if ranked.iter().any(|(other, _)| *other == rank) => {
                ("rank", format!("the rank {rank} again"), "give every event its own")
            }
            (Some(rank), Some(event)) => {
                ranked.push((rank, json!({ "rank": rank, "event": event, "reasoning": text("reasoning") })));
                continue;
            }
        };
        wrong = Some((format!("{NAME}[{place}].{name}"), found, remedy));
        break;
    }
    if let Some((field, found, remedy)) = wrong {
        row.check.problem(field, found, remedy);
        return None;
    }
    if ranked.is_empty() {
        return Some(Value::String(String::new()));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    Some(ranked.into_iter().map(|(_, item)| item).collect())
}

/// Distinct evidence ids in file order.
fn evidence_ids(row: &mut Row<'_>) -> Vec<String> {
    let given = match row.get(EVIDENCE) {
        None => return Vec::new(),
        Some(Value::Array(items)) => items.clone(),
        Some(one) => vec![one.clone()],
    };
    for (place, value) in given.iter().enumerate().filter(|(_, value)| id(value).is_none()) {
        row.check.problem(format!("{EVIDENCE}[{place}]"), describe(value), "write the id of an event");
    }
    unique(given.iter().filter_map(id))
}

fn question(task: &Task, name: String, query: String, answer: Answer<'_>, events: &Events) -> Question {
    let Answer { reference, reasoning, mut facets, evidence, .. } = answer;
    let mut notes = Notes::new();
    // Set only for non-abstaining traps, so that plans of other data do not change.
    let trap = reference.as_str().filter(|_| task.id == TRAP);
    let expects = trap.and_then(|reference| Expected::of(reference).facet());
    facets.extend(expects.map(|expects| (EXPECTS.to_owned(), expects.to_owned())));
    notes.insert(REFERENCE.to_owned(), reference);
    notes.extend(reasoning.map(|reasoning| (REASONING.to_owned(), Value::String(reasoning))));
    notes.extend(facets.get(STRATEGY).map(|strategy| (STRATEGY.to_owned(), strategy.as_str().into())));
    facets.insert(TASK.to_owned(), task.id.to_owned());
    let evidence = evidence_of(task, &evidence, events);
    (Probe { id: name, form: task.form.to_owned(), query, evidence, facets, ..Probe::default() }, notes)
}

/// Existing evidence with roles. The two events of a duration (T3) are start and end, by time, then file order; if one is missing, the
/// other is plain evidence. Insight events (T6, T7) with both a thought and observable fields also have these fields as evidence.
fn evidence_of(task: &Task, ids: &[String], events: &Events) -> Vec<Evidence> {
    let found: Vec<usize> = ids.iter().filter_map(|id| events.by_id.get(id).copied()).collect();
    if task.id == "T3"
        && let ([_, _], [a, b]) = (ids, found.as_slice())
    {
        let time = |at: usize| events.segments.get(at).and_then(|event| event.time);
        let swapped = match (time(*a), time(*b)) {
            (Some(of_a), Some(of_b)) => (of_b, b) < (of_a, a),
            _ => b < a,
        };
        let (start, end) = if swapped { (b, a) } else { (a, b) };
        return vec![Evidence::segment(ANCHOR_START, *start), Evidence::segment(ANCHOR_END, *end)];
    }
    let mut evidence: Vec<Evidence> = found.iter().map(|&at| Evidence::segment(EVIDENCE, at)).collect();
    if task.is_insight() {
        evidence.extend(found.iter().flat_map(|&at| fields_of(at, events)));
    }
    evidence
}

fn fields_of(at: usize, events: &Events) -> Vec<Evidence> {
    let Some(event) = events.segments.get(at) else { return Vec::new() };
    let field = |(turn, role): (usize, &str)| {
        let place = |role: &str| Evidence {
            role: role.to_owned(),
            place: Location { segment: at, turn: Some(turn), bytes: None },
        };
        match role {
            THOUGHT => Some(place(INNER)),
            outer if OUTER_FIELDS.contains(&outer) => Some(place(OUTER)),
            _ => None,
        }
    };
    let turns = event.turns.iter().map(|turn| turn.role.as_str()).enumerate();
    let fields: Vec<Evidence> = turns.filter_map(field).collect();
    let has = |role: &str| fields.iter().any(|field| field.role == role);
    if has(INNER) && has(OUTER) { fields } else { Vec::new() }
}
