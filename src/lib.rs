//! palimpsest: which writing does a language model read after a later session has overwritten an earlier one?
//!
//! The command. Its parts are crates, and data moves through them one way:
//!
//! ```text
//! data file -> Case -> Prompt -> Request -> answers + AttentionStore -> verdicts -> Record -> Table -> figure
//! |------- data --------|--------------- run ---------------------------|---- analysis ------|- figures -|
//! ```
//!
//! [`palimpsest_core`] is the instrument: it runs models and records attention, and knows no benchmark. [`palimpsest_data`] makes prompts of
//! data files, [`palimpsest_run`] asks models and keeps what they answer in run folders, [`palimpsest_analysis`] makes tables of run folders,
//! `palimpsest_figures` draws tables, `palimpsest_serve` is HTTP. [`cli`] has one file a command. This crate re-exports their rooms.
//!
//! Five ways through the code:
//!
//! - **A token becomes a mass**: [`runs::probe_request`] makes a [`Request`](palimpsest_core::engine::Request) of a case's prompts;
//!   [`engine`](palimpsest_core::engine) reads it in chunks; each layer calls [`attention::run`](palimpsest_core::attention); the
//!   [`MassObserver`](palimpsest_core::attention::MassObserver) sums weights by span; [`runs::store`] writes the
//!   [`AttentionStore`](palimpsest_core::attention::AttentionStore).
//! - **A verdict becomes a cell**: [`judge`] appends verdict rows to the folder; one reader joins them to the plan's questions;
//!   [`results`] counts the joined rows into a table.
//! - **A request becomes a reply**: `api::http` routes it; serde parses it; `api::ask` sends a core request to the engine's thread;
//!   `api::answers` turns its events into a reply or a stream.
//! - **A session becomes a cause**: [`runs::causes`] names the sessions to ablate; the core hides, removes or replaces them and scores the stored
//!   answer again; the change is a row; [`lens`] compares rows with attention, [`why`] labels answers by them.
//! - **A file becomes a prompt**: [`benchmarks`] recognises and reads it into [`case::Case`]s; [`prompt`] renders a case and a probe by the model's
//!   chat template, with character spans; the tokenizer turns them into token spans that tile the prompt.

pub mod cli;

pub use palimpsest_analysis::{agreement, dose, export, heads, lens, losses, records, results, why};
pub use palimpsest_data::{benchmarks, case, construct, ground, prompt, statistics};
#[cfg(feature = "figures")]
pub use palimpsest_figures as figures;
pub use palimpsest_run::{
    cards, chat, embedder, estimate, judge, memory, models, observe, progress, runs, selftest,
};
#[cfg(feature = "serve")]
pub use palimpsest_serve::{api, view};
