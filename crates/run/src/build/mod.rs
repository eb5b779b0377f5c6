//! Builds of datasets: stages of a spec run one after the other, each row asked, checked and judged, all in a folder that resumes.
//!
//! ```text
//! build.json + tables, sources -> rows::form -> (maker | life: asking, checks, judges) -> stages/NN-name.jsonl -> data, provenance
//! ```
//!
//! [`engine::run`] runs; [`folder`] stores; [`models`] opens the generator and the checker; [`estimate`] counts before, [`show`] shows a
//! row's life after. Knows no benchmark: what a kind has of its own is in `palimpsest_data::build`.

mod asking;
pub mod data_files;
pub mod engine;
pub mod estimate;
pub mod folder;
mod life;
pub mod models;
pub mod rows;
pub mod show;
pub mod stage_file;
pub mod yields;

pub use life::fault;
