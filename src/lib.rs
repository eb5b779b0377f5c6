//! palimpsest: which writing does a language model read after a later session has overwritten an earlier one?
//!
//! The laboratory over the instrument, [`palimpsest_core`]. Data moves one way, and each module knows only the types of its left
//! neighbour:
//!
//! ```text
//! data file -> Case -> Prompt (text + spans) -> tokens + spans -> engine -> answers + attention masses
//!           -> verdicts -> curves, tables -> figures, report
//! ```
//!
//! - [`data`]: what a case is: a history of labelled segments, and probes on it; histories are cut here. Pure: no tensors.
//! - [`benchmarks`]: what a benchmark is, as data, and one folder each: its files become cases; its prompts, rubric, counts and curves.
//! - [`prompt`]: a case and a probe become chat-template text with labelled spans.
//! - [`models`]: models by name: manifests, downloads, the model home.
//! - [`embedder`]: texts become vectors.
//! - [`chat`]: the trait that the local engine and OpenAI-compatible endpoints share.
//! - [`memory`]: which of a history's segments a probe is shown.
//! - [`construct`]: made data: histories in which one thing at a time is set.
//! - [`run`]: what is asked of whom, and the folder that keeps what came of it.
//! - [`estimate`]: what a run will take, before it starts.
//! - [`judge`]: verdicts on answers. [`records`] joins a run's questions with their answers and verdicts, [`results`] counts them.
//! - [`agreement`]: a sheet of answers for people to rate, and their agreement with the judge.
//! - [`export`]: answers and verdicts in the formats of other tools.
//! - [`heads`]: which heads of a model retrieve, by needles planted in a sample.
//! - [`lens`]: attention stores become curves, ratios, and confidence bands. Reads files only.
//! - [`losses`]: where memory systems lose facts: written, kept, retrieved, shown, attended, used. Reads files only.
//! - [`why`]: why an answer is as it is: a label by interventions on its context, with a certificate.
//! - [`dose`]: effects of doses on the update effect and on attention, in runs of the benchmark of that name. Reads files only.
//! - [`figures`]: tables become SVG, PDF and PNG pictures and the one-page report.
//! - [`serve`]: a local model behind OpenAI's API, with attention by span.
//! - [`view`]: the page on which to find out why: runs, their answers, what each attended to and owes to it.
//! - [`cards`]: published rates of cards that need not be here, and the seconds that work should take there.
//! - [`trace`]: passes over a prompt of one's own, with spans by their texts, and effects of the spans on an answer.
//! - [`selftest`]: parity of a device with the CPU, layers at released widths, memory against the plan, kernels' times.
//! - [`cli`]: one file a command.
//!
//! Four ways through the house:
//!
//! - **A token becomes a mass**: [`run::model_subject`] makes a request of a case's prompts; in the core, [`palimpsest_core::engine`] reads it
//!   chunk by chunk, every layer calls [`palimpsest_core::attention`]'s one door, whose observer sums the weights by span; the masses
//!   come back and [`run::store`] writes them.
//! - **A verdict becomes a cell**: [`judge`] asks for verdicts and [`run::store`] keeps them as rows; [`results`] counts rows against the
//!   plan by what the benchmark counts, and makes tables of the counts.
//! - **A session becomes a cause**: [`run::causes`] reads a stored answer again with the session blocked, removed or replaced, and writes the
//!   drop of its metric as a row; [`lens`] holds it against attention, and [`why`] makes a label of such readings.
//! - **A request becomes a reply**: [`serve`]'s `http` reads it, `ask` hands it to the engine's thread and hears its events, `answers`
//!   makes the reply or the stream.
//!
//! On the [`ground`] floor are quantiles and tables of text; [`statistics`] are pure functions of numbers. Beside the rooms,
//! [`progress`] tells the person who waits how far a job is.

pub mod agreement;
pub mod benchmarks;
pub mod cards;
pub mod chat;
pub mod cli;
pub mod construct;
pub mod data;
pub mod dose;
pub mod embedder;
pub mod estimate;
pub mod export;
#[cfg(feature = "figures")]
pub mod figures;
pub mod ground;
pub mod heads;
pub mod judge;
pub mod lens;
pub mod losses;
pub mod memory;
pub mod models;
pub mod progress;
pub mod prompt;
pub mod records;
pub mod results;
pub mod run;
pub mod selftest;
#[cfg(feature = "serve")]
pub mod serve;
pub mod statistics;
pub mod trace;
#[cfg(feature = "serve")]
pub mod view;
pub mod why;
