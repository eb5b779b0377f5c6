//! The decoder: embedding, layers, final norm, output head.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Result, Tensor};

mod ropes;

use super::build::{self, FeedForward, Layer, Mixer, rounded_to};
use super::kv_view::{Choice, Group, KvView, Pass};
use super::layers::{Embedding, LayerEmbeddings, NewKeys, Phase, Projection, RmsNorm};
use super::{Cache, DecoderSpec, Formats, KeyValues, LayerSpec, Loader, ModelError};
use crate::attention::{AttentionKernel, LayerHoles, Residual, Settled, Term, settle};
use crate::fused::products::Own;
use crate::transfer;
use ropes::Ropes;

/// A decoder-only transformer with its weights on one or more devices.
#[derive(Debug)]
pub struct Decoder {
    spec: DecoderSpec,
    embedding: Embedding,
    layer_embeddings: Option<LayerEmbeddings>,
    layers: Vec<Layer>,
    /// Per layer: the product of its scalar and those of later layers, by which its terms reach the final norm.
    behind: Vec<f64>,
    /// Per layer.
    devices: Vec<Device>,
    /// Attention kernels per layer; `None` where there is no choice.
    kernels: Vec<Option<Settled>>,
    ropes: Ropes,
    /// Norm and head are on the last layer's device.
    norm: RmsNorm,
    head: Projection,
    formats: Formats,
}

impl Decoder {
    /// Loads every tensor of the loader's spec; missing, misshapen and unused tensors are errors. `devices`: one per layer; embedding and
    /// head follow the first and last. `kernel`: the CUDA attention kernel choice.
    pub(super) fn load(
        mut loader: Loader,
        devices: Vec<Device>,
        kernel: AttentionKernel,
    ) -> std::result::Result<Self, ModelError> {
        let spec = loader.spec().clone();
        let (Some(first), Some(last)) = (devices.first(), devices.last()) else {
            return Err(ModelError::NoDevice);
        };
        // Self-test the kernels before loading weights, which takes minutes.
        let formats = loader.formats();
        let settled = |(layer, device): (&LayerSpec, &Device)| match layer.attention() {
            Some(attention) => settle(kernel, device, &attention.shape(formats.dtype)),
            None => Ok(None),
        };
        let kernels = spec.layers.iter().zip(&devices).map(settled).collect::<Result<_>>()?;
        loader.put_on(first);
        let rows = loader.weight("embed_tokens.weight", &[spec.vocab, spec.hidden])?;
        let embedding = Embedding::new(rows.clone(), spec.tied, formats.half_products())?;
        let layer_embeddings = spec.layer_inputs.map(|width| build::layer_embeddings(&mut loader, width));
        let layer_embeddings = layer_embeddings.transpose()?;
        loader.put_on(last);
        let norm = build::norm(&mut loader, "norm", spec.hidden, spec.norm)?;
        let head_name = if spec.tied { "embed_tokens" } else { "lm_head" };
        let shared = spec.tied.then(|| embedding.moved(last)).transpose()?;
        let head = loader.linear_with(head_name, spec.vocab, spec.hidden, false, shared)?;
        if spec.tied {
            // Some fine-tuned checkpoints store a copy of a tied head.
            loader.accept_copy("lm_head.weight", &rows)?;
        }
        drop(rows);
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, (layer, device)) in spec.layers.iter().zip(&devices).enumerate() {
            loader.put_on(device);
            layers.push(build::layer(&mut loader, i, layer, kernel)?);
        }
        loader.finish()?;
        let mut behind: Vec<f64> = layers.iter().map(|layer| layer.scalar.unwrap_or(1.0)).collect();
        for i in (1..behind.len()).rev() {
            behind[i - 1] *= behind[i];
        }
        let ropes = Ropes::default();
        Ok(Decoder {
            spec,
            embedding,
            layer_embeddings,
            layers,
            behind,
            devices,
            kernels,
            ropes,
            norm,
            head,
            formats,
        })
    }

    /// The model's spec.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Device of the output head and the logits.
    pub fn device(&self) -> &Device {
        self.devices.last().unwrap_or(&Device::Cpu)
    }

    /// Dtype of weights and products.
    pub fn dtype(&self) -> DType {
        self.formats.dtype
    }

    /// Number formats of weights, hidden states and cache.
    pub fn formats(&self) -> Formats {
        self.formats
    }

    /// The attention kernels of layer `layer`, selected at load; `None` on devices other than CUDA and for linear attention.
    pub fn attention_kernel(&self, layer: usize) -> Option<Settled> {
        self.kernels.get(layer).copied().flatten()
    }

    /// An empty cache for `capacity` tokens.
    pub fn cache(&self, capacity: usize) -> Result<Cache> {
        Cache::new(&self.spec, capacity, &self.formats, &self.devices)
    }

    /// As [`Decoder::cache`], but windowed layers keep all keys, too.
    pub fn whole_cache(&self, capacity: usize) -> Result<Cache> {
        Cache::new(&self.spec.without_windows(), capacity, &self.formats, &self.devices)
    }

    /// Appends `tokens` to the cache and returns the last `keep` (at least 1) normalised final hidden states, (keep, hidden). `pass`: the
    /// observer, and knock-outs if any.
    pub fn forward<'p>(
        &self,
        tokens: &[u32],
        keep: usize,
        cache: &mut Cache,
        phase: Phase,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Tensor> {
        let x = self.pass(tokens, KvView::Sequence { cache, pass: pass.into().again() }, phase)?;
        let keep = keep.clamp(1, tokens.len());
        self.norm.forward(&x.narrow(0, tokens.len() - keep, keep)?)
    }

    /// [`Decoder::forward`] without output, for earlier chunks of a prompt.
    pub fn fill_cache<'p>(&self, tokens: &[u32], cache: &mut Cache, pass: impl Into<Pass<'p>>) -> Result<()> {
        self.pass(tokens, KvView::Sequence { cache, pass: pass.into().again() }, Phase::Prefill).map(drop)
    }

    /// Decodes one token per branch and returns the normalised final hidden states, (branches, hidden). Branches of a group have the same
    /// [`super::Branch::start`]; keys before it are read once per group, weights once for all groups. On error the branches are unusable.
    pub fn forward_groups<'a>(&self, tokens: &[u32], groups: Vec<Group<'a>>) -> Result<Tensor> {
        self.norm.forward(&self.pass(tokens, KvView::Branches { groups }, Phase::Decode)?)
    }

    /// Reads `tokens` after the cache once per entry of `holes` (the keys hidden from them) and returns all normalised final hidden states,
    /// (readings * l, hidden), reading by reading. The cache is unchanged.
    pub fn forward_variants(
        &self,
        tokens: &[u32],
        cache: &mut Cache,
        holes: &[LayerHoles],
    ) -> Result<Tensor> {
        let all = tokens.repeat(holes.len());
        self.norm.forward(&self.pass(&all, KvView::Variants { cache, holes }, Phase::Prefill)?)
    }

    /// Reads `tokens` at ascending `positions` of the cache, whose keys and values they replace. In each layer those of all rows are written
    /// first; then each row sees the keys up to its own, and later rows of the cache stay as they are. For caches that keep all keys.
    pub fn forward_rows(&self, tokens: &[u32], positions: &[usize], cache: &mut Cache) -> Result<()> {
        self.pass(tokens, KvView::Rows { cache, positions }, Phase::Prefill).map(drop)
    }

    /// Output of the last layer for `tokens`, (l, hidden).
    fn pass(&self, tokens: &[u32], mut kv: KvView<'_>, phase: Phase) -> Result<Tensor> {
        let l = tokens.len();
        if l == 0 {
            candle_core::bail!("This is a bug: a forward of no tokens");
        }
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= self.spec.vocab) {
            candle_core::bail!("token id {id} is outside the model's vocabulary of {}", self.spec.vocab);
        }

        kv.begin(l)?;

        // 1. Embed: (l, hidden).
        let mut x = self.embed(tokens)?;
        let (targets, shows_residual) = (kv.targets(l), kv.shows_residual(l));
        if !targets.is_empty() {
            kv.show_term(Term::Embedding(&self.term(0, rows_of(x.tensor(), &targets)?)?))?;
        }
        // (l, layers, width)
        let inputs = self.layer_embeddings.as_ref().map(|inputs| inputs.of(tokens, x.tensor(), phase));
        let inputs = inputs.transpose()?;
        let mut shared: BTreeMap<usize, NewKeys> = BTreeMap::new();

        // 2. Layers: x += mixer(norm(x)); x += feed_forward(norm(x)), normed and scaled as the spec says.
        let positions = kv.positions(l);
        let mut ropes = self.ropes.of(&positions, self.formats.activations);
        let mut choice = Choice::default();
        for (i, layer) in self.layers.iter().enumerate() {
            let device = &self.devices[i];
            if i > 0 && !device.same_device(&self.devices[i - 1]) {
                x = Own::made(transfer::moved(x.tensor(), device)?);
            }
            let [before_mixer, before_feed_forward] = layer.before.each_ref().map(Option::as_ref);
            let [after_mixer, after_feed_forward] = layer.after.each_ref().map(Option::as_ref);
            let plain = layer.after.iter().all(Option::is_none) && self.spec.residual_scale.is_none();
            if let Some(out) = layer.mixer.out() {
                // Decode repeats the same shapes in every layer and, except for the number of keys, in every step.
                let layouts = if phase == Phase::Decode { transfer::keep_layouts(device) } else { None };
                let h = normed(before_mixer, x.tensor().clone())?;
                let mixed = match &layer.mixer {
                    Mixer::Attention(attention) => {
                        let rope = match self.spec.layers[i].attention() {
                            Some(spec) => ropes.get(&spec.rope, device)?,
                            None => candle_core::bail!("This is a bug: layer {i} has no attention spec"),
                        };
                        let given = match attention.spec.key_values {
                            KeyValues::Of(source) => shared.get(&source),
                            _ => None,
                        };
                        let (mixed, new) = attention.forward(i, &h, (rope, given), &mut kv, phase)?;
                        if layer.shared {
                            shared.insert(i, new);
                        }
                        mixed
                    }
                    Mixer::Latent(latent) => {
                        let rope = ropes.get(&latent.spec.rope, device)?;
                        latent.forward(i, &h, rope, &mut kv, &mut choice, phase)?
                    }
                    Mixer::DeltaNet(delta_net) => delta_net.forward(i, &h, &mut kv, phase)?,
                    Mixer::ShortConv(conv) => conv.forward(i, &h, &mut kv, phase)?,
                    Mixer::Mamba2(mamba) => mamba.forward(i, &h, &mut kv, phase)?,
                    Mixer::None => h,
                };
                if !targets.is_empty() {
                    self.show_mixer(&mut kv, i, &rows_of(&mixed, &targets)?, phase)?;
                }
                // A copy, because sums are in place on CUDA.
                let before = shows_residual.then(|| x.tensor().force_contiguous()).transpose()?;
                x = match plain {
                    true => out.add_to(x, &mixed, phase)?,
                    false => x.plus(&self.added(after_mixer, out.forward(&mixed, phase)?)?)?,
                };
                drop(layouts);
                if let Some(before) = before {
                    self.show_residual(&mut kv, i, [&before, x.tensor()], &mixed, phase)?;
                }
            }
            if let FeedForward::None = &layer.feed_forward {
                continue;
            }
            let h = normed(before_feed_forward, x.tensor().clone())?;
            if !targets.is_empty() {
                let rows = [rows_of(&h, &targets)?, rows_of(x.tensor(), &targets)?];
                self.show_feed_forward(&mut kv, i, &rows, phase)?;
            }
            x = match &layer.feed_forward {
                FeedForward::Dense(mlp) if plain => mlp.down.add_to(x, &mlp.inner(&h, phase)?, phase)?,
                block => {
                    let out = block.forward(&h, x.tensor(), phase)?;
                    x.plus(&self.added(after_feed_forward, out)?)?
                }
            };
            if let (Some(input), Some(inputs)) = (&layer.input, &inputs) {
                let own = transfer::moved(&inputs.narrow(1, i, 1)?.squeeze(1)?.contiguous()?, device)?;
                let added = input.forward(x.tensor(), &own, phase)?;
                if !targets.is_empty() {
                    kv.show_term(Term::LayerInput(i, &self.term(i, rows_of(&added, &targets)?)?))?;
                }
                x = x.plus(&added)?;
            }
            if let Some(by) = layer.scalar {
                x = Own::made((x.tensor() * by)?);
            }
        }
        if !targets.is_empty() {
            let last = rows_of(x.tensor(), &targets)?;
            let scales = self.norm.scales(&last)?;
            kv.show_term(Term::Final(&scales, &(last.to_dtype(DType::F32)? * &scales)?))?;
        }
        kv.advance(l);
        Ok(x.into_tensor())
    }

    /// Shows the terms of layer `i`'s mixer at the targets; `mixed`: input of its output projection at the targets. Recurrent mixers show
    /// their whole output, softmax attention only the parts that do not depend on keys.
    fn show_mixer(&self, kv: &mut KvView<'_>, i: usize, mixed: &Tensor, phase: Phase) -> Result<()> {
        let layer = &self.layers[i];
        let norm = layer.after[0].as_ref();
        let Some(out) = layer.mixer.out() else { return Ok(()) };
        let added = out.forward(mixed, phase)?;
        match &layer.mixer {
            Mixer::Attention(_) | Mixer::Latent(_) => {
                let by = self.spec.residual_scale.unwrap_or(1.0) * self.behind[i];
                let scales = scales(norm, &added, by)?;
                let bias = out.bias().map(|bias| bias.to_dtype(DType::F32)).transpose()?;
                kv.show_term(Term::Attention(i, scales.as_ref(), bias.as_ref()))
            }
            _ => kv.show_term(Term::LinearAttention(i, &self.term(i, self.added(norm, added)?)?)),
        }
    }

    /// Shows the residual stream `[before, after]` the attention of layer `i`, if it is softmax attention; `mixed`: input of its output
    /// projection.
    fn show_residual(
        &self,
        kv: &mut KvView<'_>,
        i: usize,
        [before, after]: [&Tensor; 2],
        mixed: &Tensor,
        phase: Phase,
    ) -> Result<()> {
        let Layer { mixer, after: norms, .. } = &self.layers[i];
        let (Some(outputs), Some(out)) = (self.head_outputs(i)?, mixer.out()) else { return Ok(()) };
        let norm = norms[0].as_ref();
        let scales = match (norm, self.spec.residual_scale) {
            (None, None) => None,
            (norm, by) => scales(norm, &out.forward(mixed, phase)?, by.unwrap_or(1.0))?,
        };
        kv.show_residual(Residual { before, after, outputs: &outputs, scales: scales.as_ref() })
    }

    /// Shows the feed-forward term of layer `i` at the targets; `h`: its input there, and the residual stream.
    fn show_feed_forward(
        &self,
        kv: &mut KvView<'_>,
        i: usize,
        [h, stream]: &[Tensor; 2],
        phase: Phase,
    ) -> Result<()> {
        let layer = &self.layers[i];
        let added = self.added(layer.after[1].as_ref(), layer.feed_forward.forward(h, stream, phase)?)?;
        kv.show_term(Term::FeedForward(i, &self.term(i, added)?))
    }

    /// The term of layer `i` in the residual stream before the final norm, f32.
    fn term(&self, i: usize, added: Tensor) -> Result<Tensor> {
        let added = added.to_dtype(DType::F32)?;
        if self.behind[i] == 1.0 { Ok(added) } else { added * self.behind[i] }
    }

    /// The term that a block's output `x` adds to the residual stream.
    fn added(&self, norm: Option<&RmsNorm>, x: Tensor) -> Result<Tensor> {
        let x = normed(norm, x)?;
        match self.spec.residual_scale {
            None => Ok(x),
            // In half precision Candle would round the factor, by 1 in 6,000 of Granite's 0.6 in f16, the same way everywhere.
            Some(by) => (x.to_dtype(DType::F32)? * by)?.to_dtype(x.dtype()),
        }
    }

    /// Output projection per head of a softmax layer, transposed and without residual scale and layer scalars: f32 (heads, head_dim, hidden);
    /// `None` for other layers.
    pub fn head_outputs(&self, layer: usize) -> Result<Option<Tensor>> {
        let attention = match self.layers.get(layer).map(|layer| &layer.mixer) {
            Some(Mixer::Attention(attention)) => attention,
            Some(Mixer::Latent(latent)) => return latent.head_outputs().map(Some),
            _ => return Ok(None),
        };
        let spec = &attention.spec;
        let weight = attention.o.weight()?;
        Ok(Some(weight.reshape((spec.heads, spec.head_dim, self.spec.hidden))?))
    }

    /// Rows of the output head for these tokens, of which logits, before their soft cap, are products: f32 (tokens, hidden). A token outside the vocabulary is an error.
    pub fn head_rows(&self, tokens: &[u32]) -> Result<Tensor> {
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= self.spec.vocab) {
            candle_core::bail!("token id {id} is outside the model's vocabulary of {}", self.spec.vocab);
        }
        self.divided(self.head.weights_of(tokens)?)
    }

    fn embed(&self, tokens: &[u32]) -> Result<Own> {
        let x = self.embedding.of(tokens, self.formats.activations)?;
        Ok(Own::made(match self.spec.embedding_scale {
            None => x,
            // Rounded to the dtype first, as in transformers (`Gemma3TextScaledWordEmbedding`).
            Some(scale) => (x * rounded_to(scale, self.formats.dtype))?,
        }))
    }

    /// The output head: normalised hidden states (n, hidden) -> f32 logits (n, vocab).
    pub fn logits(&self, hidden: &Tensor, phase: Phase) -> Result<Tensor> {
        let logits = self.divided(self.head.forward(hidden, phase)?.to_dtype(DType::F32)?)?;
        match self.spec.logit_cap {
            None => Ok(logits),
            Some(cap) => (logits / cap)?.tanh()? * cap,
        }
    }

    fn divided(&self, logits: Tensor) -> Result<Tensor> {
        match self.spec.logit_divisor {
            None => Ok(logits),
            Some(by) => logits / by,
        }
    }
}

fn rows_of(x: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let rows = rows.iter().map(|&row| x.narrow(0, row, 1)).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&rows, 0)?.contiguous()
}

/// Factors of a block's output `added` in the residual stream that it is added to, times `by`, f32 (l, hidden), if there are any.
fn scales(norm: Option<&RmsNorm>, added: &Tensor, by: f64) -> Result<Option<Tensor>> {
    let scales = norm.map(|norm| norm.scales(added)).transpose()?;
    if by == 1.0 {
        return Ok(scales);
    }
    let ones = || added.to_dtype(DType::F32)?.ones_like();
    Ok(Some((scales.map_or_else(ones, Ok)? * by)?))
}

fn normed(norm: Option<&RmsNorm>, x: Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}

#[cfg(test)]
mod copies;
