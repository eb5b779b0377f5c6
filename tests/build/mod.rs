//! Builds of datasets.

mod endpoint;
mod engine;
mod knowme;
mod memrewardbench;
mod review;
mod stale;
mod subtlememory;
