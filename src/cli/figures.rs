//! `palimpsest figures`: the figures of a run, as SVG and PNG.

use std::path::PathBuf;

use super::lens::Analysis;
use crate::figures::{self, Origin};
use crate::lens::{AnalysedRun, Lens};

/// The figures of a run, as SVG and PNG.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder.
    pub(super) dir: PathBuf,
    /// Where the figures go [default: DIR/figures].
    #[arg(long, value_name = "FOLDER")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) analysis: Analysis,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let folder = AnalysedRun::open_condition(&args.dir, &args.analysis.condition)?;
    let lens = Lens::of(&folder, &args.analysis.options())?;
    let figures = figures::draw_all(&lens, &Origin::of(&folder, lens.judge.as_deref()))?;
    let out = args.out.unwrap_or_else(|| args.dir.join("figures"));
    figures::write(&figures, &out)?;
    for figure in &figures {
        super::say(format_args!("{}: {}", figure.name, figure.title))?;
    }
    super::say(format_args!(
        "wrote {} figures (svg, png, csv) and captions.json to {}",
        figures.len(),
        out.display()
    ))?;
    Ok(())
}
