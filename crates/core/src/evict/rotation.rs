//! Rotary embedding undone, and averaged over positions.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::model::RopeSpec;
use crate::transfer;

/// `x`, (l, heads, head_dim) at the positions from `first` on, before its rotation: f32.
pub(super) fn unrotated(x: &Tensor, first: usize, rope: &RopeSpec) -> Result<Tensor> {
    Unrotation::new(first..first + x.dim(0)?, rope, x.device())?.of(x)
}

/// The rotations of consecutive positions, turned back.
#[derive(Debug)]
pub(super) struct Unrotation {
    rope: RopeSpec,
    /// Cosines and sines, f32 (positions, dims / 2); none for a layer that sees no positions.
    tables: Option<[Tensor; 2]>,
}

impl Unrotation {
    pub fn new(positions: Range<usize>, rope: &RopeSpec, device: &Device) -> Result<Self> {
        let (l, frequencies) = (positions.len(), rope.frequencies());
        let by = 1.0 / rope.attention_factor() as f32;
        // As `model::layers::Rope` computes them, turned back.
        let angles = positions.flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.map(|a| (a.cos() * by, -a.sin() * by)).unzip();
        let table = |values: Vec<f32>| transfer::upload(values, (l, rope.dims / 2), device);
        let tables = if rope.dims == 0 { None } else { Some([table(cos)?, table(sin)?]) };
        Ok(Unrotation { rope: rope.clone(), tables })
    }

    /// True if layers of `rope` on `device` can share it.
    pub fn serves(&self, rope: &RopeSpec, device: &Device) -> bool {
        self.rope == *rope && self.tables.iter().flatten().all(|table| table.device().same_device(device))
    }

    /// `x`, (l, heads, head_dim) at the first l positions, before its rotation: f32.
    pub fn of(&self, x: &Tensor) -> Result<Tensor> {
        let (l, _, d) = x.dims3()?;
        let (x, dims) = (x.to_dtype(DType::F32)?, self.rope.dims);
        let Some([cos, sin]) = &self.tables else { return Ok(x) };
        let rotated = x.narrow(2, 0, dims)?.contiguous()?.unsqueeze(0)?;
        let turned = candle_nn::rotary_emb::rope_thd(&rotated, &cos.narrow(0, 0, l)?, &sin.narrow(0, 0, l)?)?;
        match d - dims {
            0 => turned.squeeze(0),
            rest => Tensor::cat(&[&turned.squeeze(0)?, &x.narrow(2, dims, rest)?], 2),
        }
    }
}

/// Mean of the rotations at `positions`, f32 (head_dim, head_dim): for column vectors.
pub(super) fn mean_rotation(
    rope: &RopeSpec,
    head_dim: usize,
    positions: Range<usize>,
    device: &Device,
) -> Result<Tensor> {
    let (half, count) = (rope.dims / 2, positions.len() as f64);
    let mut matrix = vec![0f32; head_dim * head_dim];
    (rope.dims..head_dim).for_each(|i| matrix[i * head_dim + i] = 1.0);
    for (i, frequency) in rope.frequencies().into_iter().enumerate() {
        let mean = |of: fn(f32) -> f32| {
            let sum: f64 = positions.clone().map(|p| f64::from(of(p as f32 * frequency))).sum();
            (sum / count * rope.attention_factor()) as f32
        };
        let (cos, sin) = (mean(f32::cos), mean(f32::sin));
        matrix[i * head_dim + i] = cos;
        matrix[i * head_dim + i + half] = -sin;
        matrix[(i + half) * head_dim + i] = sin;
        matrix[(i + half) * head_dim + i + half] = cos;
    }
    transfer::upload(matrix, (head_dim, head_dim), device)
}
