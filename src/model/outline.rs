//! What is known of a model before its weights are: enough to plan its memory.
//!
//! From a config.json alone, from a GGUF file's headers, or from the configs of released models that are compiled in
//! (`models/configs/`), so that a user can plan before a download. Called by `model plan` and by the engine's refusals.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::arch;
use super::fetch::{ModelFiles, ModelKind};
use super::weights::GgufFile;
use super::{DecoderSpec, ModelError};

/// The configs of released models: manifest name (also the file's) and text.
const RELEASED: &[(&str, &str)] = &[
    ("smollm2-135m", include_str!("../../models/configs/smollm2-135m.json")),
    ("gemma3-270m", include_str!("../../models/configs/gemma3-270m.json")),
    ("llama-3.1-8b-instruct", include_str!("../../models/configs/llama-3.1-8b-instruct.json")),
    ("llama-3.3-70b-instruct", include_str!("../../models/configs/llama-3.3-70b-instruct.json")),
    ("qwen2.5-7b-instruct", include_str!("../../models/configs/qwen2.5-7b-instruct.json")),
    ("qwen2.5-14b-instruct", include_str!("../../models/configs/qwen2.5-14b-instruct.json")),
    ("qwen2.5-72b-instruct", include_str!("../../models/configs/qwen2.5-72b-instruct.json")),
    ("qwen3-4b", include_str!("../../models/configs/qwen3-4b.json")),
    ("qwen3-8b", include_str!("../../models/configs/qwen3-8b.json")),
    ("qwen3-14b", include_str!("../../models/configs/qwen3-14b.json")),
    ("qwen3-32b", include_str!("../../models/configs/qwen3-32b.json")),
    ("qwen3-235b-a22b", include_str!("../../models/configs/qwen3-235b-a22b.json")),
    ("qwen3.5-9b", include_str!("../../models/configs/qwen3.5-9b.json")),
    ("qwen3.5-27b", include_str!("../../models/configs/qwen3.5-27b.json")),
    ("gpt-oss-20b", include_str!("../../models/configs/gpt-oss-20b.json")),
    ("gpt-oss-120b", include_str!("../../models/configs/gpt-oss-120b.json")),
    ("glm-4.5-air", include_str!("../../models/configs/glm-4.5-air.json")),
    ("minimax-m2.5", include_str!("../../models/configs/minimax-m2.5.json")),
];

/// A model's description, and what its file adds to the memory that the description implies.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// What the decoder will be made of.
    pub spec: DecoderSpec,
    /// Of a quantised GGUF file: bytes of the copies that decoding reads, which are kept on the CPU in f32.
    pub repacked: Option<Repacked>,
    /// Bytes of the weight files; 0 where they are not here.
    pub file_bytes: u64,
}

/// Bytes of weights that are kept as they are quantised, repacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repacked {
    /// Of every layer.
    pub layers: Vec<u64>,
    /// Of the output head, tied or not.
    pub head: u64,
}

impl Outline {
    /// From a decoder's description alone: dense weights, no file.
    pub fn of(spec: DecoderSpec) -> Self {
        Outline { spec, repacked: None, file_bytes: 0 }
    }

    /// From the text of a config.json, called `place` in errors.
    ///
    /// # Errors
    /// [`ModelError`] for what is no config of a known architecture.
    pub fn from_config_text(text: &[u8], place: &str) -> Result<Self, ModelError> {
        let config: Value = serde_json::from_slice(text)
            .map_err(|source| ModelError::Json { place: place.to_owned(), source })?;
        Ok(Self::of(arch::from_config(&config, place)?.1))
    }

    /// From a config.json, whatever it is called.
    ///
    /// # Errors
    /// [`ModelError`] where it cannot be read or is no config of a known architecture.
    pub fn from_config_file(path: &Path) -> Result<Self, ModelError> {
        let place = path.display().to_string();
        let text = std::fs::read(path).map_err(|source| ModelError::Io { place: place.clone(), source })?;
        Self::from_config_text(&text, &place)
    }

    /// From a folder's config.json (its weights need not be there) or a GGUF file's headers.
    ///
    /// # Errors
    /// [`ModelError`] for what is no model of a known architecture.
    pub fn from_files(files: &ModelFiles) -> Result<Self, ModelError> {
        match &files.kind {
            ModelKind::Gguf(parts) => Self::from_gguf_parts(parts),
            ModelKind::Folder(folder) => Self::from_config_file(&folder.join("config.json")),
        }
    }

    fn from_gguf_parts(parts: &[PathBuf]) -> Result<Self, ModelError> {
        let Some(first) = parts.first() else { return Err(ModelError::NoFile) };
        let file = GgufFile::open(parts)?;
        let (_, spec) = arch::from_gguf(&file, &first.display().to_string())?;
        Ok(Self::from_gguf(&file, spec))
    }

    /// From an open GGUF file and what it describes.
    pub(super) fn from_gguf(file: &GgufFile, spec: DecoderSpec) -> Self {
        let mut repacked = Repacked { layers: vec![0; spec.layers.len()], head: 0 };
        let head = if spec.tied { "token_embd.weight" } else { "output.weight" };
        for info in file.tensors() {
            // A byte a weight; a scale, and a minimum where the type has one, for every group.
            let bytes = info.dtype.groups().map_or(0, |groups| {
                let elements = info.elements() as u64;
                let numbers = if groups.mins { 2 } else { 1 };
                elements + elements / groups.columns as u64 * numbers * 4
            });
            let layer = info.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
            let layer: Option<usize> = layer;
            match layer.and_then(|layer| repacked.layers.get_mut(layer)) {
                Some(sum) => *sum += bytes,
                None if info.name == head => repacked.head += bytes,
                None => {}
            }
        }
        let any = repacked.head > 0 || repacked.layers.iter().any(|&bytes| bytes > 0);
        Outline { spec, repacked: any.then_some(repacked), file_bytes: file.file_bytes() }
    }

    /// The outline of a released model by its manifest's name, if its config is compiled in.
    pub fn released(name: &str) -> Option<Result<Self, ModelError>> {
        let (_, text) = RELEASED.iter().find(|(known, _)| *known == name)?;
        Some(Self::from_config_text(text.as_bytes(), &format!("models/configs/{name}.json")))
    }

    /// The names of the released models whose configs are compiled in.
    pub fn released_names() -> impl Iterator<Item = &'static str> {
        RELEASED.iter().map(|(name, _)| *name)
    }
}
