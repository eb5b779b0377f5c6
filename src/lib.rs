//! palimpsest: which text does a language model read after a later session has overwritten an earlier one?
//!
//! The command-line crate. Data moves through the other crates one way:
//!
//! ```text
//! data file -> Case -> Prompt -> Request -> answers + AttentionStore -> verdicts -> Record -> Table -> figure
//! |------- data --------|--------------- run ---------------------------|---- analysis ------|- figures -|
//! ```
//!
//! [`palimpsest_core`] runs models and records attention, and knows no benchmark. [`palimpsest_data`] builds prompts from data files,
//! [`palimpsest_run`] asks models and writes run folders, [`palimpsest_analysis`] computes tables, `palimpsest_figures` draws them,
//! `palimpsest_serve` is HTTP. [`cli`] has one file per command.
//!
//! Five paths through the code:
//!
//! - **Attention**: `runs::probe_request` builds a [`Request`](palimpsest_core::engine::Request); the [`engine`](palimpsest_core::engine)
//!   prefills it in chunks; each layer calls [`attention::run`](palimpsest_core::attention); the
//!   [`MassObserver`](palimpsest_core::attention::MassObserver) sums weights by span; [`runs::store`] writes the
//!   [`AttentionStore`](palimpsest_core::attention::AttentionStore).
//! - **Verdicts**: [`judge`] appends rows to the run folder; [`results`] joins them with the plan's questions and counts.
//! - **Server requests**: `api::http` routes, `api::ask` sends a request to the engine thread, `api::answers` turns its events into a reply.
//! - **Effects of sessions**: [`runs::causes`] ablates sessions and scores the stored answer again; [`lens`] compares the rows with
//!   attention, [`why`] labels answers by them.
//! - **Prompts**: [`benchmarks`] parses a file to [`case::Case`]s; [`prompt`] renders a case and a probe by the model's chat template; the
//!   tokenizer turns character spans into token spans that tile the prompt.

pub mod cli;

pub use palimpsest_analysis::{
    agreement, dose, evict, export, finding, ground_truth, heads, lens, losses, records, results, why,
};
pub use palimpsest_data::{benchmarks, build, case, construct, ground, prompt, statistics};
#[cfg(feature = "figures")]
pub use palimpsest_figures as figures;
pub use palimpsest_run::build as builds;
pub use palimpsest_run::{
    cards, chat, embedder, estimate, judge, memory, models, observe, progress, runs, selftest,
};
#[cfg(feature = "serve")]
pub use palimpsest_serve::{api, view};
