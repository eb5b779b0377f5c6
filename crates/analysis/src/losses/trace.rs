//! One probe under one condition of a memory system: each fact at every stage from store to answer.

use std::collections::{BTreeSet, HashMap};

use super::fact::{Carrier, Fact, Known};
use super::reading::{Effects, attended};
use super::retrieval::Ranking;
use super::writing::{Overwriting, Writing, overwriting, writing};
use palimpsest_data::benchmarks::Side;
use palimpsest_run::memory::shown::MEMORY;
use palimpsest_run::memory::system::Show;
use palimpsest_run::memory::system::case_rows::MemoryRows;
use palimpsest_run::memory::system::protocol::Memory;
use palimpsest_run::memory::system::rows::SearchRow;
use palimpsest_run::runs::rows::{AnswerKey, AnswerRow};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// An event wrote a memory that carries the fact.
    Written,
    /// An active memory of the final store carries it.
    Kept,
    /// A memory in the condition's list carries it.
    Retrieved,
    Shown,
    /// Some layer's choice of keys leaves the query a token of it; files without `selected` do not tell.
    Selected,
    /// The query attends to it ([`super::reading`]).
    Attended,
    /// The answer depends on it ([`super::reading`]).
    Used,
    Right,
}

impl Stage {
    pub const ALL: [Stage; 8] = [
        Stage::Written,
        Stage::Kept,
        Stage::Retrieved,
        Stage::Shown,
        Stage::Selected,
        Stage::Attended,
        Stage::Used,
        Stage::Right,
    ];

    /// True if measured only on answers with recorded attention or causes.
    pub fn is_of_sample(self) -> bool {
        matches!(self, Stage::Selected | Stage::Attended | Stage::Used)
    }

    pub fn key(self) -> &'static str {
        match self {
            Stage::Written => "written",
            Stage::Kept => "kept",
            Stage::Retrieved => "retrieved",
            Stage::Shown => "shown",
            Stage::Selected => "selected",
            Stage::Attended => "attended",
            Stage::Used => "used",
            Stage::Right => "right",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactTrace {
    pub role: String,
    pub side: Option<Side>,
    pub sessions: BTreeSet<usize>,
    pub writing: Writing,
    /// Older side only: its treatment when the newer fact came.
    pub overwriting: Option<Overwriting>,
    /// In the order of [`Stage::ALL`].
    pub stages: [Known; 8],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    pub case: String,
    pub probe: String,
    pub kind: Option<String>,
    pub dimension: String,
    pub facts: Vec<FactTrace>,
    /// The system's search, independent of the condition.
    pub search: Ranking,
    pub list: Ranking,
    pub right: Known,
}

#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The system's rows for the case; `None` if missing.
    pub rows: Option<&'a MemoryRows>,
    pub k: usize,
    pub show: Show,
    pub answer: Option<&'a AnswerRow>,
    /// The query's density by memory rank; empty without attention.
    pub densities: &'a [(usize, f64)],
    /// By rank, true if some layer's choice left the query a token of the memory; empty if the file does not tell.
    pub selected: &'a [(usize, bool)],
    pub effects: &'a Effects,
    pub right: Known,
}

impl Evidence<'_> {
    /// True if the condition's context contains the memory; a system's own rendering may omit some.
    fn words(&self, memory: &Memory, search: Option<&SearchRow>) -> bool {
        match (self.show, search.and_then(|row| row.parts.as_ref())) {
            (Show::Native, Some(parts)) => parts.iter().any(|part| part.memory.as_ref() == Some(&memory.id)),
            _ => true,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Named {
    pub case: String,
    pub probe: String,
    pub kind: Option<String>,
    pub dimension: String,
}

/// Memories by id; searches take precedence, since the run completed them.
fn by_id<'a>(rows: Option<&'a MemoryRows>, probe: &str) -> HashMap<&'a str, &'a Memory> {
    let mut found = HashMap::new();
    let Some(rows) = rows else { return found };
    let search = rows.search(probe);
    let of_search =
        search.into_iter().flat_map(|row| row.memories.iter().chain(row.readback.iter().flatten()));
    for memory in of_search.chain(rows.dump.iter().flatten()) {
        found.entry(memory.id.as_str()).or_insert(memory);
    }
    found
}

impl Trace {
    pub fn of(named: Named, facts: &[Fact], of: &Evidence<'_>, carrier: Carrier<'_>) -> Self {
        let known = by_id(of.rows, &named.probe);
        let search = of.rows.and_then(|rows| rows.search(&named.probe));
        let ranking = match search {
            Some(row) => Ranking::of(&row.memories, row.k, carrier, facts),
            None => Ranking::absent(facts),
        };
        let shown: Option<Vec<(usize, Memory)>> = of.answer.and_then(|row| {
            let memory = |id: &String| match known.get(id.as_str()) {
                Some(memory) => (*memory).clone(),
                None => Memory { id: id.clone(), ..Memory::default() },
            };
            // Dropped memories keep their ranks.
            let ranks = (0..).filter(|rank| !row.dropped_sessions.contains(rank));
            let all = ranks.zip(row.memories.as_ref()?.iter().map(memory));
            Some(all.filter(|(_, memory)| of.words(memory, search)).collect())
        });
        let list = match (of.show, search) {
            (Show::Ranked | Show::Native, Some(row)) => {
                // A search with smaller k than the condition may have cut the list.
                let asked = if row.k < of.k { row.k } else { usize::MAX };
                Ranking::of(row.memories.get(..of.k).unwrap_or(&row.memories), asked, carrier, facts)
            }
            (Show::Perfect, Some(row)) => match &row.readback {
                Some(memories) => Ranking::of(memories, usize::MAX, carrier, facts),
                None => Ranking::absent(facts),
            },
            (Show::Answer, Some(row)) => Ranking::of(&row.memories, usize::MAX, carrier, facts),
            (_, None) => Ranking::absent(facts),
        };
        let reading = Reading { named: &named, shown, of, carrier };
        let all: Vec<FactTrace> =
            facts.iter().enumerate().map(|(at, fact)| reading.fact(at, fact, facts, &list)).collect();
        let Named { case, probe, kind, dimension } = named;
        Trace { case, probe, kind, dimension, facts: all, search: ranking, list, right: of.right }
    }

    pub fn side(&self, side: Side) -> Option<usize> {
        self.facts.iter().position(|fact| fact.side == Some(side))
    }
}

struct Reading<'a> {
    named: &'a Named,
    /// By rank; `None` if the answer does not record it.
    shown: Option<Vec<(usize, Memory)>>,
    of: &'a Evidence<'a>,
    carrier: Carrier<'a>,
}

impl Reading<'_> {
    fn fact(&self, at: usize, fact: &Fact, facts: &[Fact], list: &Ranking) -> FactTrace {
        let life = self.of.rows.map(|rows| writing(rows, self.carrier, fact)).unwrap_or_default();
        let newer = facts.iter().find(|other| other.side == Some(Side::Newer));
        let overwritten = newer.filter(|_| fact.side == Some(Side::Older)).map(|newer| match self.of.rows {
            Some(rows) => overwriting(rows, self.carrier, fact, newer),
            None => Overwriting::default(),
        });
        let (attended, used) = (self.attended(fact, facts), self.used(fact));
        let stages = [
            life.written,
            life.kept,
            list.hit(at, usize::MAX),
            self.is_shown(fact),
            self.selected(fact),
            attended,
            used,
            self.of.right,
        ];
        FactTrace {
            role: fact.role.clone(),
            side: fact.side,
            sessions: fact.sessions.clone(),
            writing: life,
            overwriting: overwritten,
            stages,
        }
    }

    fn carrying(&self, fact: &Fact) -> Vec<usize> {
        let all = self.shown.iter().flatten();
        all.filter(|(_, memory)| self.carrier.has(memory, fact).is_yes()).map(|(rank, _)| *rank).collect()
    }

    fn is_shown(&self, fact: &Fact) -> Known {
        match (&self.shown, self.of.answer) {
            (Some(shown), _) => Known::any(shown.iter().map(|(_, memory)| self.carrier.has(memory, fact))),
            (None, Some(row)) if !row.fits() => Known::No,
            _ => Known::Unknown,
        }
    }

    fn attended(&self, fact: &Fact, facts: &[Fact]) -> Known {
        if self.of.densities.is_empty() {
            return Known::Unknown;
        }
        let by_source = Carrier { stated: None };
        let plain = |rank: usize| {
            let memory = self.shown.iter().flatten().find(|(at, _)| *at == rank);
            memory
                .is_some_and(|(_, memory)| facts.iter().all(|fact| by_source.has(memory, fact) == Known::No))
        };
        let one = |at: usize| attended(at, self.of.densities, plain);
        self.over_shown(fact, one)
    }

    fn selected(&self, fact: &Fact) -> Known {
        let one = |at: usize| self.of.selected.iter().find(|(rank, _)| *rank == at).map(|(_, seen)| *seen);
        self.over_shown(fact, |at| Known::maybe(one(at)))
    }

    fn used(&self, fact: &Fact) -> Known {
        let Some(row) = self.of.answer else { return Known::Unknown };
        let answer = AnswerKey::of(&self.named.case, &self.named.probe, &row.condition).owned();
        self.over_shown(fact, |at| self.of.effects.used(&answer, &format!("{MEMORY}[{at}]")))
    }

    /// Three-valued OR over shown memories that carry a fact; unknown without any.
    fn over_shown(&self, fact: &Fact, of: impl Fn(usize) -> Known) -> Known {
        match self.carrying(fact)[..] {
            [] => Known::Unknown,
            ref places => Known::any(places.iter().map(|&at| of(at))),
        }
    }
}
