//! `palimpsest lens`: curves and ratios of a run, as CSV.

use std::path::PathBuf;

use crate::ground::table::wrapped;
use crate::heads::Score;
use crate::lens::{Baseline, ByHeads, Options, PerGroup, Study, in_words, table};
use crate::runs::judged::say_which;

/// Attention curves and ratios of a run by layer: the means in print, all numbers as CSV in DIR/lens.
///
/// The row of a group has the attention to each role in percent, its noise baseline in brackets, and the ratio. The ratio of means divides
/// the groups' means at each layer and is the one to report; the mean of ratios (ratios.csv) averages each example's ratio, in which a
/// single example with little attention can dominate. docs/numbers.md has the definitions, docs/tutorial.md a glossary.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder.
    dir: PathBuf,
    #[command(flatten)]
    analysis: Analysis,
}

/// Flags of the analysis, shared by `lens`, `figures` and `report`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Analysis")]
pub struct Analysis {
    /// Only answers under this condition, `plain` or for example repeat-2; several with commas [default: all without repetitions; `report`:
    /// all].
    #[arg(long = "condition", value_name = "NAME", value_delimiter = ',')]
    pub(super) conditions: Vec<String>,
    /// Split by this judge's verdicts, as `palimpsest table` names it, with or without its rubric in brackets [default: the judge and rubric
    /// of the last verdicts].
    #[arg(long, value_name = "NAME")]
    pub(super) judge: Option<String>,
    /// Seed of the halves of the cases: the best measure and layers of `causes` are chosen on one half and tested on the other.
    #[arg(long, default_value_t = 0)]
    pub(super) halves_seed: u64,
    /// Segments of the noise baseline: `both`, the mean of the one before and the one after the evidence; `adjacent`, the nearer one, or the
    /// one after if both are adjacent; `pooled:N`, the N before and the N after together, for short segments.
    #[arg(long, value_name = "both|adjacent|pooled:N", default_value = "both")]
    pub(super) baseline: Baseline,
    /// Measure up to N examples of each question form, type and verdict, drawn by --seed [default: all].
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub(super) per_group: Option<usize>,
    /// Seed of the draw of --per-group.
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Weight heads by the scores in this file of `palimpsest heads`, made for the run's model, instead of the plain mean. Layers without a
    /// score above 0 are left out.
    #[arg(long, value_name = "FILE")]
    pub(super) heads: Option<PathBuf>,
    /// The score of --heads to weight by.
    #[arg(long, value_enum, default_value_t, requires = "heads")]
    pub(super) head_score: Score,
}

impl Analysis {
    pub fn options(&self) -> Options {
        Options {
            judge: self.judge.clone(),
            halves_seed: self.halves_seed,
            baseline: self.baseline,
            per_group: self.per_group.map(|most| PerGroup { most, seed: self.seed }),
            heads: self.heads.clone().map(|path| ByHeads { path, score: self.head_score }),
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let options = args.analysis.options();
    let study = Study::open(&args.dir, &args.analysis.conditions, &options)?;
    say_which(&args.dir, study.judge.as_deref(), options.judge.as_deref());
    let width = super::terminal_width();
    // A separate folder, so that different kinds of masses never mix.
    let (mut text, folder) = match &options.heads {
        None => (String::new(), "lens".to_owned()),
        Some(by) => {
            let score = by.score.key();
            let masses =
                format!("masses: averaged over heads by the {score} scores of {}", by.path.display());
            (wrapped(&masses, width) + "\n", format!("lens-{score}"))
        }
    };
    let written = table::write_study(&study, &super::own_folder(&args.dir, &folder)?)?;
    text += &in_words(&study, width);
    for path in written {
        text += &format!("wrote {}\n", path.display());
    }
    super::write_out(text.as_bytes())?;
    super::finding::say(&study)
}
