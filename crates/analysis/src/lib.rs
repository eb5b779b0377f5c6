//! Records of a run become tables, curves, labels and effects.
//!
//! Reads run folders; only [`why`] and [`heads`] ask a model.

pub mod agreement;
pub mod dose;
pub mod export;
pub mod heads;
pub mod lens;
pub mod losses;
pub mod records;
pub mod results;
pub mod why;
