//! Streamed value sums of rows per segment; no weight row is stored.

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::super::kernel::RowSums;
use super::fold::ValuesBySegment;
use super::queries::{Queries, WideQueries};
use super::sequence::{Sequence, with_slices};
use super::tasks::{Shape, Task};
use super::total::{Total, total};
use super::walk::Walked;
use crate::attention::Site;

pub fn value_sums([q, k, v]: [&Tensor; 3], RowSums { site, rows, bounds }: &RowSums<'_>) -> Result<Tensor> {
    let (shape, q) = (Shape::new(q, k)?, WideQueries::new(q)?);
    let Shape { heads, group, d, .. } = shape;
    let (r, segments) = (rows.len(), bounds.len().saturating_sub(1));
    let read = with_slices(&[&q.wide, k, v], |slices| {
        let queries = Queries::of(&q, slices[0].f32()?, shape, site)?;
        let sequence = Sequence::new(k, v, slices[1], slices[2])?;
        let tasks = queries.tasks(rows.clone(), shape.finer_positions(r), |keys| keys.end.max(1));
        let parts: Vec<(Task, Walked<ValuesBySegment<'_>>)> = tasks
            .into_par_iter()
            .map(|task| {
                let fold = ValuesBySegment::new(sequence.values(task.kv_head), d, None, bounds);
                let walked = queries.walk(&task, &sequence, fold);
                (task, walked)
            })
            .collect();
        let mut read = vec![0f32; heads * segments * r * d];
        read.par_chunks_mut((segments * r * d).max(1)).enumerate().for_each(|(head, read)| {
            let own = parts.iter().filter(|(task, _)| task.kv_head == head / group);
            for (task, Walked { max, sum, fold }) in own {
                for (nth, query) in task.queries.clone().enumerate() {
                    let (row, place) = (nth * group + head % group, query - rows.start);
                    let scale = normaliser(site, head, max[row], sum[row]);
                    for segment in 0..segments {
                        let at = segment * r + place;
                        fold.read(row, segment, scale, &mut read[at * d..(at + 1) * d]);
                    }
                }
            }
        });
        Ok(read)
    })?;
    Tensor::from_vec(read, (heads, segments, r, d), &Device::Cpu)
}

/// Factor from weights relative to the row's maximum to softmax weights.
pub fn normaliser(site: &Site, head: usize, max: f32, sum: f32) -> f32 {
    let Total { max: greatest, total, .. } = total(site, head, std::iter::once((max, sum)));
    ((f64::from(max) - greatest).exp() / total) as f32
}
