//! Human agreement (STALE, appendix E.3): answers are drawn for people to rate, and the judge's verdicts are compared with
//! their ratings.
//!
//! [`draw()`] takes a stratified sample of the answers of one or more runs. [`sheet`] writes it for raters, who see neither
//! model nor verdict, and keeps the [`key`] apart. [`ratings`] reads what they filled in, and [`score()`] counts it into the
//! columns of table 7. Called by `palimpsest agree`; runs no model and changes no run folder.

use std::path::Path;

mod draw;
pub mod key;
pub mod ratings;
mod score;
pub mod sheet;

pub use draw::{Draw, Drawn, Item, RubricChoice, draw, raters_rubric};
pub use score::{Counts, RaterScore, RatersCompared, Scored, Subset, score};

/// An error of a file, for `map_err`.
fn io(path: &Path) -> impl FnOnce(std::io::Error) -> anyhow::Error {
    move |error| anyhow::anyhow!("{}: {error}", path.display())
}
