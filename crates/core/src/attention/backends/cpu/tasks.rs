//! Splits work into tasks, by shapes alone.

use std::ops::Range;

use candle_core::{Result, Tensor};

/// Maximum rows per task (query positions * heads of a group). All panels but the first read a block's keys from the L2 cache.
const ROW_BLOCK: usize = 192;
/// Minimum rows per task, if available: the rows of the widest panel.
const LEAST_ROWS: usize = 48;
/// With fewer tasks than this, rows are split finer. Output rows never split their keys, except a single row (decode), so that a row is
/// bit-equal in chunks of any length. Measured rows split theirs into parts of at least [`SPLIT_K`](crate::attention::SPLIT_K).
const ENOUGH_TASKS: usize = 16;

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub heads: usize,
    pub kv_heads: usize,
    pub group: usize,
    pub d: usize,
}

impl Shape {
    pub fn new(q: &Tensor, k: &Tensor) -> Result<Self> {
        let (_, heads, d) = q.dims3()?;
        let kv_heads = k.dim(0)?;
        Ok(Shape { heads, kv_heads, group: heads / kv_heads, d })
    }

    pub fn positions(&self) -> usize {
        (ROW_BLOCK / self.group).max(1)
    }

    /// Parts per task needed to get enough tasks from `l` query positions.
    pub fn pieces(&self, l: usize) -> usize {
        ENOUGH_TASKS.div_ceil((l.div_ceil(self.positions()) * self.kv_heads).max(1))
    }

    /// Query positions per task, reduced so that `l` positions give enough tasks.
    pub fn finer_positions(&self, l: usize) -> usize {
        match self.pieces(l) {
            1 => self.positions(),
            pieces => {
                let least = (LEAST_ROWS / self.group).max(1);
                let blocks = l.div_ceil(self.positions()).max(1);
                l.div_ceil(blocks * pieces).next_multiple_of(least).min(self.positions())
            }
        }
    }

    /// Tasks of a block of queries over `keys`, split at multiples of `step`.
    pub fn split(
        &self,
        queries: &Range<usize>,
        keys: &Range<usize>,
        step: usize,
    ) -> impl Iterator<Item = Task> {
        let (queries, keys) = (queries.clone(), keys.clone());
        let first = keys.start / step;
        let last = if keys.is_empty() { first } else { keys.end.div_ceil(step) };
        (0..self.kv_heads).flat_map(move |kv_head| {
            let (queries, keys) = (queries.clone(), keys.clone());
            (first..last).map(move |part| Task {
                kv_head,
                queries: queries.clone(),
                keys: keys.start.max(part * step)..keys.end.min((part + 1) * step),
            })
        })
    }
}

pub struct Task {
    pub kv_head: usize,
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}
