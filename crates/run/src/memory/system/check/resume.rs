//! Resume check: ingests a history with and without a kill and compares the results.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::plants::{BAKERY, BOAT, FILLER, LOCKER, Plant, Seen, no, quoted, said, yes};
use crate::memory::system::history::{HistoryError, SystemRun, Wanted};
use crate::memory::system::protocol::{Capability, Memory, MemorySystem, SystemResult};
use crate::memory::system::rows::SearchRow;
use palimpsest_data::case::{Case, Evidence, History, Probe};

const NAME: &str = "check";

fn case() -> Case {
    let sentences = [FILLER[0], LOCKER.sentence, FILLER[1], BOAT.sentence, FILLER[2], BAKERY.sentence];
    let segments = sentences.iter().enumerate().map(|(index, sentence)| said(index, sentence)).collect();
    let probe = |id: &str, plant: &Plant, at: usize| Probe {
        id: id.to_owned(),
        query: plant.query.to_owned(),
        evidence: vec![Evidence::segment("fact", at)],
        ..Probe::default()
    };
    Case {
        id: NAME.to_owned(),
        history: History { segments, query_time: None },
        probes: vec![probe("locker", &LOCKER, 1), probe("bakery", &BAKERY, 5)],
        ..Case::default()
    }
}

const KILLED_AFTER: usize = 3;

fn rows(mut system: SystemRun) -> Result<Vec<SearchRow>, HistoryError> {
    let case = case();
    let wanted = Wanted { k: 5, ..Wanted::default() };
    let rows = case.probes.iter().map(|probe| system.searched(&case, probe, wanted)).collect();
    system.close();
    rows
}

/// Runs one history twice, once with a kill.
pub(super) fn resume(
    whole: Box<dyn MemorySystem>,
    open: &dyn Fn() -> Result<Box<dyn MemorySystem>, String>,
    of_whole: &Path,
    of_killed: &Path,
) -> Result<SystemResult<Seen>, String> {
    let in_words = |error: HistoryError| error.to_string();
    let expected = match SystemRun::start(NAME, whole, of_whole) {
        Ok(system) => rows(system).map_err(in_words)?,
        Err(error) => return Ok(Err(error)),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    match SystemRun::start(NAME, open()?, of_killed) {
        Ok(system) => {
            let mut system = system.stopped_by(stop).told(move |progress| {
                stopping.fetch_or(progress.done == KILLED_AFTER, Ordering::Relaxed);
            });
            match system.prepare(&case()) {
                Ok(()) | Err(HistoryError::Stopped) => {}
                Err(error) => return Err(error.to_string()),
            }
            // Drop without close kills the process.
        }
        Err(error) => return Ok(Err(error)),
    }
    Ok(match SystemRun::start(NAME, open()?, of_killed) {
        Ok(system) => {
            let way = if system.identity().can(Capability::Save) { "load" } else { "writing again" };
            compared(&expected, &rows(system).map_err(in_words)?, way)
        }
        Err(error) => Err(error),
    })
}

fn compared(expected: &[SearchRow], got: &[SearchRow], way: &str) -> SystemResult<Seen> {
    if let Some(failed) = expected.iter().chain(got).find_map(|row| row.failed.as_ref()) {
        return no(failed.message.clone());
    }
    if expected == got {
        return yes(format!("by {way}; equal in all"));
    }
    for (one, other) in expected.iter().zip(got) {
        let differs = |(a, b): &(&Memory, &Memory)| a.text != b.text;
        let rank = one.memories.iter().zip(&other.memories).position(|pair| differs(&pair));
        let shorter = one.memories.len().min(other.memories.len());
        let rank = rank.or((one.memories.len() != other.memories.len()).then_some(shorter));
        if let Some(rank) = rank {
            let at = |row: &SearchRow| {
                row.memories.get(rank).map_or("none".to_owned(), |memory| quoted(&memory.text))
            };
            return no(format!(
                "after a kill and {way}, memory {} for `{}` is {} instead of {}; a history that is written again must give the same \
                 store",
                rank + 1,
                one.query,
                at(other),
                at(one)
            ));
        }
    }
    yes(format!("by {way}; the same memories under other ids or scores"))
}
