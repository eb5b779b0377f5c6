//! Layers that share keys, or a choice of keys.

use std::ops::Range;

use super::{DecoderSpec, KeyValues, LayerSpec, Sees};

impl DecoderSpec {
    /// Layer `i` and those after it that choose keys by its indexer's scores.
    pub(in crate::model) fn sharing_choice(&self, i: usize) -> Range<usize> {
        let latent = |layer: &LayerSpec| layer.attention().and_then(|attention| attention.latent);
        let after = self.layers.iter().skip(i + 1).map(latent);
        let sharing = after.take_while(|latent| latent.is_some_and(|latent| latent.sees == Sees::AsBefore));
        i..i + 1 + sharing.count()
    }

    /// From the first layer whose keys later ones share to the last that shares some; empty if none does.
    pub fn sharing_keys(&self) -> Range<usize> {
        let source = |layer: &LayerSpec| match layer.attention()?.key_values {
            KeyValues::Of(source) => Some(source),
            _ => None,
        };
        let sources: Vec<Option<usize>> = self.layers.iter().map(source).collect();
        let last = sources.iter().rposition(Option::is_some);
        sources.iter().flatten().min().zip(last).map_or(0..0, |(&first, last)| first..last + 1)
    }
}
