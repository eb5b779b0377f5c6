//! `palimpsest ground-truth`: scores of sessions held against exact effects.

use std::path::PathBuf;

use crate::ground::sheet::Format;
use crate::ground_truth::{By, Effects, GroundTruth, Options};

const EXAMPLES: &str = "\
Examples:
  palimpsest ground-truth runs/first
  palimpsest ground-truth runs/first --scores mine.jsonl
  palimpsest ground-truth runs/qwen --heads qwen-heads.json --proxy runs/smollm2
  palimpsest ground-truth runs/stale --learn-from runs/dose --by distance
  palimpsest ground-truth runs/dose --contrast --format csv
  palimpsest ground-truth runs/first --out first-truth
  palimpsest ground-truth first-truth/effects.jsonl --scores mine.jsonl";

/// Hold scores of the sessions, by any method, against the exact effects of `palimpsest causes`.
///
/// RUN is a run folder with causes, or a file of exact effects (effects.jsonl of --out). Scores are read from --scores: JSON lines with
/// case, probe, condition, method, scores (a number for each session, such as session[3]) and, if you like, readings (forward passes that
/// they took) and run. Built in are what a run folder holds: mass, density, norms and attribution, heads by --heads, a ridge regression
/// fitted on the other half of the cases or on another run, ContextCite's weights, and another model's effects.
///
/// Printed for each method, as means over cases with 95% intervals: Spearman's correlation with the effects within an answer, the linear
/// datamodeling score over random subsets (causes --contextcite), the mean average precision of outliers, the effects of the sessions with
/// the highest scores, how often the decisive session comes first, and the forward passes an answer took. docs/ground-truth.md has the
/// definitions.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run folders, or files of exact effects
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// JSON lines of scores by your own methods (repeatable)
    #[arg(long, value_name = "FILE", help_heading = "Scores")]
    scores: Vec<PathBuf>,
    /// Head scores of `palimpsest heads` (repeatable; each run takes those of its model)
    #[arg(long, value_name = "FILE", help_heading = "Scores")]
    heads: Vec<PathBuf>,
    /// Fit the ridge regression to this run too, of another benchmark or model with as many layers and heads (repeatable)
    #[arg(long, value_name = "RUN", help_heading = "Scores")]
    learn_from: Vec<PathBuf>,
    /// Take the effects of this run, of another model over the same data, as scores (repeatable)
    #[arg(long, value_name = "RUN", help_heading = "Scores")]
    proxy: Vec<PathBuf>,
    /// Seed of the halves of the cases
    #[arg(long, default_value_t = 0, help_heading = "Scores")]
    halves_seed: u64,
    /// Effects on the contrast of values (causes --contrast) instead of the answer
    #[arg(long, conflicts_with = "total", help_heading = "Exact effects")]
    contrast: bool,
    /// Effects of removed sessions (causes --total) instead of hidden ones
    #[arg(long, help_heading = "Exact effects")]
    total: bool,
    /// Split the answers by the role or the place of their decisive session, or by the length of the history
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Sessions of the drop
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = super::positive)]
    top: usize,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Write the table (.txt, .csv, .md, .tex), the figure, effects.jsonl and scores.jsonl into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { runs, scores, heads, learn_from, proxy: proxies, halves_seed, by, top, format, out, .. } =
        args;
    let effects = match (args.contrast, args.total) {
        (true, _) => Effects::Contrast,
        (_, true) => Effects::Removed,
        _ => Effects::Hidden,
    };
    let options = Options { effects, by, top, scores, heads, learn_from, proxies, halves_seed };
    let truth = GroundTruth::open(&runs, options)?;
    let rows = truth.rows();
    super::write_out(truth.written(&rows, format)?.as_bytes())?;
    let Some(folder) = out else { return Ok(()) };
    super::figures::ground_truth(&truth, &rows, &folder)?;
    let formats = [(Format::Text, "txt"), (Format::Csv, "csv"), (Format::Md, "md"), (Format::Latex, "tex")];
    for (format, ending) in formats {
        super::save(&folder.join(format!("ground-truth.{ending}")), truth.written(&rows, format)?)?;
    }
    super::save(&folder.join("effects.jsonl"), truth.effects_lines()?)?;
    super::save(&folder.join("scores.jsonl"), truth.score_lines())
}
