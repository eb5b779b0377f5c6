//! The softmax of rows of scores, a block of keys at a time.
//!
//! A row's greatest score so far and the sum of e^(score - max) are all that it takes to go on with the next block.

use std::ops::Range;

use candle_core::{D, DType, Device, Result, Tensor};

use super::online_softmax::OnlineSoftmax;
use crate::transfer;

/// Stands for minus infinity: finite, so that a row that has seen no key yet yields no NaN, and so low that e^(HIDDEN - x)
/// is 0 for any score x.
pub(crate) const HIDDEN: f32 = -1e30;

/// The keys that rows see.
#[derive(Debug)]
pub(crate) struct Seen {
    ranges: Vec<Range<usize>>,
    /// By row: ascending ranges in between that it does not see. No row at all where there are none.
    hidden: Vec<Vec<Range<usize>>>,
    /// u32 (2, rows): where the ranges start and where they end. `None` until it is asked for.
    tensor: std::cell::OnceCell<Tensor>,
}

impl Seen {
    /// Of rows that see these keys each.
    pub fn new(ranges: Vec<Range<usize>>) -> Self {
        Seen { ranges, hidden: Vec::new(), tensor: std::cell::OnceCell::new() }
    }

    /// The same but for keys in between, by row: ascending ranges. No row at all where there are none.
    #[must_use]
    pub fn but_for(self, hidden: Vec<Vec<Range<usize>>>) -> Self {
        Seen { hidden, ..self }
    }

    /// True if no row sees any key of a block because all of it is hidden.
    pub fn all_hidden(&self, block: &Range<usize>) -> bool {
        let covers = |range: &Range<usize>| range.start <= block.start && block.end <= range.end;
        !self.hidden.is_empty() && self.hidden.iter().all(|row| row.iter().any(covers))
    }

    /// True if some key of a block is hidden from some row.
    fn some_hidden(&self, block: &Range<usize>) -> bool {
        self.hidden.iter().flatten().any(|range| range.start < block.end && block.start < range.end)
    }

    /// From the first key that any row sees to the end of the last.
    pub fn all(&self) -> Range<usize> {
        let start = self.ranges.iter().map(|range| range.start).min().unwrap_or(0);
        start..self.ranges.iter().map(|range| range.end).max().unwrap_or(0)
    }

    /// True if every row sees every key of a block.
    fn whole(&self, block: &Range<usize>) -> bool {
        self.ranges.iter().all(|range| range.start <= block.start && range.end >= block.end)
    }

    /// On the device, sent there once. A context has fewer positions than u32 counts.
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

/// The weights e^(score - max) of `scores`, f32 (kv_heads, group * r, n), of the keys `block` in `dtype`, where `seen` has the
/// r rows of each head and `max` is the greatest score up to here; and the rows' softmax after them. A score s counts as
/// cap * tanh(s / cap) if there is a `cap`.
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
    // The kernels know of a first and a last key only.
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

/// A mask of the keys n of a block that row r of each head sees: u8 (r, n).
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
        // A row without an nth range has an empty one. Ends beyond all keys are cut to what u32 holds.
        let border = |of: fn(&Range<usize>) -> usize| {
            let of_row =
                |row: &Vec<Range<usize>>| row.get(nth).map_or(0, |range| of(range).min(block.end) as u32);
            transfer::upload(seen.hidden.iter().map(of_row).collect(), (rows, 1), device)
        };
        let (start, end) = (border(|range| range.start)?, border(|range| range.end)?);
        // Never both, since a range does not end before it starts.
        let outside = (start.broadcast_gt(&keys)? + end.broadcast_le(&keys)?)?;
        visible = (visible * outside)?;
    }
    Ok(visible)
}

/// `of` (kv_heads, group * r, n) where `mask` (r, n) is set, elsewhere `other`.
fn chosen(mask: &Tensor, of: &Tensor, other: f32) -> Result<Tensor> {
    let (kv_heads, rows, n) = of.dims3()?;
    let by_row = of.reshape((kv_heads, rows / mask.dim(0)?, mask.dim(0)?, n))?;
    let other = Tensor::full(other, (1, 1, 1, 1), of.device())?.broadcast_as(by_row.shape())?;
    mask.broadcast_as(by_row.shape())?.where_cond(&by_row, &other)?.reshape((kv_heads, rows, n))
}

/// The rows' values `out`, f32 (kv_heads, group * r, d), divided by their sums, to which each head's sink, f32 (heads, 1), adds
/// e^(sink - max): (r, heads, d) in `dtype`.
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

/// The rows' sums with each head's sink, and the sink's share of them if there is one, both (kv_heads, group * r, 1).
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
