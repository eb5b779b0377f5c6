//! The questions of one task and their answers: rows of two files become probes and what a judge is told of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use super::array::Row;
use super::events::Events;
use super::findings::{FileFindings, Findings, describe, examples, id, quote};
use super::task::Task;
use super::terms::{
    ANCHOR_END, ANCHOR_START, ENTITY_TYPE, EVIDENCE, INNER, OUTER, OUTER_FIELDS, REASONING, REFERENCE,
    STRATEGY, TASK, THOUGHT, TYPE,
};
use crate::data::{Evidence, Notes, Place, Probe};

/// What rows may hold. `question_id`, which some have, repeats nothing that is needed.
const OF_QUESTION: [&str; 2] = ["id", "question"];
const OF_ANSWER: [&str; 8] =
    ["id", "answer", EVIDENCE, TYPE, REASONING, STRATEGY, ENTITY_TYPE, "question_id"];

/// A probe, and what only a judge may see of it.
pub(super) type Question = (Probe, Notes);

/// The two files of a task.
pub(super) struct TaskRows<'a> {
    pub task: &'static Task,
    pub questions: (&'a str, Vec<Row>),
    pub answers: (&'a str, Vec<Row>),
}

/// What an answer's row says.
struct Answer {
    row: usize,
    reference: Value,
    reasoning: Option<String>,
    facets: BTreeMap<String, String>,
    evidence: Vec<String>,
}

/// The questions of a task in file order, each with its answer. One without the other is a problem.
pub(super) fn read(files: &TaskRows<'_>, events: &Events, findings: &mut Findings) -> Vec<Question> {
    let TaskRows { task, questions: (question_file, questions), answers: (answer_file, answers) } = files;
    let mut answers = read_answers(answers, findings.of_file(answer_file));
    let mut to = findings.of_file(question_file);
    let (mut read, mut seen, mut dangling) = (Vec::new(), HashSet::new(), Vec::new());
    let mut texts: BTreeMap<String, usize> = BTreeMap::new();
    for (at, row) in questions.iter().enumerate() {
        let id = to.id(at, row, &OF_QUESTION);
        let query = to.needed(at, id.as_deref(), row, "question");
        let (Some(id), Some(query)) = (id, query) else { continue };
        if !seen.insert(id.clone()) {
            to.problem(at, Some(&id), "id", "a second question of this id", "give every question its own id");
            continue;
        }
        let Some(answer) = answers.remove(&id) else {
            let remedy = format!("add its answer to {answer_file}, or remove it");
            to.problem(at, Some(&id), "id", "a question without an answer", remedy);
            continue;
        };
        *texts.entry(query.trim().to_owned()).or_default() += 1;
        let name = format!("{}-{id}", task.id);
        let missing = answer.evidence.iter().filter(|id| !events.by_id.contains_key(*id));
        let missing: Vec<&str> = missing.map(String::as_str).collect();
        if !missing.is_empty() {
            dangling.push(format!("{name} ({})", missing.join(" ")));
        }
        read.push(question(task, name, query, answer, events));
    }
    let mut repeated: Vec<(&String, usize)> =
        texts.iter().filter(|(_, times)| **times > 1).map(|(text, times)| (text, *times)).collect();
    repeated.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    to.flag(repeated.iter().map(|(_, times)| times).sum(), || {
        let texts: Vec<String> = repeated.iter().map(|(text, n)| format!("{n} {}", quote(text))).collect();
        format!("questions have the text of another one: {}", examples(&texts))
    });
    to.done();
    let mut left: Vec<(String, Answer)> = answers.into_iter().filter(|(id, _)| !seen.contains(id)).collect();
    left.sort_by_key(|(_, answer)| answer.row);
    let mut to = findings.of_file(answer_file);
    for (id, answer) in left {
        let remedy = format!("add its question to {question_file}, or remove it");
        to.problem(answer.row, Some(&id), "id", "an answer without a question", remedy);
    }
    to.flag(dangling.len(), || {
        let title = task.title;
        let examples = examples(&dangling);
        format!("questions of {title} name evidence that is not among the events; it is left out: {examples}")
    });
    read
}

/// The answers by id.
fn read_answers(rows: &[Row], mut to: FileFindings<'_>) -> HashMap<String, Answer> {
    let mut read: HashMap<String, Answer> = HashMap::new();
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
        let Some(own) = own else { continue };
        if let Some(first) = read.get(&own) {
            let found = format!("the id of row {} again", first.row);
            to.problem(at, Some(&own), "id", found, "give every answer its own id");
            continue;
        }
        // One without a reference is reported; its question is not to be reported again as unanswered.
        let reference = reference.unwrap_or_default();
        read.insert(own, Answer { row: at, reference, reasoning, facets, evidence });
    }
    to.done();
    read
}

/// The reference: a text, or a list of events in the order of their ranks.
fn reference(at: usize, uid: Option<&str>, row: &Row, to: &mut FileFindings<'_>) -> Option<Value> {
    const NAME: &str = "answer";
    let Some(Value::Array(items)) = row.get(NAME) else {
        return to.needed(at, uid, row, NAME).map(Value::String);
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
        to.problem(at, uid, NAME, "an empty array", "list the events in their order");
        return None;
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    Some(ranked.into_iter().map(|(_, item)| item).collect())
}

/// The ids of evidence, each once, in the order given.
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

/// A probe and its notes.
fn question(task: &Task, name: String, query: String, answer: Answer, events: &Events) -> Question {
    let Answer { reference, reasoning, mut facets, evidence, .. } = answer;
    let mut notes = Notes::new();
    notes.insert(REFERENCE.to_owned(), reference);
    notes.extend(reasoning.map(|reasoning| (REASONING.to_owned(), Value::String(reasoning))));
    notes.extend(facets.get(STRATEGY).map(|strategy| (STRATEGY.to_owned(), strategy.as_str().into())));
    facets.insert(TASK.to_owned(), task.id.to_owned());
    let evidence = evidence_of(task, &evidence, events);
    (Probe { id: name, form: task.form.to_owned(), query, evidence, facets, ..Probe::default() }, notes)
}

/// The evidence that exists, in its roles.
///
/// The two events of a duration (T3) are its start and its end, by time and else by file order. Where one of the two is missing, which
/// one is left is not known, and it is plain evidence. Of an insight's (T6, T7) events, those that hold both a thought and something
/// that others could witness have their fields as evidence too.
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

/// The thought and the outer fields of an event that has both.
fn fields_of(at: usize, events: &Events) -> Vec<Evidence> {
    let Some(event) = events.segments.get(at) else { return Vec::new() };
    let field = |(turn, role): (usize, &str)| {
        let place = |role: &str| Evidence {
            role: role.to_owned(),
            place: Place { segment: at, turn: Some(turn), bytes: None },
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
