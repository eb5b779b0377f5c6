//! Control pools from rows: random stretches measured beside the sessions ([`palimpsest_data::statistics::control`]).

use std::collections::BTreeMap;
use std::ops::Range;

use super::rows::{CauseRow, Effect};
use crate::runs::rows::AnswerKey;
use palimpsest_data::statistics::control::control_of;

type Key = (AnswerKey, Option<[usize; 2]>, Option<u64>);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pools(BTreeMap<Key, Vec<(Range<usize>, Effect)>>);

fn key(row: &CauseRow) -> (Key, Range<usize>) {
    ((row.answer.clone(), row.layers, row.seed), row.tokens[0]..row.tokens[1])
}

impl Pools {
    pub fn new<'a>(controls: impl IntoIterator<Item = &'a CauseRow>) -> Self {
        let mut pools: BTreeMap<Key, Vec<(Range<usize>, Effect)>> = BTreeMap::new();
        for row in controls {
            let (key, tokens) = key(row);
            pools.entry(key).or_default().push((tokens, *row.effect));
        }
        Pools(pools)
    }

    /// Median of `number` over the controls nearest in length to the session and disjoint from it ([`control_of`]).
    pub fn control(&self, row: &CauseRow, number: impl Fn(&Effect) -> f64) -> Option<f64> {
        let (key, tokens) = key(row);
        let pool = self.0.get(&key)?;
        control_of(&tokens, pool.iter().map(|(stretch, effect)| (stretch, number(effect))))
    }
}
