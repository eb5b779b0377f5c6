//! Cases, prompts and benchmarks: data file -> `Case` -> `Prompt` (text and labelled spans).
//!
//! Pure: no tensors, no network. [`benchmarks`] has one folder per benchmark, [`prompt`] renders a case and a probe with a chat template,
//! [`construct`] builds histories that vary one factor at a time. [`ground`] and [`statistics`] are shared pure functions.

pub mod benchmarks;
pub mod case;
pub mod construct;
pub mod ground;
pub mod prompt;
pub mod statistics;
