//! The decoder: embedding, layers, final norm, output head.

use candle_core::{DType, Device, Result, Tensor};

use super::build::{self, FeedForward, Layer, Mixer};
use super::layers::{Linear, Phase, RmsNorm, Rope};
use super::past::Past;
use super::{Branch, Cache, DecoderSpec, Loader, ModelError, RopeSpec};
use crate::attention::Observer;

/// A decoder-only transformer with its weights on one or more devices.
#[derive(Debug)]
pub struct Decoder {
    spec: DecoderSpec,
    /// (vocab, hidden), on the first layer's device.
    embedding: Tensor,
    layers: Vec<Layer>,
    /// Where each layer is.
    devices: Vec<Device>,
    /// On the last layer's device, as is the head.
    norm: RmsNorm,
    head: Linear,
    dtype: DType,
}

/// Rotary tables of one forward pass, made as layers ask for them and shared by those with the same settings.
struct Ropes<'a> {
    made: Vec<(&'a RopeSpec, usize, Rope)>,
    positions: Vec<usize>,
    dtype: DType,
}

impl<'a> Ropes<'a> {
    /// The table for `spec` on the device of layer `of`, where `same` says which layers share its device.
    fn get(
        &mut self,
        spec: &'a RopeSpec,
        of: usize,
        device: &Device,
        same: impl Fn(usize) -> bool,
    ) -> Result<&Rope> {
        let found = self.made.iter().position(|(made, layer, _)| *made == spec && same(*layer));
        let at = match found {
            Some(at) => at,
            None => {
                self.made.push((spec, of, Rope::new(spec, &self.positions, self.dtype, device)?));
                self.made.len() - 1
            }
        };
        Ok(&self.made[at].2)
    }
}

impl Decoder {
    /// Loads every tensor that the loader's spec asks for; a missing, misshapen or left-over one is an error that names it.
    /// `devices` holds one device a layer; embedding and head go with the first and the last.
    pub(super) fn load(mut loader: Loader, devices: Vec<Device>) -> std::result::Result<Self, ModelError> {
        let spec = loader.spec().clone();
        let (Some(first), Some(last)) = (devices.first(), devices.last()) else {
            return Err(ModelError::NoDevice);
        };
        loader.put_on(first);
        let embedding = loader.tensor("embed_tokens.weight", &[spec.vocab, spec.hidden])?;
        loader.put_on(last);
        let norm = build::norm(&mut loader, "norm", spec.hidden, spec.norm)?;
        let head_name = if spec.tied { "embed_tokens" } else { "lm_head" };
        let shared = match spec.tied {
            true => Some(embedding.to_device(last)?),
            false => None,
        };
        let head = loader.linear_with(head_name, spec.vocab, spec.hidden, false, shared)?;
        if spec.tied {
            // Some fine-tuned checkpoints carry a copy of the head beside the embedding that it is tied to.
            loader.accept_copy("lm_head.weight", &embedding)?;
        }
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, (layer, device)) in spec.layers.iter().zip(&devices).enumerate() {
            loader.put_on(device);
            layers.push(build::layer(&mut loader, i, layer)?);
        }
        let dtype = loader.dtype();
        loader.finish()?;
        Ok(Decoder { spec, embedding, layers, devices, norm, head, dtype })
    }

    /// What the decoder is made of.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// The device of the output head, and so of the logits.
    pub fn device(&self) -> &Device {
        self.devices.last().unwrap_or(&Device::Cpu)
    }

    /// The dtype of activations and cache.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// An empty cache for `capacity` tokens.
    pub fn cache(&self, capacity: usize) -> Result<Cache> {
        Cache::new(&self.spec, capacity, self.dtype, &self.devices)
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
        self.pass(tokens, keep, Past::Sequence { cache, observer }, phase)
    }

    /// Reads the next token of each branch of `trunk` and returns their final hidden states, (branches, hidden), normed.
    /// Branches on which this has failed cannot go on.
    pub fn forward_branches(
        &self,
        tokens: &[u32],
        trunk: &Cache,
        branches: Vec<&mut Branch>,
    ) -> Result<Tensor> {
        self.pass(tokens, tokens.len(), Past::Branches { trunk, branches }, Phase::Decode)
    }

    /// Reads `tokens` after `past` and returns the hidden states of the last `keep`.
    fn pass(&self, tokens: &[u32], keep: usize, mut past: Past<'_>, phase: Phase) -> Result<Tensor> {
        let l = tokens.len();
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= self.spec.vocab) {
            candle_core::bail!("token id {id} is outside the model's vocabulary of {}", self.spec.vocab);
        }

        past.begin(l)?;

        // 1. Embed: (l, hidden).
        let ids = Tensor::new(tokens, self.embedding.device())?;
        let mut x = self.embedding.index_select(&ids, 0)?;
        if let Some(scale) = self.spec.embedding_scale {
            // Rounded to the dtype first, as transformers does (`Gemma3TextScaledWordEmbedding`).
            let scale = Tensor::new(scale as f32, x.device())?.to_dtype(self.dtype)?;
            x = x.broadcast_mul(&scale)?;
        }

        // 2. Layers: x += mixer(norm(x)); x += feed_forward(norm(x)).
        let mut ropes = Ropes { made: Vec::new(), positions: past.positions(l), dtype: self.dtype };
        for (i, layer) in self.layers.iter().enumerate() {
            let device = &self.devices[i];
            if i > 0 && !device.same_device(&self.devices[i - 1]) {
                x = x.to_device(device)?;
            }
            let h = layer.mixer_norm.forward(&x)?;
            let mut mixed = match &layer.mixer {
                Mixer::Attention(attention) => {
                    let same = |other: usize| self.devices[other].same_device(device);
                    let rope = match self.spec.layers[i].attention() {
                        Some(spec) => ropes.get(&spec.rope, i, device, same)?,
                        None => candle_core::bail!("This is a bug: layer {i} has no attention spec"),
                    };
                    attention.forward(i, &h, rope, &mut past, phase)?
                }
                Mixer::DeltaNet(delta_net) => delta_net.forward(i, &h, &mut past, phase)?,
            };
            if let Some((after, _)) = &layer.sandwich {
                mixed = after.forward(&mixed)?;
            }
            x = (x + mixed)?;
            let h = layer.feed_forward_norm.forward(&x)?;
            let mut fed = match &layer.feed_forward {
                FeedForward::Dense(mlp) => mlp.forward(&h, phase)?,
                FeedForward::Experts(experts) => experts.forward(&h, phase)?,
            };
            if let Some((_, after)) = &layer.sandwich {
                fed = after.forward(&fed)?;
            }
            x = (x + fed)?;
        }
        past.advance(l);

        // 3. Norm only what is kept.
        let keep = keep.min(l);
        self.norm.forward(&x.narrow(0, l - keep, keep)?)
    }

    /// The output head: normed hidden states (n, hidden) -> logits f32 (n, vocab).
    pub fn logits(&self, hidden: &Tensor, phase: Phase) -> Result<Tensor> {
        self.head.forward(hidden, phase)?.to_dtype(DType::F32)
    }
}

#[cfg(test)]
mod launches;
