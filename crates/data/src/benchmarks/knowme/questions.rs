//! Joins the questions and answers of a task to probes and judge notes.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use super::array::Row;
use super::events::Events;
use super::expected::Expected;
use super::findings::{FileFindings, Findings, describe, id, quote};
use super::task::{TRAP, Task};
use super::terms::{
    ANCHOR_END, ANCHOR_START, ENTITY_TYPE, EVIDENCE, EXPECTS, INNER, OUTER, OUTER_FIELDS, REASONING,
    REFERENCE, STRATEGY, TASK, THOUGHT, TYPE,
};
use crate::benchmarks::reading::{BrokenProbe, Problem};
use crate::case::finding::Check;
use crate::case::{Evidence, Location, Notes, Probe};

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

pub(super) struct TaskRows<'a> {
    pub task: &'static Task,
    pub questions: (&'a str, Vec<Row>),
    pub answers: (&'a str, Vec<Row>),
}

#[derive(Default)]
pub(super) struct Read {
    pub sound: Vec<Question>,
    pub broken: Vec<Broken>,
    /// No gold: not asked, because nobody can grade the answer.
    pub without_gold: Vec<String>,
}

pub(super) struct Broken {
    pub probe: BrokenProbe,
    pub problems: Vec<Problem>,
    /// Lacks an answer; a stray answer may belong to it.
    unanswered: bool,
}

struct Answer {
    row: usize,
    reference: Value,
    reasoning: Option<String>,
    facets: BTreeMap<String, String>,
    evidence: Vec<String>,
    problems: Vec<Problem>,
}

/// A broken row in either file costs only its own question.
pub(super) fn read(files: &TaskRows<'_>, events: &Events, findings: &mut Findings) -> Read {
    let TaskRows { task, questions: (question_file, questions), answers: (answer_file, answers) } = files;
    let (mut answers, mut strays) = read_answers(answers, findings.of_file(answer_file, task.prefix));
    let mut to = findings.of_file(question_file, task.prefix);
    let (mut read, mut seen) = (Read::default(), HashSet::new());
    let (mut dangling, mut without_gold) = (Vec::new(), Vec::new());
    for (at, row) in questions.iter().enumerate() {
        let id = to.id(at, row, &OF_QUESTION);
        let query = to.needed(at, id.as_deref(), row, "question");
        to.refuse_unknown(&OF_QUESTION);
        let again = id.as_ref().is_some_and(|id| !seen.insert(id.clone()));
        if again {
            to.problem(
                at,
                id.as_deref(),
                "id",
                "a second question of this id",
                "give every question its own id",
            );
        }
        let answer = id.as_ref().filter(|_| !again).and_then(|id| answers.remove(id));
        if answer.is_none() && !again && id.is_some() {
            let remedy = format!("add its answer to {answer_file}, or remove it");
            to.problem(at, id.as_deref(), "id", "a question without an answer", remedy);
        }
        let name = match &id {
            Some(id) if !again => format!("{}{id}", task.prefix),
            Some(id) => format!("{}{id}-row-{at}", task.prefix),
            None => format!("{}row-{at}", task.prefix),
        };
        let mut problems = to.take();
        match (query, answer) {
            (Some(query), Some(answer)) if problems.is_empty() && answer.problems.is_empty() => {
                if answer.reference.as_str().is_some_and(|text| text.trim().is_empty()) {
                    without_gold.push((name, query));
                    continue;
                }
                let missing = answer.evidence.iter().filter(|id| !events.by_id.contains_key(*id));
                let missing: Vec<&str> = missing.map(String::as_str).collect();
                if !missing.is_empty() {
                    dangling.push((name.clone(), missing.join(" ")));
                }
                read.sound.push(question(task, name, query, answer, events));
            }
            (_, answer) => {
                let unanswered = answer.is_none() && !again;
                problems.extend(answer.into_iter().flat_map(|answer| answer.problems));
                read.broken.push(Broken { probe: broken(task, name), problems, unanswered });
            }
        }
    }
    to.done();
    let mut to = findings.of_file(answer_file, task.prefix);
    let mut left: Vec<(String, Answer)> = answers.into_iter().filter(|(id, _)| !seen.contains(id)).collect();
    left.sort_by_key(|(_, answer)| answer.row);
    for (id, answer) in left {
        let remedy = format!("add its question to {question_file}, or remove it");
        to.problem(answer.row, Some(&id), "id", "an answer without a question", remedy);
        strays.push((Some(id), to.take()));
    }
    for (name, query) in without_gold {
        let what = format!("the gold of {} is empty", quote(&query));
        let finding = to.finding(&EMPTY_GOLD, what).of([name.as_str()]);
        to.flag(finding);
        read.without_gold.push(name);
    }
    for (name, missing) in dangling {
        let finding = to.finding(&DANGLING_EVIDENCE, format!("no event {missing}")).of([name]);
        to.flag(finding);
    }
    to.done();
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

fn broken(task: &Task, id: String) -> BrokenProbe {
    BrokenProbe { id, facets: BTreeMap::from([(TASK.to_owned(), task.id.to_owned())]) }
}

/// An answer without a known question: its id, if readable, and problems.
type Stray = (Option<String>, Vec<Problem>);

fn read_answers(rows: &[Row], mut to: FileFindings<'_>) -> (HashMap<String, Answer>, Vec<Stray>) {
    let (mut read, mut strays): (HashMap<String, Answer>, Vec<Stray>) = (HashMap::new(), Vec::new());
    for (at, row) in rows.iter().enumerate() {
        let own = to.id(at, row, &OF_ANSWER);
        let uid = own.as_deref();
        let reference = reference(at, uid, row, &mut to);
        let evidence = evidence_ids(at, uid, row, &mut to);
        let facets = [TYPE, STRATEGY, ENTITY_TYPE].into_iter().filter_map(|name| {
            let value = to.text(at, uid, row, name)?;
            Some((name.to_owned(), value.trim().to_owned()))
        });
        let facets = facets.collect();
        let reasoning = to.text(at, uid, row, REASONING);
        let Some(own) = own else {
            strays.push((None, to.take()));
            continue;
        };
        if let Some(first) = read.get_mut(&own) {
            let found = format!("the id of row {} again", first.row);
            to.problem(at, Some(&own), "id", found, "give every answer its own id");
            // Ambiguous, so both are problems.
            first.problems.extend(to.take());
            continue;
        }
        // Insert it even without a reference, or its question would also be reported as unanswered.
        let (reference, problems) = (reference.unwrap_or_default(), to.take());
        read.insert(own, Answer { row: at, reference, reasoning, facets, evidence, problems });
    }
    to.done();
    (read, strays)
}

/// A text, possibly empty, or events in rank order.
fn reference(at: usize, uid: Option<&str>, row: &Row, to: &mut FileFindings<'_>) -> Option<Value> {
    const NAME: &str = "answer";
    let items = match row.get(NAME) {
        Some(Value::Array(items)) => items,
        // An explicit null is an empty reference; a missing field is an error.
        None if row.has(NAME) => return Some(Value::String(String::new())),
        Some(Value::String(text)) if text.trim().is_empty() => return Some(Value::String(String::new())),
        Some(Value::String(text)) => return Some(Value::String(text.clone())),
        _ => return to.needed(at, uid, row, NAME).map(Value::String),
    };
    let mut ranked: Vec<(i64, Value)> = Vec::with_capacity(items.len());
    for (place, item) in items.iter().enumerate() {
        let field = |name: &str| format!("{NAME}[{place}].{name}");
        let text = |name: &str| item.get(name).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        let Some(rank) = item.get("rank").and_then(Value::as_i64) else {
            let found = item.get("rank").map_or_else(|| "no such field".to_owned(), describe);
            to.problem(at, uid, &field("rank"), found, "write a whole number");
            return None;
        };
        let Some(event) = text("event") else {
            let found = item.get("event").map_or_else(|| "no such field".to_owned(), describe);
            to.problem(at, uid, &field("event"), found, "write a text that is not blank");
            return None;
        };
        if ranked.iter().any(|(other, _)| *other == rank) {
            to.problem(at, uid, &field("rank"), format!("the rank {rank} again"), "give every event its own");
            return None;
        }
        let item = json!({ "rank": rank, "event": event, "reasoning": text("reasoning") });
        ranked.push((rank, item));
    }
    if ranked.is_empty() {
        return Some(Value::String(String::new()));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    Some(ranked.into_iter().map(|(_, item)| item).collect())
}

/// Distinct evidence ids in file order.
fn evidence_ids(at: usize, uid: Option<&str>, row: &Row, to: &mut FileFindings<'_>) -> Vec<String> {
    let given = match row.get(EVIDENCE) {
        None => return Vec::new(),
        Some(Value::Array(items)) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let mut ids: Vec<String> = Vec::new();
    for (place, value) in given.iter().enumerate() {
        match id(value) {
            Some(id) if ids.contains(&id) => {}
            Some(id) => ids.push(id),
            None => {
                let field = format!("{EVIDENCE}[{place}]");
                to.problem(at, uid, &field, describe(value), "write the id of an event");
            }
        }
    }
    ids
}

fn question(task: &Task, name: String, query: String, answer: Answer, events: &Events) -> Question {
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
