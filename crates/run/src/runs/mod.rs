//! Runs: what is asked of whom, and the folder that keeps what came of it.
//!
//! Owns the run folder: what was run ([`header`]), what is expected ([`plan`]), what was answered and judged ([`rows`],
//! [`store`]), at what [`cost`], under which conditions ([`condition`]), what judges
//! said of the data's own labels ([`labels`]). Called by the commands and by the judge's room; lens and figures read what it wrote. It knows no HTTP: who
//! answers comes in as a [`runner::Subject`].

mod answer_streams;
pub mod causes;
mod chosen;
pub mod condition;
pub mod context_budget;
pub mod contrast;
pub mod cost;
pub mod error;
pub mod exchange;
pub mod file_plan;
pub mod forecast;
pub mod header;
pub mod judge_name;
pub mod judged;
pub mod labels;
pub mod merge;
pub mod model_subject;
pub mod plan;
mod prefetch;
mod probe_output;
mod probe_request;
pub mod reread;
pub mod rows;
pub mod runner;
pub mod setup;
pub mod store;
pub mod subject;
pub mod why_rows;
