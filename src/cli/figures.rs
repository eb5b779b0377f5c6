//! `palimpsest figures`: the figures of a run, as SVG, PDF and PNG.

use std::path::PathBuf;

use anyhow::bail;

use super::figure_style::FigureStyle;
use super::lens::Analysis;
use crate::figures::{self, RunFigures};

/// The figures of a run, as SVG, PDF and PNG; of several runs, side by side; of runs of several benchmarks, one look over all.
///
/// Where a run has conditions, each has figures of its own, whose names begin with the condition's, and all of them are drawn side by side.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder. Several are drawn side by side: curves and ratios over layers, on the same axes. Runs of several benchmarks
    /// by one model are drawn as one figure: how much more the evidence gets than what stands beside it.
    #[arg(required_unless_present = "style_example", value_name = "DIR")]
    pub(super) dirs: Vec<PathBuf>,
    /// Where the figures go [default: DIR/figures, or figures-SCORE with --heads]; needed for several runs.
    #[arg(long, value_name = "FOLDER")]
    pub(super) out: Option<PathBuf>,
    /// Draw a run's conditions against each other, too: the same questions under both on one axis, and what a condition changes, with the
    /// interval of the difference. The plain one with every other, or the first where the plain one is not drawn.
    #[arg(long)]
    pub(super) difference: bool,
    /// Print a whole style file, and draw nothing.
    #[arg(long)]
    pub(super) style_example: bool,
    #[command(flatten)]
    pub(super) look: FigureStyle,
    #[command(flatten)]
    pub(super) analysis: Analysis,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { dirs, out, difference, style_example, look, analysis } = args;
    if style_example {
        return super::say(format_args!("{}", figures::Style::example().trim_end()));
    }
    let _look = look.enter()?;
    let out = match (out, &dirs[..]) {
        (Some(out), _) => out,
        // A folder of its own, so that masses of two kinds are never in one.
        (None, [dir]) => match &analysis.heads {
            Some(_) => dir.join(format!("figures-{}", analysis.head_score.key())),
            None => dir.join("figures"),
        },
        (None, _) => {
            bail!("{} runs were given and no folder for their figures; add --out FOLDER", dirs.len())
        }
    };
    let options = analysis.clone().options();
    let wanted = RunFigures { options: &options, conditions: &analysis.conditions, difference };
    let (figures, remarks) = figures::draw_runs(&dirs, wanted)?;
    for remark in remarks {
        super::say(remark)?;
    }
    figures::write(&figures, &out)?;
    for figure in &figures {
        super::say(format_args!("{}: {}", figure.name, figure.title))?;
    }
    super::say(format_args!(
        "wrote {} figures (svg, pdf, png, csv) and captions.json to {}",
        figures.len(),
        out.display()
    ))
}
