//! Human agreement (STALE, appendix E.3): compares the judge's verdicts with human ratings of a sample of answers.
//!
//! [`draw()`] samples answers, [`sheet`] writes them for blinded raters with a separate [`key`], [`ratings`] reads the ratings, and
//! [`score()`] computes the columns of table 7. Called by `palimpsest agree`; runs no model and changes no run folder.

use std::path::Path;

mod draw;
pub mod key;
pub mod ratings;
mod score;
pub mod sheet;

pub use draw::{Draw, Drawn, Item, RubricChoice, draw, raters_rubric};
pub use score::{Compared, Counts, RaterScore, Scored, score};

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> anyhow::Error {
    move |error| anyhow::anyhow!("{}: {error}", path.display())
}
