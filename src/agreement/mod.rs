//! Human agreement (STALE, appendix E.3): answers are drawn for people to rate, and the judge's verdicts are compared with
//! their ratings.
//!
//! [`draw()`] takes a stratified sample of the answers of one or more runs. [`sheet`] writes it for raters, who see neither
//! model nor verdict, and keeps the [`key`] apart. [`ratings`] reads what they filled in, and [`score()`] counts it into the
//! columns of table 7. Called by `palimpsest agree`; runs no model and changes no run folder.

mod draw;
mod error;
pub mod key;
mod raters;
pub mod ratings;
mod score;
pub mod sheet;
mod table;

pub use draw::{Draw, Drawn, Item, draw};
pub use error::AgreementError;
pub use raters::{RubricChoice, raters_rubric};
pub use score::{Counts, RaterScore, RatersCompared, Scored, Subset, score};
