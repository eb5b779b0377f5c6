//! Synthetic histories that vary one factor at a time, in twins of equal token length, for [`crate::benchmarks::dose`]: spec -> levels ->
//! item -> layout -> sessions -> rows -> files. Draws are keyed by seed, item and part ([`crate::case::draw`]), so items are independent.

pub mod builder;
pub mod error;
pub mod factors;
pub mod fillers;
pub mod item;
pub mod layout;
pub mod session;
pub mod spec;
pub mod texts;
pub mod write;

pub use builder::{Builder, Built, BuiltItem};
pub use error::BuildError;
pub use fillers::GivenFillers;
pub use spec::{PRESETS, Spec};
pub use write::{Counter, Format, Lines, Summary, write_build};
