//! Rotary position embedding.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};

use super::RmsNorm;
#[cfg(feature = "cuda")]
use crate::fused;
use crate::model::RopeSpec;
use crate::transfer;

#[derive(Debug)]
pub(in crate::model) struct Rope {
    /// Cosines and sines, (positions, dims / 2); `None` if nothing is rotated.
    angles: Option<[Tensor; 2]>,
    dims: usize,
    /// Scales of queries, (positions, 1, 1), if they depend on the position.
    queries: Option<Tensor>,
}

impl Rope {
    /// Angles for `positions`, in f32 as in transformers (`LlamaRotaryEmbedding`).
    pub fn new(spec: &RopeSpec, positions: Range<usize>, dtype: DType, device: &Device) -> Result<Self> {
        if spec.dims == 0 {
            return Ok(Rope { angles: None, dims: 0, queries: None });
        }
        let frequencies = spec.frequencies();
        let factor = spec.attention_factor() as f32;
        let rows = positions.len();
        let scales: Option<Vec<f32>> = positions.clone().map(|p| spec.query_scale(p)).collect();
        let angles = positions.flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        let (cos, sin) = angles.map(|angle| (angle.cos() * factor, angle.sin() * factor)).unzip();
        let table = |values: Vec<f32>, shape: &[usize]| {
            // Rounding before the upload halves the bytes and saves a kernel.
            match dtype {
                DType::F16 => transfer::upload(rounded(values, f16::from_f32), shape, device),
                DType::BF16 => transfer::upload(rounded(values, bf16::from_f32), shape, device),
                _ => transfer::upload(values, shape, device)?.to_dtype(dtype),
            }
        };
        let queries = scales.map(|scales| table(scales, &[rows, 1, 1])).transpose()?;
        let shape = [rows, spec.dims / 2];
        let angles = Some([table(cos, &shape)?, table(sin, &shape)?]);
        Ok(Rope { angles, dims: spec.dims, queries })
    }

    pub fn narrow(&self, first: usize, rows: usize) -> Result<Self> {
        self.each(|table| table.narrow(0, first, rows))
    }

    pub fn select(&self, rows: &Tensor) -> Result<Self> {
        self.each(|table| table.index_select(rows, 0))
    }

    fn each(&self, part: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let angles = self.angles.as_ref().map(|[cos, sin]| -> Result<_> { Ok([part(cos)?, part(sin)?]) });
        let queries = self.queries.as_ref().map(&part).transpose()?;
        Ok(Rope { angles: angles.transpose()?, dims: self.dims, queries })
    }

    /// Scales queries (l, heads, head_dim) by their positions, where the model does.
    pub fn scale_queries(&self, q: Tensor) -> Result<Tensor> {
        match &self.queries {
            Some(scales) => q.broadcast_mul(scales),
            None => Ok(q),
        }
    }

    /// [`Rope::apply`] of queries (l, heads, head_dim) and keys (l, kv_heads, head_dim) after a norm of each head.
    pub fn apply_normed(&self, q: &Tensor, k: &Tensor, norms: &(RmsNorm, RmsNorm)) -> Result<[Tensor; 2]> {
        let (of_q, of_k) = norms;
        #[cfg(feature = "cuda")]
        if let Some([cos, sin]) = &self.angles
            && q.device().is_cuda()
            && q.dim(2)? <= fused::cuda::WIDEST
        {
            let norms = [(&of_q.factor, of_q.eps), (&of_k.factor, of_k.eps)];
            return fused::norm_rope([q, k], norms, [cos, sin]);
        }
        Ok([self.apply(&of_q.forward(q)?)?, self.apply(&of_k.forward(k)?)?])
    }

    /// Rotates the first `dims` dimensions of every head: (l, heads, head_dim) -> same shape.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let Some([cos, sin]) = &self.angles else { return x.contiguous() };
        let (_, _, d) = x.dims3()?;
        let turn = |x: Tensor| candle_nn::rotary_emb::rope_thd(&x.unsqueeze(0)?, cos, sin)?.squeeze(0);
        if d == self.dims {
            return turn(x.contiguous()?);
        }
        let turned = turn(x.narrow(2, 0, self.dims)?.contiguous()?)?;
        Tensor::cat(&[&turned, &x.narrow(2, self.dims, d - self.dims)?], 2)
    }
}

fn rounded<T>(values: Vec<f32>, to: fn(f32) -> T) -> Vec<T> {
    values.into_iter().map(to).collect()
}
