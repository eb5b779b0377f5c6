//! Facts that a probe needs, and the memories that carry them.
//!
//! A memory carries a fact if an evidence session is among its sources ([`Level::Source`]); more strictly, if a judge also says that its
//! text states the fact ([`Level::Stated`]). Sources that the system does not report give [`Known::Unknown`], not no.

use std::collections::{BTreeMap, BTreeSet};

use palimpsest_core::span::Span;
use palimpsest_data::benchmarks::{Benchmark, Side};
use palimpsest_run::memory::system::protocol::{Memory, Source};
use palimpsest_run::memory::system::rows::StatedRow;
use palimpsest_run::runs::plan::{PlannedCase, PlannedEvidence, PlannedProbe};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Known {
    No,
    #[default]
    Unknown,
    Yes,
}

impl Known {
    pub fn of(yes: bool) -> Self {
        if yes { Known::Yes } else { Known::No }
    }

    pub fn maybe(yes: Option<bool>) -> Self {
        yes.map_or(Known::Unknown, Known::of)
    }

    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Known::Yes => Known::No,
            Known::No => Known::Yes,
            Known::Unknown => Known::Unknown,
        }
    }

    pub fn is_yes(self) -> bool {
        self == Known::Yes
    }

    pub fn any(all: impl IntoIterator<Item = Known>) -> Self {
        all.into_iter().max().unwrap_or(Known::No)
    }

    pub fn all(all: impl IntoIterator<Item = Known>) -> Self {
        all.into_iter().min().unwrap_or(Known::Yes)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    pub role: String,
    pub side: Option<Side>,
    /// Original indices of its sessions: all with the role for a side, else one.
    pub sessions: BTreeSet<usize>,
}

/// Facts of a probe: older side, newer side, then the others in data order. Parts of a session count as the session.
pub fn facts(benchmark: &Benchmark, case: &PlannedCase, probe: &PlannedProbe) -> Vec<Fact> {
    let mut roles: Vec<&PlannedEvidence> = Vec::new();
    for evidence in case.evidence_of(probe) {
        match roles.iter_mut().find(|known| known.segment == evidence.segment) {
            Some(known) if known.turn.is_some() && evidence.turn.is_none() => *known = evidence,
            Some(_) => {}
            None => roles.push(evidence),
        }
    }
    let side =
        |role: &str| benchmark.lens.sides.iter().find(|(known, _)| *known == role).map(|(_, side)| *side);
    let mut facts: Vec<Fact> = Vec::new();
    for PlannedEvidence { role, segment, .. } in roles {
        let side = side(role);
        match facts.iter_mut().find(|fact| side.is_some() && fact.role == *role) {
            Some(fact) => _ = fact.sessions.insert(*segment),
            None => facts.push(Fact { role: role.clone(), side, sessions: BTreeSet::from([*segment]) }),
        }
    }
    facts.sort_by_key(|fact| place(fact.side));
    facts
}

/// Order of facts: older side, newer side, others.
pub(super) fn place(side: Option<Side>) -> usize {
    [Some(Side::Older), Some(Side::Newer)].iter().position(|known| *known == side).unwrap_or(2)
}

/// Original session index of a label: 3 for `session[3]`.
pub fn session_index(label: &str) -> Option<usize> {
    Span::new(label, 0..0).segment()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Level {
    /// An evidence session is among the sources. Free, but also counts memories that state something else.
    Source,
    /// Additionally, a judge says that the memory states the fact.
    Stated,
}

impl Level {
    pub fn number(self) -> u8 {
        match self {
            Level::Source => 1,
            Level::Stated => 2,
        }
    }
}

/// Judgements of one case's memories, by memory id.
#[derive(Debug, Clone, Default)]
pub struct Stated<'a>(BTreeMap<&'a str, Vec<&'a StatedRow>>);

impl<'a> Stated<'a> {
    pub fn of(rows: &'a [StatedRow]) -> Self {
        let mut by_memory = Stated::default();
        for row in rows {
            by_memory.0.entry(&row.memory).or_default().push(row);
        }
        by_memory
    }

    /// True if a memory's text states the evidence of a role in a session; the last judgement counts.
    fn says(&self, id: &str, text: &str, role: &str, session: usize) -> Known {
        let is = |row: &&&StatedRow| {
            row.text == text && row.role == role && session_index(&row.session) == Some(session)
        };
        Known::maybe(self.0.get(id).and_then(|rows| rows.iter().rev().find(is)).map(|row| row.states))
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Carrier<'a> {
    /// `None` at [`Level::Source`].
    pub stated: Option<&'a Stated<'a>>,
}

impl Carrier<'_> {
    pub fn level(&self) -> Level {
        if self.stated.is_some() { Level::Stated } else { Level::Source }
    }

    /// Three-valued: does this memory carry the fact?
    pub fn carries(&self, id: &str, text: Option<&str>, sources: Option<&[Source]>, fact: &Fact) -> Known {
        let Some(sources) = sources else { return Known::Unknown };
        let sessions: BTreeSet<usize> =
            sources.iter().filter_map(|source| session_index(&source.session)).collect();
        let found = fact.sessions.intersection(&sessions);
        Known::any(found.map(|session| match self.stated {
            None => Known::Yes,
            Some(stated) => text.map_or(Known::Unknown, |text| stated.says(id, text, &fact.role, *session)),
        }))
    }

    pub fn has(&self, memory: &Memory, fact: &Fact) -> Known {
        self.carries(&memory.id, Some(&memory.text), memory.sources.as_deref(), fact)
    }
}
