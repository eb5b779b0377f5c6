//! The softmax attention block: projections, rotary embedding, cache, the door, output projection.

use candle_core::{Result, Tensor};

use super::{Linear, Phase, Rope};
use crate::attention::{self, Observer, Site};
use crate::model::{AttentionSpec, Cache};

/// Grouped-query attention (transformers, `LlamaAttention`).
#[derive(Debug)]
pub(in crate::model) struct Attention {
    pub spec: AttentionSpec,
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub o: Linear,
}

impl Attention {
    /// (l, hidden) -> (l, hidden), for the tokens at `cache.len()..cache.len() + l`.
    pub fn forward(
        &self,
        layer: usize,
        x: &Tensor,
        rope: &Rope,
        cache: &mut Cache,
        phase: Phase,
        observer: &mut dyn Observer,
    ) -> Result<Tensor> {
        let AttentionSpec { heads, kv_heads, head_dim, .. } = self.spec;
        let l = x.dim(0)?;

        // 1. Project and split into heads: (l, heads or kv_heads, head_dim).
        let q = self.q.forward(x, phase)?.reshape((l, heads, head_dim))?;
        let k = self.k.forward(x, phase)?.reshape((l, kv_heads, head_dim))?;
        let v = self.v.forward(x, phase)?.reshape((l, kv_heads, head_dim))?;

        // 2. Turn queries and keys by their positions.
        let q = rope.apply(&q)?;
        let k = rope.apply(&k)?;

        // 3. Append to the cache, which is laid out (kv_heads, position, head_dim).
        let site = Site {
            layer,
            offset: cache.len(),
            scale: self.spec.scale,
            window: self.spec.window,
            softcap: None,
            sinks: None,
        };
        let (k, v) = cache.append(layer, &k.transpose(0, 1)?, &v.transpose(0, 1)?)?;

        // 4. Attend: (l, heads, head_dim).
        let out = attention::run(&q, &k, &v, &site, observer)?;

        // 5. Project back: (l, hidden).
        self.o.forward(&out.reshape((l, heads * head_dim))?, phase)
    }
}
