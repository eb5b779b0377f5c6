//! Counts right verdicts, and verdicts in both orders of a pair. Denominators are the planned pairs; unparsed and overlong ones count as
//! wrong (MemoryRewardBench, section 4.1).

use std::collections::BTreeMap;

use super::orders::{LETTERS, Order, Variant, parse};
use super::terms::{CTX_LENGTH, Length, SOURCE, SUBTASK, Setting, Source, TASK, Task};
use crate::benchmarks::Graded;
pub use crate::benchmarks::Share;
use crate::ground::order::{entry, sorted_unique};

#[derive(Debug, Clone)]
pub struct Compared<'a> {
    pub task: Option<Task>,
    pub setting: Option<Setting>,
    pub length: Option<Length>,
    /// Source dataset of long-form generation, if recognised.
    pub source: Option<Source>,
    pub verdicts: BTreeMap<(Order, Variant), Graded<'a>>,
}

#[derive(Debug, Clone)]
pub struct Counted<'a> {
    pub run: &'a str,
    pub judge: Option<&'a str>,
    pub repetition: u32,
    pub pairs: BTreeMap<&'a str, Compared<'a>>,
}

/// Groups by run, judge and repetition, in order of appearance.
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
        pair.verdicts.insert(asked, *row);
    }
    all
}

impl Counted<'_> {
    pub fn asked(&self) -> Vec<(Order, Variant)> {
        sorted_unique(self.pairs.values().flat_map(|pair| pair.verdicts.keys().copied()))
    }

    pub fn accuracy(&self, asked: (Order, Variant), wanted: impl Fn(&Compared<'_>) -> bool) -> Share {
        let pairs = self.pairs.values().filter(|pair| wanted(pair));
        Share::of(pairs.filter_map(|pair| pair.verdicts.get(&asked)).map(Graded::is_right))
    }

    /// Overlong prompts; they count as wrong in [`Counted::accuracy`].
    pub fn overlong(&self, asked: (Order, Variant), wanted: impl Fn(&Compared<'_>) -> bool) -> usize {
        let pairs = self.pairs.values().filter(|pair| wanted(pair));
        pairs.filter_map(|pair| pair.verdicts.get(&asked)).filter(|verdict| !verdict.fits).count()
    }

    /// `None` unless both orders were asked.
    pub fn consistency(
        &self,
        variant: Variant,
        wanted: impl Fn(&Compared<'_>) -> bool,
    ) -> Option<Consistency> {
        let mut found = Consistency::default();
        for pair in self.pairs.values().filter(|pair| wanted(pair)) {
            let of = |order| pair.verdicts.get(&(order, variant));
            if let Some(random) = of(Order::Random) {
                found.random.add(random.is_right());
            }
            let (Some(chosen), Some(rejected)) = (of(Order::ChosenFirst), of(Order::RejectedFirst)) else {
                continue;
            };
            found.chosen_first.add(chosen.is_right());
            found.rejected_first.add(rejected.is_right());
            let both = chosen.correct.zip(rejected.correct);
            found.stable.add(both.is_some_and(|(a, b)| a == b));
            found.stable_right.add(both == Some((true, true)));
            let right = (chosen.is_right(), rejected.is_right());
            found.only_chosen_first += usize::from(right == (true, false));
            found.only_rejected_first += usize::from(right == (false, true));
            for verdict in [chosen, rejected] {
                match verdict.choice.filter(|_| verdict.correct.is_some()) {
                    Some(choice) => found.first_position.add(choice == LETTERS[0]),
                    None => found.unparsed.count += usize::from(verdict.fits),
                }
                found.unparsed.of += 1;
            }
            found.overlong += usize::from(!(chosen.fits && rejected.fits));
        }
        (found.chosen_first.of > 0).then_some(found)
    }
}

/// Agreement between both orders (section 5.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consistency {
    /// Right in the random order, if asked.
    pub random: Share,
    pub chosen_first: Share,
    pub rejected_first: Share,
    /// Same trajectory preferred in both orders.
    pub stable: Share,
    pub stable_right: Share,
    pub only_chosen_first: usize,
    pub only_rejected_first: usize,
    /// First trajectory preferred, among parsed verdicts.
    pub first_position: Share,
    /// Over both orders, overlong prompts included.
    pub unparsed: Share,
    pub overlong: usize,
}

impl Consistency {
    /// Consistency check: stable-and-right is at most either order's count, and stable at most what their difference allows.
    pub fn holds(&self) -> bool {
        let (chosen, rejected) = (self.chosen_first.count, self.rejected_first.count);
        let least = chosen.min(rejected);
        self.stable_right.count <= least && self.stable.count + chosen.abs_diff(rejected) <= self.stable.of
    }
}
