//! The implicit attention in Candle operations, on any device.

use candle_core::{D, Result, Tensor};

use super::gather::{HeadSums, pieces};
use super::{History, PANEL};

/// Walks from the last row of the normalised queries `q` (key_heads, r, key_dim) back to the first key.
pub(super) fn walk(
    q: &Tensor,
    first_row: usize,
    history: &History,
    bounds: &[usize],
    heads: &mut [HeadSums],
) -> Result<()> {
    let (key_heads, r, key_dim) = q.dims3()?;
    let value_heads = heads.len();
    let group = value_heads / key_heads;
    let q = q.unsqueeze(1)?.broadcast_as((key_heads, group, r, key_dim))?.contiguous()?.reshape((
        value_heads,
        r,
        key_dim,
    ))?;
    let mut gathered = Gathered { bounds, heads, run: None };
    let end = first_row + r;
    // The rows that have begun, the last ones: (value_heads, begun, key_dim).
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

            // 1. Rows inside the block begin: they see it up to themselves, later rows see all of it.
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

            // 2. The weights of the block: (value_heads, begun, c). Keys serve `group` consecutive value heads.
            let k = part(&blocks.k)?; // (key_heads, c, key_dim)
            let weights = begun
                .reshape((key_heads, group * m, key_dim))?
                .matmul(&k.transpose(1, 2)?)?
                .reshape((value_heads, m, c))?
                .broadcast_mul(&seen)?
                .matmul(&part(&blocks.transform)?)?;
            gathered.add(&weights, at)?;

            // 3. What earlier keys see of the rows.
            if at > 0 {
                let taken = weights
                    .broadcast_mul(&decay.transpose(1, 2)?)?
                    .reshape((key_heads, group * m, c))?
                    .matmul(&k)?
                    .reshape((value_heads, m, key_dim))?;
                w = Some((begun.broadcast_mul(&kept)? - taken)?);
            }
        }
    }
    gathered.finish()
}

/// Sums of the weights of a group of rows.
struct Gathered<'a> {
    bounds: &'a [usize],
    heads: &'a mut [HeadSums],
    /// What goes to one place for a while, and stays on the device until the place changes.
    run: Option<Run>,
}

struct Run {
    /// `None` outside of all segments.
    segment: Option<usize>,
    /// (value_heads, begun)
    signed: Tensor,
    sizes: Tensor,
}

impl Gathered<'_> {
    /// Adds the weights (value_heads, begun, c) of the keys from `at` on; the rows are the last `begun`.
    fn add(&mut self, weights: &Tensor, at: usize) -> Result<()> {
        let c = weights.dim(2)?;
        let sizes = weights.abs()?;
        for (segment, keys) in pieces(self.bounds, at..at + c) {
            let sum = |x: &Tensor| x.narrow(2, keys.start - at, keys.len())?.sum(D::Minus1);
            let (signed, sizes) = (sum(weights)?, sum(&sizes)?);
            self.run = Some(match self.run.take() {
                Some(run) if run.segment == segment && run.sizes.dims() == sizes.dims() => {
                    Run { segment, signed: (run.signed + signed)?, sizes: (run.sizes + sizes)? }
                }
                other => {
                    self.close(other)?;
                    Run { segment, signed, sizes }
                }
            });
        }
        Ok(())
    }

    fn close(&mut self, run: Option<Run>) -> Result<()> {
        let Some(Run { segment, signed, sizes }) = run else { return Ok(()) };
        let (signed, sizes) = (signed.to_vec2::<f32>()?, sizes.to_vec2::<f32>()?);
        for ((head, signed), sizes) in self.heads.iter_mut().zip(&signed).zip(&sizes) {
            let first = head.rows() - sizes.len();
            for (row, (signed, size)) in signed.iter().zip(sizes).enumerate() {
                head.add_one(segment, first + row, *signed, *size);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        let run = self.run.take();
        self.close(run)
    }
}
