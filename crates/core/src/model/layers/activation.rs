//! Activations of gated feed-forward blocks.

use candle_core::{CpuStorage, DType, InplaceOp2, Layout, Result, Tensor};
use pulp::Simd;
use rayon::prelude::*;

use crate::fused::{self, Gate};
use crate::model::Activation;
use crate::simd::sigmoid;

/// Elements per task: both operands fit the L2 cache.
const TASK: usize = 1 << 15;

impl Activation {
    /// activation(gate) * up, elementwise. `gate` must be unshared: the CPU overwrites it to avoid an allocation.
    pub(in crate::model) fn gated(self, gate: Tensor, up: &Tensor) -> Result<Tensor> {
        let Some(kind) = self.gate() else { candle_core::bail!("This is a bug: {self:?} has no gate") };
        if crate::transfer::cpu_kernels(gate.device()) && gate.dtype() == DType::F32 && gate.is_contiguous() {
            gate.inplace_op2(&up.contiguous()?, &Gated(kind))?;
            return Ok(gate);
        }
        fused::gated(kind, &gate, up)
    }

    fn gate(self) -> Option<Gate> {
        match self {
            Activation::Silu => Some(Gate::Silu),
            Activation::GeluTanh => Some(Gate::GeluTanh),
            Activation::Clamped { alpha, limit } => {
                Some(Gate::Clamped { alpha: alpha as f32, limit: limit as f32 })
            }
            Activation::SquaredRelu => None,
        }
    }
}

/// gate = activation(gate) * up, parallel and vectorised. All three activations are gate * sigmoid(f(gate)).
struct Gated(Gate);

impl InplaceOp2 for Gated {
    fn name(&self) -> &'static str {
        "gated-activation"
    }

    fn cpu_fwd(&self, gate: &mut CpuStorage, gl: &Layout, up: &CpuStorage, ul: &Layout) -> Result<()> {
        let (CpuStorage::F32(gate), CpuStorage::F32(up)) = (gate, up) else {
            candle_core::bail!("gated activations on the CPU are of f32");
        };
        let (Some((g0, g1)), Some((u0, u1))) = (gl.contiguous_offsets(), ul.contiguous_offsets()) else {
            candle_core::bail!("gated activations are of contiguous tensors");
        };
        if gl.dims() != ul.dims() {
            candle_core::bail!("a gate of shape {:?} for values of shape {:?}", gl.dims(), ul.dims());
        }
        let simd = pulp::Arch::new();
        gate[g0..g1]
            .par_chunks_mut(TASK)
            .zip(up[u0..u1].par_chunks(TASK))
            .for_each(|(gate, up)| simd.dispatch(Slices { kind: self.0, gate, up }));
        Ok(())
    }
}

struct Slices<'a> {
    kind: Gate,
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl pulp::WithSimd for Slices<'_> {
    type Output = ();

    // Inlined throughout: pulp's target features must reach the loops.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (gate, gate_rest) = S::as_mut_simd_f32s(self.gate);
        let (up, up_rest) = S::as_simd_f32s(self.up);
        for (gate, &up) in gate.iter_mut().zip(up) {
            *gate = apply(simd, self.kind, *gate, up);
        }
        if !gate_rest.is_empty() {
            let both = (simd.partial_load_f32s(gate_rest), simd.partial_load_f32s(up_rest));
            simd.partial_store_f32s(gate_rest, apply(simd, self.kind, both.0, both.1));
        }
    }
}

#[inline(always)]
fn apply<S: Simd>(simd: S, kind: Gate, gate: S::f32s, up: S::f32s) -> S::f32s {
    let times = |x, c: f32| simd.mul_f32s(x, simd.splat_f32s(c));
    let plus = |x, c: f32| simd.add_f32s(x, simd.splat_f32s(c));
    // min and max of x and c that propagate NaN.
    let at_most =
        |x, c: f32| simd.select_f32s(simd.greater_than_f32s(x, simd.splat_f32s(c)), simd.splat_f32s(c), x);
    let at_least =
        |x, c: f32| simd.select_f32s(simd.less_than_f32s(x, simd.splat_f32s(c)), simd.splat_f32s(c), x);
    match kind {
        Gate::Silu => simd.mul_f32s(simd.mul_f32s(gate, sigmoid(simd, gate)), up),
        Gate::GeluTanh => {
            // (1 + tanh(y)) / 2 = sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3).
            let cubic = plus(times(simd.mul_f32s(gate, gate), 0.044_715), 1.0);
            let twice = times(simd.mul_f32s(gate, cubic), 2.0 * 0.797_884_6);
            simd.mul_f32s(simd.mul_f32s(gate, sigmoid(simd, twice)), up)
        }
        Gate::Clamped { alpha, limit } => {
            let gate = at_most(gate, limit);
            let up = plus(at_least(at_most(up, limit), -limit), 1.0);
            simd.mul_f32s(simd.mul_f32s(gate, sigmoid(simd, times(gate, alpha))), up)
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn gated_activations_equal_their_definitions_in_f64_and_keep_nan() -> Result<()> {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let silu = |g: f64, u: f64| g * sigmoid(g) * u;
        let gelu = |g: f64, u: f64| {
            0.5 * g * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3))).tanh()) * u
        };
        let clamped = |g: f64, u: f64| {
            let g = g.min(7.0);
            g * sigmoid(1.702 * g) * (u.clamp(-7.0, 7.0) + 1.0)
        };
        type Definition<'a> = &'a dyn Fn(f64, f64) -> f64;
        let definitions: [(Activation, Definition); 3] = [
            (Activation::Silu, &silu),
            (Activation::GeluTanh, &gelu),
            (Activation::Clamped { alpha: 1.702, limit: 7.0 }, &clamped),
        ];
        for (activation, definition) in definitions {
            // Full tasks, full vectors, and remainders.
            for shape in [(1, 5), (3, 64), (7, 9601)] {
                let gate = Tensor::randn(0f32, 6.0, shape, &Device::Cpu)?;
                let up = Tensor::randn(0f32, 6.0, shape, &Device::Cpu)?;
                let (g, u) = (gate.flatten_all()?.to_vec1::<f32>()?, up.flatten_all()?.to_vec1::<f32>()?);
                let candle =
                    fused::gated(activation.gate().unwrap(), &gate, &up)?.flatten_all()?.to_vec1::<f32>()?;
                let found = activation.gated(gate, &up)?.flatten_all()?.to_vec1::<f32>()?;
                for i in 0..g.len() {
                    let exact = definition(f64::from(g[i]), f64::from(u[i]));
                    for (who, x) in [("vectors", found[i]), ("Candle", candle[i])] {
                        let off = (f64::from(x) - exact).abs();
                        assert!(off <= 2e-6 * exact.abs() + 2e-6, "{activation:?}, {who}: {x}, not {exact}");
                    }
                }
            }
            let nan = Tensor::new(&[1.0f32, f32::NAN, -90.0], &Device::Cpu)?;
            let ones = Tensor::ones(3, DType::F32, &Device::Cpu)?;
            assert!(activation.gated(nan.copy()?, &ones)?.to_vec1::<f32>()?[1].is_nan());
            assert!(activation.gated(ones, &nan)?.to_vec1::<f32>()?[1].is_nan());
        }
        Ok(())
    }
}
