//! Facts about a model without loading its weights, for memory planning.
//!
//! Read from a config.json, a GGUF header, or the built-in configs of released models (`configs/`), so that planning needs no download.

use std::path::{Path, PathBuf};

use super::arch;
use super::arch::Names;
use super::tensor_names::{BY_HEAD, GGUF_NAMES};
use super::weights::GgufFile;
use super::{DecoderSpec, ModelError, PackedWeight, Projection};
use super::{ModelFiles, ModelKind};

macro_rules! released {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../configs/", $name, ".json")))),*]
    };
}

/// Built-in configs: manifest name (also the file's) and text.
const RELEASED: &[(&str, &str)] = released! {
    "smollm2-135m" "smollm3-3b" "gemma3-270m" "llama-3.1-8b-instruct" "llama-3.3-70b-instruct"
    "qwen2.5-7b-instruct" "qwen2.5-14b-instruct" "qwen2.5-72b-instruct" "qwen3-4b" "qwen3-8b" "qwen3-14b" "qwen3-32b"
    "qwen3-235b-a22b" "qwen3.5-9b" "qwen3.5-27b" "qwen3.5-35b-a3b" "qwen3.6-35b-a3b" "qwen3-next-80b-a3b-instruct"
    "gpt-oss-20b" "gpt-oss-120b" "glm-4.5-air" "minimax-m2.5"
    "ministral-3-8b-base" "phi-4" "granite-3.3-8b-instruct" "olmo-3-7b-instruct" "exaone-4.0-1.2b"
    "lfm2.5-1.2b-instruct" "lfm2-8b-a1b" "lfm3-1.7b" "granite-4.0-h-tiny" "nemotron-3-nano-30b-a3b"
    "deepseek-v2-lite-chat" "deepseek-v3" "deepseek-v3.2" "glm-4.7-flash" "glm-5" "mistral-small-4-119b"
    "gemma4-e4b" "gemma4-12b" "gemma4-26b-a4b"
};

/// A model's spec, and facts about its files that affect memory.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelDescription {
    /// The decoder's spec.
    pub spec: DecoderSpec,
    /// Packed weights of a quantised GGUF file, on the CPU in f32 or bf16.
    pub packed: Option<Packed>,
    /// Bytes of the weight files; 0 if they are not local.
    pub file_bytes: u64,
}

/// Sizes of the weights that decode reads packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Per layer.
    pub layers: Vec<PackedBytes>,
    /// The output head, tied or not.
    pub head: PackedBytes,
}

/// Bytes of packed weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackedBytes {
    /// Packed bytes.
    pub packed: u64,
    /// Bytes of the f32 copy, if kept.
    pub dense: u64,
    /// Largest dequantisation buffer, if no copy is kept.
    pub scratch: u64,
}

impl ModelDescription {
    /// From a spec alone: dense weights, no files.
    pub fn of(spec: DecoderSpec) -> Self {
        ModelDescription { spec, packed: None, file_bytes: 0 }
    }

    /// From the text of a config.json, called `place` in errors; an error unless it is a config of a known architecture.
    pub fn from_config_text(text: &[u8], place: &str) -> Result<Self, ModelError> {
        let config =
            arch::parse(text).map_err(|source| ModelError::Json { place: place.to_owned(), source })?;
        Ok(Self::of(arch::from_config(&config, place)?.1))
    }

    /// From a config.json with any file name; an error if it is unreadable or no config of a known architecture.
    pub fn from_config_file(path: &Path) -> Result<Self, ModelError> {
        let place = path.display().to_string();
        let text = std::fs::read(path).map_err(|source| ModelError::Io { place: place.clone(), source })?;
        Self::from_config_text(&text, &place)
    }

    /// From a folder's config.json (weights may be missing) or a GGUF header; an error if the architecture is unknown.
    pub fn from_files(files: &ModelFiles) -> Result<Self, ModelError> {
        match &files.kind {
            ModelKind::Gguf(parts) => Self::from_gguf_parts(parts),
            ModelKind::Folder(folder) => Self::from_config_file(&folder.join("config.json")),
        }
    }

    fn from_gguf_parts(parts: &[PathBuf]) -> Result<Self, ModelError> {
        let Some(first) = parts.first() else { return Err(ModelError::NoFile) };
        let file = GgufFile::open(parts)?;
        let (architecture, spec) = arch::from_gguf(&file, &first.display().to_string())?;
        Ok(Self::from_gguf(&file, &architecture.names, spec))
    }

    /// From an open GGUF file and its spec; `names`: its naming differences.
    pub(super) fn from_gguf(file: &GgufFile, names: &Names, spec: DecoderSpec) -> Self {
        let mut packed =
            Packed { layers: vec![PackedBytes::default(); spec.layers.len()], head: PackedBytes::default() };
        let head = if spec.tied { "token_embd.weight" } else { "output.weight" };
        for info in file.tensors() {
            let (count, rows, cols) = match *info.shape.as_slice() {
                [rows, cols] => (1, rows, cols),
                // Experts are packed separately.
                [count, rows, cols] => (count as u64, rows, cols),
                _ => continue,
            };
            let Some(bytes) = PackedWeight::bytes(info.dtype, rows as u64, cols as u64) else { continue };
            let sum = match info.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
                None if info.name == head => &mut packed.head,
                None => continue,
                Some((layer, part)) => {
                    let layer = layer.parse::<usize>().ok();
                    let Some((spec, sum)) =
                        layer.and_then(|i| spec.layers.get(i).zip(packed.layers.get_mut(i)))
                    else {
                        continue;
                    };
                    let part = part.strip_suffix(".weight").unwrap_or(part);
                    let mut known = names.gguf.iter().chain(&GGUF_NAMES);
                    let canonical = known.find(|(_, theirs)| *theirs == part).map_or(part, |(ours, _)| ours);
                    // The loader permutes its columns, or parts it by heads, and does not pack it.
                    if (names.gguf_columns)(canonical, spec, cols).is_some() || BY_HEAD.contains(&canonical) {
                        continue;
                    }
                    sum
                }
            };
            sum.packed += count * bytes;
            sum.dense += info.elements() as u64 * 4;
            sum.scratch = sum.scratch.max(Projection::scratch(rows as u64, cols as u64));
        }
        let any = packed.head.packed > 0 || packed.layers.iter().any(|layer| layer.packed > 0);
        ModelDescription { spec, packed: any.then_some(packed), file_bytes: file.file_bytes() }
    }

    /// A released model by manifest name, if its config is built in.
    pub fn released(name: &str) -> Option<Result<Self, ModelError>> {
        let (_, text) = RELEASED.iter().find(|(known, _)| *known == name)?;
        Some(Self::from_config_text(text.as_bytes(), &format!("crates/core/configs/{name}.json")))
    }

    /// Names of the released models with built-in configs.
    pub fn released_names() -> impl Iterator<Item = &'static str> {
        RELEASED.iter().map(|(name, _)| *name)
    }
}
