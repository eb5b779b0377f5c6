//! Implicit attention of Gated DeltaNet and Mamba-2 layers, summed over segments.
//!
//! The output of a gated delta rule is a weighted sum of values, o_t = sum over s <= t of a_ts v_s. The weights of row t follow from a
//! backward recurrence: w = q_t; for s = t, t - 1, ...: a_ts = b_s (k_s . w), then w <- e^(g_s) (w - b_s k_s (k_s . w)).
//! All rows of a span are processed together, a block of keys at a time: with W the rows' w at the end of the block,
//! A = ((W K^T) * e^(G_end - G_j)) T and W <- e^(G_end) W - (A * e^(G_j)) K, where T and G are those of the rule ([`Blocks`]).
//! Mamba-2 ([`Rule::Mamba2`]) writes values as they are: L is 0, and a_ts = b_s (k_s . q_t) e^(sum of g over s + 1..=t).
//! A block's weights are summed immediately: memory grows with rows and segments, time linearly with the context.

use candle_core::{Result, Tensor};

mod block;
mod blocks;
mod cpu;
mod gather;
mod history;
#[cfg(test)]
mod tests;

pub use block::Rule;
pub(crate) use block::{BLOCK, Blocks, block_length, blocked, norm_factor, normalised_by};
use cpu::Walk;
pub(crate) use cpu::rule as cpu_rule;
use gather::HeadSums;
pub(super) use history::History;
use history::PANEL;

#[cfg(feature = "cuda")]
use crate::fused;
use crate::transfer;

/// Rows processed together.
const ROWS: usize = 512;
/// Sums the implicit attention of the queries `q` (r, key_heads, key_dim), taken after the convolution, at positions from `first_row` on.
/// `bounds`: ascending borders of at least one segment.
///
/// Returns (2, value_heads, segments), f64 on the CPU, f32 on other devices, where the result stays: sums of the weights, and sums of
/// |weight| / (the row's sum of |weight| over all keys); 0 for rows whose weights are all 0.
pub(super) fn segment_sums(
    q: &Tensor,
    first_row: usize,
    history: &History,
    bounds: &[usize],
) -> Result<Tensor> {
    let mut parts = parts(q, first_row, history, bounds, false)?.into_iter();
    let first = parts.next().ok_or_else(|| candle_core::Error::msg("implicit attention of no rows"))?;
    parts.try_fold(first, |sum, part| sum + part)
}

/// [`segment_sums`] per row: (2, value_heads, segments, r).
pub(super) fn segment_sums_by_row(
    q: &Tensor,
    first_row: usize,
    history: &History,
    bounds: &[usize],
) -> Result<Tensor> {
    Tensor::cat(&parts(q, first_row, history, bounds, true)?, 3)
}

/// Sums per block of rows: (2, value_heads, segments), with a last dimension of rows if `by_row`.
fn parts(
    q: &Tensor,
    first_row: usize,
    history: &History,
    bounds: &[usize],
    by_row: bool,
) -> Result<Vec<Tensor>> {
    let (rows, key_heads, key_dim) = q.dims3()?;
    let kept = history.len();
    if kept < first_row + rows {
        candle_core::bail!(
            "This is a bug: rows {first_row}..{} but only {kept} keys were kept",
            first_row + rows
        );
    }
    let value_heads = history.pieces.first().map_or(Ok(0), |p| p.g.dim(1))?;
    if value_heads == 0 || value_heads % key_heads != 0 {
        candle_core::bail!(
            "the delta rule: {value_heads} value heads are no multiple of {key_heads} key heads"
        );
    }
    let mut parts = Vec::new();
    let q = history.rule.read(q, (key_dim as f64).powf(-0.5))?.transpose(0, 1)?; // (key_heads, r, key_dim)
    for start in (0..rows).step_by(ROWS) {
        let r = ROWS.min(rows - start);
        let q = q.narrow(1, start, r)?.contiguous()?;
        let walk = match q.device() {
            device if transfer::cpu_kernels(device) => walk_on_cpu,
            #[cfg(feature = "cuda")]
            device if history.rule == Rule::Delta && fused::cuda::delta::serves(device, key_dim) => {
                blocks::walk_on_card
            }
            _ => blocks::walk,
        };
        parts.push(walk(&q, first_row + start, history, bounds, value_heads, by_row)?);
    }
    Ok(parts)
}

fn walk_on_cpu(
    q: &Tensor,
    first_row: usize,
    history: &History,
    bounds: &[usize],
    value_heads: usize,
    by_row: bool,
) -> Result<Tensor> {
    let (r, segments) = (q.dim(1)?, bounds.len().saturating_sub(1));
    let mut heads = vec![HeadSums::new(segments, r, by_row); value_heads];
    let mut rows = Walk::new(history.rule, q, first_row, value_heads)?;
    let end = first_row + r;
    for start in (0..end).step_by(PANEL).rev() {
        let panel = start..end.min(start + PANEL);
        let [k, g, beta] = history.part(panel.clone())?;
        rows.back(&k, &g, &beta, panel, bounds, &mut heads)?;
    }
    if by_row {
        let of_rows = |sum: fn(&HeadSums, usize, usize) -> f64| {
            let places = move || (0..segments).flat_map(move |segment| (0..r).map(move |row| (segment, row)));
            heads.iter().flat_map(move |head| places().map(move |(segment, row)| sum(head, segment, row)))
        };
        let sums = of_rows(HeadSums::signed_of).chain(of_rows(HeadSums::share_of)).collect();
        return Tensor::from_vec(sums, (2, value_heads, segments, r), q.device());
    }
    let of_heads = |sum: fn(&HeadSums, usize) -> f64| {
        heads.iter().flat_map(move |head| (0..segments).map(move |segment| sum(head, segment)))
    };
    let sums = of_heads(HeadSums::signed).chain(of_heads(HeadSums::share)).collect();
    Tensor::from_vec(sums, (2, value_heads, segments), q.device())
}
