//! Facts in a ranked list of memories: ranks and hits at any k, from one search.

use super::fact::{Carrier, Fact, Known};
use palimpsest_run::memory::system::protocol::Memory;

pub const KS: [usize; 5] = [1, 3, 5, 10, 20];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranking {
    /// By fact, then rank: does the memory carry it?
    carried: Vec<Vec<Known>>,
    len: usize,
    /// Requested length; a list that long may have been cut.
    asked: usize,
    searched: bool,
}

impl Ranking {
    /// Evaluates a list of at most `asked` memories.
    pub fn of(memories: &[Memory], asked: usize, carrier: Carrier<'_>, facts: &[Fact]) -> Self {
        let ranks = |fact: &Fact| memories.iter().map(|memory| carrier.has(memory, fact)).collect();
        let (len, carried) = (memories.len(), facts.iter().map(ranks).collect());
        Ranking { carried, len, asked, searched: true }
    }

    pub fn absent(facts: &[Fact]) -> Self {
        Ranking { carried: vec![Vec::new(); facts.len()], ..Ranking::default() }
    }

    /// True if at least `k` memories were requested.
    pub fn was_asked(&self, k: usize) -> bool {
        self.searched && k <= self.asked
    }

    /// True if the first `k` are known.
    fn reaches(&self, k: usize) -> bool {
        self.searched && (k <= self.asked || self.len < self.asked)
    }

    fn first(&self, fact: usize, k: usize) -> &[Known] {
        let all = self.carried.get(fact).map(Vec::as_slice).unwrap_or_default();
        all.get(..k).unwrap_or(all)
    }

    pub fn hit(&self, fact: usize, k: usize) -> Known {
        let hit = Known::any(self.first(fact, k).iter().copied());
        if hit.is_yes() || self.reaches(k) { hit } else { Known::Unknown }
    }

    /// 1-based rank of the first memory that carries a fact; `None` without one, or if an earlier memory may carry it.
    pub fn rank(&self, fact: usize) -> Option<usize> {
        self.ranks(fact).filter(|(earliest, first)| earliest == first).map(|(_, first)| first)
    }

    /// Ranks of the first memory that may carry a fact and of the first that does.
    fn ranks(&self, fact: usize) -> Option<(usize, usize)> {
        let carried = self.first(fact, usize::MAX);
        let earliest = carried.iter().position(|carried| *carried != Known::No)? + 1;
        Some((earliest, carried.iter().position(|carried| carried.is_yes())? + 1))
    }

    /// True if the first memory with `one` precedes the first with `other`, both in the top `k`. Unknown if either is missing or an earlier
    /// memory is unknown. A memory with both precedes neither.
    pub fn is_above(&self, one: usize, other: usize, k: usize) -> Known {
        let both = self.hit(one, k).is_yes() && self.hit(other, k).is_yes();
        match (self.ranks(one), self.ranks(other)) {
            (Some((_, latest)), Some((earliest, _))) if both && latest < earliest => Known::Yes,
            (Some((earliest, _)), Some((_, latest))) if both && earliest >= latest => Known::No,
            _ => Known::Unknown,
        }
    }

    pub fn distractor_first(&self) -> Known {
        if !self.reaches(1) {
            return Known::Unknown;
        }
        if self.len == 0 {
            return Known::No;
        }
        Known::any((0..self.carried.len()).map(|fact| self.hit(fact, 1))).opposite()
    }

    pub fn is_empty(&self) -> Known {
        if self.searched { Known::of(self.len == 0) } else { Known::Unknown }
    }
}
