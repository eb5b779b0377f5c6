//! Counts of the rows of runs.
//!
//! [`outcomes`] arranges them, [`metrics`] is the table of one run, [`compare`] the difference of two, [`repeats`] the spread over
//! repetitions, [`sheets`] the layout of a table of runs, [`overview`] that of runs of several benchmarks; [`graded`] is what a
//! benchmark's own tables are made of, [`retrieval`] what contexts held of the evidence, [`labels`] how far judges agree
//! with the data's own labels. [`table`] puts them together for run folders, which the others do not read. Called by the commands and the
//! report.

pub mod compare;
pub mod graded;
mod intervals;
pub mod labels;
pub mod metrics;
pub mod outcomes;
pub mod overview;
mod own;
pub mod repeats;
pub mod retrieval;
pub mod sheets;
mod sources;
pub mod table;
