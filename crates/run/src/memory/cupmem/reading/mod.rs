//! Reads the frozen store for one probe: R1 to R8.
//!
//! The paper's variant parses (R1), retrieves (R2), verifies (R3) and answers (R8); the code's also recovers a missing basis (R4), verifies
//! again (R5), grounds plans (R6) and constrains the answer (R7). A step with unparsable replies fails the probe; a partial readout would
//! be attributed to the method.
//!
//! Our choices where the sources are silent: memories are reported by retrieval rank, usable ones first. The answer's context lists current
//! facts, former states, unknowns and constraints in plain words, so that the answer cannot repeat ids, slots or statuses.

mod code;
mod retrieve;
mod verify;

use serde::Deserialize;
use serde_json::json;

use super::asking::{Asker, Stop};
use super::schema::Slot;
use super::settings::{Step, Switch};
use super::store::{Item, Store, sources};
use crate::memory::system::protocol::{ContextPiece, Memory, Status};
pub use retrieve::Query;
use retrieve::{Entry, Hit, Parsed, Reading};
use verify::{Constraints, Grounding, Premise, Verdict};

#[derive(Clone)]
pub struct Readout {
    /// Memories behind the answer: usable ones as active, others as stale.
    pub memories: Vec<Memory>,
    pub pieces: Vec<ContextPiece>,
    premise_safe: bool,
}

pub fn read(asker: &mut Asker<'_>, store: &Store, query: Query<'_>) -> Result<Readout, Stop> {
    let settings = asker.settings;
    let is_code = settings.is_code();
    let as_of = query.as_of.filter(|_| !is_code);
    let parsed: Parsed = asker.ask(Step::Parse, &json!({ "query": query.text, "as_of": as_of }))?;
    let mut reading = Reading { asker, store, query, parsed };
    if is_code {
        return reading.read_as_code();
    }
    let sought = reading.parsed.search_text(query.text, false);
    let mut hits = reading.nearest(retrieve::entries(store), &sought, settings.retrieved(), false)?;
    retrieve::complete(store, &mut hits);
    let verdict = match settings.lacks(Switch::NoVerifier) {
        true => Verdict::unverified(store, &hits),
        false => reading.verify(Step::Verify, &hits, &[])?.settled(store, &hits),
    };
    Ok(Readout {
        memories: memories(&hits, &verdict),
        pieces: context(store, &verdict, None, None),
        premise_safe: verdict.premise_safe,
    })
}

/// The nearest active items as plain context; no model is asked.
pub fn plain(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    most: usize,
) -> Result<Vec<Memory>, Stop> {
    let is_code = asker.settings.is_code();
    let active = store.active().collect();
    let nearest = asker.nearest(active, |item: &&Item| item.searched(is_code), query.text, most)?;
    Ok(nearest.into_iter().map(|(item, score)| Memory { score: Some(score), ..memory(item) }).collect())
}

pub fn answer(asker: &mut Asker<'_>, query: Query<'_>, readout: &Readout) -> Result<String, Stop> {
    #[derive(Deserialize)]
    struct Reply {
        answer: String,
    }
    let context: String = readout.pieces.iter().map(|piece| piece.text.as_str()).collect();
    let data = json!({
        "query": query.text,
        "as_of": query.as_of.filter(|_| !asker.settings.is_code()),
        "context": context.trim_end(),
        "premise_safe": readout.premise_safe,
    });
    let reply: Reply = asker.ask(Step::Answer, &data)?;
    Ok(reply.answer.trim().to_owned())
}

fn memories(hits: &[Hit<'_>], verdict: &Verdict) -> Vec<Memory> {
    let of = |ids: &[String], status| {
        let memory = |hit: &Hit<'_>| match hit.entry {
            Entry::Item(item) if ids.contains(&item.id) => {
                Some(Memory { status, score: hit.score, ..memory(item) })
            }
            _ => None,
        };
        hits.iter().filter_map(memory).collect::<Vec<_>>()
    };
    [of(&verdict.usable, Status::Active), of(&verdict.former(), Status::Stale)].concat()
}

pub fn memory(item: &Item) -> Memory {
    Memory {
        id: item.id.clone(),
        text: item.value.clone(),
        score: None,
        sources: Some(sources(&item.evidence)),
        time: item.created.time.clone(),
        status: item.status,
    }
}

fn context(
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
    // A fact with several items is attributed to the first.
    let facts = verdict.facts.iter().map(|fact| (fact.text.clone(), fact.items.first().cloned()));
    section("True of the user now:", facts.collect());
    let former = verdict.former();
    let former = former.iter().filter_map(|id| store.item(id));
    let former = former.map(|item| (item.value.clone(), Some(item.id.clone())));
    section("No longer true of the user:", former.collect());
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
        section("How to go on:", vec![(grounding.decision.words().to_owned(), None)]);
        section("To mention:", words(&grounding.facts));
    }
    if let Some(Constraints { must, must_not, open }) = constraints {
        section("The answer must:", words(must));
        section("The answer must not:", words(must_not));
        section("Open:", words(open));
    }
    pieces
}
