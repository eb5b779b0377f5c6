//! The implicit attention of Gated DeltaNet layers, summed into segments.
//!
//! The output of a gated delta rule is a weighted sum of values, o_t = sum over s <= t of a_ts v_s. For one row t the
//! weights come out backwards: w = q_t; for s = t, t - 1, ...: a_ts = b_s (k_s . w), then w <- e^(g_s) (w - b_s k_s (k_s . w)).
//! Here all rows of a span go backwards together, a block of keys at a time: with W their w at the block's end,
//! A = ((W K^T) * e^(G_end - G_j)) T, and W <- e^(G_end) W - (A * e^(G_j)) K, where T and G are the rule's own ([`Blocks`]).
//! The weights of a block are summed at once, so memory grows with rows and segments, and time linearly with the context.

use std::ops::Range;

use candle_core::{D, Result, Tensor};

mod block;

pub(crate) use block::{BLOCK, Blocks, block_length, blocked, normalised};

/// Rows that go backwards together.
const ROWS: usize = 512;
/// Keys whose blocks are prepared together.
const PANEL: usize = 16 * BLOCK;

/// Keys, decays and strengths of one layer's tokens from the first on, in the chunks that they came in. A clone shares
/// them.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pieces: Vec<Piece>,
    length: usize,
}

#[derive(Debug, Clone)]
struct Piece {
    start: usize,
    /// (l, key_heads, key_dim) in the model's dtype, not normalised: as exact as normalised f32, and smaller.
    k: Tensor,
    /// (l, value_heads), f32.
    g: Tensor,
    beta: Tensor,
}

impl History {
    /// Tokens kept.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Appends a copy of the first `l` tokens of a chunk.
    pub fn push(&mut self, k: &Tensor, g: &Tensor, beta: &Tensor, l: usize) -> Result<()> {
        // Copies, because a view would keep the whole chunk's activations in memory.
        let copy = |x: &Tensor| x.narrow(0, 0, l)?.force_contiguous();
        self.pieces.push(Piece { start: self.length, k: copy(k)?, g: copy(g)?, beta: copy(beta)? });
        self.length += l;
        Ok(())
    }

    /// The first `length` tokens.
    pub fn up_to(&self, length: usize) -> Result<History> {
        let mut kept = History::default();
        for piece in self.pieces.iter().filter(|p| p.start < length) {
            let l = piece.k.dim(0)?;
            if piece.start + l <= length {
                kept.pieces.push(piece.clone());
                kept.length += l;
            } else {
                kept.push(&piece.k, &piece.g, &piece.beta, length - piece.start)?;
            }
        }
        Ok(kept)
    }

    fn blocks(&self, range: Range<usize>) -> Result<Blocks> {
        let first = self.pieces.partition_point(|p| p.start <= range.start).saturating_sub(1);
        let (mut k, mut g, mut beta) = (Vec::new(), Vec::new(), Vec::new());
        for piece in self.pieces[first..].iter().take_while(|p| p.start < range.end) {
            let from = range.start.saturating_sub(piece.start);
            let l = piece.k.dim(0)?.min(range.end - piece.start) - from;
            k.push(piece.k.narrow(0, from, l)?);
            g.push(piece.g.narrow(0, from, l)?);
            beta.push(piece.beta.narrow(0, from, l)?);
        }
        let k = normalised(&Tensor::cat(&k, 0)?, 1.0)?;
        // Always whole blocks, so that the arithmetic does not depend on the chunks.
        Blocks::new(&k, &Tensor::cat(&g, 0)?, &Tensor::cat(&beta, 0)?, BLOCK)
    }
}

/// What rows pay to each segment of the keys, summed over the rows; both `[value_heads][segments]`, row-major.
#[derive(Debug)]
pub(super) struct DeltaSums {
    /// Sum of the weights.
    pub signed: Vec<f64>,
    /// Sum of the weights' sizes, each row's divided by that over all of its keys; 0 where a row has no weight at all.
    pub share: Vec<f64>,
}

/// Sums the implicit attention of the queries `q` (r, key_heads, key_dim), as they leave the convolution, at the
/// positions from `first_row` on. `bounds` are the ascending borders of the segments.
pub(super) fn segment_sums(
    q: &Tensor,
    first_row: usize,
    history: &History,
    bounds: &[usize],
) -> Result<DeltaSums> {
    let (rows, key_heads, key_dim) = q.dims3()?;
    let last_row = first_row + rows;
    if history.len() < last_row {
        candle_core::bail!(
            "This is a bug: rows up to position {last_row} of which only {} keys were kept",
            history.len()
        );
    }
    let segments = bounds.len().saturating_sub(1);
    let value_heads = history.pieces.first().map_or(Ok(0), |p| p.g.dim(1))?;
    let mut all =
        DeltaSums { signed: vec![0.0; value_heads * segments], share: vec![0.0; value_heads * segments] };
    let q = normalised(q, (key_dim as f64).powf(-0.5))?.transpose(0, 1)?.contiguous()?; // (key_heads, r, key_dim)
    for start in (0..rows).step_by(ROWS) {
        let r = ROWS.min(rows - start);
        // (value_heads, r, key_dim)
        let group = value_heads / key_heads;
        let q = q
            .narrow(1, start, r)?
            .unsqueeze(1)?
            .broadcast_as((key_heads, group, r, key_dim))?
            .contiguous()?
            .reshape((value_heads, r, key_dim))?;
        let mut gathered = Gathered::new(bounds, value_heads, r);
        backwards(&q, first_row + start, key_heads, history, &mut gathered)?;
        gathered.add_to(&mut all)?;
    }
    Ok(all)
}

/// Walks from the last row of `q` (value_heads, r, key_dim) back to the first key.
fn backwards(
    q: &Tensor,
    first_row: usize,
    key_heads: usize,
    history: &History,
    gathered: &mut Gathered<'_>,
) -> Result<()> {
    let (value_heads, r, key_dim) = q.dims3()?;
    let group = value_heads / key_heads;
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
    Ok(())
}

/// Sums of the weights of a group of rows.
struct Gathered<'a> {
    bounds: &'a [usize],
    value_heads: usize,
    rows: usize,
    /// `[segment][value_heads]`
    signed: Vec<f64>,
    /// `[segment][value_heads][rows]`, and last the sizes of all weights, inside segments or not.
    sizes: Vec<f64>,
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

impl<'a> Gathered<'a> {
    fn new(bounds: &'a [usize], value_heads: usize, rows: usize) -> Self {
        let segments = bounds.len().saturating_sub(1);
        Gathered {
            bounds,
            value_heads,
            rows,
            signed: vec![0.0; segments * value_heads],
            sizes: vec![0.0; (segments + 1) * value_heads * rows],
            run: None,
        }
    }

    /// Adds the weights (value_heads, begun, c) of the keys from `at` on; the rows are the last `begun`.
    fn add(&mut self, weights: &Tensor, at: usize) -> Result<()> {
        let c = weights.dim(2)?;
        let sizes = weights.abs()?;
        let mut end = at + c;
        while end > at {
            // The last place that begins before `end`: a segment, or what is outside of all.
            let border = self.bounds.partition_point(|&b| b < end);
            let segment = border.checked_sub(1).filter(|s| s + 1 < self.bounds.len());
            let start = border.checked_sub(1).map_or(at, |b| self.bounds[b].max(at));
            let sum = |x: &Tensor| x.narrow(2, start - at, end - start)?.sum(D::Minus1);
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
            end = start;
        }
        Ok(())
    }

    fn close(&mut self, run: Option<Run>) -> Result<()> {
        let Some(Run { segment, signed, sizes }) = run else { return Ok(()) };
        let begun = sizes.dim(1)?;
        let per_head = self.value_heads * self.rows;
        let last = self.sizes.len() - per_head;
        for (head, of_rows) in sizes.to_vec2::<f32>()?.iter().enumerate() {
            for place in segment.map(|s| s * per_head).into_iter().chain([last]) {
                let rows = &mut self.sizes[place + head * self.rows..][..self.rows];
                for (sum, x) in rows[self.rows - begun..].iter_mut().zip(of_rows) {
                    *sum += f64::from(*x);
                }
            }
        }
        if let Some(segment) = segment {
            for (head, of_rows) in signed.to_vec2::<f32>()?.iter().enumerate() {
                let sum: f64 = of_rows.iter().map(|x| f64::from(*x)).sum();
                self.signed[segment * self.value_heads + head] += sum;
            }
        }
        Ok(())
    }

    /// Adds the sums over the rows to `all`.
    fn add_to(mut self, all: &mut DeltaSums) -> Result<()> {
        let run = self.run.take();
        self.close(run)?;
        let segments = self.bounds.len().saturating_sub(1);
        for segment in 0..segments {
            for head in 0..self.value_heads {
                let of_rows =
                    |place: usize| &self.sizes[(place * self.value_heads + head) * self.rows..][..self.rows];
                let share: f64 = of_rows(segment)
                    .iter()
                    .zip(of_rows(segments))
                    .filter(|(_, total)| **total != 0.0)
                    .map(|(size, total)| size / total)
                    .sum();
                all.share[head * segments + segment] += share;
                all.signed[head * segments + segment] += self.signed[segment * self.value_heads + head];
            }
        }
        Ok(())
    }
}
