//! Operations fused into one CUDA launch: scaled and accumulating products, block softmax, norms, gates and decays.
//!
//! Used by attention and decoder layers: decode is bound by launches, prefill by passes over the scores. Each function has an equivalent
//! in Candle operations for the CPU and Metal. Accumulation is f32.

use candle_core::{DType, Result, Tensor};

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod gate;
#[cfg(feature = "cuda")]
pub(crate) mod launch;
pub(crate) mod online_softmax;
pub(crate) mod products;
pub(crate) mod softmax;

pub(crate) use gate::Gate;

/// RMS norm over the last dimension of `x` (..., width): x / sqrt(mean(x^2) + eps) * `factor` (width). `factor` is f32 or of the dtype of
/// `x`, which is also the result's.
pub(crate) fn rms_norm(x: &Tensor, factor: &Tensor, eps: f32) -> Result<Tensor> {
    let x = x.contiguous()?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return cuda::rms_norm(&x, factor, eps);
    }
    candle_nn::ops::rms_norm(&x.to_dtype(DType::F32)?, factor, eps)?.to_dtype(x.dtype())
}

/// On CUDA: normalises each head of queries (l, heads, width) and keys (l, kv_heads, width) by its factors, (width), and eps, as
/// [`rms_norm`], and rotates its first elements by the angles of its token, cosines and sines (l, dims / 2) in the dtype of `x`. One launch.
/// Tokens and heads may lie apart. In half precision it is rounded once, after the rotation.
#[cfg(feature = "cuda")]
pub(crate) fn norm_rope(
    qk: [&Tensor; 2],
    norms: [(&Tensor, f32); 2],
    angles: [&Tensor; 2],
) -> Result<[Tensor; 2]> {
    cuda::norm_rope(qk, norms, angles)
}

/// [`rms_norm`] of `x`, f32 (..., width), by `factor`, f32 (width), times silu(`z`), which has the shape of `x`; in the dtype of `z`.
pub(crate) fn gated_norm(x: &Tensor, factor: &Tensor, eps: f32, z: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return cuda::gated_norm(&x, factor, eps, &z.contiguous()?);
    }
    let normed = candle_nn::ops::rms_norm(&x, factor, eps)?.mul(&z.to_dtype(DType::F32)?.silu()?)?;
    normed.to_dtype(z.dtype())
}

/// `rate` * softplus(`x` + `bias`) for `x` (l, columns); `rate` and `bias` (columns); all f32.
pub(crate) fn decay(x: &Tensor, bias: &Tensor, rate: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return cuda::decay(&x.contiguous()?, bias, rate);
    }
    let step = x.to_dtype(DType::F32)?.broadcast_add(bias)?;
    softplus(&step)?.broadcast_mul(rate)
}

/// ln(1 + e^x), f32, accurate also where e^x is negligible next to 1.
fn softplus(x: &Tensor) -> Result<Tensor> {
    let y = x.abs()?.neg()?.exp()?; // at most 1
    let sum = (&y + 1.0)?;
    let kept = (&sum - 1.0)?; // what is left of y in 1 + y; ln(1 + y) is ln(sum) corrected by what was lost
    let lost_all = kept.eq(0f32)?;
    let log = lost_all.where_cond(&y, &((sum.log()? * &y)? / &kept)?)?;
    x.relu()? + log
}

/// activation(gate) * up, elementwise; same shape and dtype.
pub(crate) fn gated(kind: Gate, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if gate.device().is_cuda() {
        return cuda::gated(kind, gate, up);
    }
    // Candle rounds each step of an activation in half precision.
    if matches!(gate.dtype(), DType::F16 | DType::BF16) {
        let wide = gated(kind, &gate.to_dtype(DType::F32)?, &up.to_dtype(DType::F32)?)?;
        return wide.to_dtype(gate.dtype());
    }
    match kind {
        Gate::Silu => gate.silu()? * up,
        // Candle's `gelu` is the tanh approximation.
        Gate::GeluTanh => gate.gelu()? * up,
        Gate::Clamped { alpha, limit } => {
            let gate = gate.minimum(limit)?;
            let up = up.clamp(-limit, limit)?;
            let glu = (&gate * candle_nn::ops::sigmoid(&(&gate * f64::from(alpha))?)?)?;
            (up + 1.0)? * glu
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn softplus_is_exact_from_far_below_to_far_above_zero() -> Result<()> {
        let x = [-80f32, -30.0, -17.5, -9.0, -1.0, -1e-3, 0.0, 0.5, 3.0, 20.0, 90.0];
        let found = softplus(&Tensor::new(&x, &Device::Cpu)?)?.to_vec1::<f32>()?;
        for (x, found) in x.iter().zip(found) {
            let x = f64::from(*x);
            let expected = x.max(0.0) + (-x.abs()).exp().ln_1p();
            let relative = (f64::from(found) - expected).abs() / expected;
            assert!(relative < 1e-6, "softplus({x}) = {found:e}, not {expected:e}");
        }
        Ok(())
    }

    #[test]
    fn an_rms_norm_in_half_precision_is_rounded_once() -> Result<()> {
        for dtype in [DType::F16, DType::BF16] {
            let x = Tensor::randn(0f32, 3.0, (64, 576), &Device::Cpu)?.to_dtype(dtype)?;
            let factor = Tensor::rand(0.5f32, 1.5, 576, &Device::Cpu)?;
            let wide = x.to_dtype(DType::F64)?;
            let length = (wide.sqr()?.mean_keepdim(1)? + f64::from(1e-3f32))?.sqrt()?;
            let exact = wide.broadcast_div(&length)?.broadcast_mul(&factor.to_dtype(DType::F64)?)?;
            let apart =
                |y: &Tensor| (y.to_dtype(DType::F64)? - &exact)?.sqr()?.mean_all()?.to_scalar::<f64>();
            let ratio = apart(&rms_norm(&x, &factor, 1e-3)?)? / apart(&exact.to_dtype(dtype)?)?;
            assert!(ratio < 1.1, "{dtype:?}: {ratio} of one rounding's square");
        }
        Ok(())
    }
}
