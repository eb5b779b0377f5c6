//! Builds of datasets.

mod endpoint;
mod engine;
mod review;
mod stale;
