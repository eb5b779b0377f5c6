//! Runs: models, chat, memory systems, plans, run folders and judges.
//!
//! ```text
//! Prompt -> Request (local engine or endpoint) -> answers and attention stores -> RunFolder -> verdicts
//! ```
//!
//! [`models`] opens models by name, [`chat`] asks them, [`memory`] selects what a probe is shown, [`runs`] plans, asks and stores,
//! [`judge`] grades stored answers.

pub mod build;
pub mod cards;
pub mod chat;
pub mod embedder;
pub mod estimate;
pub mod http;
pub mod judge;
pub mod memory;
pub mod models;
pub mod observe;
pub mod progress;
pub mod runs;
pub mod selftest;
