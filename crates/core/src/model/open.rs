//! Opens a checkpoint and loads a decoder from it.

use std::path::{Path, PathBuf};
use std::sync::Once;

use candle_core::{DType, Device};

use super::arch::{self, Names};
use super::weightless::{Fill, Weightless};
use super::weights::{GgufFile, SafetensorsFolder};
use super::{Checkpoint, Decoder, DecoderSpec, Formats, Kept, Loader, ModelDescription, ModelError};
use crate::attention::AttentionKernel;
use crate::bfloat;

/// A checkpoint with parsed config and mapped, unloaded weights; or a spec for synthetic weights.
pub struct OpenModel {
    checkpoint: Checkpoint,
    names: &'static Names,
    spec: DecoderSpec,
    place: String,
    kept: Kept,
    kernel: AttentionKernel,
    cache: Option<DType>,
    rounds: bool,
}

impl OpenModel {
    /// Opens all parts of a GGUF file, or a Hugging Face folder (config.json and safetensors).
    pub fn open(paths: &[PathBuf]) -> Result<Self, ModelError> {
        let Some(path) = paths.first() else {
            return Err(ModelError::NoFile);
        };
        if path.is_dir() { Self::open_folder(path) } else { Self::open_gguf(paths) }
    }

    fn open_gguf(paths: &[PathBuf]) -> Result<Self, ModelError> {
        let place = paths[0].display().to_string();
        let file = GgufFile::open(paths)?;
        let (architecture, spec) = arch::from_gguf(&file, &place)?;
        let (checkpoint, names) = (Checkpoint::Gguf(file), &architecture.names);
        Ok(OpenModel::new(checkpoint, names, spec, place))
    }

    fn open_folder(folder: &Path) -> Result<Self, ModelError> {
        let config_path = folder.join("config.json");
        let place = config_path.display().to_string();
        let text =
            std::fs::read(&config_path).map_err(|source| ModelError::Io { place: place.clone(), source })?;
        let config =
            arch::parse(&text).map_err(|source| ModelError::Json { place: place.clone(), source })?;
        let (architecture, spec) = arch::from_config(&config, &place)?;
        let fp8_block = arch::fp8_block(&config, &place)?;
        let folder_name = folder.display().to_string();
        let folder = SafetensorsFolder::open(folder)?;
        let left: Vec<_> = folder.left().collect();
        if !left.is_empty() {
            let taken = folder.paths().next().and_then(Path::file_name).unwrap_or_default().display();
            let more = folder.paths().count() - 1;
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            tracing::warn!("{folder_name}: the weights are {taken}{more}; not read: {}", left.join(", "));
        }
        let checkpoint = Checkpoint::Safetensors { folder, fp8_block };
        let names = &architecture.names;
        Ok(OpenModel::new(checkpoint, names, spec, folder_name))
    }

    /// A model with synthetic dense weights, to measure memory, speed and other properties that depend only on shapes.
    pub fn weightless(spec: DecoderSpec, fill: Fill) -> Self {
        let checkpoint = Checkpoint::Weightless(Weightless::new(fill));
        OpenModel::new(checkpoint, &Names::PLAIN, spec, "made-up weights".to_owned())
    }

    fn new(checkpoint: Checkpoint, names: &'static Names, spec: DecoderSpec, place: String) -> Self {
        let (kept, kernel) = (Kept::default(), AttentionKernel::Auto);
        OpenModel { checkpoint, names, spec, place, kept, kernel, cache: None, rounds: false }
    }

    /// The decoder's spec.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// The model's description, for memory planning.
    pub fn description(&self) -> ModelDescription {
        match &self.checkpoint {
            Checkpoint::Gguf(file) => ModelDescription::from_gguf(file, self.names, self.spec.clone()),
            Checkpoint::Safetensors { folder, .. } => ModelDescription {
                file_bytes: folder.file_bytes(),
                ..ModelDescription::of(self.spec.clone())
            },
            Checkpoint::Weightless(_) => ModelDescription::of(self.spec.clone()),
        }
    }

    /// Sets the kept copies of quantised weights on the CPU (default [`Kept::Dense`]).
    pub fn keeping(self, kept: Kept) -> Self {
        OpenModel { kept, ..self }
    }

    /// Sets the CUDA attention kernel (default [`AttentionKernel::Auto`]).
    pub fn attending_by(self, kernel: AttentionKernel) -> Self {
        OpenModel { kernel, ..self }
    }

    /// Sets the cache dtype (default: the model's; others only on the CPU, see [`Formats`]).
    pub fn caching_in(self, cache: Option<DType>) -> Self {
        OpenModel { cache, ..self }
    }

    /// Keeps hidden states in the weights' dtype on the CPU too, as on GPUs ([`Formats::throughout`]).
    pub fn rounding_hidden_states(self, rounds: bool) -> Self {
        OpenModel { rounds, ..self }
    }

    /// Loads the weights to one device.
    pub fn load(self, device: &Device, dtype: DType) -> Result<Decoder, ModelError> {
        let devices = vec![device.clone(); self.spec.layers.len()];
        self.load_split(devices, dtype)
    }

    /// Loads the weights to one device per layer; the embedding follows the first layer, norm and head the last.
    pub fn load_split(self, devices: Vec<Device>, dtype: DType) -> Result<Decoder, ModelError> {
        let OpenModel { checkpoint, names, spec, place, kept, kernel, cache, rounds } = self;
        let formats = match rounds {
            true => Formats::throughout(dtype),
            false => Formats::new(dtype, cache, &devices)?,
        };
        if let Some(slower) = formats.slower_than_f32(bfloat::multiplies()) {
            static SAID: Once = Once::new();
            SAID.call_once(|| tracing::warn!("{slower}"));
        }
        Decoder::load(Loader::new(checkpoint, place, names, spec, formats, kept), devices, kernel)
    }
}
