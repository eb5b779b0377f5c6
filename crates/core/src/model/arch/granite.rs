//! Granite 3 and 4, dense (transformers, `GraniteForCausalLM`): Llama with scales of embedding, scores, residuals and logits.

use super::{Architecture, Config, Names, llama};
use crate::model::{DecoderSpec, MixerSpec, ModelError};

pub const GRANITE: Architecture = Architecture {
    hf: &["granite"],
    gguf: Some("granite"),
    released: "granite-3.3-8b-instruct",
    names: Names { gguf_rows: llama::rows, ..Names::PLAIN },
    spec,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    let mut spec = (llama::LLAMA.spec)(config)?;
    let scale = config.optional_positive(("attention_multiplier", "attention.scale"))?.unwrap_or(1.0);
    for layer in &mut spec.layers {
        if let MixerSpec::Attention(attention) = &mut layer.mixer {
            attention.scale = scale as f32;
        }
    }
    Ok(DecoderSpec {
        architecture: GRANITE.hf[0],
        embedding_scale: config.optional_positive(("embedding_multiplier", "embedding_scale"))?,
        residual_scale: config.optional_positive(("residual_multiplier", "residual_scale"))?,
        logit_divisor: config.optional_positive(("logits_scaling", "logit_scale"))?,
        ..spec
    })
}
