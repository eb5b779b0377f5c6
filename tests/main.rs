//! The integration tests: one binary, one module a subject.
#![allow(missing_docs)]
// Helpers of tests are no tests to clippy.
#![allow(clippy::unwrap_used, clippy::expect_used)]
mod adapters;
mod architecture;
mod attention;
mod bits;
mod cli;
mod coverage;
mod data;
mod endpoint;
mod eval;
mod figures;
mod fuzz;
mod gemma;
mod judge;
mod kernels;
mod knowme;
mod left_out;
mod lens;
mod losses;
mod memory;
mod memory_systems;
mod memrewardbench;
mod models;
mod parity;
mod prompt;
mod real_model;
mod serve;
mod speed;
mod statistics;
mod subtlememory;
mod synthetic_run;
mod tables;
mod thinking;
mod toy;
mod truncation;
