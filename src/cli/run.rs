//! `palimpsest run`: answers and attention of a benchmark file, in one pass.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::thinking::Thinking;
use super::{Weights, WrongUsage};
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::{SampleSpec, row_roles};
use crate::chat::endpoint::{Endpoint, Patience};
use crate::chat::{ChatModel, Sampling};
use crate::data::Case;
use crate::engine;
use crate::engine::memory_plan::{Branches, ObservedSpans};
use crate::engine::{ContextLength, LocalModel, LocalOptions};
use crate::ground::digest::sha256;
use crate::model::manifest::DEFAULT_MODEL;
use crate::progress::note;
use crate::prompt::{ChatTemplate, PromptBuilder, SpecialTokens, Templates};
use crate::run::condition::Condition;
use crate::run::error::RunError;
use crate::run::header::{ContextPolicy, Identity, Machine, Named, RunHeader};
use crate::run::local::{LocalSubject, SubjectOptions};
use crate::run::plan::{PlannedCase, PlannedProbe, Selection, Shard};
use crate::run::runner::{self, Subject, Summary};
use crate::run::store::RunStore;
use crate::run::subject::{ChatSubject, Shown};
use crate::stats::{self, Recorder};

/// Most tokens of an answer, unless told otherwise.
pub(super) const DEFAULT_NEW_TOKENS: usize = 256;
/// Most probes of a case that are decoded as one batch, unless told otherwise.
pub(super) const DEFAULT_BATCH_SIZE: usize = 8;

const EXAMPLES: &str = "\
Examples:
  palimpsest run --data sample --limit 4 --context 4096 --out runs/first
  palimpsest run --data stale.json --model ./qwen3-8b --device cuda --shard 0/8 --out runs/0
  palimpsest run --data sample --model http://127.0.0.1:8000/v1#qwen3-8b --out runs/served";

/// Answer a benchmark file and record attention, in one pass.
///
/// The folder OUT gets run.json (what was run), plan.jsonl, answers.jsonl, cases/ (what the model was shown) and
/// attention/ (one safetensors file a probe). Started again with the same settings it goes on where it was, also after a
/// kill; with other settings it refuses and names what differs. Judge it next with `palimpsest judge OUT`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A benchmark file, or `sample` for the built-in one
    #[arg(long)]
    data: PathBuf,
    /// A manifest's name, a model folder, a .gguf file, or an endpoint as http://host[:port]/v1#model
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// The run folder
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    settings: Settings,
    /// Only this part of the cases, for job arrays: 0/4, 1/4, ... (put together with `palimpsest merge`)
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Print answers as they are generated, thoughts included
    #[arg(long)]
    stream: bool,
    /// Most probes of a case to decode as one batch; 1 is one after the other, slower and in less memory. Answers are the same
    #[arg(long, alias = "together", default_value_t = DEFAULT_BATCH_SIZE, value_name = "N", value_parser = super::positive)]
    batch_size: usize,
    /// Try answers again that ended inside a thought, which resuming leaves as they are: the same would come again unless a sampler
    /// or a server draws anew
    #[arg(long)]
    retry_cut: bool,
    /// Also write a JSON file that says where the time of this process went, and print it as a table: loading, tokenising,
    /// projections, attention, its observer and all else of the model in prefill and in decode,
    /// sampling and files; with tokens, tokens per second and peak memory
    #[arg(long, value_name = "FILE")]
    pub(super) stats: Option<PathBuf>,
}

/// What decides the results of a run, other than data, model and shard.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Settings {
    /// Most tokens of prompt and answer together [default: the model's context length]
    #[arg(long, value_name = "TOKENS", value_parser = super::positive)]
    pub context: Option<usize>,
    /// Only the first N cases (of what --only leaves)
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub limit: Option<usize>,
    /// Only a type, a probe, or both: T1, SR, T1/SR
    #[arg(long, value_name = "FILTER")]
    pub only: Option<String>,
    /// Seed of the sampler, the sample's histories and truncation's ties
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Most tokens of an answer
    #[arg(long, default_value_t = DEFAULT_NEW_TOKENS, value_name = "TOKENS", value_parser = super::positive)]
    pub max_new_tokens: usize,
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f64,
    /// Nucleus mass in (0, 1]; needs a temperature
    #[arg(long, default_value_t = 1.0)]
    pub top_p: f64,
    /// Answers to each probe, each sampled anew and kept as a condition of its own (repeat-2, ...); needs a temperature
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Sessions of each history of the built-in sample [default: 16]
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub sessions: Option<usize>,
    /// A folder of prompt templates that replace the built-in ones (see docs/prompts.md) [default: the built-in ones]
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
    /// f32, bf16 or f16 [default: f32 on the CPU, bf16 elsewhere]
    #[arg(long)]
    pub dtype: Option<String>,
    /// What to keep of quantised weights on the CPU in f32
    #[arg(long, value_enum, default_value_t)]
    pub weights: Weights,
    #[command(flatten)]
    pub thinking: Thinking,
    /// How text of sessions and queries that spells a special token (`<|im_end|>`) is read: as that token, as transformers does, or
    /// as plain text
    #[arg(long, value_enum, default_value_t)]
    pub special_tokens: SpecialTokens,
}

impl Default for Settings {
    /// What an empty command line means.
    fn default() -> Self {
        Settings {
            context: None,
            limit: None,
            only: None,
            seed: 0,
            max_new_tokens: DEFAULT_NEW_TOKENS,
            temperature: 0.0,
            top_p: 1.0,
            repeat: 1,
            sessions: None,
            prompts: None,
            no_attention: false,
            allow_longer: false,
            device: "cpu".to_owned(),
            dtype: None,
            weights: Weights::default(),
            thinking: Thinking::default(),
            special_tokens: SpecialTokens::default(),
        }
    }
}

/// Runs the command. `recorder` is there where `--stats` is.
pub fn run(args: Args, recorder: Option<&Recorder>) -> anyhow::Result<()> {
    let Args { data, model, out, settings, shard, stream, batch_size, retry_cut, stats } = args;
    let job = Job { data, model, out: out.clone(), settings, shard, stream, batch_size, retry_cut };
    if let Some(path) = &stats {
        if job.is_endpoint() {
            let why = format!("--stats is for local models, and {} is an endpoint; drop it", job.model);
            return Err(WrongUsage(why).into());
        }
        super::writable(path)?;
    }
    let summary = job.run(recorder)?;
    if let (Some(path), Some(recorder)) = (&stats, recorder) {
        super::write_stats(path, recorder)?;
    }
    super::conclude(&out, "answers", "answers.jsonl", &summary)?;
    if summary.errors == 0 {
        super::say(format_args!("next: palimpsest judge {} --judge local:{DEFAULT_MODEL}", out.display()))?;
    }
    Ok(())
}

/// What the observer of a run sums over: the shared history for the union of all probes' evidence, and beside that each probe
/// of a batch its own rows, the query's, `last` and `answer`.
fn observed(all: &[PlannedCase], row_roles: &[&str], batch: usize) -> ObservedSpans {
    let usual = ObservedSpans::default();
    let of_case = |case: &PlannedCase| {
        let probes = case.probes.iter().flat_map(|probe| &probe.evidence);
        let distinct: BTreeSet<_> = (case.evidence.iter().chain(probes))
            .map(|e| (&e.role, e.segment, e.turn, e.bytes.as_ref().map(|b| (b.start, b.end))))
            .collect();
        let is_row = |role: &str| row_roles.contains(&role);
        let rows = distinct.iter().filter(|(role, ..)| is_row(role)).count();
        let own = |probe: &PlannedProbe| case.evidence_of(probe).filter(|e| is_row(&e.role)).count() + 3;
        let widest = case.probes.iter().map(own).max().unwrap_or(0);
        // Evidence of whole segments is among the segments.
        let overlays = distinct.iter().filter(|(_, _, turn, _)| turn.is_some()).count();
        (rows + widest * batch.max(1), overlays)
    };
    let (rows, overlays): (Vec<usize>, Vec<usize>) = all.iter().map(of_case).unzip();
    let most = |counts: Vec<usize>| counts.into_iter().max().unwrap_or(0);
    ObservedSpans { rows: most(rows).max(usual.rows), keys: usual.keys + most(overlays) }
}

/// A run to be done.
pub struct Job {
    /// A benchmark file, or `sample`.
    pub data: PathBuf,
    /// The model under test.
    pub model: String,
    /// The run folder.
    pub out: PathBuf,
    /// What decides the results.
    pub settings: Settings,
    /// Which part of the cases.
    pub shard: Option<Shard>,
    /// Whether answers are printed as they come.
    pub stream: bool,
    /// Most probes of a case that are decoded as one batch.
    pub batch_size: usize,
    /// Whether answers that a thought took the place of are tried again.
    pub retry_cut: bool,
}

/// A data set that was read once.
struct Opened {
    dataset: Dataset,
    named: Named,
    /// All of its cases, without their histories.
    all: Vec<PlannedCase>,
    /// The first of them, whole.
    first: Option<Case>,
}

impl Job {
    /// Does what is not done yet. `recorder` times it, if there is one.
    pub fn run(&self, recorder: Option<&Recorder>) -> anyhow::Result<Summary> {
        self.check().map_err(|e| WrongUsage(format!("{e:#}")))?;
        if self.is_endpoint() { self.run_endpoint() } else { self.run_local(recorder) }
    }

    /// Refuses flags that make no sense together, before any work.
    fn check(&self) -> anyhow::Result<()> {
        let s = &self.settings;
        ensure!(
            s.temperature >= 0.0 && s.temperature.is_finite(),
            "--temperature {} is not 0 or more",
            s.temperature
        );
        ensure!(s.top_p > 0.0 && s.top_p <= 1.0, "--top-p {} is not in (0, 1]", s.top_p);
        ensure!(
            s.top_p == 1.0 || s.temperature > 0.0,
            "--top-p {} has no effect at --temperature 0, which is greedy; give a temperature or drop --top-p",
            s.top_p
        );
        ensure!(
            s.repeat == 1 || s.temperature > 0.0,
            "--repeat {} gives the same answers over and over at --temperature 0, which is greedy; give a temperature or drop \
             --repeat",
            s.repeat
        );
        let is_sample = self.data.as_os_str() == "sample";
        ensure!(
            is_sample || s.sessions.is_none(),
            "--sessions is for --data sample; a file has its own histories"
        );
        if self.is_endpoint() {
            ensure!(
                s.context.is_none(),
                "--context cuts histories by a local model's tokeniser; an endpoint gets them whole, so drop it"
            );
            let local = [
                ("--dtype", s.dtype.is_some()),
                ("--weights", s.weights != Weights::default()),
                ("--device", s.device != "cpu"),
                ("--allow-longer", s.allow_longer),
                ("--special-tokens", !s.special_tokens.is_default()),
                ("--stream", self.stream),
                ("--batch-size", self.batch_size != DEFAULT_BATCH_SIZE),
            ];
            if let Some((flag, _)) = local.iter().find(|(_, given)| *given) {
                bail!("{flag} is for local models, and {} is an endpoint; drop it", self.model);
            }
        }
        s.thinking.check(self.is_endpoint())?;
        if let Some(context) = s.context {
            ensure!(
                context > s.max_new_tokens,
                "--context {context} leaves no room for a prompt beside --max-new-tokens {}",
                s.max_new_tokens
            );
        }
        Ok(())
    }

    fn is_endpoint(&self) -> bool {
        self.model.starts_with("http://") || self.model.starts_with("https://")
    }

    /// As the identity has them: none but the plain one is none.
    fn conditions(&self) -> Vec<Condition> {
        if self.settings.repeat > 1 { Condition::repetitions(self.settings.repeat) } else { Vec::new() }
    }

    fn sampling(&self) -> Sampling {
        let s = &self.settings;
        Sampling {
            temperature: s.temperature,
            top_p: s.top_p,
            seed: s.seed,
            max_new_tokens: s.max_new_tokens,
        }
    }

    fn run_local(&self, recorder: Option<&Recorder>) -> anyhow::Result<Summary> {
        let s = &self.settings;
        let devices = engine::parse_devices(&s.device)?;
        recorder.inspect(|recorder| recorder.wait_for(&devices));
        let dtype = s.dtype.as_deref().map(engine::parse_dtype).transpose()?;
        let Opened { dataset, named, all, first } = self.open()?;
        let templates = Templates::load(dataset.benchmark(), s.prompts.as_deref())?;
        let most = all.iter().map(|case| case.probes.len()).max().unwrap_or(0);
        let most = most.saturating_mul(s.repeat as usize);
        let options = LocalOptions {
            branches: Branches::for_answers(self.batch_size.min(most), s.max_new_tokens),
            observed: observed(&all, &row_roles(dataset.benchmark()), self.batch_size.min(most)),
            devices,
            dtype,
            context: s.context.map_or(ContextLength::Whole, ContextLength::Exactly),
            allow_longer: s.allow_longer,
            kept: s.weights.into(),
            thinking: s.thinking.local(),
            ..LocalOptions::default()
        };
        let mut model = LocalModel::open(&self.model, &options)?;
        let thought = match model.max_thinking() {
            0 => String::new(),
            most => format!(" and --max-thinking {most}"),
        };
        ensure!(
            model.context() > s.max_new_tokens.saturating_add(model.max_thinking()),
            "the context of {} tokens leaves no room for a prompt beside --max-new-tokens {}{thought}; lower the latter",
            model.context(),
            s.max_new_tokens
        );
        if model.template().is_plain() {
            note(format_args!(
                "note: {} has no chat template (a base model); its prompts use the plain layout of docs/prompts.md",
                model.model_name()
            ));
        }
        let prompts = sha256(format!("{}\n{}", templates.digest(), model.template().source()).as_bytes());
        let dtype = model.engine().decoder().dtype();
        let identity = Identity {
            benchmark: dataset.benchmark().name().to_owned(),
            dataset: named,
            model: Named { name: model.model_name().to_owned(), digest: model.digest().to_owned() },
            dtype: Some(format!("{dtype:?}").to_lowercase()),
            prompts: Some(prompts),
            sampling: Some(self.sampling()),
            context: ContextPolicy {
                tokens: Some(model.context()),
                policy: "evidence-preserving truncation".to_owned(),
            },
            seed: s.seed,
            only: s.only.clone(),
            limit: s.limit,
            attention: !s.no_attention,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            conditions: self.conditions(),
            thinking: s.thinking.local_policy(&model),
            special_tokens: s.special_tokens,
        };
        let stop = super::interrupt::flag("answer")?;
        let builder = PromptBuilder::new(templates, model.template().clone()).reading(s.special_tokens);
        check_templates(&builder, first.as_ref())?;
        let options = SubjectOptions {
            sampling: self.sampling(),
            seed: s.seed,
            attention: !s.no_attention,
            answer_rows: true,
            share_prefix: true,
        };
        let mut subject =
            LocalSubject::new(&mut model, builder, row_roles(dataset.benchmark()), options, &stop);
        if self.stream {
            subject = subject.streaming(|piece| {
                // A closed stdout is no reason to stop a run.
                let mut out = std::io::stdout();
                let text = if piece.is_empty() { "\n\n" } else { piece };
                let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            });
        }
        self.answer(identity, &s.device, (&dataset, all), &mut subject)
    }

    fn run_endpoint(&self) -> anyhow::Result<Summary> {
        let s = &self.settings;
        let Opened { dataset, named, all, first } = self.open()?;
        let templates = Templates::load(dataset.benchmark(), s.prompts.as_deref())?;
        let patience = Patience { timeout: Duration::from_secs(600), ..Patience::default() };
        let mut endpoint = Endpoint::from_address(&self.model, patience)?.thinking(s.thinking.endpoint());
        endpoint.check_reachable()?;
        let name = endpoint.name();
        let identity = Identity {
            benchmark: dataset.benchmark().name().to_owned(),
            dataset: named,
            model: Named { digest: sha256(&name), name },
            dtype: None,
            prompts: Some(templates.digest().to_owned()),
            sampling: Some(self.sampling()),
            context: ContextPolicy { tokens: None, policy: "full".to_owned() },
            seed: s.seed,
            only: s.only.clone(),
            limit: s.limit,
            attention: false,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            conditions: self.conditions(),
            thinking: s.thinking.endpoint_policy(),
            special_tokens: SpecialTokens::default(),
        };
        // The endpoint applies its own chat template; only the messages go out.
        let builder = PromptBuilder::new(templates, ChatTemplate::plain(None)?);
        check_templates(&builder, first.as_ref())?;
        let mut subject = ChatSubject::new(&mut endpoint, self.sampling(), |case, probe| {
            let prompt = builder.build(&case.history, &case.evidence, probe);
            Ok(Shown { messages: prompt.map_err(|e| e.to_string())?.messages, dropped: Vec::new() })
        });
        self.answer(identity, &self.model, (&dataset, all), &mut subject)
    }

    /// Reads the data set once. Of its cases what a plan needs is kept, which is not their histories.
    fn open(&self) -> anyhow::Result<Opened> {
        let _span = stats::io();
        let spec = SampleSpec { segments: self.settings.sessions, seed: self.settings.seed };
        let dataset = Dataset::open(&self.data, spec, |_| {})?;
        let (mut all, mut first) = (Vec::new(), None);
        for case in super::cases(&dataset)? {
            let case = case?;
            all.push(PlannedCase::of(&case));
            first.get_or_insert(case);
        }
        let named = Named { name: dataset.name().to_owned(), digest: dataset.digest().to_owned() };
        Ok(Opened { dataset, named, all, first })
    }

    fn answer(
        &self,
        identity: Identity,
        device: &str,
        (dataset, all): (&Dataset, Vec<PlannedCase>),
        subject: &mut dyn Subject,
    ) -> anyhow::Result<Summary> {
        let s = &self.settings;
        let all_of = Selection::of_all(dataset.benchmark());
        let selection = Selection { only: s.only.clone(), limit: s.limit, shard: self.shard, ..all_of };
        let plan = selection.of(all)?;
        let machine = Machine::here(device, rayon::current_num_threads());
        let header = RunHeader::new(identity, self.shard, machine);
        let mut store = RunStore::open_or_create(&self.out, &header, plan)?;
        if self.retry_cut {
            store.retry_cut();
        }
        let stop = super::interrupt::flag("answer")?;
        let show = !(self.stream && std::io::stdout().is_terminal());
        let cases = dataset.cases()?.map(|case| {
            // It was read before, so the file has changed since.
            case.map_err(|error| RunError::GaveUp(format!("{}: {error}", self.data.display())))
        });
        runner::run(&mut store, cases, subject, &stop, show)
            .with_context(|| format!("{}", self.out.display()))
    }
}

/// Refuses templates that no prompt can be built with, before there is a run folder. One case shows it.
fn check_templates(builder: &PromptBuilder, first: Option<&Case>) -> anyhow::Result<()> {
    let _span = stats::tokenise();
    let probes = first.into_iter().flat_map(|case| case.probes.iter().map(move |probe| (case, probe)));
    for (case, probe) in probes {
        builder.build(&case.history, &case.evidence, probe)?;
    }
    Ok(())
}
