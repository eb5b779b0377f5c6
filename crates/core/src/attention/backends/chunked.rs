//! Blocked attention as matrix products, on any device and dtype.
//!
//! Uses the CPU kernel's streaming softmax: one kernel of [`crate::fused`] on CUDA, tensor operations elsewhere. Serves CUDA and
//! Metal, and is the reference in the tests of the CPU kernel. Holds the scores of one block of rows and keys at a time.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::kernel::{Kernel, OverRows, RowSums};
use crate::attention::call::{Attended, Call};
use crate::attention::site::Hidden;
use crate::attention::{Sinks, Site};
use crate::fused::online_softmax::OnlineSoftmax;
use crate::fused::products;
use crate::fused::softmax::{self, Seen};
use crate::transfer;

#[derive(Debug, Clone, Copy)]
pub struct Blocks {
    pub rows: usize,
    /// Scores per block; divided by rows and heads, this gives the keys per block.
    pub scores: usize,
    pub keys: usize,
}

/// 256 MiB of f32 scores.
pub const BLOCKS: Blocks = Blocks { rows: 512, scores: 64 << 20, keys: usize::MAX };

/// Maximum keys per block of segment sums, which hold a (keys, segments) membership matrix.
const KEYS_OF_SUMS: usize = 1 << 14;

pub struct Chunked(pub Blocks);

impl Kernel for Chunked {
    fn name(&self) -> &'static str {
        "chunked matrix products"
    }

    /// The rows of all tails attend to the prefix in one pass and to their own tail separately; the partial results are merged.
    fn attend(&self, call: Call<'_>) -> Result<Attended> {
        let call = call.relative();
        let Call { q, tails, site, positions, hidden, borders, .. } = &call;
        let asked = Asked::of(borders, q.device())?;
        let part = |rows: Range<usize>, (k, v): (&Tensor, &Tensor), first_key| {
            let q = q.narrow(0, rows.start, rows.len())?;
            let asked = asked.as_ref().map(|asked| asked.of_rows(rows.clone()));
            let rows = VisibleRows { positions: &positions[rows.clone()], hidden: &hidden.of_rows(rows) };
            PartialSoftmax::of(&q, rows, (k, v), first_key, site, asked.as_ref(), self.0)
        };
        // Each token sees itself, so every tail has a partial result. Hidden keys are masked but visited.
        let seen = |part: Option<PartialSoftmax>| part.ok_or_else(no_keys);
        let (all, heads) = (q.dim(0)?, q.dim(1)?);
        let whole = match call.prefix {
            None if all > 1 => {
                let blocks = (0..all).step_by(self.0.rows).map(|start| {
                    let rows = start..(start + self.0.rows).min(all);
                    seen(part(rows.clone(), tails[0], 0)?)?
                        .normalise(&q.narrow(0, rows.start, rows.len())?, site)
                });
                return Ok((Tensor::cat(&blocks.collect::<Result<Vec<_>>>()?, 0)?, Vec::new()));
            }
            None => seen(part(0..1, tails[0], 0)?)?,
            Some((k, v)) => {
                let before = part(0..all, (k, v), 0)?;
                let own =
                    tails.iter().enumerate().map(|(row, tail)| seen(part(row..row + 1, *tail, site.offset)?));
                let own = PartialSoftmax::beside(&own.collect::<Result<Vec<_>>>()?, q, k.dim(0)?)?;
                match before {
                    Some(before) => before.join(&own)?,
                    None => own,
                }
            }
        };
        let sums = match asked {
            Some(_) => whole.recorded(all, heads, site)?,
            None => Vec::new(),
        };
        let sums = borders.iter().zip(sums).map(|(borders, sums)| match borders {
            Some(borders) => Ok(Some(sums.narrow(1, 0, borders.len().max(1))?)),
            None => Ok(None),
        });
        let sums = sums.collect::<Result<_>>()?;
        Ok((whole.normalise(q, site)?, sums))
    }

    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
        segment_sums(q, k, of, Blocks { keys: self.0.keys.min(KEYS_OF_SUMS), ..self.0 })
    }
}

fn no_keys() -> candle_core::Error {
    candle_core::Error::msg("attention over no keys")
}

struct Asked {
    /// Per row: starts and ends of its segments, both u32 (1, segments), padded with empty segments. `None` without segments.
    rows: Vec<Option<(Tensor, Tensor)>>,
    segments: usize,
}

impl Asked {
    fn of(borders: &[Option<Vec<usize>>], device: &Device) -> Result<Option<Self>> {
        if borders.iter().all(Option::is_none) {
            return Ok(None);
        }
        let borders = || borders.iter().map(|borders| borders.as_deref().unwrap_or(&[]));
        let segments = borders().map(|borders| borders.len().saturating_sub(1)).max().unwrap_or(0);
        let row = |borders: &[usize]| {
            let end = borders.last().copied().unwrap_or(0);
            let at = |i: usize| borders.get(i).copied().unwrap_or(end);
            let starts = on_device((0..segments).map(at), (1, segments), device)?;
            let ends = on_device((0..segments).map(|i| at(i + 1)), (1, segments), device)?;
            Ok::<_, candle_core::Error>((starts, ends))
        };
        let rows = borders().map(|borders| (segments > 0).then(|| row(borders)).transpose());
        Ok(Some(Asked { rows: rows.collect::<Result<_>>()?, segments }))
    }

    fn of_rows(&self, rows: Range<usize>) -> Asked {
        Asked { rows: self.rows[rows].to_vec(), segments: self.segments }
    }

    /// Segment sums (kv_heads, group * r, segments) of the weights (kv_heads, group * r, n), f32, of the keys at positions `keys`.
    fn sums(&self, weights: &Tensor, keys: Range<usize>) -> Result<Tensor> {
        let step = KEYS_OF_SUMS;
        if keys.len() > step {
            let first = self.sums(&weights.narrow(2, 0, step)?, keys.start..keys.start + step)?;
            let rest = weights.narrow(2, step, keys.len() - step)?;
            return first + self.sums(&rest, keys.start + step..keys.end)?;
        }
        let (kv_heads, rows, n) = weights.dims3()?;
        let r = self.rows.len();
        let group = rows / r;
        let places = on_device(keys, (n, 1), weights.device())?;
        let by_row = weights.reshape((kv_heads, group, r, n))?;
        let of_row = |(row, borders): (usize, &Option<(Tensor, Tensor)>)| {
            let Some((starts, ends)) = borders else {
                return Tensor::zeros((kv_heads, group, 1, 0), DType::F32, weights.device());
            };
            let weights = by_row.narrow(2, row, 1)?.contiguous()?.reshape((kv_heads * group, n))?;
            weights.matmul(&members(&places, starts, ends)?)?.reshape((kv_heads, group, 1, self.segments))
        };
        let sums = self.rows.iter().enumerate().map(of_row).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&sums, 2)?.reshape((kv_heads, rows, self.segments))
    }
}

/// Membership of the keys at `places` (n, 1) in the segments, f32 (n, segments).
fn members(places: &Tensor, starts: &Tensor, ends: &Tensor) -> Result<Tensor> {
    (places.broadcast_ge(starts)? * places.broadcast_lt(ends)?)?.to_dtype(DType::F32)
}

/// Positions of the query rows and the keys hidden from each.
#[derive(Clone, Copy)]
struct VisibleRows<'a> {
    positions: &'a [usize],
    hidden: &'a Hidden,
}

/// Softmax state of rows over part of their keys; rows are (kv_heads, group * r).
struct PartialSoftmax {
    softmax: OnlineSoftmax,
    /// Sum of e^(score - max) * value, (kv_heads, group * r, d), f32.
    out: Tensor,
    /// Sum of e^(score - max) per segment, (kv_heads, group * r, segments), f32, if requested.
    sums: Option<Tensor>,
    hidden: bool,
}

impl PartialSoftmax {
    /// For queries (r, heads, d) over keys and values starting at position `first_key`. `None` if no row sees any of them.
    fn of(
        q: &Tensor,
        rows: VisibleRows<'_>,
        (k, v): (&Tensor, &Tensor),
        first_key: usize,
        site: &Site,
        asked: Option<&Asked>,
        size: Blocks,
    ) -> Result<Option<PartialSoftmax>> {
        let mut out: Option<Tensor> = None;
        let mut sums: Option<Tensor> = None;
        // Weights are multiplied in the model's dtype, as in the reference implementations; softmax and segment sums are f32.
        let (of_scores, of_weights) = (q.dtype(), if asked.is_some() { DType::F32 } else { q.dtype() });
        let dtypes = (of_scores, of_weights);
        let ends = stream(q, rows, k, first_key, site, dtypes, size, |weights, keys, factor| {
            if let Some(asked) = asked.filter(|asked| asked.segments > 0) {
                let part = asked.sums(weights, first_key + keys.start..first_key + keys.end)?;
                sums = Some(added(sums.as_ref(), factor, part)?);
            }
            let v = v.narrow(1, keys.start, keys.len())?;
            let part = products::scaled(&weights.to_dtype(of_scores)?, &v, 1.0)?;
            out = Some(added(out.as_ref(), factor, part)?);
            Ok(())
        })?;
        Ok(ends.zip(out).map(|(softmax, out)| PartialSoftmax {
            softmax,
            out,
            sums,
            hidden: !rows.hidden.is_empty(),
        }))
    }

    fn beside(parts: &[PartialSoftmax], q: &Tensor, kv_heads: usize) -> Result<PartialSoftmax> {
        let (r, heads, _) = q.dims3()?;
        let group = heads / kv_heads;
        let all = |of: Vec<&Tensor>| {
            let width = of.first().map_or(Ok(0), |first| first.dim(2))?;
            let rows = of.iter().map(|rows| rows.reshape((kv_heads, group, 1, width)));
            Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 2)?.reshape((kv_heads, group * r, width))
        };
        let each = |of: fn(&PartialSoftmax) -> &Tensor| all(parts.iter().map(of).collect());
        let (max, sum) = (each(|part| &part.softmax.max)?, each(|part| &part.softmax.sum)?);
        let sums: Option<Vec<&Tensor>> = parts.iter().map(|part| part.sums.as_ref()).collect();
        Ok(PartialSoftmax {
            softmax: OnlineSoftmax { max, sum, rescale: None },
            out: each(|part| &part.out)?,
            sums: sums.filter(|sums| !sums.is_empty()).map(all).transpose()?,
            hidden: parts.iter().any(|part| part.hidden),
        })
    }

    /// Merges two partials of the same rows over disjoint keys.
    fn join(&self, other: &PartialSoftmax) -> Result<PartialSoftmax> {
        let max = self.softmax.max.maximum(&other.softmax.max)?;
        let (mine, theirs) = ((&self.softmax.max - &max)?.exp()?, (&other.softmax.max - &max)?.exp()?);
        let sum = ((&self.softmax.sum * &mine)? + (&other.softmax.sum * &theirs)?)?;
        let out = (self.out.broadcast_mul(&mine)? + other.out.broadcast_mul(&theirs)?)?;
        let sums = match (&self.sums, &other.sums) {
            (Some(own), Some(others)) => Some((own.broadcast_mul(&mine)? + others.broadcast_mul(&theirs)?)?),
            _ => None,
        };
        let hidden = self.hidden || other.hidden;
        Ok(PartialSoftmax { softmax: OnlineSoftmax { max, sum, rescale: None }, out, sums, hidden })
    }

    /// Per row (`r` of them): sums of its weights over the sinks and the segments, (heads, 1 + segments).
    fn recorded(&self, r: usize, heads: usize, site: &Site) -> Result<Vec<Tensor>> {
        let ends = settled(&self.softmax, self.hidden && site.sinks.is_some())?;
        let (total, share) = softmax::total(&ends, site.sinks.as_ref().map(Sinks::tensor), heads)?;
        let sink = match share {
            Some(share) => share,
            None => total.zeros_like()?,
        };
        let all = match &self.sums {
            Some(sums) => Tensor::cat(&[sink, sums.broadcast_div(&total)?], 2)?,
            None => sink,
        };
        // (kv_heads, group * r, 1 + segments) -> (heads, r, 1 + segments)
        let all = all.reshape((heads, r, all.dim(2)?))?;
        (0..r).map(|row| all.narrow(1, row, 1)?.squeeze(1)?.contiguous()).collect()
    }

    fn normalise(&self, q: &Tensor, site: &Site) -> Result<Tensor> {
        let ends = settled(&self.softmax, self.hidden && site.sinks.is_some())?;
        softmax::normalise(&self.out, &ends, site.sinks.as_ref().map(Sinks::tensor), q.dim(1)?, q.dtype())
    }
}

/// Adds a block's part to the sums of earlier ones, which `factor` rescales.
fn added(sums: Option<&Tensor>, factor: Option<&Tensor>, part: Tensor) -> Result<Tensor> {
    match (sums, factor) {
        (Some(sums), Some(factor)) => sums.broadcast_mul(factor)? + part,
        _ => Ok(part),
    }
}

/// A row that sees only sinks has no maximum score; a finite maximum gives all weight to the sinks.
fn settled(ends: &OnlineSoftmax, may_see_nothing: bool) -> Result<OnlineSoftmax> {
    if !may_see_nothing {
        return Ok(ends.clone());
    }
    let some = ends.max.gt(f64::from(softmax::HIDDEN) / 2.0)?;
    let max = some.where_cond(&ends.max, &ends.max.zeros_like()?)?;
    Ok(OnlineSoftmax { max, ..ends.clone() })
}

/// Softmax weights of `rows`, f32 (heads, rows, n), of the n keys that any of them sees, which are a range of `k`.
fn weights_of(q: &Tensor, k: &Tensor, site: &Site, rows: Range<usize>) -> Result<(Tensor, Range<usize>)> {
    let (heads, r) = (q.dim(1)?, rows.len());
    let positions: Vec<usize> = rows.clone().map(|row| site.offset + row).collect();
    let seen = VisibleRows { positions: &positions, hidden: &Hidden::at(site, &positions) };
    let mut all: Option<(Tensor, Range<usize>)> = None;
    // A single block, so that the normaliser is known.
    let size = Blocks { rows: r, scores: usize::MAX, keys: usize::MAX };
    let q = q.narrow(0, rows.start, r)?;
    let ends = stream(&q, seen, k, 0, site, (DType::F32, DType::F32), size, |weights, keys, _| {
        all = Some((weights.clone(), keys));
        Ok(())
    })?;
    let (Some(ends), Some((weights, block))) = (ends, all) else { return Err(no_keys()) };
    let ends = settled(&ends, !seen.hidden.is_empty() && site.sinks.is_some())?;
    let (total, _) = softmax::total(&ends, site.sinks.as_ref().map(Sinks::tensor), heads)?;
    // (kv_heads, group * r, n) -> (heads, r, n)
    Ok((weights.broadcast_div(&total)?.reshape((heads, r, block.len()))?, block))
}

pub fn row_weights(q: &Tensor, k: &Tensor, site: &Site, row: usize) -> Result<Vec<Vec<f32>>> {
    let keys = k.dim(1)?;
    let (weights, block) = weights_of(q, k, site, row..row + 1)?;
    let weights: Vec<f32> = transfer::fetch(&weights)?;
    let of_head = |part: &[f32]| {
        let mut whole = vec![0.0; keys];
        whole[block.clone()].copy_from_slice(part);
        whole
    };
    Ok(weights.chunks_exact(block.len()).map(of_head).collect())
}

/// See [`super::key_weights`].
pub fn key_weights(
    q: &Tensor,
    k: &Tensor,
    site: &Site,
    rows: Range<usize>,
    over: OverRows,
) -> Result<Tensor> {
    over_rows(q, k, site, rows, over, |weights, _| match over {
        OverRows::Sum => weights.sum(1),
        OverRows::Largest => weights.max(1),
    })
}

/// Each key's softmax weight from `rows` (relative to `site.offset`), times the row's of `by`, f32 (rows), summed: f32 (heads, keys).
pub fn weighted_keys(q: &Tensor, k: &Tensor, site: &Site, rows: Range<usize>, by: &Tensor) -> Result<Tensor> {
    let first = rows.start;
    over_rows(q, k, site, rows, OverRows::Sum, |weights, rows| {
        let by = by.narrow(0, rows.start - first, rows.len())?.unsqueeze(1)?;
        weights.broadcast_mul(&by)?.sum(1)
    })
}

/// Softmax weights of blocks of rows, reduced by `reduce`, f32 (heads, rows, n) -> (heads, n), and merged: f32 (heads, keys).
fn over_rows(
    q: &Tensor,
    k: &Tensor,
    site: &Site,
    rows: Range<usize>,
    over: OverRows,
    reduce: impl Fn(Tensor, Range<usize>) -> Result<Tensor>,
) -> Result<Tensor> {
    let (heads, keys) = (q.dim(1)?, k.dim(1)?);
    // A quarter of the scores of attention itself, because several tensors of this size live at once.
    let step = (BLOCKS.scores / 4 / (heads * keys).max(1)).clamp(1, BLOCKS.rows);
    let mut all = Tensor::zeros((heads, keys), DType::F32, q.device())?;
    for start in rows.clone().step_by(step) {
        let rows = start..(start + step).min(rows.end);
        let (weights, block) = weights_of(q, k, site, rows.clone())?;
        let part = reduce(weights, rows)?;
        all = over.merged(&all, &part.pad_with_zeros(1, block.start, keys - block.end)?)?;
    }
    Ok(all)
}

/// Sums of weighted values per segment.
pub struct ValueSums {
    /// Sum over the segment's keys j of A_ij * v_j, f32 (heads, segments, rows, head_dim).
    pub read: Tensor,
    /// Sum of A_ij * length of key j, f32 (heads, segments, rows); zeros without lengths.
    pub long: Tensor,
}

impl Chunked {
    /// See [`super::value_sums`]; f32, on the device of the queries.
    pub fn values_and_lengths(
        &self,
        [q, k, v]: [&Tensor; 3],
        lengths: Option<&Tensor>,
        of: &RowSums<'_>,
    ) -> Result<ValueSums> {
        let RowSums { site, rows, bounds } = of;
        let (size, heads, d) = (self.0, q.dim(1)?, q.dim(2)?);
        let (r, kv_heads, positions) = (rows.len(), k.dim(0)?, of.positions());
        let q = q.narrow(0, rows.start, r)?;
        let rows = VisibleRows { positions: &positions, hidden: &Hidden::at(site, &positions) };
        let segments = of.segments();
        // Lengths are appended to the values, one column per head of the group, so that one product reads the weights once.
        let group = heads / kv_heads;
        let wide = d + if lengths.is_some() { group } else { 0 };
        let mut sums: Vec<Option<Tensor>> = vec![None; segments];
        let ends = stream(&q, rows, k, 0, site, (DType::F32, DType::F32), size, |weights, keys, factor| {
            for sum in sums.iter_mut().flatten() {
                if let Some(factor) = factor {
                    *sum = sum.broadcast_mul(factor)?;
                }
            }
            for (segment, ends) in bounds.windows(2).enumerate() {
                let (from, to) = (ends[0].max(keys.start), ends[1].min(keys.end));
                if from >= to {
                    continue;
                }
                // (kv_heads, group * r, n)
                let weights = weights.narrow(2, from - keys.start, to - from)?.contiguous()?;
                let mut values = v.narrow(1, from, to - from)?.to_dtype(DType::F32)?;
                if let Some(lengths) = lengths {
                    let lengths = lengths.narrow(1, from, to - from)?.contiguous()?;
                    let lengths = lengths.reshape((kv_heads, group, to - from))?.transpose(1, 2)?;
                    values = Tensor::cat(&[values, lengths], 2)?;
                }
                let part = weights.matmul(&values.contiguous()?)?;
                sums[segment] = Some(match &sums[segment] {
                    Some(sum) => (sum + part)?,
                    None => part,
                });
            }
            Ok(())
        })?;
        let Some(ends) = ends else { return Err(no_keys()) };
        let ends = settled(&ends, !rows.hidden.is_empty() && site.sinks.is_some())?;
        let (total, _) = softmax::total(&ends, site.sinks.as_ref().map(Sinks::tensor), heads)?;
        let total = total.reshape((heads, r, 1))?;
        let sums = sums.into_iter().map(|sum| match sum {
            Some(sum) => sum.reshape((heads, r, wide))?.broadcast_div(&total),
            None => Tensor::zeros((heads, r, wide), DType::F32, q.device()),
        });
        let sums = match sums.collect::<Result<Vec<_>>>()? {
            none if none.is_empty() => Tensor::zeros((heads, 0, r, wide), DType::F32, q.device())?,
            sums => Tensor::stack(&sums, 1)?,
        };
        let own = |head: usize| sums.narrow(0, head, 1)?.narrow(3, d + head % group, 1)?.squeeze(3);
        let long = match lengths {
            Some(_) => Tensor::cat(&(0..heads).map(own).collect::<Result<Vec<_>>>()?, 0)?,
            None => Tensor::zeros((heads, segments, r), DType::F32, q.device())?,
        };
        Ok(ValueSums { read: sums.narrow(3, 0, d)?.contiguous()?, long })
    }
}

/// See [`super::segment_sums`]. Returns f32 on the queries' device, without a device-to-host transfer.
fn segment_sums(q: &Tensor, k: &Tensor, of: &RowSums<'_>, size: Blocks) -> Result<Tensor> {
    let RowSums { site, rows, bounds } = of;
    let (heads, segments) = (q.dim(1)?, of.segments());
    let device = q.device();
    let borders = match *bounds {
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
        let dtypes = (DType::F32, DType::F32);
        let rows = VisibleRows { positions: &positions, hidden: &Hidden::at(site, &positions) };
        let ends = stream(&q, rows, k, 0, site, dtypes, size, |weights, keys, factor| {
            let Some((starts, ends)) = &borders else { return Ok(()) };
            let (kv_heads, rows, n) = weights.dims3()?;
            let member = members(&on_device(keys, (n, 1), device)?, starts, ends)?;
            let part = weights.reshape((kv_heads * rows, n))?.matmul(&member)?;
            let part = part.reshape((kv_heads, rows, segments))?;
            sums = Some(added(sums.as_ref(), factor, part)?);
            Ok(())
        })?;
        let Some(ends) = ends else { return Err(no_keys()) };
        let ends = settled(&ends, !rows.hidden.is_empty() && site.sinks.is_some())?;
        let (total, share) = softmax::total(&ends, site.sinks.as_ref().map(Sinks::tensor), heads)?;
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

fn on_device(of: impl Iterator<Item = usize>, shape: (usize, usize), device: &Device) -> Result<Tensor> {
    transfer::upload(of.map(|position| position as u32).collect(), shape, device)
}

/// Iterates over the blocks of keys (starting at position `first_key`) visible to `rows` with queries (r, heads, d).
/// `dtypes`: of the scores and of the weights. `fold` gets a block's weights e^(s - running max), (kv_heads, group * r, n), the range
/// of its keys in `k` and, from the second block on, the rescale factor (kv_heads, group * r, 1) of its accumulators.
/// Returns `None` if no row sees any key.
#[expect(
    clippy::too_many_arguments,
    reason = "the rows, the keys and how to walk them; each has one caller a kind"
)]
fn stream(
    q: &Tensor,
    rows: VisibleRows<'_>,
    k: &Tensor,
    first_key: usize,
    site: &Site,
    (of_scores, of_weights): (DType, DType),
    size: Blocks,
    mut fold: impl FnMut(&Tensor, Range<usize>, Option<&Tensor>) -> Result<()>,
) -> Result<Option<OnlineSoftmax>> {
    let (r, heads, d) = q.dims3()?;
    let (kv_heads, held, _) = k.dims3()?;
    let group = heads / kv_heads;
    // (r, heads, d) -> (kv_heads, group * r, d)
    let q = q.transpose(0, 1)?.contiguous()?.reshape((kv_heads, group * r, d))?;
    let q = q.to_dtype(of_scores)?;
    let seen = Seen::new(rows.positions.iter().map(|&p| site.visible(p)).collect());
    let seen = seen.but_for(rows.hidden.rows().to_vec());
    let all = seen.all();
    let (start, end) = (all.start.max(first_key), all.end.min(first_key + held));
    let step = (size.scores / (heads * r)).clamp(1, size.keys);
    let mut ends: Option<OnlineSoftmax> = None;
    for start in (start..end).step_by(step) {
        let block = start..start.saturating_add(step).min(end);
        // Rows that see only sinks still need a softmax state, so the last block is always processed.
        if seen.all_hidden(&block) && (ends.is_some() || block.end < end) {
            continue;
        }
        let keys = block.start - first_key..block.end - first_key;
        // A view if the dtype matches: products take the cache's key layout as (kv_heads, d, n).
        let k = k.narrow(1, keys.start, keys.len())?.to_dtype(of_scores)?.transpose(1, 2)?;
        let scores = products::scaled(&q, &k, site.scale)?;
        let (weights, now) = softmax::update(scores, &seen, block, site.softcap, ends.as_ref(), of_weights)?;
        fold(&weights, keys, now.rescale.as_ref())?;
        ends = Some(now);
    }
    Ok(ends)
}
