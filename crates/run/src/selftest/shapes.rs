//! Models of the self-test: shapes with seeded random weights ([`palimpsest_core::model::Fill`]). [`small`] narrows a released model of
//! every architecture, keeping the head size; [`layers`] takes one layer of each kind at released width. Configs are compiled into the
//! core.

use palimpsest_core::model::arch::ARCHITECTURES;
use palimpsest_core::model::{
    DecoderSpec, FeedForwardSpec, Fill, LayerSpec, MixerSpec, ModelDescription, ModelError, Sees,
};

pub const FILL: Fill = Fill::Random { seed: 9 };
/// Layers of a narrowed model: at least one of each kind in every architecture.
const LAYERS: usize = 6;
/// Hidden size of a narrowed model.
const HIDDEN: usize = 128;
/// Maximum window, shorter than a short prompt.
const WINDOW: usize = 64;
/// Vocabulary of a single layer: small, so that the layer dominates the time.
const VOCAB: usize = 1024;

#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Model or layer kind.
    pub name: &'static str,
    /// The released model with these widths.
    pub of: &'static str,
    pub spec: DecoderSpec,
}

impl Shape {
    pub fn title(&self) -> String {
        format!("{} of {}", self.name, self.of)
    }
}

fn released(name: &str) -> Result<DecoderSpec, ModelError> {
    let unknown =
        || ModelError::UnknownArchitecture { found: name.to_owned(), known: "its own config".to_owned() };
    Ok(ModelDescription::released(name).unwrap_or_else(|| Err(unknown()))?.spec)
}

pub fn small() -> Result<Vec<Shape>, ModelError> {
    let of_each = ARCHITECTURES.iter().map(|architecture| architecture.released);
    of_each.map(|name| Ok(Shape { name, of: name, spec: narrow(released(name)?) })).collect()
}

/// One layer of each kind at small vocabulary; `quick` narrows them.
pub fn layers(quick: bool) -> Result<Vec<Shape>, ModelError> {
    let full = |layer: &LayerSpec| layer.attention().is_some_and(|a| a.window.is_none());
    let windowed = |layer: &LayerSpec| layer.attention().is_some_and(|a| a.window.is_some());
    let linear = |layer: &LayerSpec| layer.delta_net().is_some();
    let kind = |name, of, spec: DecoderSpec, wanted: &dyn Fn(&LayerSpec) -> bool| {
        let layers = spec.layers.iter().find(|layer| wanted(layer)).cloned().into_iter().collect();
        let spec = DecoderSpec { vocab: VOCAB, tied: false, layers, ..spec };
        Shape { name, of, spec: if quick { narrow(spec) } else { spec } }
    };
    Ok(vec![
        kind("gated attention", "Qwen3.5-9B", released("qwen3.5-9b")?, &full),
        kind("delta net", "Qwen3.5-9B", released("qwen3.5-9b")?, &linear),
        kind("attention", "Llama-3.1-8B", released("llama-3.1-8b-instruct")?, &full),
        kind("window", "Gemma-3-12B", gemma_12b(released("gemma3-270m")?), &windowed),
        kind("experts, sinks", "gpt-oss-20b", released("gpt-oss-20b")?, &full),
    ])
}

/// Gemma 3 270M with the widths of 12B (config.json of `google/gemma-3-12b-it`), whose config is not compiled in.
fn gemma_12b(mut spec: DecoderSpec) -> DecoderSpec {
    for layer in &mut spec.layers {
        if let MixerSpec::Attention(a) = &mut layer.mixer {
            (a.heads, a.kv_heads, a.window) = (16, 8, a.window.map(|_| 1024));
        }
        if let FeedForwardSpec::Dense(mlp) = &mut layer.feed_forward {
            mlp.intermediate = 15_360;
        }
    }
    DecoderSpec { hidden: 3840, embedding_scale: Some(3840f64.sqrt()), ..spec }
}

/// Keeps the first layers and reduces heads, experts and columns. The head size stays, since it selects the kernels.
fn narrow(mut spec: DecoderSpec) -> DecoderSpec {
    spec.layers.truncate(LAYERS);
    for layer in &mut spec.layers {
        match &mut layer.mixer {
            MixerSpec::Attention(a) => {
                a.heads = 2 * (a.heads / a.kv_heads.max(1)).clamp(1, 4);
                a.kv_heads = 2;
                // The latent head is the only one.
                if let Some(latent) = &mut a.latent {
                    (a.heads, a.kv_heads) = (4, 1);
                    latent.query_rank = latent.query_rank.map(|rank| rank.min(HIDDEN));
                    // A row chooses more keys than the prompts have: where scores all but tie, devices would choose others.
                    if let Sees::Chosen(indexer) = &mut latent.sees {
                        indexer.heads = 4;
                    }
                }
                a.window = a.window.map(|window| window.min(WINDOW));
            }
            MixerSpec::DeltaNet(d) => (d.key_heads, d.value_heads) = (2, 4),
            MixerSpec::ShortConv(c) => c.channels = HIDDEN,
            MixerSpec::Mamba2(m) => (m.heads.key_heads, m.heads.value_heads) = (2, 4),
            MixerSpec::None => {}
        }
        match &mut layer.feed_forward {
            FeedForwardSpec::None => {}
            FeedForwardSpec::Dense(mlp) => mlp.intermediate = 2 * HIDDEN,
            FeedForwardSpec::Experts(e) => {
                (e.experts, e.per_token) = (8, e.per_token.min(2));
                e.expert.intermediate = HIDDEN / 2;
                e.shared.iter_mut().for_each(|shared| shared.intermediate = HIDDEN / 2);
            }
        }
    }
    let embedding_scale = spec.embedding_scale.map(|_| (HIDDEN as f64).sqrt());
    DecoderSpec { hidden: HIDDEN, vocab: 256, embedding_scale, ..spec }
}

/// Routes every token to all experts, so that rounding cannot change the routing.
pub fn to_all_experts(mut spec: DecoderSpec) -> DecoderSpec {
    for layer in &mut spec.layers {
        if let FeedForwardSpec::Experts(e) = &mut layer.feed_forward {
            e.per_token = e.experts;
        }
    }
    spec
}

pub fn has_experts(spec: &DecoderSpec) -> bool {
    spec.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForwardSpec::Experts(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_has_a_small_model_with_each_kind_of_its_layers() -> Result<(), ModelError> {
        let mut found = Vec::new();
        for Shape { name, spec, .. } in small()? {
            assert_eq!(spec.contradiction(), None, "{name}");
            assert!(spec.parameters() < 12_000_000, "{name}: {}", spec.parameters());
            let kinds = |spec: &DecoderSpec| {
                let kind = |layer: &LayerSpec| {
                    let experts = matches!(layer.feed_forward, FeedForwardSpec::Experts(_));
                    (layer.linear().is_some(), layer.attention().map(|a| a.window.is_some()), experts)
                };
                spec.layers.iter().map(kind).collect::<std::collections::BTreeSet<_>>()
            };
            assert_eq!(kinds(&spec), kinds(&released(name)?), "{name}");
            found.push(spec.architecture);
        }
        found.dedup();
        assert_eq!(found.len(), ARCHITECTURES.len(), "{found:?}");
        Ok(())
    }

    #[test]
    fn every_kind_of_layer_is_there_at_the_widths_of_9b_models_and_reduced() -> Result<(), ModelError> {
        for (wide, quick) in layers(false)?.into_iter().zip(layers(true)?) {
            let parameters = |spec: &DecoderSpec| spec.layers[0].parameters(spec.hidden) / 1_000_000;
            assert!((150..1000).contains(&parameters(&wide.spec)), "{}", wide.name);
            assert!(parameters(&quick.spec) < 2 && quick.spec.contradiction().is_none(), "{}", wide.name);
            let kind = |spec: &DecoderSpec| {
                (spec.layers.len(), spec.layers[0].delta_net().is_some(), has_experts(spec))
            };
            assert_eq!(kind(&wide.spec), kind(&quick.spec), "{}", wide.name);
        }
        Ok(())
    }
}
