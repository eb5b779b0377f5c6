//! What must hold for: the analysis of runs of the benchmark dose.

mod commands;
mod made;
mod numbers;
