//! The memories that a probe's answer is made from.

use super::super::store::{Item, Store};
use super::answer;
use super::retrieve::Hit;
use super::verify::Verdict;
use crate::memory::system::protocol::{ContextPiece, Memory, Status};

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

/// The memories that a verdict calls usable, then those that it calls former.
pub fn memories(store: &Store, hits: &[Hit], verdict: &Verdict) -> Vec<Memory> {
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
