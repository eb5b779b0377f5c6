//! Cases, prompts and benchmarks: data file -> `Case` -> `Prompt` (text and labelled spans). Pure: no tensors, no network.

pub mod benchmarks;
pub mod build;
pub mod case;
pub mod construct;
pub mod ground;
pub mod prompt;
pub mod statistics;
