//! Made data: histories in which one thing at a time is set, in twins of equal length.
//!
//! `palimpsest build dose` writes what [`crate::benchmarks::dose`] reads. The way of a build:
//!
//! ```text
//! spec -> levels -> item (subject, attribute, values) -> layout (places, fillers) -> sessions of exact length -> rows -> files
//! ```
//!
//! Every draw comes from a stream of its own, keyed by seed, item and part ([`crate::case::draw`]): the same seed gives the same bytes,
//! and another item changes no other. Runs no model; needs a tokenizer, to count.
//!
//! - [`spec`]: what is to be built. [`factors`]: the things that are set.
//! - [`texts`]: our own texts. [`item`]: an item and its sentences.
//! - [`session`]: sessions of exactly so many tokens. [`fillers`], [`layout`]: what stands between them.
//! - [`builder`]: the rows of an item. [`mod@write`]: the files of a build.

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
