//! A config and weights become a decoder.
//!
//! An architecture ([`arch`]) is a description: how its config maps to a [`DecoderSpec`]. The decoder itself, its layers
//! and its cache are shared. Weights come from Hugging Face folders or GGUF files through one [`Loader`]. Called by the
//! engine; knows no prompts, no tokenisers and no cases.

pub mod arch;
mod cache;
mod decoder;
mod error;
mod layers;
mod loader;
mod open;
mod spec;
pub mod weights;

pub use cache::{Cache, Mark};
pub use decoder::Decoder;
pub use error::ModelError;
pub use layers::Phase;
pub use loader::{Checkpoint, Loader};
pub use open::OpenModel;
pub use spec::{AttentionSpec, DecoderSpec, LayerSpec, MlpSpec, RopeScaling, RopeSpec};
