//! `palimpsest causes`: effects of each session on the answers of a run.

use std::path::PathBuf;

use anyhow::ensure;

use super::WrongValue;
use crate::lens::Options;
use crate::lens::causes::texts::text;
use crate::progress::note;
use crate::runs::causes::blocked::CauseOptions;
use crate::runs::causes::carriers::{self, CarrierOptions};
use crate::runs::causes::case::SessionChoice;
use crate::runs::causes::context_cite::SurrogateOptions;
use crate::runs::causes::contrast_rows::CONTRAST_CAUSES;
use crate::runs::causes::removed::RemovalOptions;
use crate::runs::causes::rows::{Ablation, CAUSES, read_lines};
use crate::runs::causes::ways::{self, Way};
use crate::runs::causes::{self, Measured};
use crate::runs::reread::{Reread, RereadArgs};
use crate::statistics::control::STRETCHES;
use palimpsest_core::ablate::Measure;

const EXAMPLES: &str = "\
Examples:
  palimpsest causes runs/first
  palimpsest causes runs/first --windows 8 --controls 24
  palimpsest causes runs/first --total
  palimpsest causes runs/first --replace
  palimpsest causes runs/first --carriers
  palimpsest causes runs/first --contextcite 32
  palimpsest causes runs/dose --contrast --windows 8
  palimpsest causes runs/qwen3 --model ./qwen3-8b --device cuda";

/// Block each session in turn, and see what the answers of a run owe to it.
///
/// DIR is the folder of a run that recorded attention. For every answer and every session of its history, everything from the
/// question's first token on is kept from seeing the session, and the model's own answer is read again: what the answer loses of its log
/// probability (mean per token; above 0 it needs the session), how far the distributions of its first token and of all of its tokens move,
/// and whether some token of it is no longer the likeliest. A thought before the answer is counted apart. Beside the sessions a pool of
/// random stretches is blocked, drawn once a case: no evidence, of lengths that cover those of the sessions. A session's control is the
/// median effect of the stretches of about its own length that do not touch it. The history is computed once a case; each reading takes
/// the tokens from the question on alone. Rows go to DIR/causes.jsonl, which is gone on with after a stop. Only direct paths
/// are blocked: what other sessions took over from one still arrives (docs/causes.md).
///
/// --total removes each session in the place of blocking it and reads all after it again: what the answer owes to it altogether. --contextcite
/// N does so with N random subsets of the sessions, and says what each session adds to the logit of the answer's probability.
/// --replace puts neutral text of equal length in the place of each session of the evidence, so that what comes after it keeps its positions.
/// --carriers hides each session of the evidence from the question on and from one later session besides, whose rows are read again: which
/// later sessions hold what it leaves behind.
/// All say before they begin how much is to be computed, and go on after a stop too.
///
/// --contrast reads the contrasts of a benchmark whose questions name values (dose) in the place of answers: what blocking a session, or with
/// --total removing it, or with --replace replacing it, takes from log p of the current value less log p of the one that it is held against. Rows go to
/// DIR/contrast-causes.jsonl, measures of the prompt's last position to DIR/causes-contrast/.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder of a run
    dir: PathBuf,
    #[command(flatten)]
    by: RereadArgs,
    /// Block N layers at a time, window by window, in the place of all layers at once
    #[arg(long, value_name = "N", value_parser = super::positive, help_heading = "Paths and controls")]
    windows: Option<usize>,
    /// Of a model with linear-attention layers, block the softmax layers alone
    #[arg(long, help_heading = "Paths and controls")]
    softmax_only: bool,
    /// Random stretches of a case that are blocked as controls, a reading of every answer each; 0 for none
    #[arg(long, value_name = "N", default_value_t = STRETCHES, value_parser = controls, conflicts_with_all = ["total", "replace", "carriers", "contextcite"], help_heading = "Paths and controls")]
    controls: usize,
    /// Remove each session and read the rest again, in the place of blocking it
    #[arg(long, group = "left_out", conflicts_with_all = ["windows", "softmax_only", "contextcite"], help_heading = "Removal")]
    total: bool,
    /// Put neutral text of equal length in the place of each session and read the rest again
    #[arg(long, group = "left_out", conflicts_with_all = ["windows", "softmax_only", "contextcite"], help_heading = "Removal")]
    replace: bool,
    /// Find the later sessions that hold what an answer owes to the evidence beside its own place
    #[arg(long, conflicts_with_all = ["windows", "contextcite", "left_out"], help_heading = "Paths and controls")]
    carriers: bool,
    /// Of --carriers, look for single ones where hiding a session from all of them takes at least NATS more than from the question on
    #[arg(long, value_name = "NATS", default_value_t = carriers::LEAST, requires = "carriers", help_heading = "Paths and controls")]
    least: f64,
    /// The sessions that --total removes (all unless told otherwise) and --replace replaces (the evidence unless told otherwise)
    #[arg(long, value_enum, requires = "left_out", help_heading = "Removal")]
    sessions: Option<SessionChoice>,
    /// Leave out what N random subsets of the sessions do not hold, and fit a sparse linear function of what they hold
    #[arg(long, value_name = "N", value_parser = super::positive, conflicts_with = "windows", help_heading = "Removal")]
    contextcite: Option<usize>,
    /// Read contrasts of values in the place of the answers' log-probabilities
    #[arg(long, conflicts_with = "contextcite", help_heading = "Paths and controls")]
    contrast: bool,
    /// How --contextcite leaves sessions out
    #[arg(long, value_enum, default_value_t, requires = "contextcite", help_heading = "Removal")]
    ablate: Ablation,
    /// Seed of the controls' stretches and of the subsets
    #[arg(long, default_value_t = 0, help_heading = "Paths and controls")]
    seed: u64,
}

fn controls(typed: &str) -> Result<usize, WrongValue> {
    let pool = format!(
        "controls are a pool of stretches a case: give their number, {STRETCHES} unless told otherwise, or 0 for none"
    );
    typed.parse().map_err(|_| WrongValue(pool))
}

impl Args {
    fn way(&self) -> Way {
        let &Args { total, replace, contextcite, ablate, seed, windows, softmax_only, controls, .. } = self;
        let usual = if replace { SessionChoice::Evidence } else { SessionChoice::All };
        match contextcite {
            Some(subsets) => {
                Way::Surrogate(SurrogateOptions { subsets, seed, ablation: ablate, softmax_only })
            }
            None if self.carriers => Way::Carriers(CarrierOptions { softmax_only, least: self.least }),
            None if total || replace => {
                Way::Removed(RemovalOptions { sessions: self.sessions.unwrap_or(usual), replace })
            }
            None => Way::Blocked(CauseOptions { seed, windows, softmax_only, controls }),
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let place = args.dir.display();
    let run = Reread::open(&args.dir)?;
    run.check_attention()?;
    read_lines(&args.dir)?;
    let metric = if args.contrast { Measure::Contrast } else { Measure::LogP };
    let asked = causes::asked(&run.folder, metric);
    ensure!(
        !(args.contrast && asked.is_empty()),
        "{place} has no contrasts: they are of runs of a benchmark whose questions name values (dose), answered by a model on this \
         machine with its attention recorded"
    );
    ensure!(!asked.is_empty(), "{place} has no answers whose causes could be measured; finish the run first");

    let mut model = run.model(&asked, 0, &args.by)?;

    let stop = super::interrupt::flag("stopping after the measure under way")?;
    let way = (args.way(), metric);
    let Measured { skipped, done, stopped, histories, readings } =
        ways::measure(&run.folder, &mut model, way, &stop, true)?;
    let file = args.dir.join(if args.contrast { CONTRAST_CAUSES } else { CAUSES });
    note(format_args!("{done} rows added to {}, {skipped} were there", file.display()));
    for (what, (seconds, tokens)) in [("histories", histories), ("readings with a path blocked", readings)] {
        if tokens > 0 {
            note(format_args!("{what}: {tokens} tokens in {seconds:.1} s"));
        }
    }
    if stopped {
        super::interrupt::end_resumable()?;
    }
    super::say(text(&args.dir, way, &model.engine().decoder().spec().layer_kinds())?)?;
    super::finding::say_of(&args.dir, &Options::default())
}
