//! Streamed segment sums of chosen rows' weights; no weight row is stored.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::super::kernel::RowSums;
use super::fold::Segments;
use super::queries::{Queries, WideQueries};
use super::sequence::{Sequence, with_slices};
use super::tasks::{Shape, Task};
use super::total::{Total, total};
use super::walk::Walked;
use crate::attention::SPLIT_K;

/// Up to this many measured rows, keys are split at every multiple of [`SPLIT_K`].
const FEW_POSITIONS: usize = 4;

pub struct SegmentSums {
    /// (heads, segments)
    pub mass: Vec<f64>,
    /// Sink weight, (heads).
    pub sink: Vec<f64>,
}

impl SegmentSums {
    pub fn zeros(heads: usize, segments: usize) -> Self {
        SegmentSums { mass: vec![0.0; heads * segments], sink: vec![0.0; heads] }
    }

    /// f64 (heads, 1 + segments), the sinks first.
    pub fn tensor(&self) -> Result<Tensor> {
        let heads = self.sink.len();
        let segments = self.mass.len() / heads.max(1);
        let rows = self.sink.iter().enumerate().flat_map(|(head, &sink)| {
            std::iter::once(sink).chain(self.mass[head * segments..][..segments].iter().copied())
        });
        Tensor::from_vec(rows.collect(), (heads, 1 + segments), &Device::Cpu)
    }
}

pub fn segment_sums(
    q: &Tensor,
    k: &Tensor,
    RowSums { site, rows, bounds }: &RowSums<'_>,
) -> Result<SegmentSums> {
    let (shape, q) = (Shape::new(q, k)?, WideQueries::new(q)?);
    let segments = bounds.len().saturating_sub(1);
    with_slices(&[&q.wide, k], |slices| {
        let queries = Queries::of(&q, slices[0].f32()?, shape, site)?;
        let sequence = Sequence::new(k, k, slices[1], slices[1])?;
        let few = rows.len() <= FEW_POSITIONS;
        let pieces = shape.pieces(rows.len());
        let step = |keys: &Range<usize>| match pieces {
            _ if few => SPLIT_K,
            1 => keys.end.max(1),
            pieces => keys.len().div_ceil(pieces).next_multiple_of(SPLIT_K),
        };
        let parts: Vec<Measured> = queries
            .tasks(rows.clone(), shape.positions(), step)
            .into_par_iter()
            .map(|task| queries.measure(task, &sequence, bounds))
            .collect();
        let mut all = SegmentSums::zeros(shape.heads, segments);
        for same in
            parts.chunk_by(|a, b| a.task.queries == b.task.queries && a.task.kv_head == b.task.kv_head)
        {
            let kv_head = same[0].task.kv_head;
            for r in 0..same[0].max.len() {
                let head = kv_head * shape.group + r % shape.group;
                let Total { max, total, sink } = total(site, head, same.iter().map(|p| (p.max[r], p.sum[r])));
                for part in same {
                    let scale = (f64::from(part.max[r]) - max).exp() / total;
                    for s in 0..segments {
                        all.mass[head * segments + s] += part.sums.sum(r, s) * scale;
                    }
                }
                all.sink[head] += sink / total;
            }
        }
        Ok(all)
    })
}

struct Measured<'a> {
    task: Task,
    max: Vec<f32>,
    sum: Vec<f32>,
    sums: Segments<'a>,
}

impl Queries<'_> {
    fn measure<'b>(&self, task: Task, sequence: &Sequence<'_>, bounds: &'b [usize]) -> Measured<'b> {
        let Walked { max, sum, fold } = self.walk(&task, sequence, Segments::new(bounds));
        Measured { task, max, sum, sums: fold }
    }
}
