//! Attention on f32 slices: blocked matrix products with a streaming softmax.
//!
//! Work is cut into tasks of one key/value head, a block of query positions (all query heads of the group together, so
//! that each key is loaded once for all of them) and, for single-token decoding, a part of the keys. A task walks its
//! keys in blocks that stay in the second-level cache: scores = Q K^T, a running maximum and sum a row, then whatever a
//! [`Fold`] makes of the weights: the output adds P V, an observer adds up segments. Blocks that no row may see are
//! never touched. How work is cut depends on shapes alone, never on the number of threads, so one thread and many give
//! the same bits.

use candle_core::{CpuStorage, Result, Storage, Tensor};
use rayon::prelude::*;

use super::super::Site;
use super::{SegmentSums, softmax};

/// Rows of a task: query positions times the heads of a group.
const ROW_BLOCK: usize = 192;
/// Keys of a block: with `ROW_BLOCK` rows of scores and a block of keys and values this stays within 1 MiB.
const KEY_BLOCK: usize = 512;
/// Few rows give too few tasks; then the keys are split into parts of this many.
const KEY_SPLIT: usize = 1024;
/// Up to this many query positions count as few.
const FEW_POSITIONS: usize = 4;

/// See [`super::super::run`].
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site) -> Result<Tensor> {
    let (l, heads, d) = q.dims3()?;
    let shape = Shape::new(q, k)?;
    let v_stride = v.stride()[0];
    let q = q.contiguous()?;
    let out = with_slices([&q, k, v], |[q, k, v]| {
        let tasks = shape.tasks(site, 0..l, l <= FEW_POSITIONS);
        let parts: Vec<Part> = tasks
            .into_par_iter()
            .map(|task| {
                let rows = RowBlock::pack(q, &shape, site, &task);
                let mut fold = WeightedValues {
                    values: &v[task.kv_head * v_stride..],
                    d,
                    out: vec![0.0; rows.len() * d],
                };
                let (max, sum) = stream(&rows, &k[task.kv_head * shape.k_stride..], site, &task, &mut fold);
                Part { task, max, sum, out: fold.out }
            })
            .collect();
        let mut out = vec![0f32; l * heads * d];
        // Parts of the same rows follow each other: merge them, normalise, and put the rows in their places.
        for same in parts.chunk_by(|a, b| a.task.kv_head == b.task.kv_head && a.task.rows == b.task.rows) {
            merge(same, &shape, site, &mut out);
        }
        Ok(out)
    })?;
    Tensor::from_vec(out, (l, heads, d), q.device())
}

/// See [`super::segment_sums`].
pub fn segment_sums(
    q: &Tensor,
    k: &Tensor,
    site: &Site,
    rows: std::ops::Range<usize>,
    bounds: &[usize],
) -> Result<SegmentSums> {
    let shape = Shape::new(q, k)?;
    let q = q.contiguous()?;
    let segments = bounds.len().saturating_sub(1);
    with_slices([&q, k, k], |[q, k, _]| {
        let parts: Vec<(usize, SegmentSums)> = shape
            .tasks(site, rows, false)
            .into_par_iter()
            .map(|task| {
                let rows = RowBlock::pack(q, &shape, site, &task);
                let mut fold = Segments { bounds, sums: vec![0.0; rows.len() * segments] };
                let (max, sum) = stream(&rows, &k[task.kv_head * shape.k_stride..], site, &task, &mut fold);
                let mut part =
                    SegmentSums { mass: vec![0.0; shape.group * segments], sink: vec![0.0; shape.group] };
                for r in 0..rows.len() {
                    let g = r % shape.group;
                    let (total, sink, scale) =
                        close_row(site, task.kv_head * shape.group + g, max[r], sum[r]);
                    for s in 0..segments {
                        part.mass[g * segments + s] += fold.sums[r * segments + s] * scale / total;
                    }
                    part.sink[g] += sink / total;
                }
                (task.kv_head, part)
            })
            .collect();
        let mut all = SegmentSums { mass: vec![0.0; shape.heads * segments], sink: vec![0.0; shape.heads] };
        for (kv_head, part) in parts {
            let first = kv_head * shape.group;
            for (sum, x) in all.mass[first * segments..].iter_mut().zip(&part.mass) {
                *sum += x;
            }
            for (sum, x) in all.sink[first..].iter_mut().zip(&part.sink) {
                *sum += x;
            }
        }
        Ok(all)
    })
}

/// The sizes of a call.
struct Shape {
    heads: usize,
    kv_heads: usize,
    /// Query heads a key/value head.
    group: usize,
    d: usize,
    /// Elements from one head's keys to the next one's in the cache.
    k_stride: usize,
}

impl Shape {
    fn new(q: &Tensor, k: &Tensor) -> Result<Self> {
        let (_, heads, d) = q.dims3()?;
        let kv_heads = k.dim(0)?;
        Ok(Shape { heads, kv_heads, group: heads / kv_heads, d, k_stride: k.stride()[0] })
    }

    /// Cuts the query rows `rows` (relative to the chunk) into tasks.
    fn tasks(&self, site: &Site, rows: std::ops::Range<usize>, split_keys: bool) -> Vec<Task> {
        let positions = (ROW_BLOCK / self.group).max(1);
        let mut tasks = Vec::new();
        for kv_head in 0..self.kv_heads {
            for start in rows.clone().step_by(positions) {
                let rows = start..(start + positions).min(rows.end);
                let keys = site.visible(site.offset + rows.start).start
                    ..site.visible(site.offset + rows.end - 1).end;
                let step = if split_keys { KEY_SPLIT } else { keys.len().max(1) };
                for first in keys.clone().step_by(step) {
                    tasks.push(Task {
                        kv_head,
                        rows: rows.clone(),
                        keys: first..(first + step).min(keys.end),
                    });
                }
            }
        }
        tasks
    }
}

/// One piece of work.
struct Task {
    kv_head: usize,
    /// Query positions, relative to the chunk.
    rows: std::ops::Range<usize>,
    /// Key positions.
    keys: std::ops::Range<usize>,
}

/// The scaled queries of a task, row-major (positions x group, d), and the first one's position.
struct RowBlock {
    q: Vec<f32>,
    d: usize,
    group: usize,
    first: usize,
}

impl RowBlock {
    fn pack(q: &[f32], shape: &Shape, site: &Site, task: &Task) -> Self {
        let mut packed = Vec::with_capacity(task.rows.len() * shape.group * shape.d);
        for row in task.rows.clone() {
            let start = (row * shape.heads + task.kv_head * shape.group) * shape.d;
            packed.extend(q[start..start + shape.group * shape.d].iter().map(|x| x * site.scale));
        }
        RowBlock { q: packed, d: shape.d, group: shape.group, first: site.offset + task.rows.start }
    }

    fn len(&self) -> usize {
        self.q.len() / self.d
    }
}

/// What is made of the weights e^(s - running max) as they stream by.
trait Fold {
    /// The running maximum of row `row` has grown: what was gathered for it is to be multiplied by `factor`.
    fn rescale(&mut self, row: usize, factor: f32);

    /// The weights of all rows over the keys `start..start + n`, row-major (rows, n); invisible keys weigh 0.
    fn block(&mut self, weights: &[f32], start: usize, n: usize);
}

/// Gathers sum over j of w_j v_j.
struct WeightedValues<'a> {
    /// This head's values, (n, d).
    values: &'a [f32],
    d: usize,
    out: Vec<f32>,
}

impl Fold for WeightedValues<'_> {
    fn rescale(&mut self, row: usize, factor: f32) {
        for x in &mut self.out[row * self.d..(row + 1) * self.d] {
            *x *= factor;
        }
    }

    fn block(&mut self, weights: &[f32], start: usize, n: usize) {
        let rows = weights.len() / n;
        let values = Matrix { data: &self.values[start * self.d..], row_stride: self.d, col_stride: 1 };
        let weights = Matrix { data: weights, row_stride: n, col_stride: 1 };
        product(&mut self.out, (rows, self.d, n), &weights, &values, true);
    }
}

/// Gathers the weight of each segment of the keys.
struct Segments<'a> {
    bounds: &'a [usize],
    /// (rows, segments)
    sums: Vec<f64>,
}

impl Fold for Segments<'_> {
    fn rescale(&mut self, row: usize, factor: f32) {
        let segments = self.bounds.len().saturating_sub(1);
        for x in &mut self.sums[row * segments..(row + 1) * segments] {
            *x *= f64::from(factor);
        }
    }

    fn block(&mut self, weights: &[f32], start: usize, n: usize) {
        let segments = self.bounds.len().saturating_sub(1);
        let first = self.bounds.partition_point(|&b| b <= start).saturating_sub(1);
        for (row, weights) in weights.chunks_exact(n).enumerate() {
            for s in first..segments {
                let from = self.bounds[s].max(start);
                let to = self.bounds[s + 1].min(start + n);
                if self.bounds[s] >= start + n {
                    break;
                }
                if from < to {
                    self.sums[row * segments + s] +=
                        f64::from(softmax::sum(&weights[from - start..to - start]));
                }
            }
        }
    }
}

/// Walks the task's keys and returns each row's maximum and its sum of e^(s - max).
fn stream(
    rows: &RowBlock,
    keys: &[f32],
    site: &Site,
    task: &Task,
    fold: &mut impl Fold,
) -> (Vec<f32>, Vec<f32>) {
    let m = rows.len();
    let mut max = vec![f32::NEG_INFINITY; m];
    let mut sum = vec![0f32; m];
    let mut scores = vec![0f32; m * KEY_BLOCK.min(task.keys.len())];
    let simd = pulp::Arch::new();
    for start in task.keys.clone().step_by(KEY_BLOCK) {
        let n = KEY_BLOCK.min(task.keys.end - start);
        let scores = &mut scores[..m * n];
        let q = Matrix { data: &rows.q, row_stride: rows.d, col_stride: 1 };
        let k = Matrix { data: &keys[start * rows.d..], row_stride: 1, col_stride: rows.d };
        product(scores, (m, n, rows.d), &q, &k, false);
        let blocks = ScoreBlock { scores, rows, site, keys: start..start + n, max: &mut max, sum: &mut sum };
        for (row, factor) in simd.dispatch(blocks) {
            fold.rescale(row, factor);
        }
        fold.block(scores, start, n);
    }
    (max, sum)
}

/// A block of scores to be turned into weights.
struct ScoreBlock<'a> {
    /// (rows, keys)
    scores: &'a mut [f32],
    rows: &'a RowBlock,
    site: &'a Site,
    keys: std::ops::Range<usize>,
    max: &'a mut [f32],
    sum: &'a mut [f32],
}

impl pulp::WithSimd for ScoreBlock<'_> {
    /// The rows whose maximum has grown, with the factor for what they had gathered.
    type Output = Vec<(usize, f32)>;

    // Always inlined, so that the loops are compiled with the features that pulp found.
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Self::Output {
        let ScoreBlock { scores, rows, site, keys, max, sum } = self;
        let mut grown = Vec::new();
        for (r, row) in scores.chunks_exact_mut(keys.len()).enumerate() {
            let visible = site.visible(rows.first + r / rows.group);
            let from = visible.start.clamp(keys.start, keys.end) - keys.start;
            let to = visible.end.clamp(keys.start, keys.end) - keys.start;
            row[..from].fill(0.0);
            row[to.max(from)..].fill(0.0);
            if from >= to {
                continue;
            }
            let row = &mut row[from..to];
            if let Some(cap) = site.softcap {
                for s in &mut *row {
                    *s = cap * (*s / cap).tanh();
                }
            }
            let block_max = softmax::max(row);
            if block_max > max[r] || block_max.is_nan() {
                let factor = (max[r] - block_max).exp();
                sum[r] *= factor;
                grown.push((r, factor));
                max[r] = block_max;
            }
            sum[r] += softmax::exp_sum(row, max[r]);
        }
        grown
    }
}

/// Closes a row's softmax: its total with the head's sink, the sink's part of it, and the factor that brings weights
/// gathered under `max` to the same scale.
fn close_row(site: &Site, head: usize, max: f32, sum: f32) -> (f64, f64, f64) {
    match site.sinks.as_ref().and_then(|sinks| sinks.get(head)) {
        None => (f64::from(sum), 0.0, 1.0),
        Some(&sink) => {
            let top = f64::from(max.max(sink));
            let scale = (f64::from(max) - top).exp();
            let sink = (f64::from(sink) - top).exp();
            (f64::from(sum) * scale + sink, sink, scale)
        }
    }
}

/// The weighted values of one task's rows, not yet normalised.
struct Part {
    task: Task,
    max: Vec<f32>,
    sum: Vec<f32>,
    /// (positions x group, d)
    out: Vec<f32>,
}

/// Joins the parts of the same rows and writes the rows into `out` (l, heads, d).
fn merge(parts: &[Part], shape: &Shape, site: &Site, out: &mut [f32]) {
    let Some(first) = parts.first() else { return };
    let d = shape.d;
    for r in 0..first.max.len() {
        let max = parts.iter().map(|p| p.max[r]).fold(f32::NEG_INFINITY, |a, b| {
            // Not f32::max, which would drop a NaN.
            if b > a || b.is_nan() { b } else { a }
        });
        let factors: Vec<f32> = parts.iter().map(|p| (p.max[r] - max).exp()).collect();
        let sum = parts.iter().zip(&factors).map(|(p, f)| p.sum[r] * f).sum();
        let g = r % shape.group;
        let head = first.task.kv_head * shape.group + g;
        let (total, _, scale) = close_row(site, head, max, sum);
        let norm = (scale / total) as f32;
        let position = first.task.rows.start + r / shape.group;
        let target = &mut out[(position * shape.heads + head) * d..][..d];
        for (part, factor) in parts.iter().zip(&factors) {
            let weight = factor * norm;
            for (x, y) in target.iter_mut().zip(&part.out[r * d..(r + 1) * d]) {
                *x += weight * y;
            }
        }
    }
}

/// A read-only matrix over a slice.
pub(in crate::attention) struct Matrix<'a> {
    pub data: &'a [f32],
    pub row_stride: usize,
    pub col_stride: usize,
}

impl Matrix<'_> {
    /// Whether a (rows, cols) matrix lies within the slice.
    fn holds(&self, rows: usize, cols: usize) -> bool {
        rows == 0
            || cols == 0
            || (rows - 1) * self.row_stride + (cols - 1) * self.col_stride < self.data.len()
    }
}

/// `out` (m, n), row-major, = (or += if `add`) `a` (m, k) times `b` (k, n), on this thread.
pub(in crate::attention) fn product(
    out: &mut [f32],
    (m, n, k): (usize, usize, usize),
    a: &Matrix<'_>,
    b: &Matrix<'_>,
    add: bool,
) {
    assert!(
        out.len() >= m * n && a.holds(m, k) && b.holds(k, n),
        "This is a bug: a matrix product of ({m}, {n}, {k}) reaches outside its slices"
    );
    // SAFETY: the assertion above keeps every element that gemm touches (rows < m, n, k of the given strides) inside
    // the three slices, `out` is borrowed mutably and so overlaps neither input, and f32 is the type of all three.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Calls `f` with the elements of three f32 CPU tensors, each from its first element on. The last two dimensions must be
/// contiguous; the first may have any stride.
fn with_slices<T>(tensors: [&Tensor; 3], f: impl FnOnce([&[f32]; 3]) -> Result<T>) -> Result<T> {
    let guards = tensors.map(Tensor::storage_and_layout);
    let mut slices: [&[f32]; 3] = [&[]; 3];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&guards) {
        let (dims, stride) = (layout.dims(), layout.stride());
        if dims.len() != 3 || stride[2] != 1 || (dims[1] > 1 && stride[1] != dims[2]) {
            candle_core::bail!(
                "attention: a tensor of shape {dims:?} has strides {stride:?}, not rows of a cache"
            );
        }
        let Storage::Cpu(CpuStorage::F32(data)) = &**storage else {
            candle_core::bail!("attention: the CPU kernel was given a tensor that is not f32 on the CPU");
        };
        *slice = &data[layout.start_offset()..];
    }
    f(slices)
}
