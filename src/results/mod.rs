//! Counts of the rows of runs, and their tables. Called by the commands and the report.
//!
//! [`outcomes`] arranges records, [`metrics`] is the table of one run and the spread over repetitions, [`compare`] the difference of two
//! runs, [`sheets`] the layout of a table of runs, [`overview`] that of runs of several benchmarks, [`own`] the tables that only one
//! benchmark has, [`labels`] how far judges agree with the data's own labels. [`table`] puts them together for run folders.

pub mod compare;
mod intervals;
pub mod labels;
pub mod metrics;
pub mod outcomes;
pub mod overview;
pub mod own;
pub mod sheets;
pub mod table;
