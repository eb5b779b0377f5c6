//! The pools of random stretches that were measured beside the sessions of answers, as rows have them ([`crate::statistics::control`]).

use std::collections::BTreeMap;
use std::ops::Range;

use super::rows::{CauseRow, ControlRow, Effect};
use crate::run::rows::AnswerKey;
use crate::statistics::control::control_of;

/// An answer, layers and the seed of the pool.
type Key = (AnswerKey, Option<[usize; 2]>, u64);

/// The stretches that were measured, by answer, layers and seed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pools(BTreeMap<Key, Vec<(Range<usize>, Effect)>>);

impl Pools {
    /// Pools of a run's rows.
    pub fn new(rows: &[ControlRow]) -> Self {
        let mut pools: BTreeMap<Key, Vec<(Range<usize>, Effect)>> = BTreeMap::new();
        for ControlRow { answer, layers, seed, tokens, effect, .. } in rows {
            pools.entry((answer.clone(), *layers, *seed)).or_default().push((tokens[0]..tokens[1], *effect));
        }
        Pools(pools)
    }

    /// One number of the effect that random text of a session's length has on the same answer at the same layers ([`control_of`]);
    /// `None` where nothing can tell.
    pub fn control(&self, row: &CauseRow, number: impl Fn(&Effect) -> f64) -> Option<f64> {
        let CauseRow { answer, layers, seed, tokens: [start, end], .. } = row;
        let pool = self.0.get(&(answer.clone(), *layers, *seed))?;
        control_of(&(*start..*end), pool.iter().map(|(stretch, effect)| (stretch, number(effect))))
    }
}
