//! The table of architectures: config to [`DecoderSpec`], and tensor names. A new architecture is one file and one line in
//! [`ARCHITECTURES`].

use serde_json::Value;

use super::weights::GgufFile;
use super::{DecoderSpec, ModelError};

mod architecture;
mod base;
mod config;
mod deepseek;
mod exaone4;
mod fields;
mod gemma3;
mod gemma4;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod latent;
mod lfm2;
mod lfm2_moe;
mod lfm3;
mod llama;
mod mamba;
mod meta;
mod minimax_m2;
mod mistral;
mod nemotron_h;
mod olmo3;
mod phi3;
mod quantisation;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod rope;
mod smollm3;
mod sparse;

pub use architecture::Architecture;
pub(super) use architecture::{Names, Rows};
use config::Config;
use fields::Fields;
pub use fields::parse;
pub(super) use latent::paired;
use meta::Meta;

/// Supported architectures.
pub const ARCHITECTURES: &[Architecture] = &[
    llama::LLAMA,
    mistral::MISTRAL,
    phi3::PHI3,
    granite::GRANITE,
    olmo3::OLMO3,
    exaone4::EXAONE4,
    smollm3::SMOLLM3,
    qwen2::QWEN2,
    qwen3::QWEN3,
    qwen3_moe::QWEN3_MOE,
    qwen3_5::QWEN3_5,
    qwen3_5_moe::QWEN3_5_MOE,
    qwen3_next::QWEN3_NEXT,
    gpt_oss::GPT_OSS,
    glm4_moe::GLM4_MOE,
    minimax_m2::MINIMAX_M2,
    gemma3::GEMMA3,
    lfm2::LFM2,
    lfm2_moe::LFM2_MOE,
    lfm3::LFM3,
    granite_hybrid::GRANITE_HYBRID,
    nemotron_h::NEMOTRON_H,
    deepseek::V2,
    deepseek::V3,
    deepseek::GLM4_MOE_LITE,
    deepseek::MISTRAL4,
    sparse::DEEPSEEK_V32,
    sparse::GLM_MOE_DSA,
    gemma4::GEMMA4,
];

/// Finds the architecture of a config.json and parses its spec; `place` names the file in errors.
pub fn from_config(config: &Value, place: &str) -> Result<(&'static Architecture, DecoderSpec), ModelError> {
    let fields = Fields::new(config, place)?;
    let found = fields.text("model_type")?;
    let of_types =
        |types: &[&str]| ARCHITECTURES.iter().find(|a| types.iter().all(|of_type| a.hf.contains(of_type)));
    let entry = of_types(&[found]).ok_or_else(|| unknown(found, |a| Some(a.hf[0])))?;
    quantisation::fp8_block(&fields)?;
    let nested = fields.object("text_config")?;
    // `mistral3` has text models of two architectures.
    let inner = nested.as_ref().map(|nested| nested.optional_text("model_type")).transpose()?.flatten();
    let entry = inner.and_then(|inner| of_types(&[found, inner])).unwrap_or(entry);
    let read = nested.as_ref().unwrap_or(&fields);
    if nested.is_some() {
        read.expect_text("model_type", entry.hf)?;
        quantisation::fp8_block(read)?;
    }
    let mut spec = (entry.spec)(&Config::Json(read))?;
    // Some checkpoints set it outside the text config.
    let tied = fields.flag("tie_word_embeddings", false)?;
    if read.get("tie_word_embeddings").is_none() && fields.get("tie_word_embeddings").is_some() {
        spec.tied = tied;
    }
    read.finish()?;
    fields.finish()?;
    consistent(&spec, place)?;
    Ok((entry, spec))
}

/// Rejects an inconsistent spec.
fn consistent(spec: &DecoderSpec, place: &str) -> Result<(), ModelError> {
    match spec.contradiction() {
        None => Ok(()),
        Some(fault) => Err(ModelError::Contradiction { place: place.to_owned(), fault }),
    }
}

/// Rows and columns per scale of a checkpoint with FP8 weights.
pub(super) fn fp8_block(config: &Value, place: &str) -> Result<(usize, usize), ModelError> {
    let fields = Fields::new(config, place)?;
    let nested = fields.object("text_config")?;
    let blocks = [Some(&fields), nested.as_ref()].into_iter().flatten().map(quantisation::fp8_block);
    let found: Option<_> = blocks.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().next();
    Ok(found.unwrap_or((128, 128)))
}

/// Finds the architecture of a GGUF file and parses its spec; `place` names the file in errors.
pub fn from_gguf(file: &GgufFile, place: &str) -> Result<(&'static Architecture, DecoderSpec), ModelError> {
    let found = file.architecture()?;
    let entry =
        ARCHITECTURES.iter().find(|a| a.gguf == Some(found)).ok_or_else(|| unknown(found, |a| a.gguf))?;
    let meta = Meta::new(file, place)?;
    let spec = (entry.spec)(&Config::Gguf(&meta))?;
    meta.finish()?;
    consistent(&spec, place)?;
    Ok((entry, spec))
}

/// Rejects an unknown architecture, by either name, before anything is downloaded.
pub fn check_known(name: &str) -> Result<(), ModelError> {
    if ARCHITECTURES.iter().any(|a| a.hf.contains(&name) || a.gguf == Some(name)) {
        Ok(())
    } else {
        Err(unknown(name, |a| Some(a.hf[0])))
    }
}

fn unknown(found: &str, name: fn(&Architecture) -> Option<&'static str>) -> ModelError {
    let known: Vec<String> = ARCHITECTURES.iter().filter_map(name).map(|name| format!("`{name}`")).collect();
    ModelError::UnknownArchitecture { found: found.to_owned(), known: known.join(", ") }
}
