//! The tiny checkpoints that the program carries: random models of a few hundred kilobytes, with what transformers makes of
//! the same prompt. Of every architecture one, in the layout that it is released in; gpt-oss also with plain experts. They are
//! the fixtures of the parity tests (`tests/fixtures/README.md` says how they were made).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde::Deserialize;

use super::SelfTestError;
use super::rule::{NAMES, Numbers};
use palimpsest_core::attention::MassObserver;
use palimpsest_core::model::ModelDescription;
use palimpsest_core::span::Span;

/// A checkpoint, as bytes.
#[derive(Debug, Clone, Copy)]
pub struct Embedded {
    /// The fixture's name.
    pub name: &'static str,
    /// How its weights are stored, where that is worth a word.
    pub layout: &'static str,
    config: &'static [u8],
    weights: &'static [u8],
    reference: &'static [u8],
    tokens: &'static [u8],
}

macro_rules! embedded {
    ($($name:literal $layout:literal)*) => {
        [$(Embedded {
            name: $name,
            layout: $layout,
            config: include_bytes!(concat!("../../tests/fixtures/", $name, "/config.json")),
            weights: include_bytes!(concat!("../../tests/fixtures/", $name, "/model.safetensors")),
            reference: include_bytes!(concat!("../../tests/fixtures/", $name, "/reference.safetensors")),
            tokens: include_bytes!(concat!("../../tests/fixtures/", $name, "/tokens.json")),
        }),*]
    };
}

/// All of them.
pub static CHECKPOINTS: [Embedded; 10] = embedded! {
    "llama-old-config-tiny" "bf16"
    "qwen2-tiny" "bf16"
    "qwen3-tiny" "bf16"
    "qwen3-moe-tiny" "bf16"
    "qwen35-text-tiny" "bf16"
    "gpt-oss-mxfp4-tiny" "MXFP4"
    "gpt-oss-tiny" "bf16"
    "glm4-moe-tiny" "bf16"
    "minimax-m2-fp8-tiny" "FP8"
    "gemma3-tiny" "bf16"
};

/// A prompt, and what is asked about it.
#[derive(Debug, Deserialize)]
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    spans: serde_json::Map<String, serde_json::Value>,
    rows: Vec<String>,
    /// Last positions whose logits are compared.
    pub logits: usize,
}

impl Prompt {
    /// What measures the masses that the reference has.
    pub fn observer(&self) -> Result<MassObserver, SelfTestError> {
        let keys = self.spans.iter().map(|(label, range)| {
            let [start, end]: [usize; 2] = serde_json::from_value(range.clone())?;
            Ok(Span::new(label.clone(), start..end))
        });
        let keys: Vec<Span> = keys.collect::<Result<_, serde_json::Error>>()?;
        let rows = keys.iter().filter(|span| self.rows.contains(&span.label)).cloned().collect();
        Ok(MassObserver::new(rows, keys, self.tokens.len())?)
    }
}

/// What transformers makes of the prompt.
#[derive(Debug)]
pub struct Reference {
    tensors: HashMap<String, Tensor>,
}

impl Reference {
    /// In f32, or in half precision where the reference has that.
    pub fn numbers(&self, dtype: DType) -> Result<Option<Numbers>, SelfTestError> {
        let suffix = match dtype {
            DType::F32 => "",
            DType::BF16 => "_bf16",
            _ => "_f16",
        };
        let mut numbers = Numbers::new();
        for name in NAMES {
            if let Some(tensor) = self.tensors.get(&format!("{name}{suffix}")) {
                numbers.insert(name, tensor.flatten_all()?.to_vec1()?);
            }
        }
        Ok((!numbers.is_empty()).then_some(numbers))
    }

    /// The tokens that follow the prompt, each the likeliest one, in f32.
    pub fn greedy(&self) -> Result<Vec<u32>, SelfTestError> {
        Ok(self.tensors.get("greedy").map_or(Ok(Vec::new()), |tensor| tensor.to_vec1())?)
    }
}

impl Embedded {
    /// The name of its architecture.
    pub fn architecture(&self) -> Result<&'static str, SelfTestError> {
        Ok(ModelDescription::from_config_text(self.config, self.name)?.spec.architecture)
    }

    /// Its prompt.
    pub fn prompt(&self) -> Result<Prompt, SelfTestError> {
        Ok(serde_json::from_slice(self.tokens)?)
    }

    /// Its reference.
    pub fn reference(&self) -> Result<Reference, SelfTestError> {
        Ok(Reference { tensors: candle_core::safetensors::load_buffer(self.reference, &Device::Cpu)? })
    }

    /// Writes it as a model folder below `root`, which models are loaded from.
    pub fn write(&self, root: &Path) -> Result<PathBuf, SelfTestError> {
        let folder = root.join(self.name);
        let all = || {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join("config.json"), self.config)?;
            std::fs::write(folder.join("model.safetensors"), self.weights)
        };
        all().map_err(|source| SelfTestError::Temporary { folder: folder.clone(), source })?;
        Ok(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_core::model::arch::ARCHITECTURES;

    #[test]
    fn every_architecture_is_there_and_the_program_grows_by_less_than_5_megabytes()
    -> Result<(), SelfTestError> {
        let mut found = CHECKPOINTS.iter().map(Embedded::architecture).collect::<Result<Vec<_>, _>>()?;
        found.dedup();
        assert_eq!(found.len(), ARCHITECTURES.len(), "{found:?}");
        let bytes = |c: &Embedded| c.config.len() + c.weights.len() + c.reference.len() + c.tokens.len();
        assert!(CHECKPOINTS.iter().map(bytes).sum::<usize>() < 5_000_000);
        Ok(())
    }

    #[test]
    fn references_have_what_is_compared_in_f32_and_in_half_precision() -> Result<(), SelfTestError> {
        for checkpoint in &CHECKPOINTS {
            let (prompt, reference) = (checkpoint.prompt()?, checkpoint.reference()?);
            assert_eq!((prompt.tokens.len(), prompt.logits), (151, 16), "{}", checkpoint.name);
            assert_eq!(reference.greedy()?.len(), 64, "{}", checkpoint.name);
            assert_eq!(prompt.observer()?.rows().len(), 2, "{}", checkpoint.name);
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let numbers = reference.numbers(dtype)?.unwrap_or_default();
                assert!(
                    numbers.contains_key("logits") && numbers.contains_key("mass"),
                    "{}",
                    checkpoint.name
                );
                assert_eq!(numbers.contains_key("sink"), checkpoint.name.starts_with("gpt-oss"));
                assert_eq!(numbers.contains_key("delta_share"), checkpoint.name.starts_with("qwen35"));
            }
        }
        Ok(())
    }
}
