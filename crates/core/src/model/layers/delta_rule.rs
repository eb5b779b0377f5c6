//! Gated delta rule, and Mamba-2's sum without its correction: in blocks for prefill, token by token for decode, on slices on the CPU.
//!
//! Per value head, with state S (key_dim, value_dim): S <- e^g S; S <- S + k (b (v - S^T k))^T, or S <- S + k (b v)^T; out = S^T q
//! (transformers, `torch_chunk_gated_delta_rule`, `torch_recurrent_gated_delta_rule`, `mamba2_chunk_scan`). All f32. States are never
//! written in place, so a clone is a snapshot.

use candle_core::{Result, Tensor};

use super::Phase;
use crate::attention::delta::{self, Blocks, Rule, block_length, blocked};
#[cfg(feature = "cuda")]
use crate::fused;
use crate::fused::products::Own;
use crate::timing;
use crate::transfer;

/// Tokens whose blocks are computed together; bounds the memory of long chunks.
const TOGETHER: usize = 1024;

/// Inputs of the rule, all f32. `value_heads / key_heads` consecutive value heads share a key head.
#[derive(Debug)]
pub(in crate::model) struct Inputs {
    pub rule: Rule,
    /// Queries as the rule reads them, (l, key_heads, key_dim).
    pub q: Tensor,
    /// Keys likewise, (l, key_heads, key_dim).
    pub k: Tensor,
    /// (l, value_heads, value_dim)
    pub v: Tensor,
    /// Log decays, (l, value_heads), at most 0.
    pub g: Tensor,
    /// Write strengths, (l, value_heads), from 0 to 1.
    pub beta: Tensor,
}

impl Inputs {
    fn narrow(&self, start: usize, l: usize) -> Result<Inputs> {
        Ok(Inputs {
            rule: self.rule,
            q: self.q.narrow(0, start, l)?,
            k: self.k.narrow(0, start, l)?,
            v: self.v.narrow(0, start, l)?,
            g: self.g.narrow(0, start, l)?,
            beta: self.beta.narrow(0, start, l)?,
        })
    }
}

/// Selects the implementation by phase and device.
pub(in crate::model) fn advance(inputs: &Inputs, state: &Tensor, phase: Phase) -> Result<(Tensor, Tensor)> {
    let _span = timing::attention();
    match phase {
        _ if transfer::cpu_kernels(state.device()) => on_slices(inputs, state),
        #[cfg(feature = "cuda")]
        _ if inputs.rule == Rule::Delta && fused::cuda::delta::serves(state.device(), inputs.k.dim(2)?) => {
            on_card(inputs, state, phase)
        }
        Phase::Prefill => chunked(inputs, state),
        Phase::Decode => recurrent(inputs, state),
    }
}

/// [`chunked`] on f32 slices; also serves single tokens.
pub(in crate::model) fn on_slices(inputs: &Inputs, state: &Tensor) -> Result<(Tensor, Tensor)> {
    let Inputs { rule, q, k, v, g, beta } = inputs;
    let [q, k, v] = [q.contiguous()?, k.contiguous()?, v.contiguous()?];
    delta::cpu_rule(*rule, &q, &k, &v, [&g.contiguous()?, &beta.contiguous()?], &state.contiguous()?)
}

/// By our kernels: two launches per [`TOGETHER`] tokens of a prompt, one per generated token.
#[cfg(feature = "cuda")]
fn on_card(inputs: &Inputs, state: &Tensor, phase: Phase) -> Result<(Tensor, Tensor)> {
    use fused::cuda::delta::{Written, rule, step};
    type Advance = fn(&Tensor, &Tensor, &Written<'_>, &Tensor) -> Result<(Tensor, Tensor)>;
    let l = inputs.q.dim(0)?;
    let (together, advance): (usize, Advance) = match phase {
        Phase::Prefill => (TOGETHER, rule),
        Phase::Decode => (1, step),
    };
    let mut state = state.contiguous()?;
    let mut outputs = Vec::with_capacity(l.div_ceil(together));
    for start in (0..l).step_by(together) {
        let part = inputs.narrow(start, together.min(l - start))?;
        let [q, k, v, g, beta] = [part.q, part.k, part.v, part.g, part.beta].map(|x| x.contiguous());
        let (out, next) = advance(&q?, &v?, &Written { k: &k?, g: &g?, beta: &beta? }, &state)?;
        outputs.push(out);
        state = next;
    }
    Ok((Tensor::cat(&outputs, 0)?, state))
}

/// The rule in blocks over l tokens from `state` (value_heads, key_dim, value_dim). Returns outputs (l, value_heads, value_dim) and the
/// new state.
pub(in crate::model) fn chunked(inputs: &Inputs, state: &Tensor) -> Result<(Tensor, Tensor)> {
    let l = inputs.q.dim(0)?;
    let mut state = state.clone();
    let mut outputs = Vec::with_capacity(l.div_ceil(TOGETHER));
    for start in (0..l).step_by(TOGETHER) {
        let (out, next) = panel(&inputs.narrow(start, TOGETHER.min(l - start))?, &state)?;
        outputs.push(out);
        state = next;
    }
    Ok((Tensor::cat(&outputs, 0)?, state))
}

fn panel(inputs: &Inputs, state: &Tensor) -> Result<(Tensor, Tensor)> {
    let Inputs { rule, q, k, v, g, beta } = inputs;
    let (l, key_heads, key_dim) = q.dims3()?;
    let (_, value_heads, value_dim) = v.dims3()?;
    let group = value_heads / key_heads;
    let c = block_length(l);

    // 1. State-independent parts of all blocks.
    let blocks = Blocks::new(*rule, k, g, beta, c)?;
    let n = blocks.n;
    let q = blocked(q, c)?; // (n * key_heads, c, key_dim)
    let v = blocked(v, c)?; // (n * value_heads, c, value_dim)
    // Repeats each key head for its value heads, scaled by their factors.
    let beside = |x: &Tensor, factors: &Tensor| {
        x.reshape((n * key_heads, 1, c, key_dim))?
            .broadcast_mul(&factors.reshape((n * key_heads, group, c, 1))?)?
            .reshape((n * value_heads, c, key_dim))
    };
    let from_start = blocks.log_decay.exp()?; // (n * value_heads, c, 1)
    let own = blocks.transform.matmul(&v)?;
    let within = q
        .matmul(&blocks.k.transpose(1, 2)?)?
        .reshape((n * key_heads, 1, c, c))?
        .broadcast_mul(&blocks.pairwise.reshape((n * key_heads, group, c, c))?)?
        .reshape((n * value_heads, c, c))?;
    let mut reads = beside(&q, &from_start)?;
    if *rule == Rule::Delta {
        let of_keys = blocks
            .transform
            .broadcast_mul(&from_start.reshape((n * value_heads, 1, c))?)?
            .reshape((n * key_heads, group * c, c))?
            .matmul(&blocks.k)?
            .reshape((n * value_heads, c, key_dim))?;
        // Reads of the state by keys and queries: (n * value_heads, 2 c, key_dim).
        reads = Tensor::cat(&[of_keys, reads], 1)?;
    }
    let writes = beside(&blocks.k, &blocks.to_end()?.contiguous()?)?;

    // 2. Block by block: written values, outputs, state.
    let mut state = state.clone();
    let mut outputs = Vec::with_capacity(n);
    for i in 0..n {
        let mut seen = blocks.part(&reads, i)?.matmul(&state)?; // (value_heads, c or 2 c, value_dim)
        let mut written = blocks.part(&own, i)?;
        if *rule == Rule::Delta {
            written = (written - seen.narrow(1, 0, c)?)?;
            seen = seen.narrow(1, c, c)?;
        }
        let out = (seen + blocks.part(&within, i)?.matmul(&written)?)?;
        outputs.push(out);
        let decay = blocks.part(&from_start, i)?.narrow(1, c - 1, 1)?; // (value_heads, 1, 1)
        let new = blocks.part(&writes, i)?.transpose(1, 2)?.matmul(&written)?;
        state = (state.broadcast_mul(&decay)? + new)?;
    }
    let out = Tensor::stack(&outputs, 0)? // (n, value_heads, c, value_dim)
        .transpose(1, 2)?
        .contiguous()?
        .reshape((n * c, value_heads, value_dim))?
        .narrow(0, 0, l)?;
    Ok((out, state))
}

/// [`chunked`] token by token, for decode.
pub(in crate::model) fn recurrent(inputs: &Inputs, state: &Tensor) -> Result<(Tensor, Tensor)> {
    let (l, key_heads, key_dim) = inputs.q.dims3()?;
    let (_, value_heads, value_dim) = inputs.v.dims3()?;
    let group = value_heads / key_heads;
    let mut state = state.clone();
    let mut outputs = Vec::with_capacity(l);
    for t in 0..l {
        let Inputs { rule, q, k, v, g, beta } = inputs.narrow(t, 1)?;
        let served = |x: &Tensor| {
            x.reshape((key_heads, 1, key_dim))?
                .broadcast_as((key_heads, group, key_dim))?
                .contiguous()?
                .reshape((value_heads, 1, key_dim))
        };
        let (q, k) = (served(&q)?, served(&k)?);
        let decayed = state.broadcast_mul(&g.exp()?.reshape((value_heads, 1, 1))?)?;
        let mut written = v.reshape((value_heads, 1, value_dim))?;
        if rule == Rule::Delta {
            written = (written - k.matmul(&decayed)?)?; // less the state's value at k
        }
        let written = written.broadcast_mul(&beta.reshape((value_heads, 1, 1))?)?;
        state = Own::made(decayed).plus_product(&k.transpose(1, 2)?, &written)?.into_tensor();
        outputs.push(q.matmul(&state)?.reshape((1, value_heads, value_dim))?);
    }
    Ok((Tensor::cat(&outputs, 0)?, state))
}

#[cfg(test)]
mod tests;
