//! Blocks of the gated delta rule and of Mamba-2, shared by the rules ([`crate::model`]) and the observer of its implicit attention.
//!
//! Within a block of c tokens, with G_i the sum of the log decays of tokens 0..=i and L_ij = b_i (k_i . k_j) e^(G_i - G_j) for j < i, the
//! delta rule writes (I + L)^-1 diag(b) (v - state read at k) to the state, Mamba-2 diag(b) v. All in f32 by Candle operations, on any
//! device.

use candle_core::{DType, Device, Result, Tensor};

use crate::transfer;

pub(crate) const BLOCK: usize = 64;

/// The rule by which a linear-attention layer writes to its state S at a key k with strength b, after S <- e^g S.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// Writes the part of the value v that S lacks: S <- S + k (b (v - S^T k))^T. Queries and keys are normalised (transformers,
    /// `Qwen3_5GatedDeltaNet`).
    #[default]
    Delta,
    /// The value: S <- S + k (b v)^T. Strengths are time steps (transformers, `NemotronHMamba2Mixer`).
    Mamba2,
}

impl Rule {
    /// Queries or keys (l, heads, d) as the rule reads them, f32; normalised ones have the norm `scale`.
    pub(crate) fn read(self, x: &Tensor, scale: f64) -> Result<Tensor> {
        match self {
            Rule::Delta => normalised_by(x, &norm_factor(x.dim(2)?, scale, x.device())?),
            Rule::Mamba2 => x.to_dtype(DType::F32)?.contiguous(),
        }
    }
}

/// Added to a head's squared norm before the root (transformers, `l2norm`).
const NORM_EPS: f64 = 1e-6;
/// Clamp of log decays: exp underflows to 0 well above it, and smaller values would cost the prefix sums accuracy.
const MIN_LOG_DECAY: f64 = -1000.0;
/// Triangles up to this size are inverted with [`masked_inverse`]; larger ones are split into quarters.
const MASKED: usize = 16;

/// Factor for [`normalised_by`] that gives heads of width `d` the norm `scale`: f32 (d).
pub(crate) fn norm_factor(d: usize, scale: f64, device: &Device) -> Result<Tensor> {
    Tensor::full((scale / (d as f64).sqrt()) as f32, d, device)
}

/// L2-normalises each head of queries or keys (l, heads, d), any dtype, and multiplies by a [`norm_factor`]; returns f32
/// (transformers, `l2norm`).
pub(crate) fn normalised_by(x: &Tensor, factor: &Tensor) -> Result<Tensor> {
    let x = x.to_dtype(DType::F32)?.contiguous()?;
    // One RMS-norm kernel: sqrt(sum of squares) = sqrt(mean of squares) * sqrt(width).
    let d = x.dim(2)? as f64;
    candle_nn::ops::rms_norm(&x, factor, (NORM_EPS / d) as f32)
}

/// A power of two, at most [`BLOCK`].
pub(crate) fn block_length(l: usize) -> usize {
    l.next_power_of_two().min(BLOCK)
}

/// `n` blocks of `c` tokens.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub n: usize,
    pub c: usize,
    /// Keys as the rule reads them, (n * key_heads, c, key_dim).
    pub k: Tensor,
    /// G_i, (n * value_heads, c, 1).
    pub log_decay: Tensor,
    /// e^(G_i - G_j) where j <= i, else 0: (n * value_heads, c, c).
    pub pairwise: Tensor,
    /// (I + L)^-1 diag(b), or diag(b): (n * value_heads, c, c).
    pub transform: Tensor,
}

impl Blocks {
    /// Blocks of the keys `k` as the rule reads them, (l, key_heads, key_dim), the log decays `g` and the write strengths `beta`, both
    /// (l, value_heads), all f32. The last block is padded with tokens that leave the state unchanged.
    pub fn new(rule: Rule, k: &Tensor, g: &Tensor, beta: &Tensor, c: usize) -> Result<Self> {
        let (l, key_heads, _) = k.dims3()?;
        let value_heads = g.dim(1)?;
        let (n, group) = (l.div_ceil(c), value_heads / key_heads);
        let k = blocked(k, c)?;
        let g = blocked(&g.maximum(MIN_LOG_DECAY)?.unsqueeze(2)?, c)?; // (n * value_heads, c, 1)
        let beta = blocked(&beta.unsqueeze(2)?, c)?;

        // 1. Decays. Summed separately for each pair: the difference of two long sums loses accuracy.
        let masks = masks(c, &[|i, j| i >= j, |i, j| i > j, |i, j| i == j], k.device())?;
        let (lower, after) = (masks.get(0)?, masks.get(1)?);
        let heads = n * value_heads;
        let so_far = g.reshape((heads, 1, c))?.broadcast_mul(&lower)?.reshape((heads * c, c))?; // g_m [m <= i]
        let log_decay = so_far.sum_keepdim(1)?.reshape((heads, c, 1))?;
        let pairwise = so_far.matmul(&after)?.exp()?.reshape((heads, c, c))?.broadcast_mul(&lower)?;

        if rule == Rule::Mamba2 {
            let written = masks.get(2)?.broadcast_mul(&beta.reshape((heads, 1, c))?)?;
            return Ok(Blocks { n, c, k, log_decay, pairwise, transform: written });
        }

        // 2. Triangle L. Each key head serves `group` consecutive value heads.
        let products = k.matmul(&k.transpose(1, 2)?)?;
        let triangle = products
            .reshape((n * key_heads, 1, c, c))?
            .broadcast_mul(&pairwise.reshape((n * key_heads, group, c, c))?)?
            .reshape((heads, c, c))?
            .broadcast_mul(&beta)?;

        // 3. Inverse.
        let transform = unit_inverse(&triangle)?.broadcast_mul(&beta.reshape((heads, 1, c))?)?;
        Ok(Blocks { n, c, k, log_decay, pairwise, transform })
    }

    /// e^(G_last - G_j): (n * value_heads, 1, c).
    pub fn to_end(&self) -> Result<Tensor> {
        self.pairwise.narrow(1, self.c - 1, 1)
    }

    pub fn part(&self, tensor: &Tensor, i: usize) -> Result<Tensor> {
        let heads = tensor.dim(0)? / self.n;
        tensor.narrow(0, i * heads, heads)
    }
}

/// (l, heads, d) -> (n * heads, c, d), zero-padded.
pub(crate) fn blocked(x: &Tensor, c: usize) -> Result<Tensor> {
    let (l, heads, d) = x.dims3()?;
    let n = l.div_ceil(c);
    let x = if n * c == l { x.clone() } else { x.pad_with_zeros(0, 0, n * c - l)? };
    x.contiguous()?.reshape((n, c, heads, d))?.transpose(1, 2)?.contiguous()?.reshape((n * heads, c, d))
}

/// (I + L)^-1 for the strictly lower triangles of (batch, c, c), c a power of two; the rest is not read. Recursive: the inverse of
/// [[A, 0], [C, B]] is [[A', 0], [-B' C A', B']]. More accurate than a series in powers of L, whose terms grow and cancel for
/// repeated keys.
fn unit_inverse(l: &Tensor) -> Result<Tensor> {
    let (batch, c, _) = l.dims3()?;
    if c <= MASKED {
        return masked_inverse(l, c);
    }
    let h = c / 2;
    let quarter = |row: usize, column: usize| l.narrow(1, row * h, h)?.narrow(2, column * h, h);
    let both = unit_inverse(&Tensor::cat(&[quarter(0, 0)?, quarter(1, 1)?], 0)?)?;
    let (a, b) = (both.narrow(0, 0, batch)?, both.narrow(0, batch, batch)?);
    let corner = b.matmul(&quarter(1, 0)?.contiguous()?)?.matmul(&a)?.neg()?;
    let top = Tensor::cat(&[&a, &a.zeros_like()?], 2)?;
    Tensor::cat(&[top, Tensor::cat(&[corner, b], 2)?], 1)
}

/// [`unit_inverse`] bottom-up: with X the inverse of the diagonal blocks of size s, the inverse for size 2 s is X - X C X, where C is
/// the part of L between them.
fn masked_inverse(l: &Tensor, c: usize) -> Result<Tensor> {
    let l = l.contiguous()?;
    let masks = masks(
        c,
        &[
            |i, j| i == j,
            |i, j| between(i, j, 1),
            |i, j| between(i, j, 2),
            |i, j| between(i, j, 4),
            |i, j| between(i, j, 8),
        ],
        l.device(),
    )?;
    let mut inverse = masks.get(0)?.broadcast_sub(&l.broadcast_mul(&masks.get(1)?)?)?;
    for (size, mask) in [(2, 2), (4, 3), (8, 4)] {
        if size < c {
            let corners = l.broadcast_mul(&masks.get(mask)?)?;
            inverse = (&inverse - inverse.matmul(&corners)?.matmul(&inverse)?)?;
        }
    }
    Ok(inverse)
}

fn between(i: usize, j: usize, s: usize) -> bool {
    i / (2 * s) == j / (2 * s) && i / s > j / s
}

/// 0/1 matrices (conditions, c, c): 1 where the condition holds for row and column.
fn masks(c: usize, conditions: &[fn(usize, usize) -> bool], device: &Device) -> Result<Tensor> {
    let places = |holds: fn(usize, usize) -> bool| {
        (0..c * c).map(move |at| if holds(at / c, at % c) { 1f32 } else { 0.0 })
    };
    let all = conditions.iter().flat_map(|&holds| places(holds)).collect();
    transfer::upload(all, (conditions.len(), c, c), device)
}
