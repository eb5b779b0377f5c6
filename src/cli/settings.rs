//! What decides the results of a run, as typed: the flags that `run` and `quickstart` share.

use std::path::PathBuf;

use super::memory_systems::MemoryArgs;
use super::thinking::Thinking;
use super::{Weights, WrongUsage};
use crate::benchmarks::Benchmark;
use crate::data::truncate::Truncation;
use crate::prompt::SegmentNumbers;
use palimpsest_core::attention::{AttentionKernel, Knockout};
use palimpsest_core::text::SpecialTokens;

/// What decides the results of a run, other than data, model and shard.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Settings {
    /// Most tokens of prompt and answer together [default: the model's context length; an endpoint gets histories whole]
    #[arg(long, value_name = "TOKENS", value_parser = super::positive)]
    pub context: Option<usize>,
    /// Counts the tokens of an endpoint's prompts, for --context: a model's name or folder, a tokenizer.json, a .gguf file,
    /// o200k_base or cl100k_base
    #[arg(long, value_name = "NAME_OR_FILE", conflicts_with = "chars_per_token")]
    pub tokenizer: Option<String>,
    /// In the place of --tokenizer: at least so many characters a token
    #[arg(long, value_name = "X")]
    pub chars_per_token: Option<f64>,
    /// Under which numbers the sessions of histories that were cut are shown
    #[arg(long, value_enum, default_value_t)]
    pub session_numbers: SessionNumbers,
    /// Only the first N cases (of what --sample and --only leave)
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub limit: Option<usize>,
    /// At most N questions in all, in turn of each kind that the benchmark tells apart
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub limit_probes: Option<usize>,
    /// The ways in which the benchmark puts its questions, with commas: what it shows of the history, in which order. Every benchmark has
    /// full, oracle (the evidence alone), rag and none (no history). A wrong name lists them [default: the benchmark's choice; with
    /// --memory none beside the systems']
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub conditions: Vec<String>,
    /// N random cases of each type, the same ones for every model: they depend on the data's case ids and on --sample-seed alone
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub sample: Option<usize>,
    /// Seed of --sample
    #[arg(long, default_value_t = 0, value_name = "SEED", requires = "sample")]
    pub sample_seed: u64,
    /// Only a type, a probe, or both: T1, SR, T1/SR
    #[arg(long, value_name = "FILTER")]
    pub only: Option<String>,
    /// The type of rows that do not say theirs, as those of STALE's construction (*_MAIN.json): T1 or T2
    #[arg(long = "type", value_name = "TYPE")]
    pub split: Option<String>,
    /// Seed of the sampler, the sample's histories and truncation's draws
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Most tokens of an answer [default: the benchmark's: 16384 for MemoryRewardBench, else 1024]
    #[arg(long, value_name = "TOKENS", value_parser = super::positive)]
    pub max_new_tokens: Option<usize>,
    /// End an answer at this text, which is no part of it (repeatable); '' alone ends none [default: what opens the next turn, for models
    /// without a chat template]
    #[arg(long = "stop", value_name = "TEXT")]
    pub stops: Vec<String>,
    /// How a history that does not fit --context is cut [default: plain for SubtleMemory and KnowMe-Bench, else evidence]
    #[arg(long, value_enum, value_name = "WAY")]
    pub truncation: Option<TruncationWay>,
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f64,
    /// Nucleus mass in (0, 1]; needs a temperature
    #[arg(long, default_value_t = 1.0)]
    pub top_p: f64,
    /// Answers to each probe, each sampled anew and kept as a condition of its own (repeat-2, ...). A local model needs a
    /// temperature for it; an endpoint may differ from call to call without one. `palimpsest table --repeats` shows the spread
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Also answer with a path blocked, as a condition of its own beside the plain one (repeatable): 'query->old' keeps all from the
    /// question's first token on, the answer too, from seeing the keys of old. Names are roles or labels of spans; '@8..16' behind it
    /// means layers 8 to 15, 'only ' before it the rows of query alone
    #[arg(long = "knockout", value_name = "ROWS->KEYS")]
    pub knockouts: Vec<Knockout>,
    /// Sessions of each history of the built-in sample [default: 16]
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub sessions: Option<usize>,
    /// A folder of prompt templates that replace the built-in ones (see docs/prompts.md); its judge.j2 is for `palimpsest judge
    /// --prompts` and decides no answer [default: the built-in ones]
    #[arg(long, value_name = "DIR")]
    pub prompts: Option<PathBuf>,
    /// Record no attention
    #[arg(long)]
    pub no_attention: bool,
    /// Allow a context longer than the model's
    #[arg(long)]
    pub allow_longer: bool,
    /// cpu, cuda, cuda:N, metal, or several with commas (cuda:0,cuda:1) to split the layers
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// What computes attention on CUDA: auto (flash where built in, else fused once a check on the card holds), products, fused
    /// (our own kernels, unchecked) or flash; products take what the others do not serve
    #[arg(long, default_value_t, value_name = "KERNEL")]
    pub attention_kernel: AttentionKernel,
    /// f32, bf16 or f16 [default: f32 on the CPU, bf16 elsewhere]
    #[arg(long)]
    pub dtype: Option<String>,
    /// What to keep of quantised weights on the CPU in f32
    #[arg(long, value_enum, default_value_t)]
    pub weights: Weights,
    #[command(flatten)]
    pub thinking: Thinking,
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// How text of sessions and queries that spells a special token (`<|im_end|>`) is read: as that token, as transformers does, or
    /// as plain text
    #[arg(long, value_enum, default_value_t)]
    pub special_tokens: SpecialTokens,
}

/// How a history is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TruncationWay {
    /// The evidence stays, then its neighbours, then sessions spread over the time line
    Evidence,
    /// As the benchmark's authors cut, where they do: STALE, MemoryRewardBench
    Authors,
    /// Whole sessions or events go from the middle, evidence or not
    Plain,
}

/// What of the settings a benchmark decides where they leave it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// Most tokens of an answer.
    pub max_new_tokens: usize,
    /// Whose number that is, for messages: empty for the user's own.
    whose: &'static str,
    /// How histories are cut.
    pub truncation: Truncation,
}

impl Settings {
    /// These settings, for a benchmark.
    pub(super) fn asked(&self, benchmark: &Benchmark) -> anyhow::Result<Asked> {
        let ways = benchmark.truncations;
        let named = |way: TruncationWay| match way {
            TruncationWay::Evidence => Truncation::Evidence.name(),
            TruncationWay::Authors => "authors",
            TruncationWay::Plain => Truncation::Plain.name(),
        };
        let truncation = match self.truncation {
            None => ways.first().copied().unwrap_or_default(),
            Some(way) => {
                let Some(known) = ways.iter().find(|known| known.name() == named(way)) else {
                    let all: Vec<&str> = ways.iter().map(|way| way.name()).collect();
                    let why = format!(
                        "--truncation {}: {} is not cut in that way; it has {}",
                        named(way),
                        benchmark.title,
                        all.join(", ")
                    );
                    return Err(WrongUsage(why).into());
                };
                *known
            }
        };
        let (max_new_tokens, whose) = match self.max_new_tokens {
            Some(given) => (given, ""),
            None => (benchmark.max_new_tokens, benchmark.title),
        };
        Ok(Asked { max_new_tokens, whose, truncation })
    }
}

impl Settings {
    /// Strings that end an answer, where `usual` do unless told otherwise.
    pub(super) fn stop_strings(&self, usual: Vec<String>) -> Vec<String> {
        match &self.stops[..] {
            [] => usual,
            given => given.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
        }
    }
}

impl Asked {
    /// Refuses a context that has no room for a prompt beside an answer, at most `thought` tokens of a thought, and what is kept free.
    pub(super) fn check_room(&self, context: usize, thought: usize, reserved: usize) -> anyhow::Result<()> {
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
        let why = format!(
            "a context of {most} tokens leaves no room for a prompt beside --max-new-tokens {}{whose}{thought}{kept}; raise --context or \
             lower --max-new-tokens",
            self.max_new_tokens
        );
        Err(WrongUsage(why).into())
    }
}

/// Under which numbers sessions are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SessionNumbers {
    /// From 1 without gaps, which would point at what was left
    #[default]
    Consecutive,
    /// Those of the whole history
    Original,
    /// None; needs a session.j2 that does without (docs/prompts.md)
    None,
}

impl From<SessionNumbers> for SegmentNumbers {
    fn from(numbers: SessionNumbers) -> Self {
        match numbers {
            SessionNumbers::Consecutive => SegmentNumbers::Consecutive,
            SessionNumbers::Original => SegmentNumbers::Original,
            SessionNumbers::None => SegmentNumbers::None,
        }
    }
}

impl Default for Settings {
    /// What an empty command line means.
    fn default() -> Self {
        Settings {
            context: None,
            tokenizer: None,
            chars_per_token: None,
            session_numbers: SessionNumbers::default(),
            limit: None,
            limit_probes: None,
            conditions: Vec::new(),
            sample: None,
            sample_seed: 0,
            only: None,
            split: None,
            seed: 0,
            max_new_tokens: None,
            stops: Vec::new(),
            truncation: None,
            temperature: 0.0,
            top_p: 1.0,
            repeat: 1,
            knockouts: Vec::new(),
            sessions: None,
            prompts: None,
            no_attention: false,
            allow_longer: false,
            device: "cpu".to_owned(),
            attention_kernel: AttentionKernel::default(),
            dtype: None,
            weights: Weights::default(),
            thinking: Thinking::default(),
            memory: MemoryArgs::default(),
            special_tokens: SpecialTokens::default(),
        }
    }
}
