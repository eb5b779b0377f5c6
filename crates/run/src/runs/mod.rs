//! Runs and the run folder.
//!
//! Header ([`header`]), plan ([`plan`]), rows ([`rows`], [`store`]), [`cost`], conditions ([`condition`]) and checks of the dataset's
//! labels ([`labels`]). Knows no HTTP: the model under test is a [`runner::Subject`].

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
pub mod kept;
pub mod labels;
pub mod merge;
pub mod model_subject;
pub mod plan;
mod probe_output;
mod probe_request;
pub mod reread;
pub mod rows;
pub mod runner;
pub mod setup;
pub mod store;
pub mod subject;
pub mod why_rows;
