//! `palimpsest heads`: retrieval heads of a model.

use std::path::PathBuf;

use crate::ground::sheet::{Columns, Sheet};
use crate::ground::table::aligned;
use crate::heads::probing::{ProbingOptions, probe};
use crate::heads::{HeadScores, Score, plant};
use crate::models::{self, ModelArgs, ModelStore, Opened};
use crate::progress::note;
use palimpsest_core::engine::memory_plan::ObservedSpans;
use palimpsest_core::engine::{ContextLength, LocalOptions};

const EXAMPLES: &str = "\
Examples:
  palimpsest heads smollm2-135m
  palimpsest heads ./qwen3-8b --context 16384 --device cuda --out qwen3-heads.json
  palimpsest lens runs/first --heads heads.json";

/// Score a model's heads: which copy a sentence from the history, and which attend to the session that a question needs.
///
/// Plants sentences of our own (needles) in the sessions of the built-in sample, one per prompt, at depths from first to last, and asks for
/// them. Each head gets two scores, means over needles. RETRIEVAL (Wu et al. 2024): the share of a needle's tokens that the head copies
/// while the model answers; the head copies a token if it gives most weight to that token inside the needle and the model generates it.
/// Only needles that the model answers, with more than half of their tokens, count. QR (QRHead, 2025): the question's mass on the needle's
/// session less the mass of the null question "N/A". Linear-attention layers have no weights of single keys and no scores.
///
/// The file has both scores of every head; `palimpsest lens --heads FILE` weights a run's masses by them (docs/measures.md). The scores are
/// also kept in the model home, where `palimpsest serve` finds the retrieval heads.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A name of `palimpsest model list`, owner/name[@revision] of the Hugging Face hub, a model folder, or a .gguf file
    model: String,
    /// File to write
    #[arg(long, value_name = "FILE", default_value = "heads.json", help_heading = "Output")]
    out: PathBuf,
    /// Also write a CSV table, one row per head
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    csv: Option<PathBuf>,
    /// Do not keep the scores in the model home for `palimpsest serve`; scores from a part of the needles are never kept
    #[arg(long, help_heading = "Output")]
    no_keep: bool,
    /// Print the file's JSON instead of the table
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Heads of each score that the table shows
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = super::positive, help_heading = "Output")]
    top: usize,
    /// Most tokens of a prompt and its answer; at most the model's context length
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = super::positive, help_heading = "Needles")]
    context: usize,
    /// Allow more tokens than the model's context length
    #[arg(long, help_heading = "Needles")]
    allow_longer: bool,
    /// Only the first N needles
    #[arg(long, value_name = "N", value_parser = super::positive, help_heading = "Needles")]
    needles: Option<usize>,
    /// Most tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value_t = 48, value_parser = super::positive, help_heading = "Needles")]
    max_new_tokens: usize,
    /// Seed of the sample's histories and of the needles' depths
    #[arg(long, default_value_t = 0, help_heading = "Needles")]
    seed: u64,
    #[command(flatten)]
    loaded: ModelArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    super::writable(&args.out)?;
    args.csv.as_deref().map_or(Ok(()), super::writable)?;
    let mut needles = plant::needles()?;
    let all = needles.len();
    needles.truncate(args.needles.unwrap_or(all));
    let keep = !args.no_keep && needles.len() == all;

    let context = match args.allow_longer {
        true => ContextLength::Exactly(args.context),
        false => ContextLength::AtMost(args.context),
    };
    let options = LocalOptions {
        context,
        allow_longer: args.allow_longer,
        observed: ObservedSpans {
            rows: 1,
            keys: 1,
            generated: args.max_new_tokens,
            ..ObservedSpans::default()
        },
        ..args.loaded.options()?
    };
    let Opened { mut model, digest, .. } = models::open(&args.model, &options)?;

    let stop = super::interrupt::flag("stopping after the needle under way")?;
    let options =
        ProbingOptions { context: model.context(), max_new_tokens: args.max_new_tokens, seed: args.seed };
    let Some(scores) = probe((&mut model, &digest), &needles, options, &stop, true)? else {
        super::interrupt::end(format_args!("stopped; {} was not written", args.out.display()));
    };
    scores.save(&args.out)?;
    if keep {
        let path = HeadScores::kept_at(ModelStore::open()?.home(), &scores.digest);
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        scores.save(&path)?;
        note(format_args!("the scores are kept in {}", path.display()));
    }
    if let Some(path) = &args.csv {
        super::save(path, sheet(&scores).csv()?)?;
    }
    if args.json {
        return super::write_out(scores.json()?.as_bytes());
    }
    super::say(text(&scores, args.top).trim_end())?;
    super::say(format_args!("wrote {}", args.out.display()))
}

fn text(scores: &HeadScores, top: usize) -> String {
    let (all, answered) = (scores.needles.len(), scores.answered);
    let mut text =
        format!("{}: {all} needles of up to {} tokens, {answered} answered\n", scores.model, scores.context);
    if !scores.linear_layers.is_empty() {
        let layers: Vec<String> = scores.linear_layers.iter().map(usize::to_string).collect();
        text += &format!(
            "layers {} are linear-attention layers: their heads have no weights of single keys and no score\n",
            layers.join(", ")
        );
    }
    if scores.retrieval.is_none() {
        text += "the model answered no needle, so no head has a retrieval score\n";
    }
    let head = ["rank", "by retrieval", "score", "by QR", "score"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    let ranked = Score::ALL.map(|score| scores.ranked(score));
    for rank in 0..top.min(scores.layers.len() * scores.heads) {
        let mut line = vec![(rank + 1).to_string()];
        for of_score in &ranked {
            line.extend(match of_score.get(rank) {
                Some((layer, head, score)) => [format!("L{layer} H{head}"), format!("{score:.4}")],
                None => ["-", "-"].map(str::to_owned),
            });
        }
        lines.push(line);
    }
    text + "\n" + &aligned(&lines, |_| true)
}

fn sheet(scores: &HeadScores) -> Sheet {
    let layers = scores.layers.iter().enumerate();
    let heads = layers.flat_map(|(at, layer)| (0..scores.heads).map(move |head| (at, *layer, head)));
    let of = |score, at: usize, head: usize| scores.of(score)?.get(at)?.get(head).copied();
    Columns::of(heads)
        .number("layer", |(_, layer, _)| layer)
        .number("head", |(.., head)| head)
        .number("retrieval", |(at, _, head)| of(Score::Retrieval, at, head))
        .number("qr", |(at, _, head)| of(Score::Qr, at, head))
        .sheet(Vec::new())
}
