//! Text embeddings: BERT, mean pooling, L2 norm, as sentence-transformers runs all-MiniLM-L6-v2.

use std::path::PathBuf;

#[cfg_attr(feature = "embedder", path = "enabled.rs")]
#[cfg_attr(not(feature = "embedder"), path = "disabled.rs")]
mod imp;

pub use imp::Embedder;

#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    #[error("cannot read {path}; fetch the embedding model again by removing its folder")]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{path} is no embedding model's file: {reason}; fetch the embedding model again by removing its folder"
    )]
    Broken { path: PathBuf, reason: String },
    #[error("a text cannot be tokenised for the embedding model: {0}")]
    Tokens(String),
    #[error(
        "this build of palimpsest embeds no texts; build it with the cargo feature `embedder`, which is on by default"
    )]
    Absent,
    #[error("the embedding model failed")]
    Model(#[from] candle_core::Error),
}
