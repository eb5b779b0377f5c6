//! The life of a fact in a store: events and the final dump become written, kept and lost, and of the older of two conflicting facts
//! whether it was looked at, let through a gate, marked and removed when the newer one came (STALE, table 3).
//!
//! Events are replayed in order. Sources of an update are all of the memory's; an update that names none leaves them as they were, since
//! what the memory was made of does not change.

use std::collections::{BTreeMap, BTreeSet};

use super::fact::{Carrier, Fact, Known, session_index};
use crate::memory::system::case_rows::MemoryRows;
use crate::memory::system::protocol::{Memory, Op, Source, Status};
use crate::memory::system::record::FINISH;
use crate::memory::system::rows::{EventRow, HistoryRow};

/// One fact in a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writing {
    /// Some event wrote a memory that carries it, or the dump holds one.
    pub written: Known,
    /// An active memory of the final store carries it.
    pub kept: Known,
    /// The event after which no active memory carried it; of facts that were written and not kept.
    pub lost: Option<Lost>,
}

/// An event that took a fact out of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The session that was written then; absent where no event tells.
    pub session: Option<String>,
    /// The change; absent where no event tells.
    pub op: Option<Op>,
}

impl Lost {
    /// One word for tables.
    pub fn word(&self) -> &'static str {
        self.op.map_or("no event", op_word)
    }
}

/// An operation as tables write it.
pub fn op_word(op: Op) -> &'static str {
    match op {
        Op::Add => "add",
        Op::Update => "update",
        Op::Delete => "delete",
        Op::Stale => "stale",
        Op::Unknown => "unknown",
        Op::Weak => "weak",
        Op::None => "none",
    }
}

/// Treatment of the older of two facts when the newer one came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overwriting {
    /// A memory that carries it was among the candidates of a memory that carries the newer one.
    pub looked_at: Known,
    /// It passed the gate before the decision; unknown of systems that report no gate.
    pub gated: Known,
    /// It was updated, deleted or marked as stale, unknown or weak.
    pub marked: Known,
    /// It was deleted.
    pub removed: Known,
}

/// A memory while events are replayed.
#[derive(Debug, Clone, Default)]
struct Entry {
    sources: Option<Vec<Source>>,
    active: bool,
}

/// A store while events are replayed.
#[derive(Debug, Clone, Default)]
struct Replay(BTreeMap<String, Entry>);

impl Replay {
    fn apply(&mut self, row: &EventRow) {
        let Some(id) = &row.event.memory else { return };
        let entry = match row.event.op {
            Op::Add | Op::Update => {
                let entry = self.0.entry(id.clone()).or_default();
                entry.active = true;
                entry
            }
            Op::Delete | Op::Stale | Op::Unknown => {
                let Some(entry) = self.0.get_mut(id) else { return };
                entry.active = false;
                entry
            }
            Op::Weak | Op::None => return,
        };
        if let Some(sources) = &row.event.sources {
            entry.sources = Some(sources.clone());
        }
    }

    fn carries(&self, carrier: Carrier<'_>, id: &str, fact: &Fact) -> Known {
        self.0.get(id).map_or(Known::No, |entry| carrier.carries(id, entry.sources.as_deref(), fact))
    }
}

/// A replay with counts of the active memories that carry a fact: those that are known to, and those of which it is not known.
struct Holding<'a> {
    replay: Replay,
    carrier: Carrier<'a>,
    fact: &'a Fact,
    carrying: usize,
    unknown: usize,
}

impl<'a> Holding<'a> {
    fn new(carrier: Carrier<'a>, fact: &'a Fact) -> Self {
        Holding { replay: Replay::default(), carrier, fact, carrying: 0, unknown: 0 }
    }

    fn carries(&self, id: &str) -> Known {
        self.replay.carries(self.carrier, id, self.fact)
    }

    /// The counts to which a memory adds one; none where it is not active or carries it not.
    fn count_of(&mut self, id: &str) -> Option<&mut usize> {
        let active = self.replay.0.get(id).is_some_and(|entry| entry.active);
        match if active { self.carries(id) } else { Known::No } {
            Known::Yes => Some(&mut self.carrying),
            Known::Unknown => Some(&mut self.unknown),
            Known::No => None,
        }
    }

    fn apply(&mut self, row: &EventRow) {
        let Some(id) = &row.event.memory else { return };
        self.count_of(id).into_iter().for_each(|count| *count -= 1);
        self.replay.apply(row);
        self.count_of(id).into_iter().for_each(|count| *count += 1);
    }

    /// Does an active memory carry the fact?
    fn holds(&self) -> Known {
        match (self.carrying, self.unknown) {
            (0, 0) => Known::No,
            (0, _) => Known::Unknown,
            _ => Known::Yes,
        }
    }
}

fn events(rows: &MemoryRows) -> impl Iterator<Item = &EventRow> {
    rows.history.iter().filter_map(|row| match row {
        HistoryRow::Event(event) => Some(event),
        HistoryRow::Session(_) => None,
    })
}

/// The life of a fact in the store of a case.
pub fn writing(rows: &MemoryRows, carrier: Carrier<'_>, fact: &Fact) -> Writing {
    let mut store = Holding::new(carrier, fact);
    let (mut written, mut lost) = (Known::No, None);
    for row in events(rows) {
        let before = store.holds();
        store.apply(row);
        if matches!(row.event.op, Op::Add | Op::Update) {
            let id = row.event.memory.as_deref().unwrap_or_default();
            let own = carrier.carries(id, row.event.sources.as_deref(), fact);
            written = written.max(own).max(store.carries(id));
        }
        if before.is_yes() && !store.holds().is_yes() {
            lost = Some(Lost { session: Some(row.session.clone()), op: Some(row.event.op) });
        }
    }
    let kept = match &rows.dump {
        Some(dump) => {
            let has = |memory: &&Memory| memory.status == Status::Active;
            written = written.max(Known::any(dump.iter().map(|memory| carrier.has(memory, fact))));
            Known::any(dump.iter().filter(has).map(|memory| carrier.has(memory, fact)))
        }
        None if rows.history.is_empty() => {
            return Writing::default();
        }
        None => store.holds(),
    };
    let gone = written.is_yes() && kept == Known::No;
    // An event after which it came back is none that lost it.
    let lost = lost.filter(|_| !store.holds().is_yes());
    let lost = gone.then(|| lost.unwrap_or(Lost { session: None, op: None }));
    Writing { written, kept, lost }
}

/// Treatment of the older fact when the newer one came.
pub fn overwriting(rows: &MemoryRows, carrier: Carrier<'_>, older: &Fact, newer: &Fact) -> Overwriting {
    if rows.history.is_empty() {
        return Overwriting::default();
    }
    let mut replay = Replay::default();
    let (mut reports, mut reports_gate) = (false, false);
    let mut found =
        Overwriting { looked_at: Known::No, gated: Known::No, marked: Known::No, removed: Known::No };
    for row in events(rows) {
        let id = row.event.memory.as_deref().unwrap_or_default();
        let carried = replay.carries(carrier, id, older);
        // The gate and the candidates are those of the newer fact's memory, whenever it is compared.
        let in_session = session_index(&row.session).is_some_and(|session| newer.sessions.contains(&session));
        let is_newer = in_session
            || replay.carries(carrier, id, newer).is_yes()
            || carrier.carries(id, row.event.sources.as_deref(), newer).is_yes();
        for looked in row.looked_at().unwrap_or_default() {
            reports = true;
            reports_gate |= looked.gated.is_some();
            if is_newer {
                let old = replay.carries(carrier, &looked.memory, older);
                found.looked_at = found.looked_at.max(old);
                if looked.gated == Some(true) {
                    found.gated = found.gated.max(old);
                }
            }
        }
        reports |= row.looked_at().is_some();
        let changes = matches!(row.event.op, Op::Update | Op::Delete | Op::Stale | Op::Unknown | Op::Weak);
        if changes && (in_session || row.session == FINISH) {
            found.marked = found.marked.max(carried);
            if row.event.op == Op::Delete {
                found.removed = found.removed.max(carried);
            }
        }
        replay.apply(row);
    }
    // A memory that was changed was looked at and let through, also where no list of candidates says so.
    found.looked_at = if reports { found.looked_at.max(found.marked) } else { Known::Unknown };
    found.gated = if reports_gate { found.gated.max(found.marked) } else { Known::Unknown };
    found
}

/// Amounts that a system wrote of its histories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extraction {
    /// Histories.
    pub cases: usize,
    /// Sessions that were given to it, of which failed ones wrote nothing.
    pub sessions: usize,
    /// Sessions from which it wrote a memory.
    pub fruitful: usize,
    /// Sessions that failed.
    pub failed: usize,
    /// Memories in the final stores, or where there is no dump those that were added.
    pub memories: usize,
    /// Cases of which events or a dump tell what was written.
    pub told: usize,
    /// Calls of its language model whose reply should have been JSON.
    pub json: usize,
    /// Calls whose reply did not parse.
    pub unparsed: usize,
}

impl Extraction {
    /// Adds a case.
    pub fn add(&mut self, rows: &MemoryRows) {
        self.cases += 1;
        // Systems that write at the end only tell the session by the sources.
        let mut wrote: BTreeSet<&str> = BTreeSet::new();
        let mut ended: BTreeMap<&str, bool> = BTreeMap::new();
        let mut added: BTreeSet<&str> = BTreeSet::new();
        for row in &rows.history {
            match row {
                HistoryRow::Event(row) if matches!(row.event.op, Op::Add | Op::Update) => {
                    wrote.insert(&row.session);
                    added.extend(row.event.memory.as_deref());
                    let sources = row.event.sources.iter().flatten();
                    wrote.extend(sources.map(|source| source.session.as_str()));
                }
                HistoryRow::Session(row) if row.session != FINISH => {
                    ended.insert(&row.session, row.failed.is_some());
                }
                _ => {}
            }
        }
        self.sessions += ended.len();
        self.failed += ended.values().filter(|failed| **failed).count();
        // A system that tells no events may tell sources in its dump.
        let dumped = rows.dump.iter().flatten().flat_map(|memory| memory.sources.iter().flatten());
        wrote.extend(dumped.map(|source| source.session.as_str()));
        self.memories += rows.dump.as_ref().map_or(added.len(), Vec::len);
        self.fruitful += ended.keys().filter(|session| wrote.contains(*session)).count();
        self.told += usize::from(rows.dump.is_some() || events(rows).next().is_some());
        self.json += rows.calls.iter().filter(|call| call.json.is_some()).count();
        self.unparsed += rows.calls.iter().filter(|call| call.json == Some(false)).count();
    }

    /// Are there fewer memories than a quarter of the sessions, and from fewer? Then later losses say nothing of the system.
    pub fn is_poor(&self) -> bool {
        self.told > 0 && 4 * self.fruitful.max(self.memories) < self.sessions
    }
}
