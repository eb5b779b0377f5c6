//! Builds of datasets.

mod endpoint;
mod engine;
mod knowme;
mod memrewardbench;
mod resume;
mod review;
mod specs;
mod stale;
mod subtlememory;
