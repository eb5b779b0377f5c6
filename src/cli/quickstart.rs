//! `palimpsest quickstart`: run, judge and report on a small real model.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Instant;

use super::{figures, judge, lens, report, run};
use crate::models::ModelStore;
use crate::models::manifest::DEFAULT_MODEL;
use crate::runs::judged::no_result;
use crate::runs::setup::RunSpec;

/// Try everything once on a small real model: a run with attention, verdicts, figures and the report.
///
/// Fetches the model (once), answers the built-in STALE sample, judges the answers, measures the attention, and draws the figures and the
/// report. Every number is computed on this machine. After a stop the same command resumes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A name of `palimpsest model list`, owner/name[@revision] of the Hugging Face hub, a model folder, or a .gguf file
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// Cases of the sample
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = super::positive)]
    limit: usize,
    /// Most tokens of prompt and answer together
    #[arg(long, default_value_t = 4096, value_name = "TOKENS", value_parser = super::positive)]
    context: usize,
    /// The run folder
    #[arg(long, default_value = "runs/quickstart")]
    out: PathBuf,
}

/// Enough for a few sentences, fast enough on two cores.
const MAX_NEW_TOKENS: usize = 96;

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { model, limit, context, out } = args;
    let start = Instant::now();
    let step = |n: usize, what: &str| crate::progress::note(format_args!("\n[{n}/5] {what}"));

    step(1, &format!("the model: {model}"));
    let files = ModelStore::open()?.resolve_to_run(&model)?;
    crate::progress::note(format_args!("{}", files.path().display()));

    step(
        2,
        &format!("answering {limit} cases of the built-in sample, attention recorded ({context} tokens)"),
    );
    let spec = RunSpec {
        data: "sample".into(),
        model: model.clone(),
        context: Some(context),
        limit: Some(limit),
        max_new_tokens: Some(MAX_NEW_TOKENS),
        ..defaults(&["--data".as_ref(), "sample".as_ref()])?
    };
    let answered = run::answer(&spec, &out, None)?;
    super::conclude(&out, "answers", "answers.jsonl", &answered)?;

    step(3, "judging the answers with the same model");
    let judged = judge::judge_folder(&out, &format!("local:{model}"), &defaults(&[])?)?;
    super::conclude(&out, "verdicts", "verdicts.jsonl", &judged)?;

    step(4, "curves and figures");
    lens::run(defaults(&[out.as_ref()])?)?;
    figures::run(defaults(&[out.as_ref()])?)?;

    step(5, "the report");
    report::run(defaults(&[out.as_ref()])?)?;

    let dir = out.display();
    let cannot_judge =
        no_result(&format!("local:{model}")).map_or(String::new(), |why| format!("\nNote: {why}."));
    super::say(format_args!(
        "\ndone in {:.0} s. In {dir}:
  report.html      the whole run on one page; open it in a browser
  figures/         SVG, PDF, PNG and CSV of every figure, with captions.json
  answers.jsonl    one answer per line; verdicts.jsonl: one verdict per line
  attention/       one safetensors file per question: every layer, head and session
{cannot_judge}
Next, look at one answer: palimpsest view {dir}
With a bigger model and the published STALE file (T1_T2_400_FULL.json):
  palimpsest data check T1_T2_400_FULL.json
  palimpsest run --data T1_T2_400_FULL.json --model NAME_OR_FOLDER_OR_GGUF --out runs/stale
  palimpsest judge runs/stale --judge http://localhost:8000/v1#JUDGE_MODEL
  palimpsest report runs/stale",
        start.elapsed().as_secs_f64()
    ))?;
    super::without_errors("answers", "answers.jsonl", &answered)?;
    super::without_errors("verdicts", "verdicts.jsonl", &judged)
}

/// Flags of `T` with defaults except for `typed`.
fn defaults<T: clap::Args>(typed: &[&OsStr]) -> anyhow::Result<T> {
    let command = T::augment_args(clap::Command::new("defaults").no_binary_name(true));
    Ok(T::from_arg_matches(&command.try_get_matches_from(typed)?)?)
}
