//! The context that an answer is made from, and R8, the answer.
//!
//! The context is current facts, what no longer holds, what is unknown, and the bounds of the answer, all in plain words: an answer cannot repeat ids,
//! slots or statuses that it was never shown.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::schema::Slot;
use super::super::shapes::{object, text};
use super::super::store::Store;
use super::ground::{Constraints, Grounding, course};
use super::parse::Query;
use super::verify::{Premise, Verdict};
use crate::ground::order::unique;
use crate::memory::system::protocol::ContextPiece;

#[derive(Debug, Deserialize)]
struct Reply {
    answer: String,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    object([("answer", text())])
}

/// The pieces of a context, in the order in which the answering model reads them.
pub fn context(
    store: &Store,
    verdict: &Verdict,
    grounding: Option<&Grounding>,
    constraints: Option<&Constraints>,
) -> Vec<ContextPiece> {
    let mut pieces: Vec<ContextPiece> = Vec::new();
    let mut section = |title: &str, lines: Vec<(String, Option<String>)>| {
        if !lines.is_empty() {
            pieces.push(ContextPiece { text: format!("{title}\n"), memory: None });
            let piece = |(line, memory)| ContextPiece { text: format!("- {line}\n"), memory };
            pieces.extend(lines.into_iter().map(piece));
        }
    };
    let words = |lines: &[String]| lines.iter().map(|line| (line.clone(), None)).collect::<Vec<_>>();
    // A fact of several items is the first one's.
    let facts = verdict.facts.iter().map(|fact| (fact.text.clone(), fact.items.first().cloned()));
    section("True of the user now:", facts.collect());
    let former = former(verdict);
    let former = former.iter().filter_map(|id| store.item(id));
    section(
        "No longer true of the user:",
        former.map(|item| (item.value.clone(), Some(item.id.clone()))).collect(),
    );
    let unknown = verdict.unknown_slots.iter().filter_map(|slot| Slot::parse(slot)).map(|slot| {
        let reason = store.marker(&slot).map(|marker| format!(": {}", marker.reason)).unwrap_or_default();
        (format!("{}{reason}", slot.name().replace('_', " ")), None)
    });
    section("Not known any more:", unknown.collect());
    let premise = match verdict.status {
        Premise::Outdated => Some("What the question takes for granted no longer holds."),
        _ if !verdict.premise_safe => Some("It is unsure whether what the question takes for granted holds."),
        _ => None,
    };
    section("About the question:", premise.map(|line| (line.to_owned(), None)).into_iter().collect());
    if let Some(grounding) = grounding {
        section("How to go on:", vec![(course(grounding.decision).to_owned(), None)]);
        section("To mention:", words(&grounding.facts));
    }
    if let Some(Constraints { must, must_not, open }) = constraints {
        section("The answer must:", words(must));
        section("The answer must not:", words(must_not));
        section("Open:", words(open));
    }
    pieces
}

/// Items that an answer must not take as current: outdated, blocked, historical.
pub fn former(verdict: &Verdict) -> Vec<String> {
    unique(verdict.outdated.iter().chain(&verdict.blocked).chain(&verdict.historical).cloned())
}

/// R8.
pub fn answer(
    asker: &mut Asker<'_>,
    query: Query<'_>,
    pieces: &[ContextPiece],
    premise_safe: bool,
) -> Result<Result<String, Fault>, Unreachable> {
    let context: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let as_of = query.as_of.filter(|_| !asker.settings.is_code());
    let data = json!({
        "query": query.text,
        "as_of": as_of,
        "context": context.trim_end(),
        "premise_safe": premise_safe,
    });
    let reply = asker.ask::<Reply>(Step::Answer, &data, &reply_shape())?;
    Ok(reply.map(|reply| reply.answer.trim().to_owned()))
}
