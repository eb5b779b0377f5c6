//! Queries of a call, their tasks and their walks over keys.

use std::ops::Range;

use candle_core::{DType, Result, Tensor};

use super::fold::Fold;
use super::sequence::{Sequence, Stored};
use super::tasks::{Shape, Task};
use super::walk::{Walk, Walked};
use crate::attention::Site;
use crate::attention::site::Hidden;
use crate::bfloat;

/// Queries (l, heads, d) and their key positions.
pub struct Queries<'a> {
    pub q: &'a [f32],
    /// bf16 queries.
    pub half: bool,
    pub positions: Vec<usize>,
    /// Hidden keys per query, relative like the positions.
    pub hidden: Hidden,
    pub shape: Shape,
    pub site: &'a Site,
    /// Segment borders per query; empty if not requested.
    pub borders: Vec<Vec<usize>>,
}

impl<'a> Queries<'a> {
    pub fn of(q: &WideQueries, slice: &'a [f32], shape: Shape, site: &'a Site) -> Result<Self> {
        let positions: Vec<usize> = (site.offset..site.offset + q.wide.dim(0)?).collect();
        let hidden = Hidden::at(site, &positions);
        Ok(Queries { q: slice, half: q.half, positions, hidden, shape, site, borders: Vec::new() })
    }

    /// True if products with this sequence use bf16 pairs.
    pub fn in_pairs(&self, sequence: &Sequence<'_>) -> bool {
        let kept =
            matches!(sequence.keys(0), Stored::Bf16(_)) && matches!(sequence.values(0), Stored::Bf16(_));
        self.half && kept && self.shape.d.is_multiple_of(2) && bfloat::multiplies()
    }

    pub fn visible(&self, queries: &Range<usize>) -> Range<usize> {
        let seen = || self.positions[queries.clone()].iter().map(|&p| self.site.visible(p));
        seen().map(|r| r.start).min().unwrap_or(0)..seen().map(|r| r.end).max().unwrap_or(0)
    }

    /// Splits the queries `rows` into tasks by positions and by keys at multiples of a step, ordered by block, head and keys.
    pub fn tasks(
        &self,
        rows: Range<usize>,
        positions: usize,
        step: impl Fn(&Range<usize>) -> usize,
    ) -> Vec<Task> {
        let mut tasks = Vec::new();
        for start in rows.clone().step_by(positions) {
            let block = start..(start + positions).min(rows.end);
            let keys = self.visible(&block);
            tasks.extend(self.shape.split(&block, &keys, step(&keys)));
        }
        tasks
    }

    /// Queries and positions of a task's rows, ordered by position, then head of the group.
    pub fn rows(&self, task: &Task) -> (Vec<&[f32]>, Vec<usize>) {
        let Shape { heads, group, d, .. } = self.shape;
        let rows = task.queries.clone().flat_map(|query| (0..group).map(move |g| (query, g)));
        let query = |(query, g)| {
            (&self.q[(query * heads + task.kv_head * group + g) * d..][..d], self.positions[query])
        };
        rows.map(query).unzip()
    }

    /// Per row; empty if nothing is hidden.
    pub fn hidden(&self, task: &Task) -> Vec<&[Range<usize>]> {
        let queries = if self.hidden.is_empty() { 0..0 } else { task.queries.clone() };
        queries.flat_map(|query| std::iter::repeat_n(self.hidden.row(query), self.shape.group)).collect()
    }

    pub fn walk<F: Fold>(&self, task: &Task, sequence: &Sequence<'_>, fold: F) -> Walked<F> {
        let (queries, positions) = self.rows(task);
        let (range, hidden) = (task.keys.clone(), self.hidden(task));
        let (keys, in_pairs) = (sequence.keys(task.kv_head), self.in_pairs(sequence));
        let site = self.site;
        pulp::Arch::new().dispatch(Walk { queries, positions, hidden, keys, range, site, in_pairs, fold })
    }
}

/// Contiguous f32 queries; `half`: they were bf16.
pub struct WideQueries {
    /// (l, heads, d)
    pub wide: Tensor,
    pub half: bool,
}

impl WideQueries {
    pub fn new(q: &Tensor) -> Result<Self> {
        let half = q.dtype() == DType::BF16;
        Ok(WideQueries { wide: bfloat::to_dtype(&q.contiguous()?, DType::F32)?, half })
    }
}
