//! `palimpsest run`: answers and attention of a benchmark file, in one pass.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use super::conditions::{check_knockouts, check_templates, conditions, fits, memory};
use super::left_out::leave_out;
use super::settings::{Asked, Settings};
use super::{Weights, WrongUsage};
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::ReadError;
use crate::benchmarks::{Benchmark, SampleSpec, row_roles, wants_verdict_row};
use crate::cards::NamedCard;
use crate::chat::Sampling;
use crate::data::Case;
use crate::models;
use crate::models::manifest::DEFAULT_MODEL;
use crate::progress::note;
use crate::prompt::{JUDGE_FILE, PromptBuilder, Templates};
use crate::run::condition::Condition;
use crate::run::context_budget::{Cut, TEMPLATE_RESERVE, cut_to_budget};
use crate::run::cost::MeanCost;
use crate::run::error::RunError;
use crate::run::file_plan::FilePlan;
use crate::run::header::{AttentionBy, ContextPolicy, Identity, Machine, Named, RunHeader};
use crate::run::memory_systems::MemorySystems;
use crate::run::model_subject::{ModelSubject, SubjectOptions};
use crate::run::plan::{CaseSample, PlannedCase, PlannedProbe, Selection, Shard};
use crate::run::runner::{self, Subject, Summary};
use crate::run::store::{RunFolder, RunStore};
use palimpsest_core::digest::sha256;
use palimpsest_core::engine;
use palimpsest_core::engine::memory_plan::{Branches, ObservedSpans};
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};
use palimpsest_core::text::{BorderRule, CharsPerToken};
use palimpsest_core::timing::{self, Recorder};

/// Most probes of a case that are decoded as one batch, unless told otherwise.
pub(super) const DEFAULT_BATCH_SIZE: usize = 8;

const EXAMPLES: &str = "\
Examples:
  palimpsest run --data sample --limit 4 --context 4096 --out runs/first
  palimpsest run --data stale.json --model ./qwen3-8b --device cuda --shard 0/8 --out runs/0
  palimpsest run --data sample --knockout 'query->old' --knockout 'query->new@8..16' --out runs/blocked
  palimpsest run --data sample --model http://127.0.0.1:8000/v1#qwen3-8b --out runs/served
  palimpsest run --data stale.json --model http://127.0.0.1:8000/v1#llama-3.3-70b --context 131072 --tokenizer ./tokenizer.json --out runs/llama";

/// Answer a benchmark file and record attention, in one pass.
///
/// The folder OUT gets run.json (what was run), plan.jsonl, answers.jsonl, cases/ (what the model was shown), attention/ (one
/// safetensors file a probe) and costs.jsonl (tokens, seconds, joules). Started again with the same settings it goes on where
/// it was, also after a kill; with other settings it refuses and names what differs. Judge it next with `palimpsest judge OUT`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A benchmark's file or folder, `sample` for the built-in one, or `sample:NAME` for another benchmark's
    #[arg(long)]
    data: PathBuf,
    /// A manifest's name, a model folder, a .gguf file, or an endpoint as http://host[:port]/v1#model; of one that `palimpsest serve`
    /// serves, attention is recorded too
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// The run folder
    #[arg(long, required_unless_present = "estimate")]
    out: Option<PathBuf>,
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
    /// Endpoint: questions of a case that are asked at once [default: 1, as a server that has read a long history for one question has
    /// it for the next]. Rows and their order are the same
    #[arg(long, value_name = "N", value_parser = super::positive)]
    parallel: Option<usize>,
    /// Refuse a file with broken rows, which otherwise are left out and count as errors
    #[arg(long)]
    strict: bool,
    /// Try answers again that ended inside a thought, which resuming leaves as they are: the same would come again unless a sampler
    /// or a server draws anew
    #[arg(long)]
    retry_cut: bool,
    /// Also write a JSON file that says where the time of this process went, and print it as a table: loading, tokenising,
    /// projections, attention, its observer and all else of the model in prefill and in decode,
    /// sampling and files; with tokens, tokens per second and peak memory
    #[arg(long, value_name = "FILE")]
    pub(super) stats: Option<PathBuf>,
    #[command(flatten)]
    estimate: EstimateArgs,
}

impl Args {
    /// Whether the run is to be estimated and not done.
    pub(super) fn wants_estimate(&self) -> bool {
        self.estimate.estimate
    }

    /// The card that the estimate is for, where one is named.
    pub(super) fn card(&self) -> Option<NamedCard> {
        self.estimate.card
    }

    /// The job to estimate, checked.
    pub(super) fn into_estimate(self) -> anyhow::Result<(Job, EstimateArgs)> {
        let Args {
            data,
            model,
            settings,
            shard,
            stream,
            batch_size,
            parallel,
            strict,
            retry_cut,
            estimate,
            ..
        } = self;
        estimate.check()?;
        let job = Job {
            data,
            model,
            out: PathBuf::new(),
            settings,
            shard,
            stream,
            batch_size,
            parallel,
            strict,
            retry_cut,
        };
        job.check().map_err(|e| WrongUsage(format!("{e:#}")))?;
        Ok((job, estimate))
    }
}

/// Flags of the estimate.
#[derive(Debug, clap::Args)]
pub(super) struct EstimateArgs {
    /// Say what the run will take (tokens, hours, bytes) from about a minute's measurement, and run nothing; with --card, measure
    /// nothing either
    #[arg(long)]
    estimate: bool,
    /// --estimate: a card that need not be here, reckoned with by its published rates; the model's config is enough: a100-40, a100-80,
    /// h100, h200, l40s, rtx-4090
    #[arg(long, value_name = "NAME", requires = "estimate", conflicts_with = "device")]
    card: Option<NamedCard>,
    /// --estimate: seconds of prefill to measure
    #[arg(long, default_value_t = 45.0, value_name = "SECONDS", requires = "estimate")]
    pub(super) estimate_seconds: f64,
    /// --estimate of an endpoint: the encoding to count in, o200k_base or cl100k_base
    #[arg(long, default_value = crate::benchmarks::PAPER_ENCODING, value_name = "ENCODING", requires = "estimate")]
    pub(super) estimate_tokenizer: String,
    /// --estimate of an endpoint: price of a million prompt tokens, in any currency
    #[arg(long, value_name = "PRICE", requires = "estimate")]
    pub(super) price_in: Option<f64>,
    /// --estimate of an endpoint: price of a million generated tokens
    #[arg(long, value_name = "PRICE", requires = "estimate")]
    pub(super) price_out: Option<f64>,
}

impl EstimateArgs {
    /// Refuses values that mean nothing.
    fn check(&self) -> anyhow::Result<()> {
        let prices = [("--price-in", self.price_in), ("--price-out", self.price_out)];
        let seconds = ("--estimate-seconds", Some(self.estimate_seconds));
        for (flag, value) in prices.into_iter().chain([seconds]) {
            if let Some(value) = value.filter(|value| !value.is_finite() || *value < 0.0) {
                return Err(WrongUsage(format!("{flag} {value} is not 0 or more")).into());
            }
        }
        if self.price_in.is_some() != self.price_out.is_some() {
            return Err(WrongUsage("give both --price-in and --price-out, or neither".to_owned()).into());
        }
        Ok(())
    }
}

/// Runs the command. `recorder` is there where `--stats` is.
pub fn run(args: Args, recorder: Option<&Recorder>) -> anyhow::Result<()> {
    let Args {
        data,
        model,
        out,
        settings,
        shard,
        stream,
        batch_size,
        parallel,
        strict,
        retry_cut,
        stats,
        estimate,
    } = args;
    estimate.check()?;
    // Given, but for an estimate, which does not come here.
    let out = out.unwrap_or_default();
    let job = Job {
        data,
        model,
        out: out.clone(),
        settings,
        shard,
        stream,
        batch_size,
        parallel,
        strict,
        retry_cut,
    };
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
    let folder = RunFolder::read(&out)?;
    if let Some(mean) = MeanCost::of_answers(&folder.costs) {
        // Seconds vary from run to run, and what is printed as the result does not.
        note(format_args!("a case costs {mean} (mean of {} cases, costs.jsonl)", mean.cases));
    }
    if summary.errors == 0 {
        let read = !super::benchmark_of(&out, &folder.header)?.readings.is_empty();
        let judge = if read { String::new() } else { format!(" --judge local:{DEFAULT_MODEL}") };
        super::say(format_args!("next: palimpsest judge {}{judge}", out.display()))?;
    }
    super::without_errors("answers", "answers.jsonl", &summary)
}

/// What the observer of a run sums over: the shared history for the union of all probes' evidence, and beside that each probe
/// of a batch its own rows, the query's, the generation prompt's, `last` and `answer`, and where a verdict's is wanted all that are
/// generated.
pub(super) fn observed(
    all: &[PlannedCase],
    benchmark: &Benchmark,
    batch: usize,
    generated: usize,
) -> ObservedSpans {
    let row_roles = row_roles(benchmark);
    let held = if wants_verdict_row(benchmark) { generated } else { 0 };
    let usual = ObservedSpans::default();
    let of_case = |case: &PlannedCase| {
        let probes = case.probes.iter().flat_map(|probe| &probe.evidence);
        let distinct: BTreeSet<_> = (case.evidence.iter().chain(probes))
            .map(|e| (&e.role, e.segment, e.turn, e.bytes.as_ref().map(|b| (b.start, b.end))))
            .collect();
        let is_row = |role: &str| row_roles.contains(&role);
        let rows = distinct.iter().filter(|(role, ..)| is_row(role)).count();
        let own =
            |probe: &PlannedProbe| case.evidence_of(probe).filter(|e| is_row(&e.role)).count() + 4 + held;
        let widest = case.probes.iter().map(own).max().unwrap_or(0);
        // Evidence of whole segments is among the segments.
        let overlays = distinct.iter().filter(|(_, _, turn, _)| turn.is_some()).count();
        (rows + widest * batch.max(1), overlays)
    };
    let (rows, overlays): (Vec<usize>, Vec<usize>) = all.iter().map(of_case).unzip();
    let most = |counts: Vec<usize>| counts.into_iter().max().unwrap_or(0);
    ObservedSpans { rows: most(rows).max(usual.rows), keys: usual.keys + most(overlays), generated }
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
    /// Questions that an endpoint is asked at once.
    pub parallel: Option<usize>,
    /// Whether a file with broken rows is refused.
    pub strict: bool,
    /// Whether answers that a thought took the place of are tried again.
    pub retry_cut: bool,
}

/// A data set that was read once.
pub(super) struct Opened {
    pub(super) dataset: Dataset,
    pub(super) named: Named,
    /// All of its cases, without their histories, broken rows among them.
    pub(super) all: Vec<PlannedCase>,
    /// The first sound one, whole.
    pub(super) first: Option<Case>,
    /// What its benchmark decides where the settings leave it open.
    pub(super) asked: Asked,
}

/// What a run of a local model needs.
pub(super) struct Ready {
    pub(super) opened: Opened,
    pub(super) templates: Templates,
    pub(super) options: LocalOptions,
    pub(super) model: LocalModel,
    /// SHA-256 of its weights.
    pub(super) digest: String,
}

impl Job {
    /// Does what is not done yet. `recorder` times it, if there is one.
    pub fn run(&self, recorder: Option<&Recorder>) -> anyhow::Result<Summary> {
        self.check().map_err(|e| WrongUsage(format!("{e:#}")))?;
        if let Some(folder) = self.settings.prompts.as_deref().filter(|dir| dir.join(JUDGE_FILE).exists()) {
            let folder = folder.display();
            note(format_args!(
                "note: {folder} holds {JUDGE_FILE}, which answers do not depend on; judge with `palimpsest judge --prompts {folder}`"
            ));
        }
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
            s.repeat == 1 || s.temperature > 0.0 || self.is_endpoint(),
            "--repeat {} gives the same answers over and over at --temperature 0, which is greedy for a local model; give a \
             temperature or drop --repeat",
            s.repeat
        );
        let is_sample =
            self.data.to_str().is_some_and(|data| data == "sample" || data.starts_with("sample:"));
        ensure!(
            is_sample || s.sessions.is_none(),
            "--sessions is for --data sample; a file has its own histories"
        );
        if self.is_endpoint() {
            let counted = s.tokenizer.is_some() || s.chars_per_token.is_some();
            ensure!(
                s.context.is_none() || counted,
                "--context needs to know how many tokens a text has, and {} is an endpoint; add --tokenizer NAME_OR_FILE or \
                 --chars-per-token X, or drop --context to send histories whole",
                self.model
            );
            ensure!(
                s.context.is_some() || !counted,
                "--tokenizer and --chars-per-token count tokens for --context; give one, or drop them to send histories whole"
            );
            if let Some(chars) = s.chars_per_token {
                ensure!(
                    CharsPerToken::new(chars).is_some(),
                    "--chars-per-token {chars} is not a number above 0"
                );
            }
            ensure!(
                s.context.is_some() || s.truncation.is_none(),
                "--truncation cuts to --context, without which an endpoint is sent histories whole; give one, or drop it"
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
        let of_endpoints =
            [("--tokenizer", s.tokenizer.is_some()), ("--chars-per-token", s.chars_per_token.is_some())];
        if let Some(calls) = self.parallel.filter(|_| !self.is_endpoint()) {
            bail!(
                "--parallel {calls} is for endpoints, and {} is a model on this machine, which decodes --batch-size {} probes together; drop it",
                self.model,
                self.batch_size
            );
        }
        if let Some((flag, _)) = of_endpoints.iter().find(|(_, given)| *given && !self.is_endpoint()) {
            bail!("{flag} is for endpoints; a local model has its own tokeniser, so drop it");
        }
        ensure!(
            s.stops.len() < 2 || s.stops.iter().all(|stop| !stop.is_empty()),
            "--stop '' beside other texts: an empty text alone means that none ends an answer; drop one or the other"
        );
        if let Some(knockout) = s.knockouts.first().filter(|_| self.is_endpoint()) {
            bail!(
                "--knockout '{knockout}' needs a model on this machine, and {} is an endpoint, whose attention is out of reach",
                self.model
            );
        }
        s.thinking.check(self.is_endpoint())?;
        Ok(())
    }

    pub(super) fn is_endpoint(&self) -> bool {
        self.model.starts_with("http://") || self.model.starts_with("https://")
    }

    pub(super) fn sample(&self) -> Option<CaseSample> {
        let Settings { sample, sample_seed: seed, .. } = self.settings;
        sample.map(|cases| CaseSample { cases, seed })
    }

    /// [`conditions`] of this job, put to a local model.
    pub(super) fn local_conditions(
        &self,
        dataset: &Dataset,
        builder: &PromptBuilder,
        (model, asked): (&LocalModel, Asked),
    ) -> anyhow::Result<Vec<Condition>> {
        let s = &self.settings;
        let budget = asked.truncation.budget(model.context(), asked.max_new_tokens + model.max_thinking());
        conditions(dataset.benchmark(), &s.conditions, (&s.knockouts, s.repeat), &s.memory, || {
            fits(dataset, builder, model.tokenizer().as_ref(), budget)
        })
    }

    pub(super) fn sampling(&self, asked: Asked) -> Sampling {
        let s = &self.settings;
        Sampling {
            temperature: s.temperature,
            top_p: s.top_p,
            seed: s.seed,
            max_new_tokens: asked.max_new_tokens,
        }
    }

    /// Opens data and model as a run does.
    pub(super) fn open_local(&self, recorder: Option<&Recorder>) -> anyhow::Result<Ready> {
        let s = &self.settings;
        let devices = engine::parse_devices(&s.device)?;
        recorder.inspect(|recorder| recorder.wait_for(&devices));
        let dtype = s.dtype.as_deref().map(engine::parse_dtype).transpose()?;
        let opened = self.open()?;
        let Opened { dataset, all, asked, .. } = &opened;
        let templates = self.templates(dataset.benchmark())?;
        let most = all.iter().map(|case| case.probes.len()).max().unwrap_or(0);
        let most = most.saturating_mul(s.repeat as usize).saturating_mul(1 + s.knockouts.len());
        let options = LocalOptions {
            kernel: s.attention_kernel,
            branches: Branches::for_answers(self.batch_size.min(most), asked.max_new_tokens),
            observed: observed(all, dataset.benchmark(), self.batch_size.min(most), asked.max_new_tokens),
            devices,
            dtype,
            context: s.context.map_or(ContextLength::Whole, ContextLength::Exactly),
            allow_longer: s.allow_longer,
            kept: s.weights.into(),
            hides_keys: !s.knockouts.is_empty(),
            thinking: s.thinking.local(),
            ..LocalOptions::default()
        };
        let models::Opened { model, digest } = models::open(&self.model, &options)?;
        asked.check_room(model.context(), model.max_thinking(), 0)?;
        if model.template().is_plain() {
            note(format_args!(
                "note: {} has no chat template (a base model); its prompts use the plain layout of docs/prompts.md, and an answer ends where it opens \
                 the next turn (--stop)",
                model.model_name()
            ));
        }
        Ok(Ready { opened, templates, options, model, digest })
    }

    fn run_local(&self, recorder: Option<&Recorder>) -> anyhow::Result<Summary> {
        let s = &self.settings;
        let Ready { opened, templates, mut model, digest, .. } = self.open_local(recorder)?;
        let Opened { dataset, named, all, first, asked } = opened;
        let prompts = sha256(format!("{}\n{}", templates.digest(), model.template().source()).as_bytes());
        let dtype = model.engine().decoder().dtype();
        let builder = PromptBuilder::new(templates, model.template().clone())
            .numbering(s.session_numbers.into())
            .reading(s.special_tokens);
        let prompt = check_templates(&builder, first.as_ref())?;
        check_knockouts(&s.knockouts, &all, prompt.as_ref(), &model.engine().decoder().spec().layer_kinds())?;
        let stops = s.stop_strings(model.template().stop_strings());
        let conditions = self.local_conditions(&dataset, &builder, (&model, asked))?;
        let systems = self.start_systems(&conditions)?;
        let identity = Identity {
            benchmark: dataset.benchmark().name.to_owned(),
            dataset: named,
            model: Named { name: model.model_name().to_owned(), digest },
            dtype: Some(format!("{dtype:?}").to_lowercase()),
            prompts: Some(prompts),
            sampling: Some(self.sampling(asked)),
            context: ContextPolicy {
                tokens: Some(asked.truncation.context(model.context())),
                policy: asked.truncation.policy().to_owned(),
                reserved: Some(asked.truncation.reserved()).filter(|&tokens| tokens > 0),
                numbers: s.session_numbers.into(),
                ..ContextPolicy::default()
            },
            seed: s.seed,
            only: s.only.clone(),
            limit: s.limit,
            attention: !s.no_attention,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sample: self.sample(),
            memory: systems.identities.clone(),
            conditions,
            limit_probes: s.limit_probes,
            thinking: s.thinking.local_policy(&model),
            stop: stops.clone(),
            special_tokens: s.special_tokens,
            borders: BorderRule::FirstCharacter,
        };
        let mut plan = self.plan(&dataset, all)?;
        let cut = Cut::of_model(asked.truncation, s.seed, model.text(), asked.max_new_tokens);
        let part = (&dataset, s.seed, self.shard.is_some());
        leave_out(&mut plan, &identity.conditions, part, |case| {
            cut_to_budget(&builder, model.tokenizer(), case, cut)
        })?;
        let decoder = model.engine().decoder();
        let settled = (0..decoder.spec().layers.len()).filter_map(|layer| decoder.attention_kernel(layer));
        let machine = self.machine(&s.device).attending_by(AttentionBy::of(s.attention_kernel, settled));
        let stop = super::interrupt::flag_saying(
            "stopping: answers that have ended are kept, those under way will be asked again",
        )?;
        let options = SubjectOptions {
            sampling: self.sampling(asked),
            attention: !s.no_attention,
            answer_rows: true,
            share_prefix: true,
        };
        let mut subject =
            ModelSubject::local(&mut model, builder, cut, row_roles(dataset.benchmark()), options, &stop)
                .stopping_at(stops);
        if wants_verdict_row(dataset.benchmark()) {
            subject = subject.deciding(dataset.benchmark());
        }
        if self.stream {
            subject = subject.streaming(|piece| {
                // A closed stdout is no reason to stop a run.
                let mut out = std::io::stdout();
                let text = if piece.is_empty() { "\n\n" } else { piece };
                let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            });
        }
        self.answer(identity, machine, (&dataset, plan), systems, &mut subject)
    }

    /// The templates of its prompts.
    pub(super) fn templates(&self, benchmark: &Benchmark) -> anyhow::Result<Templates> {
        let folder = self.settings.prompts.as_deref();
        let templates = Templates::load(benchmark, folder)?;
        Ok(if self.settings.memory.memory.is_empty() {
            templates
        } else {
            templates.with_memories(folder)?
        })
    }

    /// Reads the data set once. Of its cases what a plan needs is kept, which is not their histories.
    pub(super) fn open(&self) -> anyhow::Result<Opened> {
        let _span = timing::io();
        let spec = SampleSpec { segments: self.settings.sessions, seed: self.settings.seed };
        let dataset = Dataset::open(&self.data, spec, |_| {})?.with_split(self.settings.split.as_deref())?;
        let asked = self.settings.asked(dataset.benchmark())?;
        if let Some(context) = self.settings.context {
            let (thought, reserved) = match self.is_endpoint() {
                true => (self.settings.thinking.endpoint().max_tokens, TEMPLATE_RESERVE),
                false => (0, 0),
            };
            asked.check_room(context, thought, reserved)?;
        }
        let name = dataset.name();
        let help = "`palimpsest data check` lists all its problems";
        let (mut rows, mut first) = (FilePlan::new(dataset.benchmark()), None);
        for case in dataset.cases()? {
            match case {
                Ok(case) => {
                    rows.sound(&case);
                    first.get_or_insert(case);
                }
                Err(ReadError::Row(problems)) => rows.broken(problems),
                // How many rows there are behind it is not known, and with it no denominator.
                error => {
                    error.with_context(|| format!("{name} cannot be used; {help}"))?;
                }
            }
        }
        let (count, broken) = rows.rows();
        if let Some(problem) = rows.first_problem() {
            ensure!(
                broken < count,
                "{name} cannot be used; {help}: none of its {count} rows is sound: {problem}"
            );
            ensure!(
                !self.strict,
                "{broken} of the {count} rows of {name} are broken, and --strict refuses that; {help}. The first: {problem}"
            );
            note(format_args!(
                "note: {broken} of the {count} rows of {name} are broken; they are not asked and count as errors ({help}; --strict refuses \
                 such a file). The first: {problem}"
            ));
        }
        let all = rows.finish();
        let named = Named { name: dataset.name().to_owned(), digest: dataset.digest().to_owned() };
        Ok(Opened { dataset, named, all, first, asked })
    }

    /// What of a data set's cases is asked.
    pub(super) fn plan(&self, dataset: &Dataset, all: Vec<PlannedCase>) -> anyhow::Result<Vec<PlannedCase>> {
        let s = &self.settings;
        let all_of = Selection::of_all(dataset.benchmark());
        let (sample, only) = (self.sample(), s.only.clone());
        let (limit, limit_probes) = (s.limit, s.limit_probes);
        let selection = Selection { sample, only, limit, limit_probes, shard: self.shard, ..all_of };
        Ok(selection.of(all)?)
    }

    /// Where it runs: on a device, or at an endpoint's address.
    pub(super) fn machine(&self, device: &str) -> Machine {
        Machine::here(device, rayon::current_num_threads())
    }

    pub(super) fn answer(
        &self,
        identity: Identity,
        machine: Machine,
        (dataset, plan): (&Dataset, Vec<PlannedCase>),
        systems: MemorySystems,
        subject: &mut dyn Subject,
    ) -> anyhow::Result<Summary> {
        let header = RunHeader::new(identity, self.shard, machine);
        let mut store = RunStore::open_or_create(&self.out, &header, plan)?;
        if self.retry_cut {
            store.retry_cut();
        }
        let stop = super::interrupt::flag("answer")?;
        let show = !(self.stream && std::io::stdout().is_terminal());
        // Broken rows are in the plan, and their errors in the rows.
        let sound = dataset.cases()?.filter(|case| !matches!(case, Err(ReadError::Row(_))));
        let cases = sound.map(|case| {
            // It was read before, so the file has changed since.
            case.map_err(|error| RunError::GaveUp(format!("{}: {error}", self.data.display())))
        });
        let mut memory = memory(dataset.benchmark(), self.settings.seed, &header.identity.conditions, show)?
            .with_systems(systems.searches);
        let summary = runner::run(&mut store, cases, &mut memory, subject, &stop, show)
            .with_context(|| format!("{}", self.out.display()))?;
        let broken = store.plan().iter().filter(|case| case.broken.is_some()).count();
        if broken > 0 {
            note(format_args!("note: the errors of {broken} broken rows stay until the file is mended"));
        }
        Ok(summary)
    }
}
