//! Attention of the same tokens read several times after one prefix, each time with other keys hidden.
//!
//! Over the prefix all readings' rows are one block of queries, so that panels of rows are full and keys are loaded as seldom as in a
//! prompt; over their own keys each reading's rows walk alone, and both parts are joined.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::{Hidden, Part, Queries, Sequence, Shape, Task, with_slices};
use crate::attention::{Holes, Site};

/// See [`super::super::super::run_variants`].
pub fn variants(
    q: &Tensor,
    (k, v): (&Tensor, &Tensor),
    own: (&Tensor, &Tensor),
    site: &Site,
    holes: &[Holes],
) -> Result<Tensor> {
    let shape = Shape::new(q, k)?;
    let Shape { heads, kv_heads, group, d } = shape;
    let (all, base) = (q.dim(0)?, k.dim(1)?);
    let l = all / holes.len().max(1);
    let (q, own_k, own_v) = (q.contiguous()?, own.0.contiguous()?, own.1.contiguous()?);
    let out = with_slices(&[&q, k, v, &own_k, &own_v], |slices| {
        let hidden = Hidden::of((0..all).map(|row| (&holes[row / l], base + row % l)));
        let own_hidden = hidden.counted_from(base);
        // Positions count from the first key of what is walked over.
        let queries = |first: usize, hidden: Hidden| {
            let positions = (0..all).map(|row| first + row % l).collect();
            Queries { q: slices[0], positions, hidden, shape, site, borders: Vec::new() }
        };
        let (before, after) = (queries(base, hidden), queries(0, own_hidden));
        let prefix = Sequence::new(k, v, slices[1], slices[2])?;
        let of_reading = |nth: usize| {
            let own = |slice: usize| &slices[slice][nth * l * d..];
            Sequence { k: own(3), v: own(4), k_stride: all * d, v_stride: all * d, head: l * d }
        };
        let tails: Vec<Sequence<'_>> = (0..holes.len()).map(of_reading).collect();

        // A task a block of rows and key/value head, of the prefix where a window shows any of it, and of each reading's own keys.
        let (rows, own_rows) = (shape.finer_positions(all), shape.positions());
        let task = |queries: Range<usize>, keys: Range<usize>, kv_head| Task { kv_head, queries, keys };
        type Work<'a> = (&'a Queries<'a>, &'a Sequence<'a>, Task);
        let mut work: Vec<Option<Work<'_>>> = Vec::new();
        for start in (0..all).step_by(rows) {
            let block = start..(start + rows).min(all);
            let keys = before.visible(&block).start.min(base)..base;
            let of_head = |kv_head| {
                (!keys.is_empty()).then(|| (&before, &prefix, task(block.clone(), keys.clone(), kv_head)))
            };
            work.extend((0..kv_heads).map(of_head));
        }
        let of_prefix = work.len();
        for (nth, tail) in tails.iter().enumerate() {
            for start in (nth * l..(nth + 1) * l).step_by(own_rows) {
                let block = start..(start + own_rows).min((nth + 1) * l);
                let keys = after.visible(&block);
                work.extend(
                    (0..kv_heads)
                        .map(|kv_head| Some((&after, tail, task(block.clone(), keys.clone(), kv_head)))),
                );
            }
        }
        let weigh = |work: Option<Work<'_>>| {
            work.map(|(queries, sequence, task)| queries.weigh(task, sequence, false))
        };
        let parts: Vec<Option<Part>> = work.into_par_iter().map(weigh).collect();

        let mut out = vec![0f32; all * heads * d];
        out.par_chunks_mut((heads * d).max(1)).enumerate().for_each(|(row, out)| {
            let own_block = row / l * l.div_ceil(own_rows) + row % l / own_rows;
            for kv_head in 0..kv_heads {
                let places = [row / rows * kv_heads + kv_head, of_prefix + own_block * kv_heads + kv_head];
                let of_row = places.into_iter().filter_map(|place| parts[place].as_ref());
                let of_row = of_row.map(|part| (part, (row - part.task.queries.start) * group));
                after.merge(kv_head, of_row, group, out);
            }
        });
        Ok(out)
    })?;
    Tensor::from_vec(out, (all, heads, d), &Device::Cpu)
}
