//! Parses `bench_instances.json`: sets of related memories with questions. `persona_str` goes only to the judge, never into errors.

use std::collections::BTreeMap;

use serde_json::Value;

use super::sessions::Sessions;
use super::terms::{self, one_of};
use super::terms::{CASE, CONFLICT_EARLY, CONFLICT_LATE, CONTRADICTORY, CORRECT_ANSWERS, FACTS};
use super::terms::{
    INCORRECT_ANSWERS, INSTANCE, NUANCED, OF_USER, PERSONA, RELATION, SELECTED, SOURCE, SUBTYPE, TARGET,
    TOPIC,
};
use crate::benchmarks::reading::RowProblems;
use crate::benchmarks::shape::{Checker, Field, Node, Others, Shape, WHOLE_ROW, needed, quote};
use crate::case::{Evidence, Notes, Probe, Segment};
use crate::ground::words::phrase;

const ROW: Shape = Shape::Fields(
    &[
        needed("instance_id", Shape::Text),
        needed(CASE, Shape::Text),
        needed(FACTS, Shape::List("fact", 1, &Shape::Text)),
        needed(SOURCE, Shape::Text),
        needed(TOPIC, Shape::Text),
        needed("relation_type", Shape::Text),
        needed("relation_subtype", Shape::Text),
        needed("session_ids", Shape::List("target session", 1, &Shape::Text)),
        needed("qas", Shape::List("question", 1, &Shape::Fields(&OF_QA, Others::Ignored))),
    ],
    Others::Ignored,
);
const OF_QA: [Field; 3] =
    [needed("query", Shape::Text), needed(CORRECT_ANSWERS, ANSWERS), needed(INCORRECT_ANSWERS, ANSWERS)];
const ANSWERS: Shape = Shape::List("answer", 1, &Shape::Text);

/// Form under the rules of the main results.
pub(super) const STRONG: &str = "strong";

/// Limit for broken rows; published sets have at most 5.
const MOST_QUESTIONS: usize = 100;

pub(super) type Question = (Probe, Notes);

fn question_id(instance: &str, place: usize) -> String {
    format!("{instance}-q{}", place + 1)
}

pub(super) fn questions_of(node: &Node, row: usize) -> Vec<Probe> {
    let instance = node.text("instance_id").map_or_else(|| format!("row-{row}"), str::to_owned);
    let mut facets = BTreeMap::from([(INSTANCE.to_owned(), instance.clone())]);
    let subtype = node.text("relation_subtype").and_then(terms::subtype);
    let relation = node.text("relation_type").and_then(terms::relation);
    let relation = relation.or(subtype.map(|subtype| subtype.relation));
    facets.extend(relation.map(|relation| (RELATION.to_owned(), relation.to_owned())));
    let subtype = subtype.filter(|subtype| relation == Some(subtype.relation));
    facets.extend(subtype.map(|subtype| (SUBTYPE.to_owned(), subtype.name.to_owned())));
    let count = node.items("qas").len().clamp(1, MOST_QUESTIONS);
    let probe =
        |place| Probe { id: question_id(&instance, place), facets: facets.clone(), ..Probe::default() };
    (0..count).map(probe).collect()
}

pub(super) fn instance(
    mut row: Checker<'_>,
    node: &Node,
    history: &Sessions,
) -> Result<Vec<Question>, RowProblems> {
    let persona = persona(&mut row, node);
    let fits = row.fits(WHOLE_ROW, node, &ROW);
    let read = if fits { questions(&mut row, node, persona, history) } else { None };
    let probes = questions_of(node, row.row);
    row.outcome(read, BTreeMap::new(), probes)
}

fn questions(
    row: &mut Checker<'_>,
    node: &Node,
    persona: Option<String>,
    history: &Sessions,
) -> Option<Vec<Question>> {
    let text = |name: &str| node.text(name).unwrap_or_default();
    let (relation, subtype) = kind(row, text("relation_type"), text("relation_subtype"))?;
    let targets = targets(row, &node.texts("session_ids"), history)?;
    if relation == CONTRADICTORY && targets.len() < 2 {
        let remedy = "a contradictory set needs at least two sessions";
        row.problem("session_ids", "a single session", remedy);
    }
    let instance = text("instance_id");
    let facets = [
        (RELATION, relation),
        (SUBTYPE, subtype),
        (INSTANCE, instance),
        (SOURCE, text(SOURCE)),
        (TOPIC, text(TOPIC)),
    ];
    let facets: BTreeMap<String, String> =
        facets.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let question = |(place, qa): (usize, &Node)| {
        let correct = qa.texts(CORRECT_ANSWERS);
        let evidence = evidence(relation, &targets, &correct, history);
        let notes = [
            (CASE, Value::from(text(CASE))),
            (FACTS, node.texts(FACTS).into()),
            (CORRECT_ANSWERS, correct.into()),
            (INCORRECT_ANSWERS, qa.texts(INCORRECT_ANSWERS).into()),
        ];
        let persona = persona.clone().map(|persona| (PERSONA, Value::from(persona)));
        let notes = notes.into_iter().chain(persona);
        let notes: Notes = notes.map(|(name, value)| (name.to_owned(), value)).collect();
        let (id, form, facets) = (question_id(instance, place), STRONG.to_owned(), facets.clone());
        let query = qa.text("query").unwrap_or_default().to_owned();
        (Probe { id, form, query, evidence, facets, ..Probe::default() }, notes)
    };
    Some(node.items("qas").iter().enumerate().map(question).collect())
}

fn persona(row: &mut Checker<'_>, node: &Node) -> Option<String> {
    node.text(SOURCE).filter(|source| *source == OF_USER)?;
    match node.get("persona_str")? {
        Node::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Node::Null => None,
        other => {
            row.problem("persona_str", other.describe(), "write a string, or leave it out");
            None
        }
    }
}

/// Target roles in history order: earliest and later of a contradictory set; the selected session of a nuanced set if it is identifiable.
fn evidence(relation: &str, targets: &[usize], correct: &[&str], history: &Sessions) -> Vec<Evidence> {
    let selected = match relation {
        NUANCED => selected(&history.segments, targets, correct),
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

fn kind(row: &mut Checker<'_>, relation: &str, subtype: &str) -> Option<(&'static str, &'static str)> {
    let known = terms::relation(relation);
    if known.is_none() {
        let remedy = format!("write {}", one_of(terms::RELATIONS));
        row.problem("relation_type", quote(relation), remedy);
    }
    let of = terms::subtype(subtype);
    match (of, known) {
        (None, _) => {
            let remedy = format!("write {}", one_of(terms::SUBTYPES.iter().map(|s| s.name)));
            row.problem("relation_subtype", quote(subtype), remedy);
        }
        (Some(of), Some(known)) if of.relation != known => {
            let found = format!("{}, which is {}, in a {known} set", quote(subtype), of.relation);
            row.problem("relation_subtype", found, "make relation and subtype agree");
        }
        _ => {}
    }
    Some((known?, of?.name))
}

fn targets(row: &mut Checker<'_>, ids: &[&str], history: &Sessions) -> Option<Vec<usize>> {
    let mut places = Vec::with_capacity(ids.len());
    for (at, id) in ids.iter().enumerate() {
        let path = format!("session_ids[{at}]");
        match history.places.get(*id) {
            None => {
                let found = format!("{}, which the history does not have", quote(id));
                row.problem(path, found, "name sessions of history_sessions.json by their session_id");
            }
            Some(place) if places.contains(place) => {
                row.problem(path, format!("{} a second time", quote(id)), "name every session once");
            }
            Some(place) => places.push(*place),
        }
    }
    places.sort_unstable();
    (places.len() == ids.len()).then_some(places)
}

/// The governing session of a nuanced set, inferred: the only target that contains a right answer verbatim, ignoring case and punctuation.
fn selected(history: &[Segment], targets: &[usize], correct: &[&str]) -> Option<usize> {
    let answers: Vec<String> = correct.iter().map(|answer| phrase(answer)).filter(|a| a.len() > 2).collect();
    let holds = |at: &&usize| {
        let segment = history.iter().find(|segment| segment.index == **at);
        segment.is_some_and(|segment| {
            let texts: Vec<String> = segment.turns.iter().map(|turn| phrase(&turn.content)).collect();
            answers.iter().any(|answer| texts.iter().any(|text| text.contains(answer)))
        })
    };
    let mut holding = targets.iter().filter(holds);
    let first = holding.next()?;
    holding.next().is_none().then_some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Turn;

    #[test]
    fn the_session_that_alone_holds_a_right_answer_is_selected() {
        let segment = |(index, text): (usize, &str)| Segment {
            kind: "session".to_owned(),
            index,
            time: None,
            turns: vec![Turn::new("user", "How many?"), Turn::new("assistant", text)],
        };
        let history: Vec<Segment> =
            ["As of June there were 431.", "As of March: 412 models.", "In all 1431 people came."]
                .into_iter()
                .enumerate()
                .map(segment)
                .collect();
        let of = |targets: &[usize], answers: &[&str]| selected(&history, targets, answers);
        assert_eq!(of(&[0, 1, 2], &["431", "four hundred and thirty-one"]), Some(0));
        assert_eq!(of(&[0, 1], &["412 Models"]), Some(1));
        assert_eq!(of(&[0, 1], &["as of"]), None, "two hold it");
        assert_eq!(of(&[0, 1], &["440"]), None, "none holds it");
        assert_eq!(of(&[1, 2], &["431"]), None, "a part of a word is no word");
        assert_eq!(of(&[0], &["...", ""]), None, "an answer without words is no value");
    }
}
