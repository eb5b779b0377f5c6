//! Control sets of equal size, and the drop that few of them exceed.

use std::ops::Range;

use crate::data::draw::Draws;

/// Share of random sets that may exceed a threshold.
pub const LEVEL: f64 = 0.05;

/// The fewest controls by whose ranks a drop can be told from a random set's at [`LEVEL`].
pub const CONTROLS: usize = 19;

/// The absolute drop that a further random set exceeds with a chance of at most [`LEVEL`], whatever the distribution: of n controls the
/// ceil((n + 1) (1 - [`LEVEL`]))-th smallest (split conformal prediction). `None` where that is more than there are, below [`CONTROLS`].
pub fn threshold(controls: &[f64]) -> Option<f64> {
    let mut ascending: Vec<f64> = controls.iter().map(|drop| drop.abs()).collect();
    ascending.sort_by(f64::total_cmp);
    // A hair below, so that 19 controls are 19 and not 20 by rounding.
    let rank = ((controls.len() + 1) as f64 * (1.0 - LEVEL) - 1e-9).ceil() as usize;
    ascending.get(rank.checked_sub(1)?).copied()
}

/// Up to `count` different sets of as many stretches as there are `lengths`, each of its length, in no particular place of `history`. None
/// touches any of `taken` or another of its set. Drawn by seed and name alone. Fewer where the history has no room for so many.
pub fn equal_sets(
    (count, seed): (usize, u64),
    name: &str,
    lengths: &[usize],
    history: &Range<usize>,
    taken: &[Range<usize>],
) -> Vec<Vec<Range<usize>>> {
    /// Draws in a row that may give a set a second time.
    const TRIES: usize = 32;
    let mut draws = Draws::new("control sets", seed, name);
    let mut sets: Vec<Vec<Range<usize>>> = Vec::new();
    let mut tries = 0;
    while sets.len() < count && tries < TRIES {
        match one_set(&mut draws, lengths, history, taken) {
            Some(set) if !sets.contains(&set) => {
                sets.push(set);
                tries = 0;
            }
            _ => tries += 1,
        }
    }
    sets
}

fn one_set(
    draws: &mut Draws,
    lengths: &[usize],
    history: &Range<usize>,
    taken: &[Range<usize>],
) -> Option<Vec<Range<usize>>> {
    let mut set: Vec<Range<usize>> = Vec::new();
    for &length in lengths {
        let is_free = |start: &usize| {
            let stretch = *start..start + length;
            let apart = |other: &Range<usize>| other.end <= stretch.start || stretch.end <= other.start;
            taken.iter().chain(&set).all(apart)
        };
        let starts = history.start..(history.end + 1).saturating_sub(length);
        let free: Vec<usize> = starts.filter(is_free).collect();
        let start = *free.get(draws.index(free.len()))?;
        set.push(start..start + length);
    }
    set.sort_by_key(|stretch| stretch.start);
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_the_rank_that_a_further_set_exceeds_in_one_of_twenty_cases() {
        let of = |n: usize| threshold(&(1..=n).map(|at| -(at as f64)).collect::<Vec<_>>());
        assert_eq!((of(0), of(12), of(18)), (None, None, None));
        assert_eq!((of(19), of(39), of(40)), (Some(19.0), Some(38.0), Some(39.0)));
        // By definition: of n + 1 exchangeable numbers each is the new one as often as any other.
        for n in 19..80 {
            let limit = of(n).unwrap();
            let above = (1..=n + 1).filter(|rank| {
                // The new one has this rank; the controls are the others.
                let controls: Vec<f64> = (1..=n + 1).filter(|at| at != rank).map(|at| at as f64).collect();
                *rank as f64 > threshold(&controls).unwrap()
            });
            assert!(above.count() as f64 / (n + 1) as f64 <= LEVEL + 1e-12, "{n}: {limit}");
        }
    }

    #[test]
    fn control_sets_have_the_lengths_touch_nothing_and_are_different() {
        let taken = [100..150, 300..301];
        let draw =
            |count, seed, lengths: &[usize]| equal_sets((count, seed), "case", lengths, &(10..400), &taken);
        for seed in 0..50 {
            let sets = draw(19, seed, &[40, 25]);
            assert_eq!(sets.len(), 19);
            for (nth, set) in sets.iter().enumerate() {
                assert!(!sets[..nth].contains(set));
                let mut lengths: Vec<usize> = set.iter().map(Range::len).collect();
                lengths.sort_unstable();
                assert_eq!(lengths, [25, 40]);
                let all: Vec<&Range<usize>> = set.iter().chain(&taken).collect();
                for (at, one) in all.iter().enumerate() {
                    assert!(10 <= one.start && one.end <= 400);
                    assert!(all[..at].iter().all(|other| other.end <= one.start || one.end <= other.start));
                }
            }
        }
        assert_eq!(draw(19, 3, &[40]), draw(19, 3, &[40]));
        assert_ne!(draw(19, 3, &[40]), draw(19, 4, &[40]));
        // Room for few, and for none.
        assert_eq!(equal_sets((19, 0), "case", &[10], &(0..30), std::slice::from_ref(&(12..30))).len(), 3);
        assert!(equal_sets((19, 0), "case", &[31], &(0..30), &[]).is_empty());
    }
}
