//! The queries of a call, cut into tasks, and their walks over keys.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::fold::Fold;
use super::tasks::{Shape, Task};
use super::walk::{Walk, Walked};
use crate::attention::Site;
use crate::attention::site::Hidden;

/// Queries, (l, heads, d), and where each is among the keys.
pub struct Queries<'a> {
    pub q: &'a [f32],
    pub positions: Vec<usize>,
    /// A query's hidden keys, counted as the positions are.
    pub hidden: Hidden,
    pub shape: Shape,
    pub site: &'a Site,
    /// A query's borders of the segments that its weights are summed over while it is weighed; none where nobody asks.
    pub borders: Vec<Vec<usize>>,
}

impl<'a> Queries<'a> {
    /// Of a chunk's rows, whose weights nobody asks for.
    pub fn of(q: &Tensor, slice: &'a [f32], shape: Shape, site: &'a Site) -> Result<Self> {
        let positions: Vec<usize> = (site.offset..site.offset + q.dim(0)?).collect();
        let hidden = Hidden::at(site, &positions);
        Ok(Queries { q: slice, positions, hidden, shape, site, borders: Vec::new() })
    }

    /// The keys that some of these queries see.
    pub fn visible(&self, queries: &Range<usize>) -> Range<usize> {
        let seen = || self.positions[queries.clone()].iter().map(|&p| self.site.visible(p));
        seen().map(|r| r.start).min().unwrap_or(0)..seen().map(|r| r.end).max().unwrap_or(0)
    }

    /// Cuts the queries `rows` into tasks of so many positions and of keys cut at multiples of a step: block by block, head by head,
    /// in the order of the keys.
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

    /// The queries of a task's rows and their positions: position by position, all heads of the group.
    pub fn rows(&self, task: &Task) -> (Vec<&[f32]>, Vec<usize>) {
        let Shape { heads, group, d, .. } = self.shape;
        let rows = task.queries.clone().flat_map(|query| (0..group).map(move |g| (query, g)));
        let query = |(query, g)| {
            (&self.q[(query * heads + task.kv_head * group + g) * d..][..d], self.positions[query])
        };
        rows.map(query).unzip()
    }

    /// The keys hidden from each of a task's rows; no row where nothing is hidden from any query.
    pub fn hidden(&self, task: &Task) -> Vec<&[Range<usize>]> {
        let queries = if self.hidden.is_empty() { 0..0 } else { task.queries.clone() };
        queries.flat_map(|query| std::iter::repeat_n(self.hidden.row(query), self.shape.group)).collect()
    }

    /// Walks a task's rows over its keys.
    pub fn walk<F: Fold>(&self, task: &Task, keys: &[f32], fold: F) -> Walked<F> {
        let (queries, positions) = self.rows(task);
        let (range, hidden) = (task.keys.clone(), self.hidden(task));
        pulp::Arch::new().dispatch(Walk { queries, positions, hidden, keys, range, site: self.site, fold })
    }
}
