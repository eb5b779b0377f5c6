//! Attention as Candle matrix products over blocks of rows and keys, on any device and dtype.
//!
//! The same streaming softmax as the CPU kernel's, written in tensor operations: it serves CUDA and Metal, and is the
//! reference that the CPU kernel is tested against. Scores of one block of rows and keys are all that is ever held.

use std::ops::Range;

use candle_core::{D, DType, Device, Result, Tensor};

use super::super::Site;
use crate::products;
use crate::transfer;

/// How large the blocks are.
#[derive(Debug, Clone, Copy)]
pub struct Blocks {
    /// Query positions of a block.
    pub rows: usize,
    /// Scores of a block, which with the rows and heads gives its keys.
    pub scores: usize,
    /// Keys of a block at most.
    pub keys: usize,
}

/// 64 Mi scores are 256 MiB in f32.
pub const BLOCKS: Blocks = Blocks { rows: 512, scores: 64 << 20, keys: usize::MAX };

/// For sums over segments: a table of which key is in which segment is held for a block's keys, and rows may be few.
pub const BLOCKS_OF_SUMS: Blocks = Blocks { keys: 1 << 14, ..BLOCKS };

/// Stands for minus infinity: finite, so that a row that sees nothing of a block yields no NaN, and so low that
/// whatever such a block gathered is wiped out by the first visible key.
const HIDDEN: f32 = -1e30;

/// See [`super::super::run`].
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site, size: Blocks) -> Result<Tensor> {
    let l = q.dim(0)?;
    let mut blocks = Vec::new();
    for start in (0..l).step_by(size.rows) {
        let rows = start..(start + size.rows).min(l);
        let positions: Vec<usize> = rows.clone().map(|row| site.offset + row).collect();
        let q = q.narrow(0, rows.start, rows.len())?;
        let Some(part) = Part::of(&q, &positions, (k, v), 0, site, size)? else {
            candle_core::bail!("attention over no keys")
        };
        blocks.push(part.close(&q, site)?);
    }
    Tensor::cat(&blocks, 0)
}

/// See [`super::super::run_branches`]. The prefix is walked once for the rows of all branches, each tail for its own, and
/// the two are joined.
pub fn branches(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    tails: &[(Tensor, Tensor)],
    site: &Site,
    size: Blocks,
) -> Result<Tensor> {
    let start = site.offset;
    let positions = tails.iter().map(|(k, _)| Ok(start + k.dim(1)? - 1)).collect::<Result<Vec<usize>>>()?;
    let before = Part::of(q, &positions, (k, v), 0, site, size)?;
    let own = tails.iter().zip(&positions).enumerate().map(|(row, ((k, v), &position))| {
        // A token sees itself, so that no tail is without a part.
        match Part::of(&q.narrow(0, row, 1)?, &[position], (k, v), start, site, size)? {
            Some(part) => Ok(part),
            None => candle_core::bail!("attention over no keys"),
        }
    });
    let own = Part::beside(&own.collect::<Result<Vec<_>>>()?, q, k.dim(0)?)?;
    match before {
        Some(before) => before.join(&own)?.close(q, site),
        None => own.close(q, site),
    }
}

/// What rows have gathered of a part of their keys: rows are (kv_heads, group * r) all through.
struct Part {
    /// The greatest score, (kv_heads, group * r, 1).
    max: Tensor,
    /// Of e^(score - max), the same.
    sum: Tensor,
    /// Of e^(score - max) times the value, (kv_heads, group * r, d), f32.
    out: Tensor,
}

impl Part {
    /// Of queries (r, heads, d) at `positions` over keys and values that begin at position `first_key`; `None` where no row
    /// sees any of them.
    fn of(
        q: &Tensor,
        positions: &[usize],
        (k, v): (&Tensor, &Tensor),
        first_key: usize,
        site: &Site,
        size: Blocks,
    ) -> Result<Option<Part>> {
        let mut out: Option<Tensor> = None;
        // Weights are multiplied in the model's dtype, as in the reference implementations; the softmax is in f32.
        let ends = stream(q, positions, k, first_key, site, q.dtype(), size, |weights, keys, factor| {
            let v = v.narrow(1, keys.start, keys.len())?;
            let part = products::scaled(&weights.to_dtype(v.dtype())?, &v, 1.0)?;
            out = Some(match (&out, factor) {
                (Some(out), Some(factor)) => (out.broadcast_mul(factor)? + part)?,
                _ => part,
            });
            Ok(())
        })?;
        Ok(ends.zip(out).map(|((sum, max), out)| Part { max, sum, out }))
    }

    /// The parts of one row each as the part of all of those rows.
    fn beside(parts: &[Part], q: &Tensor, kv_heads: usize) -> Result<Part> {
        let (r, heads, d) = q.dims3()?;
        let group = heads / kv_heads;
        let all = |of: &dyn Fn(&Part) -> &Tensor, width: usize| {
            let rows = parts.iter().map(|part| of(part).reshape((kv_heads, group, 1, width)));
            Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 2)?.reshape((kv_heads, group * r, width))
        };
        Ok(Part { max: all(&|p| &p.max, 1)?, sum: all(&|p| &p.sum, 1)?, out: all(&|p| &p.out, d)? })
    }

    /// The same rows' part of the keys of both.
    fn join(&self, other: &Part) -> Result<Part> {
        let max = self.max.maximum(&other.max)?;
        let (mine, theirs) = ((&self.max - &max)?.exp()?, (&other.max - &max)?.exp()?);
        Ok(Part {
            sum: ((&self.sum * &mine)? + (&other.sum * &theirs)?)?,
            out: (self.out.broadcast_mul(&mine)? + other.out.broadcast_mul(&theirs)?)?,
            max,
        })
    }

    /// The rows' attention, in the shape and dtype of their queries (r, heads, d).
    fn close(&self, q: &Tensor, site: &Site) -> Result<Tensor> {
        let (r, heads, d) = q.dims3()?;
        let (total, _) = close_rows(site, heads, r, &self.max, &self.sum)?;
        let out = self.out.broadcast_div(&total)?.to_dtype(q.dtype())?;
        // (kv_heads, group * r, d) -> (heads, r, d) -> (r, heads, d)
        out.reshape((heads, r, d))?.transpose(0, 1)?.contiguous()
    }
}

/// See [`super::segment_sums`]; f32, on the device of the queries, and nothing comes back from there.
pub fn segment_sums(
    q: &Tensor,
    k: &Tensor,
    site: &Site,
    rows: std::ops::Range<usize>,
    bounds: &[usize],
    size: Blocks,
) -> Result<Tensor> {
    let (_, heads, _) = q.dims3()?;
    let segments = bounds.len().saturating_sub(1);
    let device = q.device();
    // The segments' borders, both (1, segments).
    let borders = match bounds {
        [starts @ .., _] if segments > 0 => Some((
            on_device(starts.iter().copied(), (1, segments), device)?,
            on_device(bounds[1..].iter().copied(), (1, segments), device)?,
        )),
        _ => None,
    };
    let mut all: Option<Tensor> = None;
    for start in rows.clone().step_by(size.rows) {
        let rows = start..(start + size.rows).min(rows.end);
        let r = rows.len();
        let positions: Vec<usize> = rows.clone().map(|row| site.offset + row).collect();
        let q = q.narrow(0, rows.start, r)?;
        let mut sums: Option<Tensor> = None;
        let ends = stream(&q, &positions, k, 0, site, DType::F32, size, |weights, keys, factor| {
            let Some((starts, ends)) = &borders else { return Ok(()) };
            let (kv_heads, rows, n) = weights.dims3()?;
            let keys = on_device(keys, (n, 1), device)?;
            let member = (keys.broadcast_ge(starts)? * keys.broadcast_lt(ends)?)?.to_dtype(DType::F32)?;
            let part = weights.reshape((kv_heads * rows, n))?.matmul(&member)?;
            let part = part.reshape((kv_heads, rows, segments))?;
            sums = Some(match (&sums, factor) {
                (Some(sums), Some(factor)) => (sums.broadcast_mul(factor)? + part)?,
                _ => part,
            });
            Ok(())
        })?;
        let Some((sum, max)) = ends else { candle_core::bail!("attention over no keys") };
        let (total, share) = close_rows(site, heads, r, &max, &sum)?;
        let sink = match share {
            Some(share) => share.reshape((heads, r))?.sum_keepdim(1)?,
            None => Tensor::zeros((heads, 1), DType::F32, device)?,
        };
        let part = match sums {
            Some(sums) => {
                let mass = sums.broadcast_div(&total)?.reshape((heads, r, segments))?.sum(1)?;
                Tensor::cat(&[sink, mass], 1)?
            }
            None => sink,
        };
        all = Some(match all {
            Some(all) => (all + part)?,
            None => part,
        });
    }
    all.ok_or_else(|| candle_core::Error::Msg("sums over no rows".to_owned()))
}

/// Positions as a tensor. A context has fewer of them than u32 counts.
fn on_device(of: impl Iterator<Item = usize>, shape: (usize, usize), device: &Device) -> Result<Tensor> {
    transfer::upload(of.map(|position| position as u32).collect(), shape, device)
}

/// Hides the scores (kv_heads, group, r, n) of those keys of a block that a row does not see, on the device.
fn hide(scores: &Tensor, visible: &[Range<usize>], block: &Range<usize>) -> Result<Tensor> {
    let (device, r) = (scores.device(), visible.len());
    let keys = on_device(block.clone(), (1, block.len()), device)?;
    let ends = on_device(visible.iter().map(|v| v.end), (r, 1), device)?;
    let mut seen = ends.broadcast_gt(&keys)?; // (r, n)
    if visible.iter().any(|v| v.start > block.start) {
        let starts = on_device(visible.iter().map(|v| v.start), (r, 1), device)?;
        seen = (seen * starts.broadcast_le(&keys)?)?;
    }
    let hidden = Tensor::full(HIDDEN, (1, 1, 1, 1), device)?;
    seen.broadcast_as(scores.shape())?.where_cond(scores, &hidden.broadcast_as(scores.shape())?)
}

/// Walks those of the keys that begin at position `first_key` which rows at `positions` with queries (r, heads, d) see.
/// `fold` gets the weights e^(s - running max) of a block (kv_heads, group * r, n) f32, the place of its keys in `k`, and,
/// from the second block on, the factor (kv_heads, group * r, 1) for what it has gathered before. Returns each row's sum
/// and maximum, (kv_heads, group * r, 1), or `None` where no row sees any of the keys.
#[expect(
    clippy::too_many_arguments,
    reason = "the rows, the keys and how to walk them; each has one caller a kind"
)]
fn stream(
    q: &Tensor,
    positions: &[usize],
    k: &Tensor,
    first_key: usize,
    site: &Site,
    product_dtype: DType,
    size: Blocks,
    mut fold: impl FnMut(&Tensor, std::ops::Range<usize>, Option<&Tensor>) -> Result<()>,
) -> Result<Option<(Tensor, Tensor)>> {
    let (r, heads, d) = q.dims3()?;
    let (kv_heads, held, _) = k.dims3()?;
    let group = heads / kv_heads;
    // (r, heads, d) -> (kv_heads, group * r, d)
    let q = q.transpose(0, 1)?.contiguous()?.reshape((kv_heads, group * r, d))?;
    let q = q.to_dtype(product_dtype)?;
    let visible: Vec<Range<usize>> = positions.iter().map(|&p| site.visible(p)).collect();
    let start = visible.iter().map(|v| v.start).min().unwrap_or(0).max(first_key);
    let end = visible.iter().map(|v| v.end).max().unwrap_or(0).min(first_key + held);
    let step = (size.scores / (heads * r)).clamp(1, size.keys);
    let mut state: Option<(Tensor, Tensor)> = None;
    for start in (start..end).step_by(step) {
        let block = start..(start + step).min(end);
        let keys = block.start - first_key..block.end - first_key;
        let n = block.len();
        // A view where the dtype allows: products take keys as they lie in the cache, (kv_heads, d, n).
        let k = k.narrow(1, keys.start, n)?.to_dtype(product_dtype)?.transpose(1, 2)?;
        let mut scores = products::scaled(&q, &k, site.scale)?;
        if let Some(cap) = site.softcap {
            scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        if visible.iter().any(|v| v.start > block.start || v.end < block.end) {
            let by_row = scores.reshape((kv_heads, group, r, n))?;
            scores = hide(&by_row, &visible, &block)?.reshape((kv_heads, group * r, n))?;
        }
        let block_max = scores.max_keepdim(D::Minus1)?;
        let (max, factor) = match &state {
            None => (block_max, None),
            Some((_, max)) => {
                let new = max.maximum(&block_max)?;
                let factor = (max - &new)?.exp()?;
                (new, Some(factor))
            }
        };
        let weights = scores.broadcast_sub(&max)?.exp()?;
        let block_sum = weights.sum_keepdim(D::Minus1)?;
        let sum = match (&state, &factor) {
            (Some((sum, _)), Some(factor)) => ((sum * factor)? + block_sum)?,
            _ => block_sum,
        };
        fold(&weights, keys, factor.as_ref())?;
        state = Some((sum, max));
    }
    Ok(state)
}

/// The softmax totals of the rows (same shape as `sum`) and, with sinks, the sinks' share of each.
fn close_rows(
    site: &Site,
    heads: usize,
    r: usize,
    max: &Tensor,
    sum: &Tensor,
) -> Result<(Tensor, Option<Tensor>)> {
    let Some(sinks) = &site.sinks else { return Ok((sum.clone(), None)) };
    let sinks = sinks.tensor().broadcast_as((heads, r))?.contiguous()?.reshape(sum.dims())?;
    let sink = (sinks - max)?.exp()?;
    let total = (sum + &sink)?;
    let share = (sink / &total)?;
    Ok((total, Some(share)))
}
