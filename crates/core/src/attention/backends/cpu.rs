//! Attention on f32 slices: blocked matrix products with a streaming softmax, in safe code that [`pulp`] compiles for the
//! widest vectors that the processor has (AVX-512, AVX2, NEON).
//!
//! Work is cut into tasks of one key/value head, a block of query positions (all query heads of the group together, so
//! that each key is loaded once for all of them) and, where there would be few tasks, a part of the keys. A task walks its
//! keys in blocks that stay in the second-level cache ([`walk`]): scores, a running maximum and sum a row, then whatever a
//! [`Fold`](fold::Fold) makes of the weights: the output adds weighted values, an observer adds up segments. Keys and values are read
//! where they lie in the cache ([`tile`]); blocks that no row may see are never touched. Decoding has a kernel of its own
//! ([`decode`]). How work is cut depends on shapes
//! alone, never on the number of threads, so one thread and many give the same bits.

use std::ops::Range;

use candle_core::{CpuStorage, Result, Storage, Tensor};
use rayon::prelude::*;

use super::super::{Hidden, OfBranches, SPLIT_K, Site};
use super::SegmentSums;

mod decode;
mod fold;
mod lengths;
#[cfg(test)]
mod tests;
mod tile;
mod value_sums;
mod variants;
mod walk;

use decode::{DecodeRows, SegmentsOfRows, Weighed};
use fold::{Segments, WeightedValues};
pub use lengths::{key_lengths, length_sums};
pub use value_sums::value_sums;
pub use variants::variants;
use walk::{Walk, Walked};

/// Rows of a task at most: query positions times the heads of a group. The keys of a block come from the second-level cache
/// for all panels of rows but the first.
const ROW_BLOCK: usize = 192;
/// Rows of a task at least, where there are that many: those of the widest panel.
const LEAST_ROWS: usize = 48;
/// Where this many rows at most are measured, their keys are cut at every multiple of [`SPLIT_K`].
const FEW_POSITIONS: usize = 4;
/// With fewer tasks than this, rows are cut finer. The keys of a row that is attended to never are, but for a single row's, which
/// is decoding: a row has the same bits in a chunk of any length. Those of a row that is measured are, into parts of at least
/// [`SPLIT_K`].
const ENOUGH_TASKS: usize = 16;

/// See [`super::super::run`]. If there are `borders` of segments, `q` is one query, and the sums of its weights over them and over
/// the sinks come too: f64 (heads, 1 + segments).
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    site: &Site,
    borders: Option<&[usize]>,
) -> Result<(Tensor, Option<Tensor>)> {
    let shape = Shape::new(q, k)?;
    let (l, q) = (q.dim(0)?, q.contiguous()?);
    let (out, sums) = with_slices(&[&q, k, v], |slices| {
        let positions: Vec<usize> = (site.offset..site.offset + l).collect();
        let hidden = Hidden::at(site, &positions);
        let of_query = borders.into_iter().collect();
        let queries = Queries { q: slices[0], positions, hidden, shape, site, borders: of_query };
        let sequence = Sequence::new(k, v, slices[1], slices[2])?;
        let decoding = l == 1;
        let step = |keys: &Range<usize>| if decoding { SPLIT_K } else { keys.end.max(1) };
        let tasks = queries.tasks(0..l, shape.finer_positions(l), step);
        let parts: Vec<Part> =
            tasks.into_par_iter().map(|task| queries.weigh(task, &sequence, decoding)).collect();
        let mut out = vec![0f32; l * shape.heads * shape.d];
        // Parts of the same rows follow each other.
        let blocks: Vec<&[Part]> = parts.chunk_by(|a, b| a.task.queries == b.task.queries).collect();
        let rows = shape.finer_positions(l) * shape.heads * shape.d;
        out.par_chunks_mut(rows).zip(blocks).for_each(|(out, parts)| {
            for same in parts.chunk_by(|a, b| a.task.kv_head == b.task.kv_head) {
                let rows = same[0].task.queries.len() * shape.group;
                queries.merge(same[0].task.kv_head, same.iter().map(|part| (part, 0)), rows, out);
            }
        });
        let sums = borders.map(|borders| queries.recorded(0, &parts, borders));
        Ok((out, sums))
    })?;
    let sums = sums.map(|sums| sums.tensor()).transpose()?;
    Ok((Tensor::from_vec(out, (l, shape.heads, shape.d), q.device())?, sums))
}

/// See [`super::super::run_branches`]. Where the
/// shared keys are a multiple of [`SPLIT_K`], sums are made in the order in which [`attention`] makes them for each branch alone.
/// A branch that is asked for its weights gets their sums as in [`attention`].
pub fn branches(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    tails: &[(Tensor, Tensor)],
    site: &Site,
    &OfBranches { borders, hidden }: &OfBranches<'_>,
) -> Result<(Tensor, Vec<Option<Tensor>>)> {
    let shape = Shape::new(q, k)?;
    let (b, base, q) = (q.dim(0)?, k.dim(1)?, q.contiguous()?);
    let lengths = tails.iter().map(|(k, _)| k.dim(1)).collect::<Result<Vec<_>>>()?;
    let mut tensors = vec![&q, k, v];
    tensors.extend(tails.iter().flat_map(|(k, v)| [k, v]));
    // Of a tail's keys, which are counted from its first.
    let later = |borders: &Vec<usize>| borders.iter().map(|b| b.saturating_sub(base)).collect::<Vec<_>>();
    let in_tails: Vec<Vec<usize>> =
        borders.iter().map(|borders| borders.as_ref().map(later).unwrap_or_default()).collect();
    let (out, sums) = with_slices(&tensors, |slices| {
        let prefix = Sequence::new(k, v, slices[1], slices[2])?;
        let tails = (tails.iter().zip(slices[3..].chunks_exact(2)))
            .map(|((k, v), slices)| Sequence::new(k, v, slices[0], slices[1]))
            .collect::<Result<Vec<_>>>()?;
        // Positions count from the first key of what is walked over.
        let positions = |base: usize| lengths.iter().map(|n| base + n - 1).collect();
        let asked = borders.iter().any(Option::is_some);
        let in_prefix = borders.iter().filter(|_| asked).map(|borders| borders.as_deref().unwrap_or(&[]));
        let in_prefix = in_prefix.collect();
        let in_tails = in_tails.iter().filter(|_| asked).map(Vec::as_slice).collect();
        let queries = Queries {
            q: slices[0],
            positions: positions(base),
            hidden: hidden.clone(),
            shape,
            site,
            borders: in_prefix,
        };
        let own = Queries {
            q: slices[0],
            positions: positions(0),
            hidden: hidden.counted_from(base),
            shape,
            site,
            borders: in_tails,
        };
        let mut tasks: Vec<(&Queries, &Sequence, Task)> = Vec::new();
        for first in (0..b).step_by(shape.positions()) {
            let block = first..(first + shape.positions()).min(b);
            let keys = queries.visible(&block).start.min(base)..base;
            tasks.extend(shape.split(&block, &keys, SPLIT_K).map(|task| (&queries, &prefix, task)));
        }
        for (branch, tail) in tails.iter().enumerate() {
            let branch = branch..branch + 1;
            let keys = own.visible(&branch);
            tasks.extend(shape.split(&branch, &keys, SPLIT_K).map(|task| (&own, tail, task)));
        }
        let parts: Vec<Part> = tasks
            .into_par_iter()
            .map(|(queries, sequence, task)| queries.weigh(task, sequence, true))
            .collect();
        let row = shape.heads * shape.d;
        let mut out = vec![0f32; b * row];
        for (branch, out) in out.chunks_exact_mut(row).enumerate() {
            for kv_head in 0..shape.kv_heads {
                // The prefix's parts come first, each in the order of its keys.
                let of_branch = parts
                    .iter()
                    .filter(|p| p.task.kv_head == kv_head && p.task.queries.contains(&branch))
                    .map(|p| (p, (branch - p.task.queries.start) * shape.group));
                own.merge(kv_head, of_branch, shape.group, out);
            }
        }
        let sums: Vec<Option<SegmentSums>> = (borders.iter().enumerate())
            .map(|(branch, borders)| borders.as_ref().map(|borders| own.recorded(branch, &parts, borders)))
            .collect();
        Ok((out, sums))
    })?;
    let sums = sums.into_iter().map(|sums| sums.map(|sums| sums.tensor()).transpose());
    Ok((Tensor::from_vec(out, (b, shape.heads, shape.d), q.device())?, sums.collect::<Result<_>>()?))
}

/// See [`super::segment_sums`].
pub fn segment_sums(
    q: &Tensor,
    k: &Tensor,
    site: &Site,
    rows: Range<usize>,
    bounds: &[usize],
) -> Result<SegmentSums> {
    let shape = Shape::new(q, k)?;
    let (l, q) = (q.dim(0)?, q.contiguous()?);
    let segments = bounds.len().saturating_sub(1);
    with_slices(&[&q, k], |slices| {
        let positions: Vec<usize> = (site.offset..site.offset + l).collect();
        let hidden = Hidden::at(site, &positions);
        let queries = Queries { q: slices[0], positions, hidden, shape, site, borders: Vec::new() };
        let sequence = Sequence::new(k, k, slices[1], slices[1])?;
        let few = rows.len() <= FEW_POSITIONS;
        let pieces = shape.pieces(rows.len());
        let step = |keys: &Range<usize>| match pieces {
            _ if few => SPLIT_K,
            1 => keys.end.max(1),
            pieces => keys.len().div_ceil(pieces).next_multiple_of(SPLIT_K),
        };
        let parts: Vec<Measured> = queries
            .tasks(rows, shape.positions(), step)
            .into_par_iter()
            .map(|task| queries.measure(task, &sequence, bounds))
            .collect();
        let mut all = SegmentSums { mass: vec![0.0; shape.heads * segments], sink: vec![0.0; shape.heads] };
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

/// The sizes of a call.
#[derive(Debug, Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    /// Query heads a key/value head.
    group: usize,
    d: usize,
}

impl Shape {
    fn new(q: &Tensor, k: &Tensor) -> Result<Self> {
        let (_, heads, d) = q.dims3()?;
        let kv_heads = k.dim(0)?;
        Ok(Shape { heads, kv_heads, group: heads / kv_heads, d })
    }

    /// Query positions of a task.
    fn positions(&self) -> usize {
        (ROW_BLOCK / self.group).max(1)
    }

    /// Into how many parts each task is to be cut so that there are enough for `l` query positions.
    fn pieces(&self, l: usize) -> usize {
        ENOUGH_TASKS.div_ceil((l.div_ceil(self.positions()) * self.kv_heads).max(1))
    }

    /// Query positions of a task where `l` of them are to make tasks enough.
    fn finer_positions(&self, l: usize) -> usize {
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
    fn split(&self, queries: &Range<usize>, keys: &Range<usize>, step: usize) -> impl Iterator<Item = Task> {
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
struct Task {
    kv_head: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

/// The keys and values of a sequence.
struct Sequence<'a> {
    /// From the first key of the first head on.
    k: &'a [f32],
    v: &'a [f32],
    /// Elements from one head to the next.
    k_stride: usize,
    v_stride: usize,
    /// Elements of a head.
    head: usize,
}

impl<'a> Sequence<'a> {
    fn new(k: &Tensor, v: &Tensor, k_data: &'a [f32], v_data: &'a [f32]) -> Result<Self> {
        let (_, n, d) = k.dims3()?;
        Ok(Sequence { k: k_data, v: v_data, k_stride: k.stride()[0], v_stride: v.stride()[0], head: n * d })
    }

    /// (keys, d)
    fn keys(&self, kv_head: usize) -> &'a [f32] {
        &self.k[kv_head * self.k_stride..][..self.head]
    }

    /// (keys, d)
    fn values(&self, kv_head: usize) -> &'a [f32] {
        &self.v[kv_head * self.v_stride..][..self.head]
    }
}

/// Queries, (l, heads, d), and where each is among the keys.
struct Queries<'a> {
    q: &'a [f32],
    positions: Vec<usize>,
    /// A query's hidden keys, counted as the positions are.
    hidden: Hidden,
    shape: Shape,
    site: &'a Site,
    /// A query's borders of the segments that its weights are summed over while it is weighed; none where nobody asks.
    borders: Vec<&'a [usize]>,
}

impl Queries<'_> {
    /// The keys that some of these queries see.
    fn visible(&self, queries: &Range<usize>) -> Range<usize> {
        let seen = || self.positions[queries.clone()].iter().map(|&p| self.site.visible(p));
        seen().map(|r| r.start).min().unwrap_or(0)..seen().map(|r| r.end).max().unwrap_or(0)
    }

    /// Cuts the queries `rows` into tasks of so many positions and of keys cut at multiples of a step: block by block, head by head,
    /// in the order of the keys.
    fn tasks(
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
    fn rows(&self, task: &Task) -> (Vec<&[f32]>, Vec<usize>) {
        let Shape { heads, group, d, .. } = self.shape;
        let rows = task.queries.clone().flat_map(|query| (0..group).map(move |g| (query, g)));
        let query = |(query, g)| {
            (&self.q[(query * heads + task.kv_head * group + g) * d..][..d], self.positions[query])
        };
        rows.map(query).unzip()
    }

    /// The keys hidden from each of a task's rows; no row where nothing is hidden from any query.
    fn hidden(&self, task: &Task) -> Vec<&[Range<usize>]> {
        let queries = if self.hidden.is_empty() { 0..0 } else { task.queries.clone() };
        queries.flat_map(|query| std::iter::repeat_n(self.hidden.row(query), self.shape.group)).collect()
    }

    /// Walks a task's rows over its keys.
    fn walk<F: fold::Fold>(&self, task: &Task, keys: &[f32], fold: F) -> Walked<F> {
        let (queries, positions) = self.rows(task);
        let (range, hidden) = (task.keys.clone(), self.hidden(task));
        pulp::Arch::new().dispatch(Walk { queries, positions, hidden, keys, range, site: self.site, fold })
    }

    /// The output of a task's rows. Few positions are weighed row by row, many panel by panel.
    fn weigh(&self, task: Task, sequence: &Sequence<'_>, decoding: bool) -> Part {
        if decoding {
            let (queries, positions) = self.rows(&task);
            let of_task = self.borders.get(task.queries.clone()).unwrap_or(&[]);
            let borders = of_task.iter().flat_map(|borders| std::iter::repeat_n(*borders, self.shape.group));
            let Weighed { max, sum, out, segments } = pulp::Arch::new().dispatch(DecodeRows {
                queries,
                positions,
                hidden: self.hidden(&task),
                keys: sequence.keys(task.kv_head),
                values: sequence.values(task.kv_head),
                range: task.keys.clone(),
                site: self.site,
                borders: borders.collect(),
            });
            return Part { task, max, sum, out, segments };
        }
        let fold = WeightedValues::new(sequence.values(task.kv_head), self.shape.d);
        let Walked { max, sum, fold } = self.walk(&task, sequence.keys(task.kv_head), fold);
        Part { out: fold.rows(max.len()), task, max, sum, segments: SegmentsOfRows::default() }
    }

    /// What a query's weights sum up to over the segments between `borders`, from the parts that were weighed with them.
    fn recorded(&self, query: usize, parts: &[Part], borders: &[usize]) -> SegmentSums {
        let Shape { heads, group, .. } = self.shape;
        let segments = borders.len().saturating_sub(1);
        let mut all = SegmentSums { mass: vec![0.0; heads * segments], sink: vec![0.0; heads] };
        for head in 0..heads {
            let of_head =
                |part: &&Part| part.task.kv_head == head / group && part.task.queries.contains(&query);
            let row = |part: &Part| (query - part.task.queries.start) * group + head % group;
            let parts = || parts.iter().filter(of_head).map(|part| (part, row(part)));
            let ends = parts().map(|(part, r)| (part.max[r], part.sum[r]));
            let Total { max, total, sink } = total(self.site, head, ends);
            for (part, r) in parts() {
                let scale = (f64::from(part.max[r]) - max).exp() / total;
                let (touched, sums) = part.segments.row(r);
                for (segment, sum) in touched.zip(sums) {
                    all.mass[head * segments + segment] += sum * scale;
                }
            }
            all.sink[head] = sink / total;
        }
        all
    }

    fn measure<'a>(&self, task: Task, sequence: &Sequence<'_>, bounds: &'a [usize]) -> Measured<'a> {
        let Walked { max, sum, fold } = self.walk(&task, sequence.keys(task.kv_head), Segments::new(bounds));
        Measured { task, max, sum, sums: fold }
    }

    /// Joins the parts of `rows` rows of one key/value head, each with the place of the first of them in it, normalises, and
    /// adds to the rows' places in `out`, (positions, heads, d).
    fn merge<'a>(
        &self,
        kv_head: usize,
        parts: impl Iterator<Item = (&'a Part, usize)> + Clone,
        rows: usize,
        out: &mut [f32],
    ) {
        let Shape { heads, group, d, .. } = self.shape;
        for r in 0..rows {
            let head = kv_head * group + r % group;
            let sums = parts.clone().map(|(part, first)| (part.max[first + r], part.sum[first + r]));
            let Total { max, total, .. } = total(self.site, head, sums);
            let target = &mut out[(r / group * heads + head) * d..][..d];
            for (part, first) in parts.clone() {
                let r = first + r;
                let weight = ((f64::from(part.max[r]) - max).exp() / total) as f32;
                for (x, y) in target.iter_mut().zip(&part.out[r * d..(r + 1) * d]) {
                    *x += weight * y;
                }
            }
        }
    }
}

/// The weighted values of one task's rows, not yet normalised.
struct Part {
    task: Task,
    max: Vec<f32>,
    sum: Vec<f32>,
    /// (rows, d)
    out: Vec<f32>,
    /// The weight of the segments that somebody asks for.
    segments: SegmentsOfRows,
}

/// The weight of each segment of one task's rows, not yet normalised.
struct Measured<'a> {
    task: Task,
    max: Vec<f32>,
    sum: Vec<f32>,
    sums: Segments<'a>,
}

/// A row's softmax, closed: sums of e^(score - max).
struct Total {
    max: f64,
    /// Of everything, the sink included.
    total: f64,
    /// Of the sink.
    sink: f64,
}

/// Closes a row's softmax over its parts' maxima and sums and its head's sink.
fn total(site: &Site, head: usize, parts: impl Iterator<Item = (f32, f32)> + Clone) -> Total {
    let sink = site
        .sinks
        .as_ref()
        .and_then(|sinks| sinks.logits().get(head))
        .map_or(f64::NEG_INFINITY, |&s| f64::from(s));
    // Not f64::max, which would drop a NaN.
    let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
    let max = parts.clone().map(|(max, _)| f64::from(max)).fold(sink, larger);
    let sink = (sink - max).exp();
    let total = parts.map(|(m, sum)| f64::from(sum) * (f64::from(m) - max).exp()).sum::<f64>() + sink;
    Total { max, total, sink }
}

/// Calls `f` with the elements of f32 CPU tensors, each from its first element on. The last two dimensions must be
/// contiguous; the first may have any stride.
fn with_slices<T>(tensors: &[&Tensor], f: impl FnOnce(&[&[f32]]) -> Result<T>) -> Result<T> {
    let guards: Vec<_> = tensors.iter().map(|t| t.storage_and_layout()).collect();
    let mut slices = Vec::with_capacity(guards.len());
    for (storage, layout) in &guards {
        let (dims, stride) = (layout.dims(), layout.stride());
        if dims.len() != 3 || stride[2] != 1 || (dims[1] > 1 && stride[1] != dims[2]) {
            candle_core::bail!(
                "attention: a tensor of shape {dims:?} has strides {stride:?}, not rows of a cache"
            );
        }
        let Storage::Cpu(CpuStorage::F32(data)) = &**storage else {
            candle_core::bail!("attention: the CPU kernel was given a tensor that is not f32 on the CPU");
        };
        slices.push(&data[layout.start_offset()..]);
    }
    f(&slices)
}
