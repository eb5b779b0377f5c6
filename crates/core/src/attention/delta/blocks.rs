//! Implicit attention by Candle operations, on any device.

use candle_core::{D, Result, Tensor};

use super::block::Rule;
use super::gather::pieces;
use super::history::{History, PANEL};
#[cfg(feature = "cuda")]
use crate::fused::cuda::delta::{Rows, Written};

/// Processes the normalised queries `q` (key_heads, r, key_dim) from the last row back to the first key; see [`super::segment_sums`] and
/// [`super::segment_sums_by_row`] (`by_row`). No device-to-host transfer.
pub(super) fn walk(
    q: &Tensor,
    first_row: usize,
    history: &History,
    bounds: &[usize],
    value_heads: usize,
    by_row: bool,
) -> Result<Tensor> {
    let (key_heads, r, key_dim) = q.dims3()?;
    let group = value_heads / key_heads;
    let q = served(q, value_heads)?;
    let mut gathered = Gathered { bounds, rows: r, by_row, places: vec![None; bounds.len()] };
    let end = first_row + r;
    // Active rows, the last ones: (value_heads, begun, key_dim).
    let mut w: Option<Tensor> = None;
    let panels = (0..end).step_by(PANEL).rev();
    for panel in panels {
        let blocks = history.blocks(panel..end.min(panel + PANEL))?;
        let c = blocks.c;
        let from_start = blocks.log_decay.exp()?; // (n * value_heads, c, 1)
        let to_end = blocks.to_end()?.contiguous()?; // (n * value_heads, 1, c)
        for i in (0..blocks.n).rev() {
            let at = panel + i * c;
            let part = |x: &Tensor| blocks.part(x, i);
            let decay = part(&from_start)?; // (value_heads, c, 1)

            // 1. Start the rows inside the block: they see it up to themselves, later rows see all of it.
            let inside = at.max(first_row)..end.min(at + c);
            let mut seen = part(&to_end)?;
            let mut kept = decay.narrow(1, c - 1, 1)?;
            if !inside.is_empty() {
                let n = inside.len();
                let begin = q.narrow(1, inside.start - first_row, n)?;
                let own_seen = part(&blocks.pairwise)?.narrow(1, inside.start - at, n)?;
                let own_kept = decay.narrow(1, inside.start - at, n)?;
                match &w {
                    None => (w, seen, kept) = (Some(begin.contiguous()?), own_seen.contiguous()?, own_kept),
                    Some(after) => {
                        let later = after.dim(1)?;
                        let repeat = |x: &Tensor| x.broadcast_as((value_heads, later, x.dim(2)?));
                        seen = Tensor::cat(&[own_seen, repeat(&seen)?], 1)?;
                        kept = Tensor::cat(&[own_kept, repeat(&kept)?], 1)?;
                        w = Some(Tensor::cat(&[&begin, after], 1)?);
                    }
                }
            }
            let Some(begun) = &w else { continue };
            let m = begun.dim(1)?;

            // 2. Weights of the block: (value_heads, begun, c). Each key head serves `group` consecutive value heads.
            let k = part(&blocks.k)?; // (key_heads, c, key_dim)
            let weights = begun
                .reshape((key_heads, group * m, key_dim))?
                .matmul(&k.transpose(1, 2)?)?
                .reshape((value_heads, m, c))?
                .broadcast_mul(&seen)?
                .matmul(&part(&blocks.transform)?)?;
            gathered.add(&weights, at)?;

            // 3. Propagate the rows to earlier keys.
            if at > 0 {
                let carried = begun.broadcast_mul(&kept)?;
                w = Some(match history.rule {
                    Rule::Mamba2 => carried,
                    Rule::Delta => {
                        let taken = weights
                            .broadcast_mul(&decay.transpose(1, 2)?)?
                            .reshape((key_heads, group * m, c))?
                            .matmul(&k)?
                            .reshape((value_heads, m, key_dim))?;
                        (carried - taken)?
                    }
                });
            }
        }
    }
    gathered.finish()
}

/// Repeats each key head of (key_heads, r, key_dim) for the value heads that it serves.
fn served(q: &Tensor, value_heads: usize) -> Result<Tensor> {
    let (key_heads, r, key_dim) = q.dims3()?;
    let each = (key_heads, value_heads / key_heads, r, key_dim);
    q.unsqueeze(1)?.broadcast_as(each)?.contiguous()?.reshape((value_heads, r, key_dim))
}

/// [`walk`] by our kernels: two launches per panel of keys.
#[cfg(feature = "cuda")]
pub(super) fn walk_on_card(
    q: &Tensor,
    first_row: usize,
    history: &History,
    bounds: &[usize],
    value_heads: usize,
    by_row: bool,
) -> Result<Tensor> {
    let end = first_row + q.dim(1)?;
    let mut rows = Rows::new(served(q, value_heads)?, first_row, bounds)?;
    for start in (0..end).step_by(PANEL).rev() {
        let [k, g, beta] = history.part(start..end.min(start + PANEL))?;
        rows.back(start, &Written { k: &k, g: &g, beta: &beta })?;
    }
    let [signed, sizes] = rows.sums()?;
    shares(&if by_row { signed } else { signed.sum(2)? }, &sizes, by_row)
}

struct Gathered<'a> {
    bounds: &'a [usize],
    rows: usize,
    by_row: bool,
    /// One per segment; the last for keys outside all segments.
    places: Vec<Option<SegmentTotals>>,
}

#[derive(Clone)]
struct SegmentTotals {
    /// Summed weights: (value_heads), or by row (value_heads, rows).
    signed: Tensor,
    /// Summed |weight|: (value_heads, rows).
    sizes: Tensor,
}

impl Gathered<'_> {
    /// Adds the weights (value_heads, begun, c) of the keys from `at` on; the rows are the last `begun`.
    fn add(&mut self, weights: &Tensor, at: usize) -> Result<()> {
        let (_, begun, c) = weights.dims3()?;
        let all_sizes = weights.abs()?.pad_with_zeros(1, self.rows - begun, 0)?;
        for (segment, keys) in pieces(self.bounds, at..at + c) {
            let of_keys = |x: &Tensor| x.narrow(2, keys.start - at, keys.len());
            let signed = match self.by_row {
                true => of_keys(weights)?.sum(D::Minus1)?.pad_with_zeros(1, self.rows - begun, 0)?,
                false => of_keys(weights)?.sum((1, 2))?,
            };
            let sizes = of_keys(&all_sizes)?.sum(D::Minus1)?;
            let outside = self.places.len() - 1;
            let place = &mut self.places[segment.unwrap_or(outside)];
            *place = Some(match place {
                Some(before) => {
                    SegmentTotals { signed: (&before.signed + signed)?, sizes: (&before.sizes + sizes)? }
                }
                None => SegmentTotals { signed, sizes },
            });
        }
        Ok(())
    }

    /// (2, value_heads, segments)
    fn finish(self) -> Result<Tensor> {
        let Some(SegmentTotals { signed, sizes }) = self.places.iter().flatten().next() else {
            candle_core::bail!("implicit attention over no keys");
        };
        let nothing = SegmentTotals { signed: signed.zeros_like()?, sizes: sizes.zeros_like()? };
        let places: Vec<&SegmentTotals> =
            self.places.iter().map(|place| place.as_ref().unwrap_or(&nothing)).collect();
        let sizes = Tensor::stack(&places.iter().map(|p| &p.sizes).collect::<Vec<_>>(), 0)?;
        let signed = Tensor::stack(&places.iter().map(|p| &p.signed).collect::<Vec<_>>(), 0)?;
        shares(&signed, &sizes, self.by_row)
    }
}

/// (2, value_heads, segments), or by row (2, value_heads, segments, rows), from the weights of all places, `signed` (places, value_heads)
/// or by row (places, value_heads, rows), and their `sizes` (places, value_heads, rows). The last place is left out.
fn shares(signed: &Tensor, sizes: &Tensor, by_row: bool) -> Result<Tensor> {
    // Rows whose weights are all 0 have share 0.
    let totals = sizes.sum(0)?; // (value_heads, rows)
    let totals = (&totals + totals.eq(0f32)?.to_dtype(totals.dtype())?)?;
    let share = sizes.broadcast_div(&totals)?; // (places, value_heads, rows)
    let share = if by_row { share } else { share.sum(2)? }; // (places, value_heads)
    let segments = sizes.dim(0)? - 1;
    Tensor::stack(&[signed, &share], 0)?.narrow(1, 0, segments)?.transpose(1, 2)?.contiguous()
}
