//! Builds a decoder with its KV cache from a config and weights: model files ([`weights`]), then an architecture's config ([`arch`]) to a
//! [`DecoderSpec`], then a [`Decoder`], shared by all architectures. Knows no prompts.

pub mod arch;
mod build;
mod cache;
mod decoder;
mod description;
mod error;
mod files;
mod formats;
mod kv_view;
mod layers;
mod loader;
mod open;
mod spec;
mod tensor_names;
mod weightless;
pub mod weights;

pub use cache::{Branch, Cache, Mark, SavedRows, branch_bytes, branch_rows, cache_bytes};
pub use decoder::Decoder;
pub use description::{ModelDescription, Packed, PackedBytes};
pub use error::ModelError;
pub use files::{FOLDER_FILES, ModelFiles, ModelKind, PathError, is_gguf};
pub use formats::{CacheFormat, Formats};
pub use kv_view::{Group, Pass, Row};
pub use layers::{PackedWeight, Phase, Projection};
pub use loader::Kept;
use loader::{Checkpoint, Loader};
pub use open::OpenModel;
pub use spec::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, DeltaNetSpec, ExpertsSpec, FeedForwardSpec,
    IndexerSpec, KeyValues, LatentSpec, LayerNorms, LayerSpec, MAX_LAYERS, Mamba2Spec, MixerSpec, MlpSpec,
    NormSpec, OutputGate, QkNorm, RopeScaling, RopeSpec, Routing, Sees, ShortConvSpec, StateSpec, Yarn,
};
pub use weightless::{Fill, Weightless};
