//! Analyses run folders: tables, curves, labels and effects. Only [`why`] and [`heads`] run a model.

pub mod agreement;
pub mod dose;
pub mod evict;
pub mod export;
pub mod finding;
pub mod ground_truth;
pub mod heads;
pub mod lens;
pub mod losses;
pub mod records;
pub mod results;
pub mod why;
