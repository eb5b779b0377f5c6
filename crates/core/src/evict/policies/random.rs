//! Keys drawn at random, for each layer and key/value head anew: the control of all others.

use candle_core::{Device, Result, Tensor};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::super::policy::{LayerKeys, Policy};

pub struct Random {
    pub seed: u64,
}

impl Policy for Random {
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor> {
        let (kv_heads, keys, _) = layer.k.dims3()?;
        let mut draws = ChaCha12Rng::seed_from_u64(self.seed);
        // A stream of its own, so that a layer's draws do not depend on other layers.
        draws.set_stream(layer.layer as u64);
        let scores: Vec<f32> = (0..kv_heads * keys).map(|_| draws.random()).collect();
        Tensor::from_vec(scores, (kv_heads, keys), &Device::Cpu)
    }
}
