//! TOVA (arXiv 2401.06104): the weight of a key from the last row, averaged over all query heads of the layer. That row's own key stays.

use candle_core::{Result, Tensor};

use super::super::policy::{LayerKeys, Policy};

pub struct Tova;

impl Policy for Tova {
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor> {
        let scored = layer.before_window()?;
        let mean = layer.weights()?.narrow(1, 0, scored)?.mean_keepdim(0)?;
        layer.with_window(&mean.repeat((layer.spec.kv_heads, 1))?)
    }
}
