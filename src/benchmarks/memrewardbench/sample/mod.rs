//! The built-in sample: twenty pairs written for this project in the shape of the benchmark, two of each setting.
//!
//! Contexts, conversations and trajectories are invented. They are far shorter than what their `ctx_length` says, which is dealt out
//! over the pairs so that every table has all its columns.

pub(super) const PAIRS: &str = include_str!("pairs.jsonl");
