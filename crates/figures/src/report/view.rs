//! The input of the page.

use palimpsest_analysis::lens::{AnalysedRun, Lens};
use palimpsest_run::runs::judged::Judged;

/// A run under one condition, as the page shows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// The condition's name as people read it; empty where the run has the plain one alone.
    pub condition: &'a str,
    pub about: &'a str,
    /// Why nothing of its attention is shown, where that is so.
    pub without: Option<&'a str>,
    /// True if it shades the segments of cases.
    pub shades: bool,
    pub run: &'a AnalysedRun,
    pub verdicts: Option<&'a Judged<'a>>,
    /// The attention; `None` where none was recorded.
    pub lens: Option<&'a Lens>,
}
