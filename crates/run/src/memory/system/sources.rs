//! Attributes memories to source sessions, by the best of five methods ([`Provenance`]).
//!
//! Follows a store through its events, or through dump differences if it reports none. A rewritten memory keeps its earlier sources, though
//! some systems replace them. Never uses text similarity.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::{Date, DateTime};

use super::protocol::{Memory, Op, ProvenanceClaim, SessionInput, Source, Status, WriteEvent};
use super::record::FINISH;
use super::rows::{EventRow, Provenance};
use palimpsest_data::ground::order::entry;

#[derive(Debug, Default)]
pub struct Sources {
    /// Provenance of sources that the system reports itself.
    own: Option<Provenance>,
    known: BTreeMap<String, Known>,
    times: BTreeMap<DateTime, Vec<String>>,
    sessions: BTreeSet<String>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    text: Option<String>,
    sources: Option<Vec<Source>>,
    way: Option<Provenance>,
    stale: bool,
}

impl Sources {
    pub fn new(claim: ProvenanceClaim, sessions: &[SessionInput]) -> Self {
        let own = match claim {
            ProvenanceClaim::Exact => Some(Provenance::System),
            ProvenanceClaim::Derived => Some(Provenance::Metadata),
            ProvenanceClaim::None => None,
        };
        let mut times: BTreeMap<DateTime, Vec<String>> = BTreeMap::new();
        for session in sessions {
            if let Some(time) = session.time.as_deref().and_then(|time| time.parse().ok()) {
                times.entry(time).or_default().push(session.id.clone());
            }
        }
        let sessions = sessions.iter().map(|session| session.id.clone()).collect();
        Sources { own, known: BTreeMap::new(), times, sessions }
    }

    /// The first source that is not a known session.
    pub fn stranger<'a>(
        &self,
        sources: impl IntoIterator<Item = &'a Option<Vec<Source>>>,
    ) -> Option<&'a str> {
        let mut named = sources.into_iter().flatten().flatten().map(|source| source.session.as_str());
        named.find(|session| !self.sessions.contains(*session))
    }

    /// Completes the sources of an event of `session` and applies it. `way` is [`Provenance::Events`] if reported, [`Provenance::Dump`] if
    /// derived.
    pub fn event(&mut self, session: &str, mut event: WriteEvent, way: Provenance) -> EventRow {
        let provenance = if event.sources.is_some() {
            self.own.unwrap_or(Provenance::System)
        } else {
            let known = event.memory.as_ref().and_then(|memory| self.known.get(memory));
            let before = known.and_then(|known| known.sources.clone());
            let kept = known.and_then(|known| known.way).unwrap_or(way);
            // Additions at `finish` cannot be attributed to a session.
            let written = matches!(event.op, Op::Add | Op::Update) && session != FINISH;
            event.sources = before;
            if written {
                let new = || Source { session: session.to_owned(), turns: Vec::new() };
                entry(event.sources.get_or_insert_default(), |source| source.session == session, new);
            }
            match (&event.sources, written) {
                (None, _) => Provenance::Unknown,
                (Some(_), true) => way.max(kept),
                (Some(_), false) => kept,
            }
        };
        let row = EventRow { session: session.to_owned(), event, provenance };
        self.follow(&row);
        row
    }

    pub fn follow(&mut self, row: &EventRow) {
        let event = &row.event;
        let Some(memory) = event.memory.clone() else { return };
        if event.op == Op::Delete {
            self.known.remove(&memory);
            return;
        }
        if event.op == Op::None && !self.known.contains_key(&memory) {
            return;
        }
        let known = self.known.entry(memory).or_default();
        match event.op {
            Op::Stale => known.stale = true,
            Op::Add | Op::Update => known.stale = false,
            _ => {}
        }
        if let Some(text) = &event.text {
            known.text = Some(text.clone());
        }
        if event.sources.is_some() {
            known.sources.clone_from(&event.sources);
            known.way = Some(row.provenance);
        }
    }

    /// Events that turn the known store into `dump`: in the dump's order, then deletions.
    pub fn difference(&mut self, dump: &[Memory]) -> Vec<WriteEvent> {
        let mut events = Vec::new();
        for memory in dump {
            let stale = memory.status == Status::Stale;
            let previous = self.known.get_mut(&memory.id).map(|known| {
                // A text unknown so far is no change.
                let text = known.text.get_or_insert_with(|| memory.text.clone());
                (text.clone(), known.stale)
            });
            let op = match &previous {
                None => Op::Add,
                Some((_, was)) if stale && !was => Op::Stale,
                Some((text, was)) if *text != memory.text || stale != *was => Op::Update,
                Some(_) => continue,
            };
            let event = |op| WriteEvent {
                op,
                memory: Some(memory.id.clone()),
                sources: memory.sources.clone(),
                ..WriteEvent::default()
            };
            events.push(WriteEvent {
                text: Some(memory.text.clone()),
                previous: previous.map(|(text, _)| text).filter(|text| *text != memory.text),
                ..event(op)
            });
            if op == Op::Add && stale {
                events.push(event(Op::Stale));
            }
        }
        let there: BTreeSet<&str> = dump.iter().map(|memory| memory.id.as_str()).collect();
        let gone = self.known.iter().filter(|(id, _)| !there.contains(id.as_str()));
        events.extend(gone.map(|(id, known)| WriteEvent {
            op: Op::Delete,
            memory: Some(id.clone()),
            previous: known.text.clone(),
            ..WriteEvent::default()
        }));
        events
    }

    /// Completes the sources of memories. Returns the worst method used, or unknown if none applied; for no memories, the system's own.
    pub fn complete(&self, memories: &mut [Memory]) -> Provenance {
        let none = self.own.unwrap_or(Provenance::Unknown);
        let empty = memories.is_empty();
        let ways = memories.iter_mut().filter_map(|memory| self.complete_one(memory));
        ways.max().unwrap_or(if empty { none } else { Provenance::Unknown })
    }

    fn complete_one(&self, memory: &mut Memory) -> Option<Provenance> {
        if memory.sources.is_some() {
            return Some(self.own.unwrap_or(Provenance::System));
        }
        if let Some(known) = self.known.get(&memory.id)
            && known.sources.is_some()
        {
            memory.sources.clone_from(&known.sources);
            return Some(known.way.unwrap_or(Provenance::Events));
        }
        let session = self.at(memory.time.as_deref()?)?;
        memory.sources = Some(vec![Source { session, turns: Vec::new() }]);
        Some(Provenance::Times)
    }

    /// The only session at a time, or on a day if `time` is a date.
    fn at(&self, time: &str) -> Option<String> {
        let time = time.trim();
        let moment = time.parse::<DateTime>().ok().filter(|_| time.contains([':', 'T']));
        let day: Option<Date> = if moment.is_none() { Some(time.parse().ok()?) } else { None };
        let is_it = |at: &DateTime| moment == Some(*at) || day == Some(at.date());
        let mut found = self.times.iter().filter(|(at, _)| is_it(at)).flat_map(|(_, all)| all);
        found.next().filter(|_| found.next().is_none()).cloned()
    }
}
