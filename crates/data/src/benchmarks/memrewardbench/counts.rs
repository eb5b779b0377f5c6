//! Counts of graded pairs: of right verdicts, and of the verdicts on both orders of a pair.
//!
//! Every planned pair is in a denominator; what could not be read counts as wrong (MemoryRewardBench, section 4.1), and so does what did
//! not fit the context, which is counted apart. Each repetition is counted by itself.

use std::collections::BTreeMap;

use super::orders::{LETTERS, Order, Variant, parse};
use super::terms::{CTX_LENGTH, Length, SOURCE, SUBTASK, Setting, Source, TASK, Task};
use crate::benchmarks::Graded;
pub use crate::benchmarks::Share;
use crate::ground::order::{entry, sorted_unique};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// True if the chosen trajectory was preferred; `None` where nothing could be read.
    pub right: Option<bool>,
    /// True if the one shown first was; `None` where nothing could be read.
    pub first: Option<bool>,
    /// True if the prompt fitted the context; where it did not, nothing could be read.
    pub fits: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    pub task: Option<Task>,
    pub setting: Option<Setting>,
    pub length: Option<Length>,
    /// The data set that a pair of long-form generation was made from, where its question tells.
    pub source: Option<Source>,
    pub verdicts: BTreeMap<(Order, Variant), Verdict>,
}

/// The pairs of one repetition of a run by one judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted<'a> {
    pub run: &'a str,
    pub judge: Option<&'a str>,
    pub repetition: u32,
    pub pairs: BTreeMap<&'a str, Compared>,
}

/// Groups graded probes by run, judge and repetition, in the order in which they come.
pub fn counted<'a>(graded: &[Graded<'a>]) -> Vec<Counted<'a>> {
    let mut all: Vec<Counted<'a>> = Vec::new();
    for row in graded {
        let Some(asked) = parse(row.condition) else { continue };
        let setting = row.labels.get(SUBTASK).and_then(|name| Setting::parse(name));
        let task = setting.map(Setting::task).or(row.labels.get(TASK).and_then(|name| Task::parse(name)));
        let Graded { run, judge, repetition, .. } = *row;
        let same = |one: &Counted<'_>| (one.run, one.judge, one.repetition) == (run, judge, repetition);
        let new = || Counted { run, judge, repetition, pairs: BTreeMap::new() };
        let counted = entry(&mut all, same, new);
        let length = row.labels.get(CTX_LENGTH).and_then(|name| Length::parse(name));
        let source = row.facets.get(SOURCE).and_then(|name| Source::parse(name));
        let pair = counted.pairs.entry(row.case).or_insert_with(|| Compared {
            task,
            setting,
            length,
            source,
            verdicts: BTreeMap::new(),
        });
        let first = row.choice.filter(|_| row.correct.is_some()).map(|choice| choice == LETTERS[0]);
        pair.verdicts.insert(asked, Verdict { right: row.correct, first, fits: row.fits });
    }
    all
}

impl Counted<'_> {
    pub fn asked(&self) -> Vec<(Order, Variant)> {
        sorted_unique(self.pairs.values().flat_map(|pair| pair.verdicts.keys().copied()))
    }

    /// Right verdicts among the pairs that `wanted` takes.
    pub fn accuracy(&self, asked: (Order, Variant), wanted: impl Fn(&Compared) -> bool) -> Share {
        let pairs = self.pairs.values().filter(|pair| wanted(pair));
        Share::of(
            pairs.filter_map(|pair| pair.verdicts.get(&asked)).map(|verdict| verdict.right == Some(true)),
        )
    }

    /// Prompts of the pairs that `wanted` takes that did not fit the context: each is wrong in [`Counted::accuracy`].
    pub fn overlong(&self, asked: (Order, Variant), wanted: impl Fn(&Compared) -> bool) -> usize {
        let pairs = self.pairs.values().filter(|pair| wanted(pair));
        pairs.filter_map(|pair| pair.verdicts.get(&asked)).filter(|verdict| !verdict.fits).count()
    }

    /// The agreement of both orders on the pairs that `wanted` takes; `None` where not both were asked.
    pub fn consistency(&self, variant: Variant, wanted: impl Fn(&Compared) -> bool) -> Option<Consistency> {
        let mut found = Consistency::default();
        for pair in self.pairs.values().filter(|pair| wanted(pair)) {
            let of = |order| pair.verdicts.get(&(order, variant));
            if let Some(random) = of(Order::Random) {
                found.random.add(random.right == Some(true));
            }
            let (Some(chosen), Some(rejected)) = (of(Order::ChosenFirst), of(Order::RejectedFirst)) else {
                continue;
            };
            found.chosen_first.add(chosen.right == Some(true));
            found.rejected_first.add(rejected.right == Some(true));
            let both = chosen.right.zip(rejected.right);
            found.stable.add(both.is_some_and(|(a, b)| a == b));
            found.stable_right.add(both == Some((true, true)));
            let right = (chosen.right == Some(true), rejected.right == Some(true));
            found.only_chosen_first += usize::from(right == (true, false));
            found.only_rejected_first += usize::from(right == (false, true));
            for verdict in [chosen, rejected] {
                match verdict.first {
                    Some(first) => found.first_position.add(first),
                    None => found.unparsed.count += usize::from(verdict.fits),
                }
                found.unparsed.of += 1;
            }
            found.overlong += usize::from(!(chosen.fits && rejected.fits));
        }
        (found.chosen_first.of > 0).then_some(found)
    }
}

/// The agreement of both orders of the same pairs (section 5.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consistency {
    /// Right in the random order, where that was asked too.
    pub random: Share,
    pub chosen_first: Share,
    /// Right with it second.
    pub rejected_first: Share,
    /// The same trajectory preferred in both orders.
    pub stable: Share,
    pub stable_right: Share,
    /// Right with the chosen trajectory first alone.
    pub only_chosen_first: usize,
    /// Right with it second alone.
    pub only_rejected_first: usize,
    /// The first one, of all verdicts that could be read.
    pub first_position: Share,
    /// Verdicts that could not be read, of both orders; a prompt that did not fit the context has none to be read.
    pub unparsed: Share,
    /// Pairs that did not fit the context, in one order at least.
    pub overlong: usize,
}

impl Consistency {
    /// True if it is consistent: no more pairs are stable and right than are right in either order, and no more are stable than the
    /// difference of both orders leaves.
    pub fn holds(&self) -> bool {
        let (chosen, rejected) = (self.chosen_first.count, self.rejected_first.count);
        let least = chosen.min(rejected);
        self.stable_right.count <= least && self.stable.count + chosen.abs_diff(rejected) <= self.stable.of
    }
}
