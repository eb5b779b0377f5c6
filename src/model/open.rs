//! From a path to a described checkpoint, and from there to a decoder.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};

use super::arch::{self, Architecture};
use super::weights::{GgufFile, SafetensorsFolder};
use super::{Checkpoint, Decoder, DecoderSpec, Kept, Loader, ModelError, Outline};

/// A checkpoint whose config has been read and whose weights have been mapped, but not loaded.
pub struct OpenModel {
    checkpoint: Checkpoint,
    architecture: &'static Architecture,
    spec: DecoderSpec,
    place: String,
    kept: Kept,
}

impl OpenModel {
    /// Opens the parts of a GGUF file, or a Hugging Face folder (config.json and safetensors).
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
        Ok(OpenModel { checkpoint: Checkpoint::Gguf(file), architecture, spec, place, kept: Kept::default() })
    }

    fn open_folder(folder: &Path) -> Result<Self, ModelError> {
        let config_path = folder.join("config.json");
        let place = config_path.display().to_string();
        let text =
            std::fs::read(&config_path).map_err(|source| ModelError::Io { place: place.clone(), source })?;
        let config = serde_json::from_slice(&text)
            .map_err(|source| ModelError::Json { place: place.clone(), source })?;
        let (architecture, spec) = arch::from_config(&config, &place)?;
        let fp8_block = arch::fp8_block(&config, &place)?;
        let folder_name = folder.display().to_string();
        let folder = SafetensorsFolder::open(folder)?;
        let checkpoint = Checkpoint::Safetensors { folder, fp8_block };
        Ok(OpenModel { checkpoint, architecture, spec, place: folder_name, kept: Kept::default() })
    }

    /// What the decoder will be made of.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// What a plan of its memory needs to know.
    pub fn outline(&self) -> Outline {
        match &self.checkpoint {
            Checkpoint::Gguf(file) => Outline::from_gguf(file, &self.architecture.names, self.spec.clone()),
            Checkpoint::Safetensors { folder, .. } => {
                Outline { file_bytes: folder.file_bytes(), ..Outline::of(self.spec.clone()) }
            }
        }
    }

    /// The GGUF file, if it is one: its metadata holds the tokeniser.
    pub fn gguf(&self) -> Option<&GgufFile> {
        match &self.checkpoint {
            Checkpoint::Gguf(file) => Some(file),
            Checkpoint::Safetensors { .. } => None,
        }
    }

    /// The same with another choice of what is kept of quantised weights on the CPU ([`Kept::Dense`] unless told).
    pub fn keeping(self, kept: Kept) -> Self {
        OpenModel { kept, ..self }
    }

    /// Loads the weights onto one device.
    pub fn load(self, device: &Device, dtype: DType) -> Result<Decoder, ModelError> {
        let devices = vec![device.clone(); self.spec.layers.len()];
        self.load_split(devices, dtype)
    }

    /// Loads the weights onto one device a layer; the embedding goes with the first layer, norm and head with the last.
    pub fn load_split(self, devices: Vec<Device>, dtype: DType) -> Result<Decoder, ModelError> {
        let names = &self.architecture.names;
        Decoder::load(Loader::new(self.checkpoint, self.place, names, self.spec, dtype, self.kept), devices)
    }
}
