//! A config and weights become a decoder, or an embedder of texts.
//!
//! Everything between a name on the command line and a model in memory: which models are known ([`manifest`]), how their
//! files are fetched, verified and found ([`fetch`]), how the files are read ([`weights`]), what can be said about a model
//! without loading it ([`info`]), how its context is made longer ([`extend`](mod@extend)), and how an architecture's config ([`arch`]) becomes a [`DecoderSpec`] and then a
//! [`Decoder`]. The decoder, its layers and its cache are shared by all architectures. An [`embedder`] makes vectors of texts. Called by the engine and by
//! `palimpsest model`; knows no prompts and no cases.

pub mod arch;
mod build;
mod cache;
mod decoder;
mod description;
pub mod embedder;
mod error;
pub mod extend;
pub mod fetch;
pub mod info;
mod kv_view;
mod layers;
mod loader;
pub mod manifest;
mod open;
mod spec;
mod weightless;
pub mod weights;

pub use cache::{Branch, Cache, Mark, branch_bytes, branch_rows, cache_bytes};
pub use decoder::Decoder;
pub use description::{ModelDescription, Packed, PackedBytes};
pub use error::ModelError;
pub use kv_view::Group;
pub use layers::{PackedWeight, Phase, Projection};
pub use loader::{Checkpoint, Kept, Loader};
pub use open::OpenModel;
pub use spec::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, DeltaNetSpec, ExpertsSpec, FeedForwardSpec,
    LayerSpec, MAX_LAYERS, MixerSpec, MlpSpec, NormSpec, QkNorm, RopeScaling, RopeSpec, Routing, Yarn,
};
pub use weightless::{Fill, Weightless};
