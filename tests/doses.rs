//! Tests of the analysis of dose runs.

mod commands;
mod made;
mod numbers;
