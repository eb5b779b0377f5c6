//! Draws a limited number of examples per group with a seed (STALE, section 4.3: up to 20 per conflict type and verdict).
//!
//! A group is a probe dimension, a type and a verdict (or none). The draw depends on the case ids and the seed, not on row order, and a
//! larger draw contains the smaller. Runs before any attention file is opened.

use std::collections::BTreeMap;

use palimpsest_data::case::draw::Draws;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerGroup {
    pub most: usize,
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    pub by: PerGroup,
    pub kept: usize,
    pub of: usize,
}

pub(super) type Key = (String, Option<String>, Option<bool>);

impl PerGroup {
    /// Ascending indices of the drawn examples. `id` names an example within its group.
    pub(super) fn draw(self, examples: impl Iterator<Item = (Key, String)>) -> Vec<usize> {
        let mut groups: BTreeMap<Key, Vec<(String, usize)>> = BTreeMap::new();
        for (place, (key, id)) in examples.enumerate() {
            groups.entry(key).or_default().push((id, place));
        }
        let mut drawn = Vec::new();
        for ((dimension, kind, correct), mut members) in groups {
            members.sort_unstable();
            let name = format!("{dimension}/{}/{correct:?}", kind.unwrap_or_default());
            Draws::new("examples of a group", self.seed, &name).shuffle(&mut members);
            drawn.extend(members.into_iter().take(self.most).map(|(_, place)| place));
        }
        drawn.sort_unstable();
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples(order: &[usize]) -> Vec<(Key, String)> {
        let of = |&at: &usize| {
            let kind = Some(if at.is_multiple_of(2) { "T1" } else { "T2" }.to_owned());
            (("SR".to_owned(), kind, Some(at < 30)), format!("{at:03}"))
        };
        order.iter().map(of).collect()
    }

    fn drawn(order: &[usize], most: usize, seed: u64) -> Vec<usize> {
        let places = PerGroup { most, seed }.draw(examples(order).into_iter());
        let mut members: Vec<usize> = places.into_iter().map(|place| order[place]).collect();
        members.sort_unstable();
        members
    }

    #[test]
    fn every_group_gives_up_to_its_share_and_the_order_of_the_rows_does_not_matter() {
        let order: Vec<usize> = (0..40).collect();
        let reverse: Vec<usize> = (0..40).rev().collect();
        let ten = drawn(&order, 10, 0);
        // 15 of T1 and 15 of T2 are correct, 5 and 5 wrong
        let count = |group: &dyn Fn(usize) -> bool| ten.iter().filter(|&&at| group(at)).count();
        assert_eq!(
            (count(&|at| at < 30 && at % 2 == 0), count(&|at| at < 30 && at % 2 == 1), count(&|at| at >= 30)),
            (10, 10, 10)
        );
        assert_eq!(ten, drawn(&reverse, 10, 0));
        assert_ne!(ten, drawn(&order, 10, 1));
        let five = drawn(&order, 5, 0);
        assert_eq!(five.len(), 20);
        assert!(five.iter().all(|at| ten.contains(at)), "a larger draw holds the smaller");
        assert_eq!(drawn(&order, 40, 0), order);
    }
}
