//! Key norms (arXiv 2406.11430): keys with a small norm draw more attention and stay.

use candle_core::{D, Result, Tensor};

use super::super::policy::{LayerKeys, Policy};

pub struct Knorm;

impl Policy for Knorm {
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor> {
        let (k, _) = layer.wide()?;
        k.sqr()?.sum(D::Minus1)?.sqrt()?.neg()
    }
}
