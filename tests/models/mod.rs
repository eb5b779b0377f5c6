//! What must hold for: models.
mod blocks;
mod cards;
#[cfg(unix)] // the folder is made of links
mod extend;
mod gguf;
pub mod gguf_bytes;
mod manifests;
mod plan;
#[cfg(unix)] // the stand-in for python3 is a shell script
mod pulls;
mod safetensors;
mod what_fits;
