//! What the page is made of.

use crate::lens::{AnalysedRun, Lens, Verdicts};

/// A run under one condition, as the page shows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// The condition's name; empty for the plain one.
    pub condition: &'a str,
    /// The answers.
    pub run: &'a AnalysedRun,
    /// The verdicts.
    pub verdicts: &'a Verdicts,
    /// The attention; `None` where none was recorded.
    pub lens: Option<&'a Lens>,
}
