//! Reading, a probe at a time, the store frozen: R1 to R8.
//!
//! The paper's variant parses (R1), retrieves (R2), verifies (R3) and answers (R8); the code's also recovers a missing basis (R4), verifies again (R5),
//! grounds plans (R6) and bounds the answer (R7). A step whose replies cannot be read fails the probe: an answer from half a readout would pass
//! for one of the method's.
//!
//! Choices where the sources are silent: R5 also runs where R4 brought evidence, and is left out where there is nothing to show that the first
//! verdict has not seen; R7 asks a model for every intent; memories are told by rank of retrieval, usable ones first.

pub mod answer;
pub mod ground;
pub mod parse;
pub mod recover;
pub mod retrieve;
pub mod verify;

use parse::Query;
use retrieve::Hit;
use verify::Verdict;

use super::asking::{Asker, Fault, Unreachable};
use super::model::Step;
use super::settings::Switch;
use super::store::{Item, Store};
use crate::memory::system::protocol::{ContextPiece, Memory, Status};

/// Entries that are not current and are shown to R5 besides.
const AGAIN: usize = 6;

/// A probe's readout.
#[derive(Debug, Clone, PartialEq)]
pub struct Readout {
    /// The memories that the answer is made from: usable ones as active, all others as stale.
    pub memories: Vec<Memory>,
    /// The context as the answering model reads it.
    pub pieces: Vec<ContextPiece>,
    /// May an answer take the premise for granted?
    pub premise_safe: bool,
}

/// R1 to R7.
///
/// # Errors
/// [`Unreachable`]; a [`Fault`] inside.
pub fn read(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
) -> Result<Result<Readout, Fault>, Unreachable> {
    let settings = asker.settings;
    let parsed = match parse::parse(asker, query)? {
        Ok(parsed) => parsed,
        Err(fault) => return Ok(Err(fault)),
    };
    let sought = parsed.search_text(query.text);
    let most = settings.variant.retrieved();
    let mut hits = retrieve::nearest(asker, retrieve::entries(store), &sought, most)?;
    retrieve::complete(store, &mut hits);
    let verifies = !settings.lacks(Switch::NoVerifier);
    let mut verdict = match verifies {
        false => verify::unverified(store, &hits),
        true => match verify::verify(asker, Step::Verify, store, query, &parsed, &hits)? {
            Ok(verdict) => verdict,
            Err(fault) => return Ok(Err(fault)),
        },
    };
    let (mut grounding, mut constraints) = (None, None);
    if settings.is_code() {
        let before = hits.len();
        if verdict.lacks_basis() && !settings.lacks(Switch::NoRecovery) {
            verdict = match recover::recover(asker, store, query, &parsed, &mut hits, verdict)? {
                Ok(verdict) => verdict,
                Err(fault) => return Ok(Err(fault)),
            };
        }
        let recovered = hits.len() > before;
        let unsure = verdict.is_in_conflict() || verdict.confidence < verify::SURE;
        if verifies && (unsure || recovered) {
            let mut pool = retrieve::not_current(store);
            pool.retain(|entry| !hits.iter().any(|hit| hit.id == entry.id()));
            hits.extend(retrieve::nearest(asker, pool, &sought, if unsure { AGAIN } else { 0 })?);
            if hits.len() > before {
                verdict = match verify::verify(asker, Step::VerifyAgain, store, query, &parsed, &hits)? {
                    Ok(verdict) => verdict,
                    Err(fault) => return Ok(Err(fault)),
                };
            }
        }
        if parsed.is_planning() {
            grounding = match ground::ground(asker, store, query, &parsed, &verdict)? {
                Ok(grounding) => Some(grounding),
                Err(fault) => return Ok(Err(fault)),
            };
        }
        constraints = match ground::constrain(asker, store, query, &verdict, grounding.as_ref())? {
            Ok(constraints) => Some(constraints),
            Err(fault) => return Ok(Err(fault)),
        };
    }
    Ok(Ok(Readout {
        memories: memories(store, &hits, &verdict),
        pieces: answer::context(store, &verdict, grounding.as_ref(), constraints.as_ref()),
        premise_safe: verdict.premise_safe,
    }))
}

fn memories(store: &Store, hits: &[Hit], verdict: &Verdict) -> Vec<Memory> {
    let former = answer::former(verdict);
    let of = |ids: &[String], status: Status| {
        let shown = hits.iter().filter(|hit| ids.contains(&hit.id));
        let memory = |hit: &Hit| Some(Memory { status, score: hit.score, ..memory(store.item(&hit.id)?) });
        shown.filter_map(memory).collect::<Vec<_>>()
    };
    let mut memories = of(&verdict.usable, Status::Active);
    memories.extend(of(&former, Status::Stale));
    memories
}

/// An item as the protocol tells it.
pub fn memory(item: &Item) -> Memory {
    Memory {
        id: item.id.clone(),
        text: item.value.clone(),
        score: None,
        sources: Some(item.sources()),
        time: item.created.time.clone(),
        status: item.status,
    }
}

/// The nearest active items as plain context, without a model: the store by itself.
///
/// # Errors
/// [`Unreachable`].
pub fn plain(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    most: usize,
) -> Result<Vec<Memory>, Unreachable> {
    let active: Vec<&Item> = store.active().collect();
    let nearest = asker.nearest(active, |item| &item.value, query.text, most)?;
    Ok(nearest.into_iter().map(|(item, score)| Memory { score: Some(score), ..memory(item) }).collect())
}
