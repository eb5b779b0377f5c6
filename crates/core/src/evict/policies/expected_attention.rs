//! Expected attention (arXiv 2510.00636) as KVPress has it: queries to come are taken as Gaussian, with the mean and covariance of the
//! history's queries before rotation, rotated to the mean of the next 512 positions.
//!
//! A key's score is the softmax over keys of k m / sqrt(d) + k C k / (2 d), averaged over the query heads of its key/value head, times the
//! norm of its value. The first four keys stay, and the first four rows' queries are left out. Scores are divided by sqrt(head_dim) also
//! where the model's own scale differs, as KVPress does.

use candle_core::{D, Result, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::super::collector::Sums;
use super::super::policy::{LayerKeys, Policy};
use super::super::rotation::mean_rotation;

pub const SINKS: usize = 4;
const FUTURE: usize = 512;
/// Keys whose products with the covariances are held at once.
const BLOCK: usize = 4096;

pub struct ExpectedAttention;

impl Policy for ExpectedAttention {
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor> {
        let Some(Sums::Queries(sums)) = layer.read else {
            candle_core::bail!("This is a bug: no queries were read at layer {}", layer.layer)
        };
        let (k, v) = layer.wide()?;
        let (kv_heads, keys, d) = k.dims3()?;
        let (k, v) = (k.narrow(1, SINKS, keys - SINKS)?, v.narrow(1, SINKS, keys - SINKS)?);
        let future = layer.rows.end..layer.rows.end + FUTURE;
        let rotation = mean_rotation(&layer.spec.rope, d, future, k.device())?;
        let turned_back = rotation.t()?.contiguous()?;
        let (mean, covariance) = sums.mean_and_covariance()?;
        let heads = mean.dim(0)?;
        let width = layer.spec.score_width() as f64;
        let mean = (mean.matmul(&turned_back)? / width.sqrt())?;
        let covariance = covariance.reshape((heads * d, d))?.matmul(&turned_back)?.reshape((heads, d, d))?;
        let covariance = (rotation.broadcast_matmul(&covariance)? / (2.0 * width))?;
        let mean = mean.unsqueeze(2)?;
        let blocks = (0..keys - SINKS).step_by(BLOCK).map(|start| {
            let k = k.narrow(1, start, BLOCK.min(keys - SINKS - start))?.unsqueeze(1)?;
            let (_, _, n, _) = k.dims4()?;
            let k = k.expand((kv_heads, heads / kv_heads, n, d))?.reshape((heads, n, d))?;
            k.matmul(&mean)?.squeeze(2)? + (k.matmul(&covariance)? * &k)?.sum(D::Minus1)?
        });
        let scores = softmax_last_dim(&Tensor::cat(&blocks.collect::<Result<Vec<_>>>()?, 1)?)?;
        let scores = (layer.by_kv_head(&scores)? * v.sqr()?.sum(D::Minus1)?.sqrt()?)?;
        let sinks = Tensor::full(f32::INFINITY, (kv_heads, SINKS), k.device())?;
        Tensor::cat(&[&sinks, &scores], 1)
    }
}
