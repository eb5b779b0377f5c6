//! Mistral, and Ministral 3, whose queries are scaled by position; also as the text part of Mistral 3 (transformers, `MistralForCausalLM`,
//! `Ministral3ForCausalLM`). llama.cpp's files of Mistral say `llama`.

use super::base::{Base, INTERMEDIATE, Unsaid, WINDOW, layer, silu};
use super::{Architecture, Config, Names, llama, rope};
use crate::model::{AttentionSpec, DecoderSpec, FeedForwardSpec, ModelError, RopeScaling};

pub const MISTRAL: Architecture = Architecture {
    hf: &["mistral", "ministral3", "mistral3"],
    gguf: Some("mistral3"),
    released: "ministral-3-8b-base",
    names: Names { gguf_rows: llama::rows, ..Names::PLAIN },
    spec,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let (third, unsaid) = match config {
        Config::Json(fields) => {
            let third = fields.optional_text("model_type")? == Some("ministral3");
            // A missing window is that of Mistral 7B; null is none.
            (third, (!third && !fields.states(WINDOW.0)).then_some(4096))
        }
        Config::Gguf(_) => (true, None),
    };
    let window = config.optional_count(WINDOW)?.or(unsaid);
    let head_dim = third.then_some(128);
    let base = Base::read(config, Unsaid { kv_heads: Some(8), head_dim, ..Unsaid::default() })?;
    let defaults = rope::RopeDefaults { query_beta: third, ..base.rope_defaults(10_000.0) };
    let rope = rope::read(config, defaults)?;
    if third && config.is_json() && !matches!(rope.scaling, RopeScaling::Yarn(_)) {
        let problem = "is not `yarn`, whose `llama_4_scaling_beta` this architecture scales queries by";
        return Err(config.refuse(("rope_parameters", ""), problem));
    }
    let attention = AttentionSpec { window, ..base.attention(rope) };
    let layer = layer(attention, FeedForwardSpec::Dense(silu(config.count(INTERMEDIATE)?)));
    Ok(base.decoder("mistral", vec![layer; base.layers]))
}
