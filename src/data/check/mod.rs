//! Checks of data that need no model, for the cases of every benchmark.
//!
//! A benchmark's own checks stand in its folder and make the same findings. Called by [`crate::benchmarks::reading`] for
//! `palimpsest data check`. Nothing here refuses a case.
//!
//! - [`Checker`]: puts them to a case at a time.
//! - `turns`: what stands among the turns in the place of a text.
//! - `times`: the order of times, and with `calendar` the words for days and months beside dates.
//! - `questions`: options that are named and not given, one text with two golds, repeated and similar questions.
//! - `golds`: golds that are empty, or of which the evidence holds nothing.
//! - `copies`: the same segment twice, the same evidence or history in several cases.
//! - [`words`]: content words, and the word lists; [`near`]: texts that are alike.

mod calendar;
mod checker;
mod copies;
mod golds;
pub mod near;
mod questions;
mod times;
mod turns;
pub mod words;

pub use checker::{CHECKS, Checker, Scope};
