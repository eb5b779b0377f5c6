//! Reading, a probe at a time, the store frozen: R1 to R8.
//!
//! The paper's variant parses (R1), retrieves (R2), verifies (R3) and answers (R8); the code's also recovers a missing basis (R4), verifies again (R5),
//! grounds plans (R6) and bounds the answer (R7). A step whose replies cannot be read fails the probe: an answer from half a readout would pass
//! for one of the method's.
//!
//! Choices where the sources are silent: memories are told by rank of retrieval, usable ones first.

pub mod answer;
mod code;
pub mod ground;
pub mod parse;
mod readout;
pub mod recover;
pub mod retrieve;
mod settle;
mod stop;
pub mod verify;

pub use readout::{Readout, memory};

use parse::Query;
use readout::memories;
use stop::Stop;

use super::asking::{Asker, Fault, Unreachable};
use super::settings::Switch;
use super::store::{Item, Store};
use crate::memory::system::protocol::Memory;

/// R1 to R7.
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
    if settings.is_code() {
        return match code::read(asker, store, query, parsed) {
            Ok(readout) => Ok(Ok(readout)),
            Err(Stop::Fault(fault)) => Ok(Err(fault)),
            Err(Stop::Unreachable(error)) => Err(error),
        };
    }
    let sought = parsed.search_text(query.text, false);
    let mut hits =
        retrieve::nearest(asker, retrieve::entries(store), &sought, settings.variant.retrieved(), false)?;
    retrieve::complete(store, &mut hits);
    let verdict = match settings.lacks(Switch::NoVerifier) {
        true => verify::unverified(store, &hits),
        false => match verify::verify(asker, store, query, &parsed, &hits)? {
            Ok(verdict) => verdict,
            Err(fault) => return Ok(Err(fault)),
        },
    };
    Ok(Ok(Readout {
        memories: memories(store, &hits, &verdict),
        pieces: answer::context(store, &verdict, None, None),
        premise_safe: verdict.premise_safe,
    }))
}

/// The nearest active items as plain context, without a model: the store by itself.
pub fn plain(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    most: usize,
) -> Result<Vec<Memory>, Unreachable> {
    let active: Vec<&Item> = store.active().collect();
    let is_code = asker.settings.is_code();
    let nearest = asker.nearest(active, |item| item.searched(is_code), query.text, most)?;
    Ok(nearest.into_iter().map(|(item, score)| Memory { score: Some(score), ..memory(item) }).collect())
}
