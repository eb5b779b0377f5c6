//! `bench_instances.json`: sets of related memories, each with its questions, checked against the history.
//!
//! `persona_str`, the long made-up profile, goes to the judge alone, with questions about the user: the model under test never sees it,
//! and no error quotes it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::selected;
use super::sessions::Sessions;
use super::terms::{self, one_of};
use super::terms::{CASE, CONFLICT_EARLY, CONFLICT_LATE, CONTRADICTORY, CORRECT_ANSWERS, FACTS};
use super::terms::{
    INCORRECT_ANSWERS, INSTANCE, NUANCED, OF_USER, PERSONA, RELATION, SELECTED, SOURCE, SUBTYPE, TARGET,
    TOPIC,
};
use crate::benchmarks::fields::{Checker, Fields, WHOLE_ROW};
use crate::benchmarks::node::{Node, quote};
use crate::benchmarks::reading::{BrokenProbe, RowProblems};
use crate::data::{Evidence, Notes, Probe};

/// The form of a question under the rules of the main results.
pub(super) const STRONG: &str = "strong";

/// The most questions that a broken row may claim to have. The published sets have at most 5.
const MOST_QUESTIONS: usize = 100;

/// A question, with what only the judge may see.
pub(super) type Question = (Probe, Notes);

/// The id of a question: its set's and its place in it, from 1.
fn question_id(instance: &str, place: usize) -> String {
    format!("{instance}-q{}", place + 1)
}

/// The questions of a row that need not be sound.
pub(super) fn questions_of(node: &Node, row: usize) -> Vec<BrokenProbe> {
    let instance = node.text("instance_id").map_or_else(|| format!("row-{row}"), str::to_owned);
    let mut facets = BTreeMap::from([(INSTANCE.to_owned(), instance.clone())]);
    let subtype = node.text("relation_subtype").and_then(terms::subtype);
    let relation = node.text("relation_type").and_then(terms::relation);
    let relation = relation.or(subtype.map(|subtype| subtype.relation));
    facets.extend(relation.map(|relation| (RELATION.to_owned(), relation.to_owned())));
    let subtype = subtype.filter(|subtype| relation == Some(subtype.relation));
    facets.extend(subtype.map(|subtype| (SUBTYPE.to_owned(), subtype.name.to_owned())));
    let count = match node.get("qas") {
        Some(Node::Array(items)) => items.len().clamp(1, MOST_QUESTIONS),
        _ => 1,
    };
    let probe = |place| BrokenProbe { id: question_id(&instance, place), facets: facets.clone() };
    (0..count).map(probe).collect()
}

/// A row's questions in order, or all that is wrong with it.
pub(super) fn instance(
    file: &str,
    row: usize,
    node: Node,
    history: &Sessions,
) -> Result<Vec<Question>, RowProblems> {
    let probes = questions_of(&node, row);
    let mut checker = Checker::new(Some(file), row);
    checker.uid = node.text("instance_id").map(str::to_owned);
    let questions = questions(&mut checker, node, history);
    match questions {
        Some(questions) if checker.problems.is_empty() => Ok(questions),
        _ => Err(RowProblems { problems: checker.problems, probes, ..RowProblems::default() }),
    }
}

fn questions(checker: &mut Checker<'_>, node: Node, history: &Sessions) -> Option<Vec<Question>> {
    let mut fields = checker.object(WHOLE_ROW, node)?;
    let fields = &mut fields;
    let instance = checker.text(fields, "instance_id", "instance_id");
    let case = checker.text(fields, CASE, CASE);
    let facts = checker.texts(fields, FACTS, FACTS, "fact");
    let source = checker.text(fields, SOURCE, SOURCE);
    let persona = source.as_ref().filter(|source| *source == OF_USER).and_then(|_| persona(checker, fields));
    let topic = checker.text(fields, TOPIC, TOPIC);
    let kind = kind(checker, fields);
    let targets = targets(checker, fields, history);
    if let (Some((CONTRADICTORY, _)), Some(targets)) = (kind, &targets)
        && targets.len() < 2
    {
        let remedy = "a contradictory set needs at least two sessions";
        checker.problem("session_ids", "a single session", remedy);
    }
    let qas = checker.array(fields, "qas", "qas", "question");
    let qas = qas.map(|items| {
        let count = items.len();
        let qas = items.into_iter().enumerate();
        let qas: Vec<_> = qas.filter_map(|(at, item)| qa(checker, &format!("qas[{at}]"), item)).collect();
        (qas, count)
    });
    let (qas, count) = qas?;
    if qas.len() < count {
        return None;
    }
    let (instance, case, facts, source, topic) = (instance?, case?, facts?, source?, topic?);
    let ((relation, subtype), targets) = (kind?, targets?);
    let facets =
        [(RELATION, relation), (SUBTYPE, subtype), (INSTANCE, &instance), (SOURCE, &source), (TOPIC, &topic)];
    let facets: BTreeMap<String, String> =
        facets.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let question = |(place, Qa { query, correct, incorrect }): (usize, Qa)| {
        let evidence = evidence(relation, &targets, &correct, history);
        let notes = [
            (CASE, Value::from(case.clone())),
            (FACTS, Value::from(facts.clone())),
            (CORRECT_ANSWERS, Value::from(correct)),
            (INCORRECT_ANSWERS, Value::from(incorrect)),
        ];
        let persona = persona.clone().map(|persona| (PERSONA, Value::from(persona)));
        let notes = notes.into_iter().chain(persona);
        let notes: Notes = notes.map(|(name, value)| (name.to_owned(), value)).collect();
        let id = question_id(&instance, place);
        let facets = facets.clone();
        (Probe { id, form: STRONG.to_owned(), query, evidence, facets, ..Probe::default() }, notes)
    };
    Some(qas.into_iter().enumerate().map(question).collect())
}

/// The user's profile, where the row has one.
fn persona(checker: &mut Checker<'_>, fields: &mut Fields) -> Option<String> {
    match fields.take("persona_str") {
        Some(Node::String(text)) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Some(Node::Null) | None => None,
        Some(other) => {
            checker.problem("persona_str", other.describe(), "write a string, or leave it out");
            None
        }
    }
}

/// The parts that the target sessions play, in the order of the history: of a contradictory set the earliest and the later ones; of a nuanced one the
/// selected session, where it can be told.
fn evidence(relation: &str, targets: &[usize], correct: &[String], history: &Sessions) -> Vec<Evidence> {
    let selected = match relation {
        NUANCED => selected::selected(&history.segments, targets, correct),
        _ => None,
    };
    let role = |(place, session): (usize, &usize)| match relation {
        CONTRADICTORY if place == 0 => CONFLICT_EARLY,
        CONTRADICTORY => CONFLICT_LATE,
        _ if selected == Some(*session) => SELECTED,
        _ => TARGET,
    };
    let of = |(place, session)| Evidence::segment(role((place, session)), *session);
    targets.iter().enumerate().map(of).collect()
}

/// Relation and subtype, which must go together.
fn kind(checker: &mut Checker<'_>, fields: &mut Fields) -> Option<(&'static str, &'static str)> {
    let relation = checker.text(fields, "relation_type", "relation_type").and_then(|text| {
        let known = terms::relation(&text);
        if known.is_none() {
            let remedy = format!("write {}", one_of(terms::RELATIONS));
            checker.problem("relation_type", quote(&text), remedy);
        }
        known
    });
    let subtype = checker.text(fields, "relation_subtype", "relation_subtype").and_then(|text| {
        let known = terms::subtype(&text);
        match (known, relation) {
            (None, _) => {
                let remedy = format!("write {}", one_of(terms::SUBTYPES.iter().map(|s| s.name)));
                checker.problem("relation_subtype", quote(&text), remedy);
            }
            (Some(subtype), Some(relation)) if subtype.relation != relation => {
                let found = format!("{}, which is {}, in a {relation} set", quote(&text), subtype.relation);
                checker.problem("relation_subtype", found, "make relation and subtype agree");
                return None;
            }
            _ => {}
        }
        known
    });
    Some((relation?, subtype?.name))
}

/// The places of the target sessions in the order of the history.
fn targets(checker: &mut Checker<'_>, fields: &mut Fields, history: &Sessions) -> Option<Vec<usize>> {
    let ids = checker.texts(fields, "session_ids", "session_ids", "target session")?;
    let mut places = Vec::with_capacity(ids.len());
    let mut sound = true;
    for (at, id) in ids.iter().enumerate() {
        let path = format!("session_ids[{at}]");
        match history.places.get(id) {
            None => {
                let found = format!("{}, which the history does not have", quote(id));
                checker.problem(path, found, "name sessions of history_sessions.json by their session_id");
                sound = false;
            }
            Some(place) if places.contains(place) => {
                checker.problem(path, format!("{} a second time", quote(id)), "name every session once");
                sound = false;
            }
            Some(place) => places.push(*place),
        }
    }
    places.sort_unstable();
    sound.then_some(places)
}

struct Qa {
    query: String,
    correct: Vec<String>,
    incorrect: Vec<String>,
}

fn qa(checker: &mut Checker<'_>, path: &str, node: Node) -> Option<Qa> {
    let mut fields = checker.object(path, node)?;
    let query = checker.text(&mut fields, &format!("{path}.query"), "query");
    let mut answers = |name: &str| checker.texts(&mut fields, &format!("{path}.{name}"), name, "answer");
    let (correct, incorrect) = (answers(CORRECT_ANSWERS), answers(INCORRECT_ANSWERS));
    Some(Qa { query: query?, correct: correct?, incorrect: incorrect? })
}
