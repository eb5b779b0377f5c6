//! The facts that a probe needs, and the memories that carry them.
//!
//! A memory carries a fact where a session of the fact's evidence is among its sources ([`Level::Source`]), and more strictly where a judge
//! also says that it states the fact ([`Level::Stated`]). Sources that a system does not know are not the same as none: what rests on them
//! is [`Known::Unknown`], which no count takes for no.

use std::collections::{BTreeMap, BTreeSet};

use crate::benchmarks::{Benchmark, Side};
use crate::memory::system::protocol::{Memory, Source};
use crate::memory::system::rows::StatedRow;
use crate::run::plan::{PlannedCase, PlannedEvidence, PlannedProbe};
use palimpsest_core::span::Span;

/// Yes, no, or not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Known {
    /// It is not so.
    No,
    /// It cannot be told.
    #[default]
    Unknown,
    /// It is so.
    Yes,
}

impl Known {
    /// Of what is known.
    pub fn of(yes: bool) -> Self {
        if yes { Known::Yes } else { Known::No }
    }

    /// Of what may not have been measured.
    pub fn maybe(yes: Option<bool>) -> Self {
        yes.map_or(Known::Unknown, Known::of)
    }

    /// Is it known to be so?
    pub fn is_yes(self) -> bool {
        self == Known::Yes
    }

    /// Is any of them so? Unknown where none is known to be, and some are unknown.
    pub fn any(all: impl IntoIterator<Item = Known>) -> Self {
        all.into_iter().max().unwrap_or(Known::No)
    }

    /// Are all of them so?
    pub fn all(all: impl IntoIterator<Item = Known>) -> Self {
        all.into_iter().min().unwrap_or(Known::Yes)
    }
}

/// A piece of evidence that a memory may carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The part that it plays.
    pub role: String,
    /// Is it one of two conflicting sides?
    pub side: Option<Side>,
    /// The original indices of the sessions that hold it. Of a side all that play its part; else one.
    pub sessions: BTreeSet<usize>,
}

/// The facts of a probe: the older side, the newer side, then the others in the order of the data. Parts of a session count as the session.
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
    facts.sort_by_key(|fact| match fact.side {
        Some(Side::Older) => 0,
        Some(Side::Newer) => 1,
        _ => 2,
    });
    facts
}

/// The original index of the session that a label names: 3 of `session[3]`.
pub fn session_index(label: &str) -> Option<usize> {
    Span::new(label, 0..0).segment()
}

/// Strictness of provenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Level {
    /// The evidence's session is among its sources. Free, and also counts memories that say something else.
    Source,
    /// And a judge says that it states the fact.
    Stated,
}

impl Level {
    /// 1 or 2, as tables write it.
    pub fn number(self) -> u8 {
        match self {
            Level::Source => 1,
            Level::Stated => 2,
        }
    }
}

/// Judgements of the memories of one case: by memory, role and session.
pub type Stated = BTreeMap<(String, String, usize), bool>;

/// Judgements of rows; of one memory and fact the last counts.
pub fn stated(rows: &[StatedRow]) -> Stated {
    let one = |row: &StatedRow| {
        Some(((row.memory.clone(), row.role.clone(), session_index(&row.session)?), row.states))
    };
    rows.iter().filter_map(one).collect()
}

/// Decides whether a memory carries a fact.
#[derive(Debug, Clone, Copy)]
pub struct Carrier<'a> {
    /// The judgements; `None` at [`Level::Source`].
    pub stated: Option<&'a Stated>,
}

impl Carrier<'_> {
    /// Does the memory of this id and these sources carry a fact?
    pub fn carries(&self, id: &str, sources: Option<&[Source]>, fact: &Fact) -> Known {
        let Some(sources) = sources else { return Known::Unknown };
        let sessions: BTreeSet<usize> =
            sources.iter().filter_map(|source| session_index(&source.session)).collect();
        let found = fact.sessions.intersection(&sessions);
        Known::any(found.map(|session| match self.stated {
            None => Known::Yes,
            Some(stated) => Known::maybe(stated.get(&(id.to_owned(), fact.role.clone(), *session)).copied()),
        }))
    }

    /// The same of a memory.
    pub fn has(&self, memory: &Memory, fact: &Fact) -> Known {
        self.carries(&memory.id, memory.sources.as_deref(), fact)
    }
}
