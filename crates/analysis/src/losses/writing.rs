//! Life of a fact in a store: written, kept and lost, from events and the final dump; for the older of two conflicting facts also looked
//! at, gated, marked and removed when the newer one came (STALE, table 3).
//!
//! Replays events in order with the memory's text after each. An update without sources keeps the previous ones. If the rows are incomplete
//! ([`MemoryRows::tells_all`]), anything without an event is unknown.

use std::collections::{BTreeMap, BTreeSet};

use super::fact::{Carrier, Fact, Known, Level, session_index};
use palimpsest_run::memory::system::case_rows::MemoryRows;
use palimpsest_run::memory::system::protocol::{Memory, Op, Source, Status};
use palimpsest_run::memory::system::record::FINISH;
use palimpsest_run::memory::system::rows::{EventRow, HistoryRow, SessionRow};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writing {
    pub written: Known,
    pub kept: Known,
    /// Event after which no active memory carried it; for facts written and not kept.
    pub lost: Option<Lost>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Session written at that time; `None` without an event.
    pub session: Option<String>,
    pub op: Option<Op>,
}

impl Lost {
    pub fn word(&self) -> &'static str {
        self.op.map_or("no event", op_word)
    }
}

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
    /// A memory that carries it was a candidate of a memory that carries the newer one.
    pub looked_at: Known,
    /// It passed the gate; unknown if the system reports no gate.
    pub gated: Known,
    /// Updated, deleted, or marked as stale, unknown or weak.
    pub marked: Known,
    pub removed: Known,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    text: Option<String>,
    sources: Option<Vec<Source>>,
    active: bool,
}

#[derive(Debug, Clone, Default)]
struct Replay(BTreeMap<String, Entry>);

impl Replay {
    fn apply(&mut self, (row, text): (&EventRow, Option<&str>)) {
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
        entry.text = text.map(str::to_owned);
        if let Some(sources) = &row.event.sources {
            entry.sources = Some(sources.clone());
        }
    }

    fn carries(&self, carrier: Carrier<'_>, id: &str, fact: &Fact) -> Known {
        self.0.get(id).map_or(Known::No, |entry| {
            carrier.carries(id, entry.text.as_deref(), entry.sources.as_deref(), fact)
        })
    }
}

/// Replay state: counts of active memories that carry the fact, known and unknown.
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

    /// Counter for a memory; `None` if it is inactive or does not carry the fact.
    fn count_of(&mut self, id: &str) -> Option<&mut usize> {
        let active = self.replay.0.get(id).is_some_and(|entry| entry.active);
        match if active { self.carries(id) } else { Known::No } {
            Known::Yes => Some(&mut self.carrying),
            Known::Unknown => Some(&mut self.unknown),
            Known::No => None,
        }
    }

    fn apply(&mut self, event: (&EventRow, Option<&str>)) {
        let Some(id) = &event.0.event.memory else { return };
        self.count_of(id).into_iter().for_each(|count| *count -= 1);
        self.replay.apply(event);
        self.count_of(id).into_iter().for_each(|count| *count += 1);
    }

    fn holds(&self) -> Known {
        match (self.carrying, self.unknown) {
            (0, 0) => Known::No,
            (0, _) => Known::Unknown,
            _ => Known::Yes,
        }
    }
}

pub fn writing(rows: &MemoryRows, carrier: Carrier<'_>, fact: &Fact) -> Writing {
    let mut store = Holding::new(carrier, fact);
    // With complete rows, no event means not written.
    let untold = if rows.tells_all() { Known::No } else { Known::Unknown };
    let (mut written, mut lost) = (untold, None);
    for (row, text) in rows.events() {
        let before = store.holds();
        store.apply((row, text));
        if matches!(row.event.op, Op::Add | Op::Update) {
            let id = row.event.memory.as_deref().unwrap_or_default();
            let own = carrier.carries(id, text, row.event.sources.as_deref(), fact);
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
        None if untold == Known::No => store.holds(),
        // An unreported change may have ended or restored it.
        None => Known::Unknown,
    };
    let gone = written.is_yes() && kept == Known::No;
    // Not lost if it came back later.
    let lost = lost.filter(|_| !store.holds().is_yes());
    let lost = gone.then(|| lost.unwrap_or(Lost { session: None, op: None }));
    Writing { written, kept, lost }
}

pub fn overwriting(rows: &MemoryRows, carrier: Carrier<'_>, older: &Fact, newer: &Fact) -> Overwriting {
    let mut replay = Replay::default();
    let untold = if rows.tells_all() { Known::No } else { Known::Unknown };
    let (mut marked, mut removed) = (untold, untold);
    // Known if the newer fact's events name candidates, or if it has no events and others name candidates.
    let (mut looked_at, mut gated) = (untold, untold);
    let (mut reports, mut reports_gate) = (false, false);
    let (mut newer_written, mut newer_reports) = (false, false);
    for event in rows.events() {
        let (row, text) = event;
        let id = row.event.memory.as_deref().unwrap_or_default();
        let in_session = session_index(&row.session).is_some_and(|session| newer.sessions.contains(&session));
        let writes = matches!(row.event.op, Op::Add | Op::Update);
        let looked = row.looked_at().unwrap_or_default();
        let candidates: Vec<Known> =
            looked.iter().map(|one| replay.carries(carrier, &one.memory, older)).collect();
        let (carried, before) = (replay.carries(carrier, id, older), replay.carries(carrier, id, newer));
        replay.apply(event);
        // Gate and candidates belong to the newer fact's memory, whenever it is compared. Its session's decisions on older memories count;
        // memories written in its session carry the newer fact by source, more strictly by text.
        let of_session = in_session && (!writes || carrier.level() == Level::Source);
        let own = carrier.carries(id, text, row.event.sources.as_deref(), newer);
        let is_newer = before.max(replay.carries(carrier, id, newer)).max(own).max(Known::of(of_session));
        for (one, older) in looked.iter().zip(candidates) {
            reports_gate |= one.gated.is_some();
            looked_at = looked_at.max(is_newer.min(older));
            let passed = Known::maybe(one.gated);
            gated = gated.max(is_newer.min(older).min(passed));
        }
        reports |= row.looked_at().is_some();
        newer_written |= is_newer.is_yes() && writes;
        newer_reports |= is_newer.is_yes() && row.looked_at().is_some();
        let changes = matches!(row.event.op, Op::Update | Op::Delete | Op::Stale | Op::Unknown | Op::Weak);
        if changes && (in_session || row.session == FINISH) {
            marked = marked.max(carried);
            if row.event.op == Op::Delete {
                removed = removed.max(carried);
            }
        }
    }
    // A changed memory was looked at and passed the gate, even without a candidate list.
    let known = |reported: bool, found: Known| match found.max(marked) {
        _ if !reported => Known::Unknown,
        Known::No if newer_written && !newer_reports => Known::Unknown,
        found => found,
    };
    Overwriting { looked_at: known(reports, looked_at), gated: known(reports_gate, gated), marked, removed }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extraction {
    pub cases: usize,
    /// Sessions given to the system; failed ones wrote nothing.
    pub sessions: usize,
    /// Sessions known to have produced a memory.
    pub fruitful: usize,
    /// Sessions with unknown output.
    pub untold: usize,
    /// Memories written at the end with unknown sources.
    pub unplaced: usize,
    pub failed: usize,
    /// Memories in the final stores, or after replaying events without a dump.
    pub memories: usize,
    /// LLM calls with an expected JSON reply.
    pub json: usize,
    /// Those whose reply did not parse.
    pub unparsed: usize,
}

impl Extraction {
    pub fn add(&mut self, rows: &MemoryRows) {
        self.cases += 1;
        // Systems that write only at the end name sessions by sources.
        let mut wrote: BTreeSet<&str> = BTreeSet::new();
        let mut ended: BTreeMap<&str, &SessionRow> = BTreeMap::new();
        let mut held: BTreeSet<&str> = BTreeSet::new();
        for row in &rows.history {
            match row {
                HistoryRow::Event(row) if matches!(row.event.op, Op::Add | Op::Update) => {
                    wrote.insert(&row.session);
                    held.extend(row.event.memory.as_deref());
                    self.unplaced += usize::from(row.session == FINISH && row.event.sources.is_none());
                    let sources = row.event.sources.iter().flatten();
                    wrote.extend(sources.map(|source| source.session.as_str()));
                }
                HistoryRow::Event(row) if row.event.op == Op::Delete => {
                    held.retain(|id| Some(*id) != row.event.memory.as_deref());
                }
                HistoryRow::Session(row) if row.session != FINISH => {
                    ended.insert(&row.session, row);
                }
                _ => {}
            }
        }
        self.sessions += ended.len();
        self.failed += ended.values().filter(|row| row.failed.is_some()).count();
        let dumped = rows.dump.iter().flatten().flat_map(|memory| memory.sources.iter().flatten());
        wrote.extend(dumped.map(|source| source.session.as_str()));
        self.memories += rows.dump.as_ref().map_or(held.len(), Vec::len);
        self.fruitful += ended.keys().filter(|session| wrote.contains(*session)).count();
        self.untold += ended.values().filter(|row| !rows.tells(row)).count();
        self.json += rows.calls.iter().filter(|call| call.json.is_some()).count();
        self.unparsed += rows.calls.iter().filter(|call| call.json == Some(false)).count();
    }

    pub fn is_untold(&self) -> bool {
        self.untold == self.sessions
    }

    /// True if memories are fewer than a quarter of the sessions with known output, and come from fewer than a quarter: later losses are
    /// uninformative.
    pub fn is_poor(&self) -> bool {
        !self.is_untold() && 4 * self.fruitful.max(self.memories) < self.sessions - self.untold
    }
}
