//! The keys that rows pay most to, one by one: what a mass, which is a sum over a span, does not tell.
//!
//! An observer of its own beside the one of masses, on demand: it recomputes the softmax of its rows in f32, a few rows at a time,
//! and keeps of each row and head the k largest weights. The whole row crosses from the device, so it is for rows by the hundred.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{Result, Tensor};

use super::backends::row_weights;
use super::site::hides_all;
use super::{Observer, Site};
use crate::stats;

/// What stands for a key where a row sees fewer than k.
pub const NO_KEY: u32 = u32::MAX;

/// Keeps the largest weights of rows of a prompt.
#[derive(Debug)]
pub struct TopKeys {
    k: usize,
    /// Positions, in the order of the result.
    rows: Vec<usize>,
    /// By layer: heads, and (heads, rows, k) keys and weights.
    layers: BTreeMap<usize, (usize, Vec<u32>, Vec<f32>)>,
}

/// The k keys with the largest weight, by layer, head and row.
#[derive(Debug, Clone, PartialEq)]
pub struct LargestKeys {
    /// The softmax layers seen, ascending.
    pub layers: Vec<usize>,
    /// The rows' positions.
    pub rows: Vec<usize>,
    /// Layers, heads, rows, k.
    pub shape: [usize; 4],
    /// Positions, the largest weight first, of equal ones the earlier key; [`NO_KEY`] behind the last key that a row sees.
    pub keys: Vec<u32>,
    /// Their weights, 0 where there is no key.
    pub weights: Vec<f32>,
}

impl TopKeys {
    /// Of the rows at these positions, the `k` largest weights.
    pub fn new(k: usize, rows: Vec<usize>) -> Self {
        TopKeys { k, rows, layers: BTreeMap::new() }
    }

    /// What was kept.
    ///
    /// # Errors
    /// Layers with different numbers of heads, which one array cannot hold.
    pub fn finish(self) -> Result<LargestKeys> {
        let heads = self.layers.values().next().map_or(0, |(heads, ..)| *heads);
        if let Some((layer, (other, ..))) = self.layers.iter().find(|(_, (other, ..))| *other != heads) {
            candle_core::bail!(
                "layer {layer} has {other} heads where others have {heads}: one array cannot hold both"
            );
        }
        let layers: Vec<usize> = self.layers.keys().copied().collect();
        let shape = [layers.len(), heads, self.rows.len(), self.k];
        let (mut keys, mut weights) = (Vec::new(), Vec::new());
        for (_, of_keys, of_weights) in self.layers.into_values() {
            keys.extend(of_keys);
            weights.extend(of_weights);
        }
        Ok(LargestKeys { layers, rows: self.rows, shape, keys, weights })
    }
}

impl Observer for TopKeys {
    fn wants(&self, _site: &Site) -> bool {
        self.k > 0 && !self.rows.is_empty()
    }

    fn observe(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> Result<()> {
        let _span = stats::observer();
        let (l, heads, _) = q.dims3()?;
        let (count, rows) = (self.k, &self.rows);
        let (_, top, weights) = self.layers.entry(site.layer).or_insert_with(|| {
            let n = heads * rows.len() * count;
            (heads, vec![NO_KEY; n], vec![0.0; n])
        });
        for (nth, &position) in rows.iter().enumerate() {
            if !(site.offset..site.offset + l).contains(&position) {
                continue;
            }
            // (heads, keys), from the first key held.
            let of_row = row_weights(q, k, &site.relative(), position - site.offset)?;
            let hidden = site.holes.from_row(position);
            let sees = |key: &usize| !hides_all(&hidden, &(*key..*key + 1));
            let seen: Range<usize> = site.visible(position);
            for (head, of_head) in of_row.iter().enumerate() {
                let weight = |key: usize| of_head.get(key - site.first_key).copied().unwrap_or_default();
                let mut keys: Vec<usize> = seen.clone().filter(sees).collect();
                let order = |a: &usize, b: &usize| weight(*b).total_cmp(&weight(*a)).then(a.cmp(b));
                if keys.len() > count {
                    keys.select_nth_unstable_by(count - 1, order);
                    keys.truncate(count);
                }
                keys.sort_unstable_by(order);
                let at = (head * rows.len() + nth) * count;
                for (i, key) in keys.into_iter().enumerate() {
                    (top[at + i], weights[at + i]) = (key as u32, weight(key));
                }
            }
        }
        Ok(())
    }
}
