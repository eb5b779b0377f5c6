//! Input of the report page.

use palimpsest_analysis::lens::{AnalysedRun, Lens};
use palimpsest_run::runs::judged::Judged;

#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// Display name; empty if the run has only the plain condition.
    pub condition: &'a str,
    pub about: &'a str,
    /// Why no attention is shown, if so.
    pub without: Option<&'a str>,
    pub shades: bool,
    pub run: &'a AnalysedRun,
    pub verdicts: Option<&'a Judged<'a>>,
    pub lens: Option<&'a Lens>,
}
