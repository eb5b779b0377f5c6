//! Tasks: the cutting of work, by shapes alone.

use std::ops::Range;

use candle_core::{Result, Tensor};

/// Rows of a task at most: query positions times the heads of a group. The keys of a block come from the second-level cache
/// for all panels of rows but the first.
const ROW_BLOCK: usize = 192;
/// Rows of a task at least, where there are that many: those of the widest panel.
const LEAST_ROWS: usize = 48;
/// With fewer tasks than this, rows are cut finer. The keys of a row that is attended to never are, but for a single row's, which
/// is decoding: a row has the same bits in a chunk of any length. Those of a row that is measured are, into parts of at least
/// [`SPLIT_K`](crate::attention::SPLIT_K).
const ENOUGH_TASKS: usize = 16;

/// The sizes of a call.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub heads: usize,
    pub kv_heads: usize,
    /// Query heads a key/value head.
    pub group: usize,
    pub d: usize,
}

impl Shape {
    pub fn new(q: &Tensor, k: &Tensor) -> Result<Self> {
        let (_, heads, d) = q.dims3()?;
        let kv_heads = k.dim(0)?;
        Ok(Shape { heads, kv_heads, group: heads / kv_heads, d })
    }

    /// Query positions of a task.
    pub fn positions(&self) -> usize {
        (ROW_BLOCK / self.group).max(1)
    }

    /// Into how many parts each task is to be cut so that there are enough for `l` query positions.
    pub fn pieces(&self, l: usize) -> usize {
        ENOUGH_TASKS.div_ceil((l.div_ceil(self.positions()) * self.kv_heads).max(1))
    }

    /// Query positions of a task where `l` of them are to make tasks enough.
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

    /// The tasks of a block of queries over `keys`, which are cut at multiples of `step`.
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

/// One piece of work.
pub struct Task {
    pub kv_head: usize,
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}
