//! Online softmax over blocks of keys. The state is each row's maximum score and sum of e^(score - max).

use std::ops::Range;

use candle_core::{D, DType, Device, Result, Tensor};

use super::online_softmax::OnlineSoftmax;
use crate::transfer;

/// Stands for minus infinity: finite, so that rows without visible keys yield no NaN, and so low that e^(HIDDEN - x) is 0 for any score.
pub(crate) const HIDDEN: f32 = -1e30;

/// Visible keys per row.
#[derive(Debug)]
pub(crate) struct Seen {
    ranges: Vec<Range<usize>>,
    /// Hidden ranges within `ranges` per row, ascending; empty if nothing is hidden.
    hidden: Vec<Vec<Range<usize>>>,
    /// u32 (2, rows): starts and ends of `ranges`, uploaded on first use.
    tensor: std::cell::OnceCell<Tensor>,
}

impl Seen {
    pub fn new(ranges: Vec<Range<usize>>) -> Self {
        Seen { ranges, hidden: Vec::new(), tensor: std::cell::OnceCell::new() }
    }

    /// Adds hidden ranges per row, ascending; empty if nothing is hidden.
    #[must_use]
    pub fn but_for(self, hidden: Vec<Vec<Range<usize>>>) -> Self {
        Seen { hidden, ..self }
    }

    /// True if the whole block is hidden from every row.
    pub fn all_hidden(&self, block: &Range<usize>) -> bool {
        let covers = |range: &Range<usize>| range.start <= block.start && block.end <= range.end;
        !self.hidden.is_empty() && self.hidden.iter().all(|row| row.iter().any(covers))
    }

    fn some_hidden(&self, block: &Range<usize>) -> bool {
        self.hidden.iter().flatten().any(|range| range.start < block.end && block.start < range.end)
    }

    /// From the first to the last key visible to any row.
    pub fn all(&self) -> Range<usize> {
        let start = self.ranges.iter().map(|range| range.start).min().unwrap_or(0);
        start..self.ranges.iter().map(|range| range.end).max().unwrap_or(0)
    }

    /// True if every row sees the whole block.
    fn whole(&self, block: &Range<usize>) -> bool {
        self.ranges.iter().all(|range| range.start <= block.start && range.end >= block.end)
    }

    fn tensor(&self, device: &Device) -> Result<&Tensor> {
        if let Some(tensor) = self.tensor.get() {
            return Ok(tensor);
        }
        let starts = self.ranges.iter().map(|range| range.start as u32);
        let ends = self.ranges.iter().map(|range| range.end as u32);
        let tensor = transfer::upload(starts.chain(ends).collect(), (2, self.ranges.len()), device)?;
        Ok(self.tensor.get_or_init(|| tensor))
    }
}

/// Weights e^(score - max) in `dtype` of `scores`, f32 (kv_heads, group * r, n), for the keys `block`, and the updated softmax state.
/// `seen` covers the r rows of each head; `max` is the running maximum. With `cap`, scores become cap * tanh(s / cap).
pub(crate) fn update(
    scores: Tensor,
    seen: &Seen,
    block: Range<usize>,
    cap: Option<f32>,
    earlier: Option<&OnlineSoftmax>,
    dtype: DType,
) -> Result<(Tensor, OnlineSoftmax)> {
    let holes = seen.some_hidden(&block);
    let seen = if seen.whole(&block) && !holes { None } else { Some(seen) };
    // The kernels only support one contiguous visible range.
    #[cfg(feature = "cuda")]
    if scores.device().is_cuda() && !holes {
        let seen = seen.map(|seen| seen.tensor(scores.device())).transpose()?;
        let call = super::cuda::Block { scores: &scores, seen, first: block.start, cap };
        return call.update(earlier, dtype);
    }
    let mut scores = scores;
    if let Some(cap) = cap {
        scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
    }
    let mask = seen.map(|seen| visible(seen, &block, scores.device())).transpose()?;
    if let Some(mask) = &mask {
        scores = chosen(mask, &scores, HIDDEN)?;
    }
    let block_max = scores.max_keepdim(D::Minus1)?;
    let (max, rescale) = match earlier {
        None => (block_max, None),
        Some(OnlineSoftmax { max, .. }) => {
            let new = max.maximum(&block_max)?;
            let rescale = (max - &new)?.exp()?;
            (new, Some(rescale))
        }
    };
    let mut weights = scores.broadcast_sub(&max)?.exp()?;
    if let Some(mask) = &mask {
        weights = chosen(mask, &weights, 0.0)?;
    }
    let block_sum = weights.sum_keepdim(D::Minus1)?;
    let sum = match (earlier, &rescale) {
        (Some(OnlineSoftmax { sum, .. }), Some(rescale)) => ((sum * rescale)? + block_sum)?,
        _ => block_sum,
    };
    Ok((weights.to_dtype(dtype)?, OnlineSoftmax { max, sum, rescale }))
}

/// u8 (r, n): 1 where row r sees key n of the block.
fn visible(seen: &Seen, block: &Range<usize>, device: &Device) -> Result<Tensor> {
    let ranges = seen.tensor(device)?;
    let rows = ranges.dim(1)?;
    let keys = Tensor::arange(block.start as u32, block.end as u32, device)?.reshape((1, block.len()))?;
    let border = |i: usize| ranges.get(i)?.reshape((rows, 1));
    let mut visible = (border(0)?.broadcast_le(&keys)? * border(1)?.broadcast_gt(&keys)?)?;
    if !seen.some_hidden(block) {
        return Ok(visible);
    }
    for nth in 0..seen.hidden.iter().map(Vec::len).max().unwrap_or(0) {
        // Rows without an nth range get an empty one. Ends are clamped to the block, so they fit u32.
        let border = |of: fn(&Range<usize>) -> usize| {
            let of_row =
                |row: &Vec<Range<usize>>| row.get(nth).map_or(0, |range| of(range).min(block.end) as u32);
            transfer::upload(seen.hidden.iter().map(of_row).collect(), (rows, 1), device)
        };
        let (start, end) = (border(|range| range.start)?, border(|range| range.end)?);
        // At most one holds, since a range does not end before it starts.
        let outside = (start.broadcast_gt(&keys)? + end.broadcast_le(&keys)?)?;
        visible = (visible * outside)?;
    }
    Ok(visible)
}

/// `of` (kv_heads, group * r, n) where `mask` (r, n) is set, else `other`.
fn chosen(mask: &Tensor, of: &Tensor, other: f32) -> Result<Tensor> {
    let (kv_heads, rows, n) = of.dims3()?;
    let by_row = of.reshape((kv_heads, rows / mask.dim(0)?, mask.dim(0)?, n))?;
    let other = Tensor::full(other, (1, 1, 1, 1), of.device())?.broadcast_as(by_row.shape())?;
    mask.broadcast_as(by_row.shape())?.where_cond(&by_row, &other)?.reshape((kv_heads, rows, n))
}

/// Divides `out`, f32 (kv_heads, group * r, d), by the rows' sums, to which each head's sink, f32 (heads, 1), adds e^(sink - max).
/// Returns (r, heads, d) in `dtype`.
pub(crate) fn normalise(
    out: &Tensor,
    softmax: &OnlineSoftmax,
    sinks: Option<&Tensor>,
    heads: usize,
    dtype: DType,
) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if out.device().is_cuda() {
        return super::cuda::normalise(out, softmax, sinks, heads, dtype);
    }
    let (kv_heads, rows, d) = out.dims3()?;
    let r = kv_heads * rows / heads;
    let (total, _) = total(softmax, sinks, heads)?;
    let closed = out.broadcast_div(&total)?.to_dtype(dtype)?;
    // (kv_heads, group * r, d) -> (heads, r, d) -> (r, heads, d)
    closed.reshape((heads, r, d))?.transpose(0, 1)?.contiguous()
}

/// Row sums including sinks, and the sinks' share of them, both (kv_heads, group * r, 1).
pub(crate) fn total(
    softmax: &OnlineSoftmax,
    sinks: Option<&Tensor>,
    heads: usize,
) -> Result<(Tensor, Option<Tensor>)> {
    let Some(sinks) = sinks else { return Ok((softmax.sum.clone(), None)) };
    let r = softmax.sum.elem_count() / heads;
    let sinks = sinks.broadcast_as((heads, r))?.contiguous()?.reshape(softmax.sum.dims())?;
    let sink = (sinks - &softmax.max)?.exp()?;
    let total = (&softmax.sum + &sink)?;
    let share = (sink / &total)?;
    Ok((total, Some(share)))
}
