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
use crate::runs::causes::repair_rows::Later;
use crate::runs::causes::repaired::RepairOptions;
use crate::runs::causes::rows::{Ablation, CAUSES, read_lines};
use crate::runs::causes::thoughts::ThoughtOptions;
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
  palimpsest causes runs/first --repair 0,16,64,256,all
  palimpsest causes runs/gemma3 --force
  palimpsest causes runs/first --carriers
  palimpsest causes runs/thinking --thoughts
  palimpsest causes runs/first --contextcite 32
  palimpsest causes runs/dose --contrast --windows 8
  palimpsest causes runs/qwen3 --model ./qwen3-8b --device cuda";

/// Measure the effect of each session on the answers of a run, by hiding one session at a time.
///
/// DIR is the folder of a run that recorded attention. For every answer and every session of its history, the session is hidden from
/// everything from the question's first token on, and the model scores its own answer again. Printed are the answer's loss of log
/// probability (mean per token; above 0 the answer needs the session), the divergences of the distributions of its first token and of all
/// its tokens, and whether a token is no longer the likeliest. A thought before the answer has numbers of its own.
///
/// Controls: random stretches of the history without evidence are hidden too, drawn once per case, with lengths that cover those of the
/// sessions. A session's control is the median effect of the stretches of about its length that do not touch it. Where no evidence is
/// marked, a stretch may touch the session that the answer needs (`anywhere` in its row). A case's history is computed once; each forward
/// pass takes only the tokens from the question on. Rows go to DIR/causes.jsonl; after a stop the same command resumes. Only direct paths
/// are hidden: content that other sessions took over still arrives (docs/causes.md).
///
/// --total removes each session and computes everything after it again: the total effect. --contextcite N removes N random subsets of the
/// sessions and fits each session's contribution to the logit of the answer's probability. --replace replaces each evidence session by
/// neutral text of equal length, so that later text keeps its positions. --carriers hides each evidence session from the question on and
/// from one later session, to find the later sessions that hold its content. --repair replaces each evidence session too, but reads again
/// only its own rows and the N later rows that attended most to it, as a cache is repaired after an edit; the exact replacement is measured
/// beside it. --force is the inverse of hiding: layers with a sliding window or an indexer see the session, at its place, in addition to
/// their choice, from the question on; a loss below 0 says that the answer gains. --thoughts tells, for answers after a thought, what of an evidence
/// session's effect goes through the thought's rows, and through which of its sentences; its text stays as it was. These seven print first
/// how much they will compute.
///
/// --contrast takes, for a benchmark whose questions name values (dose), the contrast log p(current value) - log p(stale value) in place of
/// the answer's log probability. Rows go to DIR/contrast-causes.jsonl, measures of the prompt's last position to DIR/causes-contrast/.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder of a run
    dir: PathBuf,
    #[command(flatten)]
    by: RereadArgs,
    /// Hide sessions at N layers at a time instead of at all layers
    #[arg(long, value_name = "N", value_parser = super::positive, help_heading = "Paths and controls")]
    windows: Option<usize>,
    /// In a model with linear-attention layers, hide sessions at the softmax layers alone
    #[arg(long, help_heading = "Paths and controls")]
    softmax_only: bool,
    /// Random stretches per case that are hidden as controls; each takes a forward pass per answer; 0 for none
    #[arg(long, value_name = "N", default_value_t = STRETCHES, value_parser = controls, conflicts_with_all = ["total", "replace", "repair", "force", "carriers", "thoughts", "contextcite"], help_heading = "Paths and controls")]
    controls: usize,
    /// Remove each session instead of hiding it, and compute the rest again
    #[arg(long, groups = ["left_out", "chosen"], conflicts_with_all = ["windows", "softmax_only", "contextcite"], help_heading = "Removal")]
    total: bool,
    /// Replace each session by neutral text of equal length, and compute the rest again
    #[arg(long, groups = ["left_out", "chosen"], conflicts_with_all = ["windows", "softmax_only", "contextcite"], help_heading = "Removal")]
    replace: bool,
    /// Repair the cache after the replacement of each evidence session: read it and N later rows again (`all`: all of them)
    #[arg(long, value_name = "N,...", value_delimiter = ',', conflicts_with_all = ["windows", "softmax_only", "contextcite", "left_out", "passed_on"], help_heading = "Removal")]
    repair: Vec<Later>,
    /// Show each session to layers with a sliding window or an indexer, in addition to what these leave
    #[arg(long, group = "chosen", conflicts_with_all = ["windows", "softmax_only", "contextcite", "left_out", "passed_on", "repair"], help_heading = "Paths and controls")]
    force: bool,
    /// Find the later sessions that hold content of the evidence
    #[arg(long, group = "passed_on", conflicts_with_all = ["windows", "contextcite", "left_out"], help_heading = "Paths and controls")]
    carriers: bool,
    /// Find what the thought before an answer passes on of the evidence, and by which sentences
    #[arg(long, groups = ["passed_on", "chosen"], conflicts_with_all = ["windows", "contextcite", "contrast"], help_heading = "Paths and controls")]
    thoughts: bool,
    /// --carriers, --thoughts: try single later sessions or sentences if hiding the evidence from all of them costs at least NATS more
    #[arg(long, value_name = "NATS", default_value_t = carriers::LEAST, requires = "passed_on", help_heading = "Paths and controls")]
    least: f64,
    /// Sessions that --total removes and --force shows [default: all], --replace replaces and --thoughts hides [default: evidence]
    #[arg(long, value_enum, requires = "chosen", help_heading = "Removal")]
    sessions: Option<SessionChoice>,
    /// Score the answer given N random subsets of the sessions, and fit a sparse linear function of the sessions present
    #[arg(long, value_name = "N", value_parser = super::positive, conflicts_with = "windows", help_heading = "Removal")]
    contextcite: Option<usize>,
    /// Measure contrasts of values instead of the answers' log-probabilities
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
        "controls are a pool of stretches per case: give their number ({STRETCHES} by default), or 0 for none"
    );
    typed.parse().map_err(|_| WrongValue(pool))
}

impl Args {
    fn way(&self) -> Way {
        let &Args {
            total,
            replace,
            force,
            contextcite,
            ablate,
            seed,
            windows,
            softmax_only,
            controls,
            least,
            ..
        } = self;
        let usual = if total || force { SessionChoice::All } else { SessionChoice::Evidence };
        let sessions = self.sessions.unwrap_or(usual);
        match contextcite {
            Some(subsets) => {
                Way::Surrogate(SurrogateOptions { subsets, seed, ablation: ablate, softmax_only })
            }
            None if !self.repair.is_empty() => {
                Way::Repaired(RepairOptions { later: self.repair.iter().map(|later| later.0).collect() })
            }
            None if force => Way::Forced(sessions),
            None if self.carriers => Way::Carriers(CarrierOptions { softmax_only, least }),
            None if self.thoughts => Way::Thoughts(ThoughtOptions { sessions, softmax_only, least }),
            None if total || replace => Way::Removed(RemovalOptions { sessions, replace }),
            None => Way::Blocked(CauseOptions { seed, windows, softmax_only, controls }),
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let place = args.dir.display();
    let mut run = Reread::open(&args.dir)?;
    run.whole_windows = args.force;
    run.contributions = matches!(args.way(), Way::Blocked(_));
    run.check_attention()?;
    read_lines(&args.dir)?;
    let metric = if args.contrast { Measure::Contrast } else { Measure::LogP };
    let asked = causes::asked(&run.folder, metric);
    ensure!(
        !(args.contrast && asked.is_empty()),
        "{place} has no contrasts: they need a benchmark whose questions name values (dose), and answers of a model on this machine with \
         attention recorded"
    );
    ensure!(!asked.is_empty(), "{place} has no answers whose causes could be measured; finish the run first");

    let mut model = run.model(&asked, 0, &args.by)?;

    let stop = super::interrupt::flag("stopping after the measure under way")?;
    let way = (args.way(), metric);
    let Measured { skipped, done, stopped, histories, readings } =
        ways::measure(&run.folder, &mut model, way.clone(), &stop, true)?;
    let file = args.dir.join(if args.contrast { CONTRAST_CAUSES } else { CAUSES });
    note(format_args!("{done} rows added to {}, {skipped} were there", file.display()));
    for (what, (seconds, tokens)) in
        [("histories", histories), ("forward passes with text hidden or shown", readings)]
    {
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
