//! Builds of datasets.

mod endpoint;
mod engine;
mod stale;
mod subtlememory;
