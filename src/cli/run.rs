//! `palimpsest run`: answers and attention of a benchmark file, in one pass.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use super::interrupt;
use crate::estimate::{self, EstimateArgs};
use crate::progress::note;
use crate::runs::cost::MeanCost;
use crate::runs::runner::Summary;
use crate::runs::setup::{Begin, RunSpec};
use crate::runs::store::RunFolder;
use palimpsest_core::timing::Recorder;

const EXAMPLES: &str = "\
Examples:
  palimpsest run --data sample --limit 4 --context 4096 --out runs/first
  palimpsest run --data stale.json --model ./qwen3-8b --device cuda --shard 0/8 --out runs/0
  palimpsest run --data sample --knockout 'query->old' --knockout 'query->new@8..16' --out runs/blocked
  palimpsest run --data sample --model http://127.0.0.1:8000/v1#qwen3-8b --out runs/served
  palimpsest run --data stale.json --model http://127.0.0.1:8000/v1#llama-3.3-70b --context 131072 --tokenizer ./tokenizer.json --out runs/llama";

/// Answer the questions of a benchmark and record attention, in one pass.
///
/// The folder OUT gets run.json (settings and versions), plan.jsonl, answers.jsonl, cases/ (the histories as shown), attention/ (one
/// safetensors file per question) and costs.jsonl (tokens, seconds). The same command resumes, also after a kill; with other settings it
/// refuses and names the difference. Next: `palimpsest view OUT`, and `palimpsest judge OUT` with a model of 1 billion parameters or more.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub(super) spec: RunSpec,
    /// The run folder
    #[arg(long, required_unless_present = "estimate", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Also write the times of this process to a JSON file, and print them as a table: loading, tokenising, projections, attention, its
    /// observer and the rest of the model in prefill and in decode, sampling and files; with tokens, tokens per second and peak memory,
    /// also of cards
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) stats: Option<PathBuf>,
    #[command(flatten)]
    estimate: EstimateArgs,
}

pub fn run(args: Args, recorder: Option<&Recorder>) -> anyhow::Result<()> {
    let Args { out, spec, stats, estimate } = args;
    if estimate.estimate {
        return estimate::estimate(spec, &estimate, &|text| super::say(text));
    }
    // Present except for estimates, which returned above.
    let out = out.unwrap_or_default();
    if let Some(path) = &stats {
        if spec.is_endpoint() {
            let why = format!("--stats is for local models, and {} is an endpoint; drop it", spec.model);
            return super::wrong(why);
        }
        super::writable(path)?;
    }
    let summary = answer(&spec, &out, recorder)?;
    if let (Some(path), Some(recorder)) = (&stats, recorder) {
        super::write_stats(path, recorder)?;
    }
    super::conclude(&out, "answers", "answers.jsonl", &summary)?;
    let folder = RunFolder::read(&out)?;
    if let Some(mean) = MeanCost::of_answers(&folder.costs) {
        // Seconds vary between runs, and stdout must not.
        note(format_args!("a case costs {mean} (mean of {} cases, costs.jsonl)", mean.cases));
    }
    if summary.errors == 0 {
        // Answers that no reading decides need a model as judge, which the user has to choose.
        let next = if folder.benchmark()?.readings.is_empty() { "view" } else { "judge" };
        super::say(format_args!("next: palimpsest {next} {}", out.display()))?;
    }
    super::finding::say_of_run(&folder)?;
    super::without_errors("answers", "answers.jsonl", &summary)
}

pub(super) fn answer(spec: &RunSpec, out: &Path, recorder: Option<&Recorder>) -> anyhow::Result<Summary> {
    spec.run(&Begin {
        folder: out,
        recorder,
        show_progress: !(spec.stream && std::io::stdout().is_terminal()),
        on_text: &|piece| {
            // A closed stdout does not stop the run.
            let mut out = std::io::stdout();
            let text = if piece.is_empty() { "\n\n" } else { piece };
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        },
        watch: &interrupt::flag,
    })
}
