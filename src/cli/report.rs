//! `palimpsest report`: the one-page report of a run.

use std::path::PathBuf;

use super::lens::Analysis;
use crate::figures::{self, Origin, report};
use crate::lens::{AnalysedRun, Lens, LensError};

/// The one-page report of a run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder; the page is written there as report.html.
    pub(super) dir: PathBuf,
    #[command(flatten)]
    pub(super) analysis: Analysis,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let folder = AnalysedRun::open_condition(&args.dir, &args.analysis.condition)?;
    let options = args.analysis.options();
    let verdicts = folder.verdicts(options.judge.as_deref())?;
    // a run without attention still has answers and verdicts to report
    let lens = match Lens::of(&folder, &options) {
        Ok(lens) => Some(lens),
        Err(LensError::NoAttention { reason, .. }) => {
            super::say(format_args!("no attention in this run ({reason}): the page has no figures"))?;
            None
        }
        Err(error) => return Err(error.into()),
    };
    let figures = match &lens {
        Some(lens) => figures::draw_all(lens, &Origin::of(&folder, lens.judge.as_deref()))?,
        None => Vec::new(),
    };
    let page = report::write(&folder, &verdicts, lens.as_ref(), &figures, &args.dir)?;
    super::say(format_args!("wrote {}; open it in any browser", page.display()))?;
    Ok(())
}
