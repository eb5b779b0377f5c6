//! Builds of datasets.

mod endpoint;
mod engine;
mod memrewardbench;
mod review;
mod stale;
mod subtlememory;
mod knowme;
