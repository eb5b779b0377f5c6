//! Cases, prompts and the benchmarks.
//!
//! ```text
//! data file -> Case -> Prompt (text + labelled spans)
//! ```
//!
//! Pure: no tensors, no network. [`data`] is what a case is, [`benchmarks`] has one folder a benchmark, [`prompt`] renders a case and a
//! probe by a chat template, [`construct`] makes histories that vary one factor at a time. [`ground`] and [`statistics`] are shared
//! pure functions.

pub mod benchmarks;
pub mod case;
pub mod construct;
pub mod ground;
pub mod prompt;
pub mod statistics;
