//! The pool of random stretches of a case that sessions are compared with.
//!
//! One stretch a session would double the readings, and a single stretch may hold what decided the answer. A pool of a dozen, of lengths
//! that cover those of the sessions, serves all of them ([`crate::statistics::control`]).

use std::collections::BTreeMap;
use std::ops::Range;

use super::rows::{CauseRow, ControlRow, Effect};
use crate::data::draw::Draws;
use crate::ground::numbers::quantile;
use crate::run::rows::AnswerKey;
use crate::statistics::control::control_for;

/// Stretches of a pool, unless told otherwise.
pub const STRETCHES: usize = 12;

/// Up to `count` different stretches of the history that `sessions` make up, none of which touches any of `taken`: drawn from `seed` and
/// the case's id alone, so that all answers that see the same history and have the same evidence get the same.
///
/// Lengths are evenly spaced quantiles of the sessions' lengths, from the shortest to the longest (of one stretch the median), in random
/// order. The middle of the n-th lies in the n-th of `count` equal parts of the history where there is room, else anywhere. A length for which
/// there is no room is left out.
pub fn pool(
    (count, seed): (usize, u64),
    case: &str,
    sessions: &[Range<usize>],
    taken: &[Range<usize>],
) -> Vec<Range<usize>> {
    let history = sessions.iter().map(|s| s.start).min().unwrap_or(0)
        ..sessions.iter().map(|s| s.end).max().unwrap_or(0);
    stretches((count, seed), case, &history, sessions, taken)
}

/// The same anywhere in `history`, of which the sessions may be a part.
pub fn stretches(
    (count, seed): (usize, u64),
    case: &str,
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
    let mut draws = Draws::new("control pool", seed, case);
    draws.shuffle(&mut lengths);
    let mut found: Vec<Range<usize>> = Vec::new();
    for (nth, length) in lengths.into_iter().enumerate() {
        let border = |nth: usize| history.start + nth * history.len() / count;
        let part = border(nth)..border(nth + 1);
        let starts = history.start..(history.end + 1).saturating_sub(length);
        let is_free = |start: &usize| {
            let stretch = *start..start + length;
            let apart = |other: &Range<usize>| other.end <= stretch.start || stretch.end <= other.start;
            taken.iter().all(apart) && !found.contains(&stretch)
        };
        let free: Vec<usize> = starts.filter(is_free).collect();
        let here: Vec<usize> =
            free.iter().copied().filter(|start| part.contains(&(start + length / 2))).collect();
        let from = if here.is_empty() { &free } else { &here };
        if let Some(&start) = from.get(draws.index(from.len())) {
            found.push(start..start + length);
        }
    }
    found
}

/// An answer, layers and the seed of the pool.
type Key = (AnswerKey, Option<[usize; 2]>, u64);

/// The stretches that were measured, by answer, layers and seed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pools(BTreeMap<Key, Vec<([usize; 2], Effect)>>);

impl Pools {
    /// Pools of a run's rows.
    pub fn new(rows: &[ControlRow]) -> Self {
        let mut pools: BTreeMap<Key, Vec<([usize; 2], Effect)>> = BTreeMap::new();
        for ControlRow { answer, layers, seed, tokens, effect, .. } in rows {
            pools.entry((answer.clone(), *layers, *seed)).or_default().push((*tokens, *effect));
        }
        Pools(pools)
    }

    /// One number of the effect that random text of a session's length has on the same answer at the same layers ([`control_for`]).
    /// Stretches that touch the session itself are left out; `None` where no others were measured.
    pub fn control(&self, row: &CauseRow, number: impl Fn(&Effect) -> f64) -> Option<f64> {
        let CauseRow { answer, layers, seed, tokens: [start, end], .. } = row;
        let apart = |([from, to], _): &&([usize; 2], Effect)| to <= start || end <= from;
        let of_stretch = |([from, to], effect): &([usize; 2], Effect)| (to - from, number(effect));
        let pool: Vec<(usize, f64)> =
            self.0.get(&(answer.clone(), *layers, *seed))?.iter().filter(apart).map(of_stretch).collect();
        control_for(end - start, &pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_spread_over_the_history_cover_the_lengths_and_touch_no_evidence() {
        // Twenty sessions of 50 to 240 tokens, of which the fourth and the last are evidence.
        let mut sessions = Vec::new();
        let mut at = 7;
        for nth in 0..20 {
            sessions.push(at..at + 50 + 10 * nth);
            at += 50 + 10 * nth;
        }
        let taken = [sessions[3].clone(), sessions[19].clone()];
        let drawn = |count, seed, case| pool((count, seed), case, &sessions, &taken);
        for seed in 0..50 {
            let stretches = drawn(12, seed, "case");
            assert_eq!(stretches.len(), 12);
            for (nth, stretch) in stretches.iter().enumerate() {
                assert!(7 <= stretch.start && stretch.end <= at);
                assert!(
                    taken.iter().all(|t| t.end <= stretch.start || stretch.end <= t.start),
                    "{stretch:?}"
                );
                // The last part is evidence, and some part may be too narrow beside it.
                let part = 7 + nth * (at - 7) / 12..7 + (nth + 1) * (at - 7) / 12;
                let inside = part.contains(&(stretch.start + stretch.len() / 2));
                assert!(inside || nth == 11 || nth < 4, "{nth}: {stretch:?} is not in {part:?}");
            }
            let mut lengths: Vec<usize> = stretches.iter().map(Range::len).collect();
            lengths.sort_unstable();
            // From 50 to 240 in eleven equal steps, rounded.
            let even = |nth: usize| (50.0 + 190.0 * nth as f64 / 11.0).round() as usize;
            assert_eq!(lengths, (0..12).map(even).collect::<Vec<_>>());
        }
        assert_eq!(drawn(12, 0, "case"), drawn(12, 0, "case"));
        assert_ne!(drawn(12, 0, "case"), drawn(12, 1, "case"));
        assert_ne!(drawn(12, 0, "case"), drawn(12, 0, "other"));
        assert!(drawn(0, 0, "case").is_empty());
        // One stretch has the median length.
        assert_eq!(drawn(1, 0, "case")[0].len(), 145);
    }

    #[test]
    fn where_there_is_no_room_there_are_fewer_stretches_and_none_twice() {
        let sessions = [0..10, 10..20, 20..30];
        let whole: &[Range<usize>] = &sessions;
        // Only the last session is free, which one place alone has the length of.
        assert_eq!(pool((12, 0), "case", &sessions, &[0..10, 10..20]), sessions[2..]);
        assert!(pool((12, 0), "case", &sessions, whole).is_empty());
        assert!(pool((12, 0), "case", &[], &[]).is_empty());
    }
}
