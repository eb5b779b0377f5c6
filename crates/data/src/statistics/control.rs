//! Controls of effects: random text of equal length, chosen alike in `causes`, `why`, the server and the Python package.
//!
//! - Stretches are drawn by seed and name only, outside excluded ranges ([`stretches`], [`equal_sets`]); all answers of a case share them.
//! - For single sessions, one pool covers the range of lengths; one stretch per session would double the forward passes.
//! - A session's control is the median effect of the disjoint stretches nearest to its length ([`control_of`]).

use std::ops::Range;

use crate::case::draw::Draws;
use crate::ground::numbers::quantile;

/// Default pool size.
pub const STRETCHES: usize = 12;

/// Minimum number of stretches in the median.
pub const NEAREST: usize = 5;

pub fn are_apart(one: &Range<usize>, other: &Range<usize>) -> bool {
    other.end <= one.start || one.end <= other.start
}

pub fn extent(sessions: &[Range<usize>]) -> Range<usize> {
    let start = sessions.iter().map(|session| session.start).min().unwrap_or(0);
    start..sessions.iter().map(|session| session.end).max().unwrap_or(start)
}

/// Up to `count` distinct stretches of `history` disjoint from `taken`, determined by `seed` and `name`. Lengths are evenly spaced
/// quantiles of the session lengths (the median if `count` is 1), in random order; the n-th stretch is centred in the n-th of `count` equal
/// parts of the history if it fits there, else anywhere. Lengths that fit nowhere are skipped.
pub fn stretches(
    (count, seed): (usize, u64),
    name: &str,
    history: &Range<usize>,
    sessions: &[Range<usize>],
    taken: &[Range<usize>],
) -> Vec<Range<usize>> {
    let mut ascending: Vec<f64> = sessions.iter().map(|session| session.len() as f64).collect();
    ascending.sort_by(f64::total_cmp);
    if ascending.is_empty() {
        return Vec::new();
    }
    let length = |nth: usize| {
        let q = if count > 1 { nth as f64 / (count - 1) as f64 } else { 0.5 };
        (quantile(&ascending, q).round() as usize).max(1)
    };
    let mut lengths: Vec<usize> = (0..count).map(length).collect();
    let mut draws = Draws::new("control pool", seed, name);
    draws.shuffle(&mut lengths);
    let mut found: Vec<Range<usize>> = Vec::new();
    for (nth, length) in lengths.into_iter().enumerate() {
        let border = |nth: usize| history.start + nth * history.len() / count;
        let part = border(nth)..border(nth + 1);
        let mut free = places(length, history, taken);
        free.retain(|start| !found.contains(&(*start..start + length)));
        let here: Vec<usize> =
            free.iter().copied().filter(|start| part.contains(&(start + length / 2))).collect();
        let from = if here.is_empty() { &free } else { &here };
        if let Some(&start) = from.get(draws.index(from.len())) {
            found.push(start..start + length);
        }
    }
    found
}

/// Stretches of a free-form prompt: after its first token (an attention sink) and before `from`, where hiding starts.
pub fn stretches_of_prompt(
    counted: (usize, u64),
    spans: &[Range<usize>],
    from: usize,
    taken: &[Range<usize>],
) -> Vec<Range<usize>> {
    stretches(counted, "prompt", &(1..from.max(1)), spans, taken)
}

/// Possible starts of a stretch in `history` that is disjoint from `taken`.
fn places(length: usize, history: &Range<usize>, taken: &[Range<usize>]) -> Vec<usize> {
    let starts = history.start..(history.end + 1).saturating_sub(length);
    starts.filter(|start| taken.iter().all(|other| are_apart(other, &(*start..start + length)))).collect()
}

/// Up to `count` distinct sets of stretches with the given `lengths`. The stretches of a set are disjoint from each other and from
/// `taken`. Determined by seed and name; fewer sets if the history is too short.
pub fn equal_sets(
    (count, seed): (usize, u64),
    name: &str,
    lengths: &[usize],
    history: &Range<usize>,
    taken: &[Range<usize>],
) -> Vec<Vec<Range<usize>>> {
    /// Limit of consecutive duplicate or failed draws.
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
    let (mut set, mut away) = (Vec::new(), taken.to_vec());
    for &length in lengths {
        let free = places(length, history, &away);
        let start = *free.get(draws.index(free.len()))?;
        set.push(start..start + length);
        away.push(start..start + length);
    }
    set.sort_by_key(|stretch: &Range<usize>| stretch.start);
    Some(set)
}

/// Control of a session: median effect of the pool's stretches nearest in length, without those that overlap it. `None` if none is left.
pub fn control_of<'a>(
    session: &Range<usize>,
    pool: impl IntoIterator<Item = (&'a Range<usize>, f64)>,
) -> Option<f64> {
    let apart = pool.into_iter().filter(|(stretch, _)| are_apart(stretch, session));
    control_for(session.len(), &apart.map(|(stretch, effect)| (stretch.len(), effect)).collect::<Vec<_>>())
}

/// Median effect of the [`NEAREST`] stretches by log length, ties with the last included. Skips non-finite effects.
fn control_for(length: usize, pool: &[(usize, f64)]) -> Option<f64> {
    let log = |tokens: usize| (tokens.max(1) as f64).ln();
    let known = pool.iter().filter(|(_, effect)| effect.is_finite());
    let mut known: Vec<(f64, f64)> =
        known.map(|&(tokens, effect)| ((log(tokens) - log(length)).abs(), effect)).collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    let reach = known.get(NEAREST - 1).or(known.last())?.0;
    median(known.into_iter().take_while(|(far, _)| *far <= reach).map(|(_, effect)| effect).collect())
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { values[middle - 1].midpoint(upper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_spread_over_the_history_cover_the_lengths_and_touch_no_evidence() {
        // Twenty sessions of 50 to 240 tokens; the fourth and the last are evidence.
        let mut sessions = Vec::new();
        let mut at = 7;
        for nth in 0..20 {
            sessions.push(at..at + 50 + 10 * nth);
            at += 50 + 10 * nth;
        }
        let taken = [sessions[3].clone(), sessions[19].clone()];
        let drawn = |count, seed, case| stretches((count, seed), case, &extent(&sessions), &sessions, &taken);
        for seed in 0..50 {
            let found = drawn(12, seed, "case");
            assert_eq!(found.len(), 12);
            for (nth, stretch) in found.iter().enumerate() {
                assert!(7 <= stretch.start && stretch.end <= at);
                assert!(
                    taken.iter().all(|t| t.end <= stretch.start || stretch.end <= t.start),
                    "{stretch:?}"
                );
                // The last part is evidence, and a part beside evidence may be too narrow.
                let part = 7 + nth * (at - 7) / 12..7 + (nth + 1) * (at - 7) / 12;
                let inside = part.contains(&(stretch.start + stretch.len() / 2));
                assert!(inside || nth == 11 || nth < 4, "{nth}: {stretch:?} is not in {part:?}");
            }
            let mut lengths: Vec<usize> = found.iter().map(Range::len).collect();
            lengths.sort_unstable();
            let even = |nth: usize| (50.0 + 190.0 * nth as f64 / 11.0).round() as usize;
            assert_eq!(lengths, (0..12).map(even).collect::<Vec<_>>());
        }
        assert_eq!(drawn(12, 0, "case"), drawn(12, 0, "case"));
        assert_ne!(drawn(12, 0, "case"), drawn(12, 1, "case"));
        assert_ne!(drawn(12, 0, "case"), drawn(12, 0, "other"));
        assert!(drawn(0, 0, "case").is_empty());
        assert_eq!(drawn(1, 0, "case")[0].len(), 145);
    }

    #[test]
    fn where_there_is_no_room_there_are_fewer_stretches_and_none_twice() {
        let sessions = [0..10, 10..20, 20..30];
        let whole: &[Range<usize>] = &sessions;
        // Only the last session is free; it fits one stretch of its own length.
        let drawn = |sessions: &[Range<usize>], taken: &[Range<usize>]| {
            stretches((12, 0), "case", &extent(sessions), sessions, taken)
        };
        assert_eq!(drawn(&sessions, &[0..10, 10..20]), sessions[2..]);
        assert!(drawn(&sessions, whole).is_empty());
        assert!(drawn(&[], &[]).is_empty());
        // In a prompt: behind its first token and before the position.
        let of_prompt = |from| stretches_of_prompt((12, 0), &sessions, from, &[]);
        assert!(of_prompt(60).iter().all(|stretch| 1 <= stretch.start && stretch.end <= 60));
        assert_eq!((of_prompt(60).len(), of_prompt(0).len()), (12, 0));
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
        assert_eq!(equal_sets((19, 0), "case", &[10], &(0..30), std::slice::from_ref(&(12..30))).len(), 3);
        assert!(equal_sets((19, 0), "case", &[31], &(0..30), &[]).is_empty());
    }

    #[test]
    fn stretches_that_touch_a_session_go_before_the_nearest_are_chosen() {
        // Six stretches of the session's length, two of which overlap it, and one of twice the length.
        let session = 100..150;
        let near = [
            (0..50, 1.0),
            (51..101, 90.0),
            (149..199, 80.0),
            (50..100, 2.0),
            (150..200, 3.0),
            (200..250, 4.0),
        ];
        let far = (300..400, 50.0);
        let pool: Vec<(Range<usize>, f64)> = near.into_iter().chain([far]).collect();
        let of = |pool: &[(Range<usize>, f64)]| {
            control_of(&session, pool.iter().map(|(stretch, effect)| (stretch, *effect)))
        };
        // Five are left: 1, 2, 3, 4 and 50. Selecting five before dropping overlaps would leave 1, 2 and 3.
        assert_eq!(of(&pool), Some(3.0));
        assert_eq!(of(&pool[1..3]), None);
        assert_eq!(of(&pool[..2]), Some(1.0));
    }

    #[test]
    fn a_control_is_the_median_of_the_finite_effects_of_stretches_of_about_the_length() {
        let pool: Vec<(usize, f64)> = (1..=12).map(|nth| (100 * nth, 0.1 * nth as f64)).collect();
        // Nearest in ratio to 500: 500, 600, 400, 700, 800; then 300.
        assert_eq!(control_for(500, &pool), Some(0.1 * 6.0));
        assert_eq!(control_for(1, &pool), Some(0.1 * 3.0));
        assert_eq!(control_for(100_000, &pool), Some(0.1 * 10.0));
        // An outlier does not move the control: the median becomes the next value.
        let mut struck = pool.clone();
        struck[4].1 = 22.0;
        assert_eq!(control_for(500, &struck), Some(0.1 * 7.0));
        struck.rotate_left(5);
        assert_eq!(control_for(500, &struck), Some(0.1 * 7.0));
        let equal: Vec<(usize, f64)> = (0..8).map(|nth| (50, f64::from(nth))).collect();
        assert_eq!(control_for(50, &equal), Some(3.5));
        assert_eq!(control_for(900, &equal), Some(3.5));
        let few = [(10, 1.0), (20, f64::NAN), (30, 4.0), (0, f64::INFINITY)];
        assert_eq!(control_for(10, &few), Some(2.5));
        assert_eq!(control_for(10, &few[..2]), Some(1.0));
        assert_eq!((control_for(10, &few[1..2]), control_for(10, &[])), (None, None));
    }
}
