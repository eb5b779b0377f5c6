//! Local inference of open-weight language models that records how much named spans of a text attend to each other: exactly, at any
//! length, without ever holding an N x N matrix.
//!
//! ```text
//! messages or text -> tokens + spans that tile them -> one forward pass, shared by many questions -> answers + attention masses
//! ```
//!
//! Begin with [`Model`], and `examples/`. The rooms below it:
//!
//! - [`span`]: labelled half-open token ranges.
//! - [`text`]: tokenizers and chat templates; text becomes tokens and spans.
//! - [`attention`]: the one door to attention, its kernels, the observers that read it, and the file format of masses.
//! - [`model`]: a config and weights become a decoder with its KV cache.
//! - [`engine`]: prefill, decode, sampling, the memory plan, and the thread that owns model and cache.
//! - [`ablate`]: effects on an answer of hiding, removing or replacing spans of its prompt.
//!
//! Beside them [`timing`] tells where the time went, `bfloat` holds bf16 numbers on the CPU, `transfer` is the way between host and device, `fused` is what a card does in
//! one kernel and others in several, [`digest`] and [`files`] write and identify whole files.

#![deny(missing_docs)]

pub mod ablate;
pub mod attention;
mod bfloat;
pub mod digest;
pub mod engine;
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
