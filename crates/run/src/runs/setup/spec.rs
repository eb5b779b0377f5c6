//! Flags of `palimpsest run`; `palimpsest quickstart` sets a few.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser};

use super::{MemoryArgs, Thinking, positive, wrong};
use crate::chat::Sampling;
use crate::chat::endpoint::{KeyArgs, Keys, is_address};
use crate::models::manifest::DEFAULT_MODEL;
use crate::models::{ModelArgs, Weights};
use crate::runs::plan::{CaseSample, Shard};
use palimpsest_core::attention::Knockout;
use palimpsest_core::evict::{Evict, Keep};
use palimpsest_core::text::{CharsPerToken, SpecialTokens};
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::case::truncate::Truncation;
use palimpsest_data::prompt::SegmentNumbers;

/// Default number of probes decoded per batch.
pub const DEFAULT_BATCH_SIZE: usize = 8;

const DATA: &str = "Data and conditions";
const CONTEXT: &str = "Memory and context";
const SAMPLING: &str = "Sampling";
const ATTENTION: &str = "Attention";
const ENDPOINT: &str = "Endpoint";
const OUTPUT: &str = "Output";

/// A run, as typed, but for its folder.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct RunSpec {
    /// A benchmark's file or folder, `sample` for the built-in one, `sample:NAME` for another benchmark's, or a table of messages of your
    /// own (CSV, TSV, JSON Lines) with the columns session, role, text and, if you have them, time and case (docs/own-history.md)
    #[arg(long, help_heading = DATA)]
    pub data: PathBuf,
    /// The questions on a table of your own: a table with the columns question and, if you have them, answer, old, new, id, kind and case.
    /// `old` and `new` name the outdated and the updated session by a text that stands in one message, or by the session's name
    /// [default: my-questions.csv (.tsv, .jsonl) beside my.csv]
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    pub questions: Option<PathBuf>,
    /// A name of `palimpsest model list`, `owner/name[@revision]` of the Hugging Face hub, a model folder, a .gguf file, or an endpoint as
    /// `http://host[:port]/v1#model`; of one that `palimpsest serve` serves, attention is recorded too
    #[arg(long, default_value = DEFAULT_MODEL, help_heading = "Model")]
    pub model: String,
    #[command(flatten)]
    pub loaded: ModelArgs,
    /// Questions of a case to decode as one batch; 1 is slower and takes less memory. Answers are the same
    #[arg(long, alias = "together", default_value_t = DEFAULT_BATCH_SIZE, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub batch_size: usize,
    /// Only the first N cases (after --sample and --only)
    #[arg(long, value_name = "N", value_parser = positive, help_heading = DATA)]
    pub limit: Option<usize>,
    /// At most N questions in all, taken in turn from each kind of the benchmark
    #[arg(long, value_name = "N", value_parser = positive, help_heading = DATA)]
    pub limit_probes: Option<usize>,
    /// N random cases of each type, the same for every model: they depend only on the data's case ids and --sample-seed
    #[arg(long, value_name = "N", value_parser = positive, help_heading = DATA)]
    pub sample: Option<usize>,
    /// Seed of --sample
    #[arg(long, default_value_t = 0, value_name = "SEED", requires = "sample", help_heading = DATA)]
    pub sample_seed: u64,
    /// Only a type, a question form, or both: T1, SR, T1/SR
    #[arg(long, value_name = "FILTER", help_heading = DATA)]
    pub only: Option<String>,
    /// Type of rows that do not state theirs, as in the files of STALE's construction (*_MAIN.json): T1 or T2
    #[arg(long = "type", value_name = "TYPE", help_heading = DATA)]
    pub split: Option<String>,
    /// Sessions of each history of the built-in sample [default: 16]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = DATA)]
    pub sessions: Option<usize>,
    /// Only this part of the cases, for job arrays: 0/4, 1/4, ... (put together with `palimpsest merge`)
    #[arg(long, value_name = "I/N", help_heading = DATA)]
    pub shard: Option<Shard>,
    /// Refuse a file with broken rows; without this flag they are left out and count as errors
    #[arg(long, help_heading = DATA)]
    pub strict: bool,
    /// Conditions, with commas: which part of the history is shown, in which order. Every benchmark has full, evidence, rag and none (no
    /// history). A wrong name lists them [default: the benchmark's choice; with --memory only the systems']
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = DATA)]
    pub conditions: Vec<String>,
    /// A folder of prompt templates that replace the built-in ones (see docs/data.md); its judge.j2 is for `palimpsest judge --prompts` and
    /// does not affect answers [default: the built-in ones]
    #[arg(long, value_name = "DIR", help_heading = DATA)]
    pub prompts: Option<PathBuf>,
    /// Most tokens of prompt and answer together [default: the model's context length; an endpoint gets histories whole]
    #[arg(long, value_name = "TOKENS", value_parser = positive, help_heading = CONTEXT)]
    pub context: Option<usize>,
    /// Allow a context longer than the model's
    #[arg(long, help_heading = CONTEXT)]
    pub allow_longer: bool,
    /// How to cut a history that does not fit --context [default: plain for SubtleMemory and KnowMe-Bench, else evidence]
    #[arg(long, value_name = "WAY", value_parser = truncations(), help_heading = CONTEXT)]
    pub truncation: Option<String>,
    /// Session numbers that the model is shown in a history that was cut
    #[arg(long, value_enum, default_value_t, help_heading = CONTEXT)]
    pub session_numbers: SegmentNumbers,
    /// Tell the model the time of the question, if rows of STALE's construction (*_MAIN.json) have one; the authors' prompt does not
    #[arg(long, help_heading = CONTEXT)]
    pub query_time: bool,
    /// Tokenise text of sessions and questions that spells a special token (`<|im_end|>`) as that token, like transformers, or as plain text
    #[arg(long, value_enum, default_value_t, help_heading = CONTEXT)]
    pub special_tokens: SpecialTokens,
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub temperature: f64,
    /// Nucleus mass in (0, 1]; needs a temperature
    #[arg(long, default_value_t = 1.0, help_heading = SAMPLING)]
    pub top_p: f64,
    /// Seed of the sampler, the sample's histories and truncation's draws
    #[arg(long, default_value_t = 0, help_heading = SAMPLING)]
    pub seed: u64,
    /// Most tokens of an answer [default: the benchmark's: 16384 for MemoryRewardBench, 16 for dose, else 1024]
    #[arg(long, value_name = "TOKENS", value_parser = positive, help_heading = SAMPLING)]
    pub max_new_tokens: Option<usize>,
    /// End an answer before this text (repeatable); '' alone for none [default: the beginning of the next turn, for models without a chat
    /// template]
    #[arg(long = "stop", value_name = "TEXT", help_heading = SAMPLING)]
    pub stops: Vec<String>,
    /// Answers to each question, each sampled anew and kept as a condition of its own (repeat-2, ...). A local model needs a temperature; an
    /// endpoint may vary without one. `palimpsest table --repeats` shows the spread
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = SAMPLING)]
    pub repeat: u32,
    /// Also record by layer and span the share of tokens that sliding windows, indexers and evictions left to the rows, and the attention
    /// that the rows would pay to the others over all keys; this keeps the keys of windowed layers (see docs/measures.md)
    #[arg(long, conflicts_with = "no_attention", help_heading = ATTENTION)]
    pub selected: bool,
    /// Record no attention
    #[arg(long, help_heading = ATTENTION)]
    pub no_attention: bool,
    /// Also answer with a path blocked, as a condition beside the plain one (repeatable): 'query->old' hides the keys of old from everything
    /// from the question's first token on, the answer too. Names are roles or labels of spans; '@8..16' at the end means layers 8 to 15,
    /// 'only ' at the beginning means the rows of query alone
    #[arg(long = "knockout", value_name = "ROWS->KEYS", help_heading = ATTENTION)]
    pub knockouts: Vec<Knockout>,
    /// Also answer from a cache that forgot part of the history, as a condition beside the plain one (repeatable): snapkv:0.25 keeps the
    /// quarter of the keys that the policy snapkv scores best, streaming:1024 a number of keys, by each key/value head of the layers with
    /// full attention, before the question is read. '@question' at the end lets the policy see the question. A wrong name lists the policies
    #[arg(long = "evict", value_name = "POLICY:KEEP", help_heading = ATTENTION)]
    pub evictions: Vec<Evict>,
    #[command(flatten)]
    pub thinking: Thinking,
    /// Tokenizer to count the tokens of an endpoint's prompts with, for --context: a model's name or folder, a tokenizer.json, a .gguf file,
    /// o200k_base or cl100k_base
    #[arg(long, value_name = "NAME_OR_FILE", conflicts_with = "chars_per_token", help_heading = ENDPOINT)]
    pub tokenizer: Option<String>,
    /// Instead of --tokenizer: the least number of characters per token
    #[arg(long, value_name = "X", help_heading = ENDPOINT)]
    pub chars_per_token: Option<f64>,
    /// Endpoint: questions of a case asked at once [default: 1, so that the server's cache of a long history serves the next question]. Rows
    /// and their order are the same
    #[arg(long, value_name = "N", value_parser = positive, help_heading = ENDPOINT)]
    pub parallel: Option<usize>,
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Print answers as they are generated, thoughts included
    #[arg(long, help_heading = OUTPUT)]
    pub stream: bool,
    /// Also retry answers that ended inside a thought; by default they stay, since a greedy model would give the same again
    #[arg(long, help_heading = OUTPUT)]
    pub retry_cut: bool,
}

/// Limits of answers, with the benchmark's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimits {
    pub max_new_tokens: usize,
    /// Benchmark that set the limit, for messages; empty if the user did.
    whose: &'static str,
    pub truncation: Truncation,
}

fn truncations() -> PossibleValuesParser {
    let ways = [
        ("evidence", "Keeps the evidence, then its neighbours, then sessions spread over the time line"),
        ("authors", "As the benchmark's authors cut, where they do"),
        ("plain", "Whole sessions or events go from the middle, evidence or not"),
    ];
    PossibleValuesParser::new(ways.map(|(name, about)| PossibleValue::new(name).help(about)))
}

impl RunSpec {
    pub(super) fn limits(&self, benchmark: &Benchmark) -> anyhow::Result<AnswerLimits> {
        let ways = benchmark.truncations;
        let truncation = match &self.truncation {
            None => ways.first().copied().unwrap_or_default(),
            Some(way) => {
                let Some(known) = ways.iter().find(|known| known.name() == way) else {
                    let all: Vec<&str> = ways.iter().map(|way| way.name()).collect();
                    return wrong(format!(
                        "--truncation {way}: {} is not cut in that way; it has {}",
                        benchmark.title,
                        all.join(", ")
                    ));
                };
                *known
            }
        };
        let (max_new_tokens, whose) = match self.max_new_tokens {
            Some(given) => (given, ""),
            None => (benchmark.max_new_tokens, benchmark.title),
        };
        Ok(AnswerLimits { max_new_tokens, whose, truncation })
    }

    pub(super) fn stop_strings(&self, usual: Vec<String>) -> Vec<String> {
        match &self.stops[..] {
            [] => usual,
            given => given.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
        }
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.temperature >= 0.0 && self.temperature.is_finite(),
            "--temperature {} is not 0 or more",
            self.temperature
        );
        ensure!(self.top_p > 0.0 && self.top_p <= 1.0, "--top-p {} is not in (0, 1]", self.top_p);
        ensure!(
            self.top_p == 1.0 || self.temperature > 0.0,
            "--top-p {} has no effect at --temperature 0, which is greedy; give a temperature or drop --top-p",
            self.top_p
        );
        ensure!(
            self.repeat == 1 || self.temperature > 0.0 || self.is_endpoint(),
            "--repeat {} gives the same answers over and over at --temperature 0, which is greedy for a local model; give a \
             temperature or drop --repeat",
            self.repeat
        );
        let is_sample =
            self.data.to_str().is_some_and(|data| data == "sample" || data.starts_with("sample:"));
        ensure!(
            is_sample || self.sessions.is_none(),
            "--sessions is for --data sample; a file has its own histories"
        );
        if self.is_endpoint() {
            let counted = self.tokenizer.is_some() || self.chars_per_token.is_some();
            ensure!(
                self.context.is_none() || counted,
                "--context needs to know how many tokens a text has, and {} is an endpoint; add --tokenizer NAME_OR_FILE or \
                 --chars-per-token X, or drop --context to send histories whole",
                self.model
            );
            ensure!(
                self.context.is_some() || !counted,
                "--tokenizer and --chars-per-token count tokens for --context; give one, or drop them to send histories whole"
            );
            if let Some(chars) = self.chars_per_token {
                ensure!(
                    CharsPerToken::new(chars).is_some(),
                    "--chars-per-token {chars} is not a number above 0"
                );
            }
            ensure!(
                self.context.is_some() || self.truncation.is_none(),
                "--truncation cuts to --context, without which an endpoint is sent histories whole; give one, or drop it"
            );
            let local = [
                ("--dtype", self.loaded.in_dtype.dtype.is_some()),
                ("--cache-dtype", self.loaded.in_dtype.cache_dtype.is_some()),
                ("--weights", self.loaded.weights != Weights::default()),
                ("--device", !self.loaded.on.is_cpu()),
                ("--allow-longer", self.allow_longer),
                ("--special-tokens", !self.special_tokens.is_default()),
                ("--stream", self.stream),
                ("--batch-size", self.batch_size != DEFAULT_BATCH_SIZE),
            ];
            if let Some((flag, _)) = local.iter().find(|(_, given)| *given) {
                bail!("{flag} is for local models, and {} is an endpoint; drop it", self.model);
            }
        }
        let of_endpoints = [
            ("--tokenizer", self.tokenizer.is_some()),
            ("--chars-per-token", self.chars_per_token.is_some()),
        ];
        if let Some(calls) = self.parallel.filter(|_| !self.is_endpoint()) {
            bail!(
                "--parallel {calls} is for endpoints, and {} is a model on this machine, which decodes --batch-size {} questions together; drop it",
                self.model,
                self.batch_size
            );
        }
        if let Some((flag, _)) = of_endpoints.iter().find(|(_, given)| *given && !self.is_endpoint()) {
            bail!("{flag} is for endpoints; a local model has its own tokeniser, so drop it");
        }
        ensure!(
            self.stops.len() < 2 || self.stops.iter().all(|stop| !stop.is_empty()),
            "--stop '' beside other texts: an empty text alone means that none ends an answer; drop one or the other"
        );
        ensure!(
            !(self.selected && self.is_endpoint()),
            "--selected needs a model on this machine, and {} is an endpoint; drop it",
            self.model
        );
        if let Some(knockout) = self.knockouts.first().filter(|_| self.is_endpoint()) {
            bail!(
                "--knockout '{knockout}' needs a model on this machine, and {} is an endpoint, whose attention is out of reach",
                self.model
            );
        }
        if let Some(evict) = self.evictions.first().filter(|_| self.is_endpoint()) {
            bail!(
                "--evict {evict} needs a model on this machine, and {} is an endpoint, whose cache is out of reach",
                self.model
            );
        }
        self.thinking.check(self.is_endpoint())?;
        Ok(())
    }

    pub fn is_endpoint(&self) -> bool {
        is_address(&self.model)
    }

    /// Answers to each question under a condition: as it is, and with each path blocked or keys evicted.
    pub fn hidings(&self) -> usize {
        1 + self.knockouts.len() + self.evictions.len()
    }

    /// Budgets of the evictions that `batch` answers may hold at once. Questions share what was kept without seeing them.
    pub fn keeps(&self, batch: usize) -> Vec<Keep> {
        let of = |evict: &Evict| std::iter::repeat_n(evict.keep, if evict.question { batch } else { 1 });
        self.evictions.iter().flat_map(of).collect()
    }

    /// Keys of the model's server and of those of memory systems.
    pub(super) fn keys(&self) -> anyhow::Result<Keys> {
        let MemoryArgs { memory_model, memory_embedder, .. } = &self.memory;
        let named = [Some(&self.model), memory_model.as_ref(), memory_embedder.as_ref()];
        Ok(self.keys.of(named.into_iter().flatten().map(String::as_str))?)
    }

    pub(super) fn case_sample(&self) -> Option<CaseSample> {
        self.sample.map(|cases| CaseSample { cases, seed: self.sample_seed })
    }

    pub(super) fn sampling(&self, limits: AnswerLimits) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            seed: self.seed,
            max_new_tokens: limits.max_new_tokens,
        }
    }
}

impl AnswerLimits {
    /// Refuses a context too small for a prompt, an answer, `thought` tokens and reserved tokens.
    pub fn check_room(&self, context: usize, thought: usize, reserved: usize) -> anyhow::Result<()> {
        let kept = self.truncation.reserved().max(reserved);
        let most = self.truncation.context(context);
        if most > self.max_new_tokens.saturating_add(thought).saturating_add(kept) {
            return Ok(());
        }
        let whose = match self.whose {
            "" => String::new(),
            title => format!(" ({title}'s default)"),
        };
        let thought = match thought {
            0 => String::new(),
            most => format!(" and --max-thinking {most}"),
        };
        let kept = match kept {
            0 => String::new(),
            kept => format!(" and the {kept} tokens that are kept free"),
        };
        wrong(format!(
            "a context of {most} tokens leaves no room for a prompt beside --max-new-tokens {}{whose}{thought}{kept}; raise --context or \
             lower --max-new-tokens",
            self.max_new_tokens
        ))
    }
}
