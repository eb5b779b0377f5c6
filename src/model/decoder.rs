//! The decoder: embedding, layers, final norm, output head.

use candle_core::{DType, Device, Result, Tensor};

use super::layers::{Attention, Linear, Mlp, Phase, RmsNorm, Rope};
use super::{Cache, DecoderSpec, LayerSpec, Loader, ModelError};
use crate::attention::Observer;

/// A decoder-only transformer with its weights on one device.
#[derive(Debug)]
pub struct Decoder {
    spec: DecoderSpec,
    /// (vocab, hidden)
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    dtype: DType,
    device: Device,
}

#[derive(Debug)]
struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Decoder {
    /// Loads every tensor that `spec` asks for; a missing, misshapen or left-over one is an error that names it.
    pub fn load(spec: DecoderSpec, mut loader: Loader) -> std::result::Result<Self, ModelError> {
        let (dtype, device) = (loader.dtype(), loader.device().clone());
        let embedding = loader.tensor("embed_tokens.weight", &[spec.vocab, spec.hidden])?;
        let norm = RmsNorm::new(loader.tensor("norm.weight", &[spec.hidden])?, spec.norm_eps);
        let head_name = if spec.tied { "embed_tokens" } else { "lm_head" };
        let head = loader.linear_with(
            head_name,
            spec.vocab,
            spec.hidden,
            false,
            spec.tied.then(|| embedding.clone()),
        )?;
        if spec.tied {
            // Some fine-tuned checkpoints carry a copy of the head beside the embedding that it is tied to.
            loader.accept_copy("lm_head.weight", &embedding)?;
        }
        let layers = spec
            .layers
            .iter()
            .enumerate()
            .map(|(i, layer)| Layer::load(&spec, i, layer, &mut loader))
            .collect::<std::result::Result<_, _>>()?;
        loader.finish()?;
        Ok(Decoder { spec, embedding, layers, norm, head, dtype, device })
    }

    /// What the decoder is made of.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// The device that the weights are on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The dtype of activations and cache.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// An empty cache for `capacity` tokens.
    pub fn cache(&self, capacity: usize) -> Result<Cache> {
        Cache::new(&self.spec, capacity, self.dtype, &self.device)
    }

    /// Reads `tokens` after those in the cache and returns the last `keep` final hidden states, (keep, hidden), normed.
    /// The layers' attention is shown to `observer`.
    pub fn forward(
        &self,
        tokens: &[u32],
        keep: usize,
        cache: &mut Cache,
        phase: Phase,
        observer: &mut dyn Observer,
    ) -> Result<Tensor> {
        let l = tokens.len();
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= self.spec.vocab) {
            candle_core::bail!("token id {id} is outside the model's vocabulary of {}", self.spec.vocab);
        }

        // 1. Embed: (l, hidden).
        let ids = Tensor::new(tokens, &self.device)?;
        let mut x = self.embedding.index_select(&ids, 0)?;

        // 2. The rotary tables of these positions, shared by layers with the same settings.
        let mut ropes: Vec<(usize, Rope)> = Vec::new();
        for (i, layer) in self.spec.layers.iter().enumerate() {
            let rope = &layer.attention.rope;
            if !ropes.iter().any(|(j, _)| &self.spec.layers[*j].attention.rope == rope) {
                ropes.push((i, Rope::new(rope, cache.len(), l, self.dtype, &self.device)?));
            }
        }

        // 3. Layers: x += attention(norm(x)); x += mlp(norm(x)).
        for (i, layer) in self.layers.iter().enumerate() {
            let settings = &self.spec.layers[i].attention.rope;
            let Some((_, rope)) =
                ropes.iter().find(|(j, _)| &self.spec.layers[*j].attention.rope == settings)
            else {
                candle_core::bail!("This is a bug: layer {i} has no rotary table");
            };
            let h = layer.attention_norm.forward(&x)?;
            x = (x + layer.attention.forward(i, &h, rope, cache, phase, observer)?)?;
            let h = layer.mlp_norm.forward(&x)?;
            x = (x + layer.mlp.forward(&h, phase)?)?;
        }
        cache.advance(l);

        // 4. Norm only what is kept.
        let keep = keep.min(l);
        self.norm.forward(&x.narrow(0, l - keep, keep)?)
    }

    /// The output head: normed hidden states (n, hidden) -> logits f32 (n, vocab).
    pub fn logits(&self, hidden: &Tensor, phase: Phase) -> Result<Tensor> {
        self.head.forward(hidden, phase)?.to_dtype(DType::F32)
    }
}

impl Layer {
    fn load(
        spec: &DecoderSpec,
        i: usize,
        layer: &LayerSpec,
        loader: &mut Loader,
    ) -> std::result::Result<Self, ModelError> {
        let hidden = spec.hidden;
        let a = &layer.attention;
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let mlp = &layer.mlp;
        let at = |name: &str| format!("layers.{i}.{name}");
        Ok(Layer {
            attention_norm: RmsNorm::new(
                loader.tensor(&at("input_layernorm.weight"), &[hidden])?,
                spec.norm_eps,
            ),
            attention: Attention {
                spec: a.clone(),
                q: loader.linear(&at("self_attn.q_proj"), q, hidden, a.bias)?,
                k: loader.linear(&at("self_attn.k_proj"), kv, hidden, a.bias)?,
                v: loader.linear(&at("self_attn.v_proj"), kv, hidden, a.bias)?,
                o: loader.linear(&at("self_attn.o_proj"), hidden, q, a.bias)?,
            },
            mlp_norm: RmsNorm::new(
                loader.tensor(&at("post_attention_layernorm.weight"), &[hidden])?,
                spec.norm_eps,
            ),
            mlp: Mlp {
                gate: loader.linear(&at("mlp.gate_proj"), mlp.intermediate, hidden, mlp.bias)?,
                up: loader.linear(&at("mlp.up_proj"), mlp.intermediate, hidden, mlp.bias)?,
                down: loader.linear(&at("mlp.down_proj"), hidden, mlp.intermediate, mlp.bias)?,
            },
        })
    }
}
