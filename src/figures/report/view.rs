//! What the page is made of.

use crate::lens::{AnalysedRun, Lens};
use crate::run::judged::Judged;

/// A run under one condition, as the page shows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// The condition's name as people read it; empty where the run has the plain one alone.
    pub condition: &'a str,
    /// What it does.
    pub about: &'a str,
    /// Why nothing of its attention is shown, where that is so.
    pub without: Option<&'a str>,
    /// Whether it shades the segments of cases.
    pub shades: bool,
    /// The answers.
    pub run: &'a AnalysedRun,
    /// The verdicts.
    pub verdicts: Option<&'a Judged<'a>>,
    /// The attention; `None` where none was recorded.
    pub lens: Option<&'a Lens>,
}
