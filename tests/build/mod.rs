//! Builds of datasets.

mod endpoint;
mod engine;
mod knowme;
