//! The pools of random stretches that were measured beside the sessions of answers, as rows have them ([`palimpsest_data::statistics::control`]).

use std::collections::BTreeMap;
use std::ops::Range;

use super::rows::{CauseRow, Effect};
use crate::runs::rows::AnswerKey;
use palimpsest_data::statistics::control::control_of;

/// An answer, layers and the seed of the pool.
type Key = (AnswerKey, Option<[usize; 2]>, Option<u64>);

/// The stretches that were measured, by answer, layers and seed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pools(BTreeMap<Key, Vec<(Range<usize>, Effect)>>);

fn key(row: &CauseRow) -> (Key, Range<usize>) {
    ((row.answer.clone(), row.layers, row.seed), row.tokens[0]..row.tokens[1])
}

impl Pools {
    /// Pools of a run's controls.
    pub fn new<'a>(controls: impl IntoIterator<Item = &'a CauseRow>) -> Self {
        let mut pools: BTreeMap<Key, Vec<(Range<usize>, Effect)>> = BTreeMap::new();
        for row in controls {
            let (key, tokens) = key(row);
            pools.entry(key).or_default().push((tokens, *row.effect));
        }
        Pools(pools)
    }

    /// One number of the effect that random text of a session's length has on the same answer at the same layers ([`control_of`]);
    /// `None` where nothing can tell.
    pub fn control(&self, row: &CauseRow, number: impl Fn(&Effect) -> f64) -> Option<f64> {
        let (key, tokens) = key(row);
        let pool = self.0.get(&key)?;
        control_of(&tokens, pool.iter().map(|(stretch, effect)| (stretch, number(effect))))
    }
}
