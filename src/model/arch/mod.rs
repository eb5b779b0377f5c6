//! The table of architectures: how each one's config maps to a [`DecoderSpec`].
//!
//! An architecture is one file and one line in [`ARCHITECTURES`].

use serde_json::Value;

use super::weights::GgufFile;
use super::{DecoderSpec, ModelError};

mod fields;
mod llama;

pub use fields::Fields;

/// One architecture.
pub struct Architecture {
    /// `model_type` in config.json.
    pub hf: &'static str,
    /// `general.architecture` in GGUF.
    pub gguf: &'static str,
    /// Whether llama.cpp's converter interleaves the rows of query and key weights.
    pub gguf_interleaved: bool,
    /// Reads config.json.
    pub from_hf: fn(&Fields) -> Result<DecoderSpec, ModelError>,
    /// Reads GGUF metadata.
    pub from_gguf: fn(&GgufFile, &str) -> Result<DecoderSpec, ModelError>,
}

/// Every architecture that this build knows.
pub const ARCHITECTURES: &[Architecture] = &[Architecture {
    hf: "llama",
    gguf: "llama",
    gguf_interleaved: true,
    from_hf: llama::from_hf,
    from_gguf: llama::from_gguf,
}];

/// The architecture's entry for a config.json, and what it describes. `place` is the file's name for errors.
pub fn from_config(config: &Value, place: &str) -> Result<(&'static Architecture, DecoderSpec), ModelError> {
    let fields = Fields::new(config, place)?;
    let found = fields.text("model_type")?;
    let entry = ARCHITECTURES.iter().find(|a| a.hf == found).ok_or_else(|| unknown(found, |a| a.hf))?;
    Ok((entry, (entry.from_hf)(&fields)?))
}

/// The architecture's entry for a GGUF file, and what it describes. `place` is the file's name for errors.
pub fn from_gguf(file: &GgufFile, place: &str) -> Result<(&'static Architecture, DecoderSpec), ModelError> {
    let found = file.architecture()?;
    let entry = ARCHITECTURES.iter().find(|a| a.gguf == found).ok_or_else(|| unknown(found, |a| a.gguf))?;
    Ok((entry, (entry.from_gguf)(file, place)?))
}

/// Refuses an architecture, by either of its names, that this build does not know: before anything is fetched for it.
pub fn check_known(name: &str) -> Result<(), ModelError> {
    if ARCHITECTURES.iter().any(|a| a.hf == name || a.gguf == name) {
        Ok(())
    } else {
        Err(unknown(name, |a| a.hf))
    }
}

fn unknown(found: &str, name: fn(&Architecture) -> &'static str) -> ModelError {
    let known = ARCHITECTURES.iter().map(|a| format!("`{}`", name(a))).collect::<Vec<_>>().join(", ");
    ModelError::UnknownArchitecture { found: found.to_owned(), known }
}
