//! What rows read of segments of keys, streamed: no row of weights is held.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::super::ValueSums;
use super::fold::ValuesBySegment;
use super::walk::Walked;
use super::{Hidden, Queries, Sequence, Shape, Site, Task, Total, total, with_slices};

/// See [`super::super::value_sums`].
pub fn value_sums(
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    lengths: Option<&Tensor>,
    site: &Site,
    rows: Range<usize>,
    bounds: &[usize],
) -> Result<ValueSums> {
    let shape = Shape::new(q, k)?;
    let Shape { heads, group, d, .. } = shape;
    let (l, q) = (q.dim(0)?, q.contiguous()?);
    let (r, segments) = (rows.len(), bounds.len().saturating_sub(1));
    // With a dimension in front, as the others have.
    let lengths = lengths.map(|lengths| lengths.contiguous()?.unsqueeze(0)).transpose()?;
    let tensors: Vec<&Tensor> = [&q, k, v].into_iter().chain(&lengths).collect();
    let (read, long) = with_slices(&tensors, |slices| {
        let positions: Vec<usize> = (site.offset..site.offset + l).collect();
        let hidden = Hidden::at(site, &positions);
        let queries = Queries { q: slices[0], positions, hidden, shape, site, borders: Vec::new() };
        let sequence = Sequence::new(k, v, slices[1], slices[2])?;
        let keys = k.dim(1)?;
        let of_head = |head: usize| &slices[3][head * keys..(head + 1) * keys];
        let lengths = |kv_head: usize| -> Vec<&[f32]> {
            let heads = kv_head * group..(kv_head + 1) * group;
            if slices.len() > 3 { heads.map(of_head).collect() } else { Vec::new() }
        };
        let tasks = queries.tasks(rows.clone(), shape.finer_positions(r), |keys| keys.end.max(1));
        let parts: Vec<(Task, Walked<ValuesBySegment<'_>>)> = tasks
            .into_par_iter()
            .map(|task| {
                let values = sequence.values(task.kv_head);
                let fold = ValuesBySegment::new(values, d, lengths(task.kv_head), bounds);
                let walked = queries.walk(&task, sequence.keys(task.kv_head), fold);
                (task, walked)
            })
            .collect();
        let mut read = vec![0f32; heads * segments * r * d];
        let mut long = vec![0f32; heads * segments * r];
        let by_head = read.par_chunks_mut((segments * r * d).max(1));
        by_head.zip(long.par_chunks_mut((segments * r).max(1))).enumerate().for_each(
            |(head, (read, long))| {
                let own = parts.iter().filter(|(task, _)| task.kv_head == head / group);
                for (task, Walked { max, sum, fold }) in own {
                    for (nth, query) in task.queries.clone().enumerate() {
                        let (row, place) = (nth * group + head % group, query - rows.start);
                        let Total { max: greatest, total, .. } =
                            total(site, head, std::iter::once((max[row], sum[row])));
                        let scale = ((f64::from(max[row]) - greatest).exp() / total) as f32;
                        for segment in 0..segments {
                            let at = segment * r + place;
                            fold.read(row, segment, scale, &mut read[at * d..(at + 1) * d]);
                            long[at] = scale * fold.long(row, segment, head % group);
                        }
                    }
                }
            },
        );
        Ok((read, long))
    })?;
    Ok(ValueSums {
        read: Tensor::from_vec(read, (heads, segments, r, d), &Device::Cpu)?,
        long: Tensor::from_vec(long, (heads, segments, r), &Device::Cpu)?,
    })
}
