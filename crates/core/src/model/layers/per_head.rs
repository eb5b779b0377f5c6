//! A projection per head.

use candle_core::{DType, Result, Tensor};

use super::{Phase, Projection};
use crate::timing;
use crate::transfer::cpu_kernels;

/// y_h = x_h W_h^T for every head h.
#[derive(Debug)]
pub(in crate::model) enum PerHead {
    /// On the CPU, for sums that do not depend on the number of rows.
    Each(Vec<Projection>),
    /// One product on other devices: (heads, in, out).
    Together(Tensor),
}

impl PerHead {
    pub fn new(maps: Vec<Projection>) -> Result<Self> {
        let dense: Option<Vec<&Tensor>> = maps
            .iter()
            .map(|map| map.dense_parts().map(|(weight, _)| weight))
            .map(|weight| weight.filter(|weight| !cpu_kernels(weight.device())))
            .collect();
        match dense {
            Some(dense) => Ok(PerHead::Together(Tensor::stack(&dense, 0)?)),
            None => Ok(PerHead::Each(maps)),
        }
    }

    /// (l, heads, in) -> (l, heads, out)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        match self {
            PerHead::Each(maps) => {
                let heads = maps.iter().enumerate();
                let heads =
                    heads.map(|(head, map)| map.forward(&x.get_on_dim(1, head)?.contiguous()?, phase));
                Tensor::stack(&heads.collect::<Result<Vec<_>>>()?, 1)
            }
            PerHead::Together(weights) => {
                let _span = timing::linear();
                x.transpose(0, 1)?.contiguous()?.matmul(weights)?.transpose(0, 1)
            }
        }
    }

    /// The weights: f32 (heads, in, out).
    pub fn weights(&self) -> Result<Tensor> {
        match self {
            PerHead::Each(maps) => {
                Tensor::stack(&maps.iter().map(Projection::weight).collect::<Result<Vec<_>>>()?, 0)
            }
            PerHead::Together(weights) => weights.to_dtype(DType::F32),
        }
    }
}
