//! Local inference of open-weight language models that records how much named spans of a text attend to each other: exact, at any length,
//! and without materialising an N x N matrix.
//!
//! ```text
//! messages or text -> tokens + spans that tile them -> one forward pass, shared by many questions -> answers + attention masses
//! ```
//!
//! Start with [`Model`] and `examples/`. Modules:
//!
//! - [`span`]: labelled half-open token ranges.
//! - [`text`]: tokenisers and chat templates; text becomes tokens and spans.
//! - [`attention`]: attention kernels, the observers that read attention, and the file format of masses.
//! - [`model`]: builds a decoder with its KV cache from config and weights.
//! - [`evict`]: which keys of a cache stay for later rows.
//! - [`engine`]: prefill, decode, sampling, memory planning, and the engine thread.
//! - [`ablate`]: effects of hiding, removing or replacing prompt spans on an answer.
//!
//! Also: [`timing`] profiles, `bfloat` is bf16 on the CPU, `transfer` copies between host and device, `fused` holds fused CUDA kernels
//! with
//! fallbacks, [`digest`] hashes, and [`files`] writes atomically.

#![deny(missing_docs)]

pub mod ablate;
pub mod attention;
mod bfloat;
pub mod digest;
pub mod engine;
pub mod evict;
mod facade;
pub mod files;
mod fused;
pub mod model;
mod simd;
pub mod span;
pub mod text;
pub mod timing;
mod transfer;

pub use facade::{Answer, CONTEXT, Error, Model};
