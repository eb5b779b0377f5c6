//! CUPMem, the memory system of the STALE paper (section 5, appendix F): a typed store of user states. Later evidence ends earlier states
//! at write time, not at query time.
//!
//! - Writing (`writing`), one session at a time: W1 spans, W2 candidates, W3 update of the candidate's own slot, W4 affected domains, W5
//!   proposals of older items that may have ended, W6 a verdict on each, W7 arbitration, W8 application, W9 links.
//! - Reading (`reading`), one probe at a time: R1 parsing, R2 retrieval, R3 premise verification, R4 recovery of a missing basis, R5
//!   second verification, R6 grounding of plans, R7 constraints, R8 answer.
//! - [`store`]: items, markers, links and session records; nothing is deleted. An item ends only by later evidence; the code's variant
//!   makes rare exceptions.
//! - [`settings`]: the variants `paper` and `code`, and ablation switches. [`cost`]: estimates. [`show`]: prints a store. [`system`]: the
//!   protocol and the command line.
//!
//! The variant `code` follows the public code; docs/memory.md lists the differences. The prompt wording is ours. Where the paper is silent,
//! the file header states our choice. Choices across files: replies are JSON, schema-constrained if the server supports it; temperature 0,
//! 0.30 in W5. Unparsable replies are retried three times; then a write step is skipped with an event, and a read step fails the probe. An
//! item's first-seen date is its creation date. Prompts of the paper's variant state session dates, start dates of states and question
//! times; the code's do not.

pub mod asking;
pub mod cost;
mod prompts;
mod reading;
pub mod schema;
pub mod settings;
mod show;
pub mod store;
pub mod system;
mod writing;

pub use settings::{Settings, Switch, Variant};
pub use show::show;
pub use store::Store;
pub use system::{CupMem, open, words};
