//! The facts in a ranked list of memories: ranks and hits at any k, from one search.

use super::fact::{Carrier, Fact, Known};
use palimpsest_run::memory::system::protocol::Memory;

/// The lists that are cut from one search.
pub const KS: [usize; 5] = [1, 3, 5, 10, 20];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranking {
    /// By fact, by rank: does the memory carry it?
    carried: Vec<Vec<Known>>,
    len: usize,
    /// Memories asked for: where the list is as long, more might have come.
    asked: usize,
    searched: bool,
}

impl Ranking {
    /// The facts in a list for which `asked` memories were asked.
    pub fn of(memories: &[Memory], asked: usize, carrier: Carrier<'_>, facts: &[Fact]) -> Self {
        let ranks = |fact: &Fact| memories.iter().map(|memory| carrier.has(memory, fact)).collect();
        let (len, carried) = (memories.len(), facts.iter().map(ranks).collect());
        Ranking { carried, len, asked, searched: true }
    }

    /// The list of a probe that was not searched for.
    pub fn absent(facts: &[Fact]) -> Self {
        Ranking { carried: vec![Vec::new(); facts.len()], ..Ranking::default() }
    }

    /// Were as many as `k` memories asked for? The list of a larger k was not made, short as this one may be.
    pub fn was_asked(&self, k: usize) -> bool {
        self.searched && k <= self.asked
    }

    /// Can the first `k` be told?
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

    /// The rank of the first memory that carries a fact, from 1; absent where there is none, and where one before it may carry it, too.
    pub fn rank(&self, fact: usize) -> Option<usize> {
        self.ranks(fact).filter(|(earliest, first)| earliest == first).map(|(_, first)| first)
    }

    /// The ranks of the first memory that may carry a fact and of the first that does.
    fn ranks(&self, fact: usize) -> Option<(usize, usize)> {
        let carried = self.first(fact, usize::MAX);
        let earliest = carried.iter().position(|carried| *carried != Known::No)? + 1;
        Some((earliest, carried.iter().position(|carried| carried.is_yes())? + 1))
    }

    /// Does the first memory that carries `one` come before the first that carries `other`, both among the first `k`? Unknown where not
    /// both are there, and where what an earlier memory carries would decide it. A memory that carries both is before neither.
    pub fn is_above(&self, one: usize, other: usize, k: usize) -> Known {
        let both = self.hit(one, k).is_yes() && self.hit(other, k).is_yes();
        match (self.ranks(one), self.ranks(other)) {
            (Some((_, latest)), Some((earliest, _))) if both && latest < earliest => Known::Yes,
            (Some((earliest, _)), Some((_, latest))) if both && earliest >= latest => Known::No,
            _ => Known::Unknown,
        }
    }

    /// Does the first memory carry none of the facts?
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
