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

use candle_core::{CpuStorage, Device, Result, Storage, Tensor};
use rayon::prelude::*;

use super::super::{Attended, Call, Hidden, SPLIT_K, Site};
use super::{Carried, Kernel, LengthSums, RowSums};

mod decode;
mod fold;
mod lengths;
#[cfg(test)]
mod tests;
mod tile;
mod value_sums;
mod walk;

use decode::{DecodeRows, SegmentsOfRows, Weighed};
use fold::{Segments, WeightedValues};
use lengths::{key_lengths, length_sums};
use value_sums::value_sums;
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

/// The kernel.
pub struct Cpu;

impl Kernel for Cpu {
    fn name(&self) -> &'static str {
        "blocked streaming softmax (CPU, f32)"
    }

    fn takes_rows_after_prefix(&self) -> bool {
        true
    }

    /// Over a prefix the rows of all tails are one block of queries, so that panels of rows are full and keys are loaded as seldom as
    /// in a prompt; over their own keys each tail's rows walk alone, and both parts are joined. Where the prefix is a multiple of
    /// [`SPLIT_K`], sums are made in the order in which they are made for each sequence by itself.
    fn attend(&self, call: Call<'_>) -> Result<Attended> {
        let Call { q, prefix, tails, rows, site, positions, hidden, borders } = call.relative();
        let (base, decoding) = (site.offset, rows == 1);
        let (shape, all, q) = (Shape::new(q, tails[0].0)?, q.dim(0)?, q.contiguous()?);
        let mut tensors = vec![&q];
        tensors.extend(prefix.iter().chain(&tails).flat_map(|&(k, v)| [k, v]));
        let (out, sums) = with_slices(&tensors, |slices| {
            let sequences = (prefix.iter().chain(&tails).zip(slices[1..].chunks_exact(2)))
                .map(|((k, v), slices)| Sequence::new(k, v, slices[0], slices[1]))
                .collect::<Result<Vec<_>>>()?;
            let (before, own) = sequences.split_at(sequences.len() - tails.len());
            // Positions and borders count from the first key of what is walked over.
            let from = |first: usize| {
                let after = |at: &usize| at.saturating_sub(first);
                let borders = borders.iter().map(|borders| borders.iter().flatten().map(after).collect());
                (positions.iter().map(after).collect(), hidden.counted_from(first), borders.collect())
            };
            let queries = |(positions, hidden, borders)| Queries {
                q: slices[0],
                positions,
                hidden,
                shape,
                site: &site,
                borders,
            };
            let (of_prefix, of_tails) = (queries(from(0)), queries(from(base)));
            let step = |keys: &Range<usize>| if decoding { SPLIT_K } else { keys.end.max(1) };
            let mut tasks: Vec<(&Queries, &Sequence, Task)> = Vec::new();
            for prefix in before {
                let block = if decoding { shape.positions() } else { shape.finer_positions(all) };
                for start in (0..all).step_by(block) {
                    let block = start..(start + block).min(all);
                    let keys = of_prefix.visible(&block).start.min(base)..base;
                    let split = shape.split(&block, &keys, step(&keys));
                    tasks.extend(split.map(|task| (&of_prefix, prefix, task)));
                }
            }
            let block = if own.len() == 1 { shape.finer_positions(rows) } else { shape.positions() };
            for (nth, tail) in own.iter().enumerate() {
                let split = of_tails.tasks(nth * rows..(nth + 1) * rows, block, step);
                tasks.extend(split.into_iter().map(|task| (&of_tails, tail, task)));
            }
            let weigh = |(queries, sequence, task): (&Queries, &Sequence, Task)| {
                queries.weigh(task, sequence, decoding)
            };
            let parts: Vec<PartialOutput> = tasks.into_par_iter().map(weigh).collect();
            // Of each row and key/value head, the prefix's first, each in the order of its keys.
            let mut of_rows: Vec<Vec<usize>> = vec![Vec::new(); all * shape.kv_heads];
            for (nth, part) in parts.iter().enumerate() {
                part.task
                    .queries
                    .clone()
                    .for_each(|row| of_rows[row * shape.kv_heads + part.task.kv_head].push(nth));
            }
            let mut out = vec![0f32; all * shape.heads * shape.d];
            out.par_chunks_mut(shape.heads * shape.d).enumerate().for_each(|(row, out)| {
                for kv_head in 0..shape.kv_heads {
                    let parts = of_rows[row * shape.kv_heads + kv_head]
                        .iter()
                        .map(|&nth| (&parts[nth], (row - parts[nth].task.queries.start) * shape.group));
                    of_tails.merge(kv_head, parts, out);
                }
            });
            let sums = borders.iter().enumerate().map(|(row, borders)| {
                let borders = borders.as_deref()?;
                Some(of_tails.recorded(row, &parts, borders).tensor())
            });
            Ok((out, sums.map(Option::transpose).collect::<Result<_>>()?))
        })?;
        Ok((Tensor::from_vec(out, (all, shape.heads, shape.d), q.device())?, sums))
    }

    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
        segment_sums(q, k, of)?.tensor()
    }

    fn value_sums(&self, qkv: [&Tensor; 3], of: &RowSums<'_>) -> Result<Tensor> {
        value_sums(qkv, of)
    }

    fn key_lengths(&self, v: &Tensor, gram: &Tensor) -> Result<Tensor> {
        key_lengths(v, gram)
    }

    fn length_sums(
        &self,
        qkv: [&Tensor; 3],
        carried: &Carried<'_>,
        of: &RowSums<'_>,
        spans: &[Range<usize>],
    ) -> Result<LengthSums> {
        length_sums(qkv, carried, of, spans)
    }
}

/// The kernel's sums for a set of rows.
struct SegmentSums {
    /// (heads, segments)
    mass: Vec<f64>,
    /// (heads): the sinks'.
    sink: Vec<f64>,
}

impl SegmentSums {
    fn zeros(heads: usize, segments: usize) -> Self {
        SegmentSums { mass: vec![0.0; heads * segments], sink: vec![0.0; heads] }
    }

    /// f64 (heads, 1 + segments), the sinks' first.
    fn tensor(&self) -> Result<Tensor> {
        let heads = self.sink.len();
        let segments = self.mass.len() / heads.max(1);
        let rows = self.sink.iter().enumerate().flat_map(|(head, &sink)| {
            std::iter::once(sink).chain(self.mass[head * segments..][..segments].iter().copied())
        });
        Tensor::from_vec(rows.collect(), (heads, 1 + segments), &Device::Cpu)
    }
}

/// See [`Kernel::segment_sums`].
fn segment_sums(q: &Tensor, k: &Tensor, RowSums { site, rows, bounds }: &RowSums<'_>) -> Result<SegmentSums> {
    let (shape, q) = (Shape::new(q, k)?, q.contiguous()?);
    let segments = bounds.len().saturating_sub(1);
    with_slices(&[&q, k], |slices| {
        let queries = Queries::of(&q, slices[0], shape, site)?;
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
    borders: Vec<Vec<usize>>,
}

impl<'a> Queries<'a> {
    /// Of a chunk's rows, whose weights nobody asks for.
    fn of(q: &Tensor, slice: &'a [f32], shape: Shape, site: &'a Site) -> Result<Self> {
        let positions: Vec<usize> = (site.offset..site.offset + q.dim(0)?).collect();
        let hidden = Hidden::at(site, &positions);
        Ok(Queries { q: slice, positions, hidden, shape, site, borders: Vec::new() })
    }

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
    fn weigh(&self, task: Task, sequence: &Sequence<'_>, decoding: bool) -> PartialOutput {
        if decoding {
            let (queries, positions) = self.rows(&task);
            let of_task = self.borders.get(task.queries.clone()).unwrap_or(&[]);
            let borders =
                of_task.iter().flat_map(|borders| std::iter::repeat_n(borders.as_slice(), self.shape.group));
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
            return PartialOutput { task, max, sum, out, segments };
        }
        let fold = WeightedValues::new(sequence.values(task.kv_head), self.shape.d);
        let Walked { max, sum, fold } = self.walk(&task, sequence.keys(task.kv_head), fold);
        PartialOutput { out: fold.rows(max.len()), task, max, sum, segments: SegmentsOfRows::default() }
    }

    /// The sums of a query's weights over the segments between `borders`, from the parts that were weighed with them.
    fn recorded(&self, query: usize, parts: &[PartialOutput], borders: &[usize]) -> SegmentSums {
        let Shape { heads, group, .. } = self.shape;
        let segments = borders.len().saturating_sub(1);
        let mut all = SegmentSums::zeros(heads, segments);
        for head in 0..heads {
            let of_head = |part: &&PartialOutput| {
                part.task.kv_head == head / group && part.task.queries.contains(&query)
            };
            let row = |part: &PartialOutput| (query - part.task.queries.start) * group + head % group;
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

    fn measure<'b>(&self, task: Task, sequence: &Sequence<'_>, bounds: &'b [usize]) -> Measured<'b> {
        let Walked { max, sum, fold } = self.walk(&task, sequence.keys(task.kv_head), Segments::new(bounds));
        Measured { task, max, sum, sums: fold }
    }

    /// Joins the parts of a row of one key/value head, each with the place of the row's first head in it, normalises, and adds to the
    /// row's output `out`, (heads, d).
    fn merge<'b>(
        &self,
        kv_head: usize,
        parts: impl Iterator<Item = (&'b PartialOutput, usize)> + Clone,
        out: &mut [f32],
    ) {
        let Shape { group, d, .. } = self.shape;
        for g in 0..group {
            let head = kv_head * group + g;
            let sums = parts.clone().map(|(part, first)| (part.max[first + g], part.sum[first + g]));
            let Total { max, total, .. } = total(self.site, head, sums);
            let target = &mut out[head * d..][..d];
            for (part, first) in parts.clone() {
                let r = first + g;
                let weight = ((f64::from(part.max[r]) - max).exp() / total) as f32;
                for (x, y) in target.iter_mut().zip(&part.out[r * d..(r + 1) * d]) {
                    *x += weight * y;
                }
            }
        }
    }
}

/// The weighted values of one task's rows, not yet normalised.
struct PartialOutput {
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
