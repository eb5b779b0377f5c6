//! Prepares a run from its flags: opens data, checks flags, chooses conditions, truncates prompts, builds the identity. [`super::runner`]
//! does the rest.

mod conditions;
mod endpoint;
mod left_out;
mod local;
mod memory_args;
mod reading;
mod spec;
mod thinking;
mod usage;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};

use crate::models::ModelStore;
use crate::progress::note;
use crate::runs::condition::Condition;
use crate::runs::context_budget::TEMPLATE_RESERVE;
use crate::runs::error::RunError;
use crate::runs::file_plan::FilePlan;
use crate::runs::header::{Identity, Machine, NameAndDigest, RunHeader};
use crate::runs::model_subject::SubjectOptions;
use crate::runs::plan::{PlannedCase, Selection};
use crate::runs::runner::{self, Subject, Summary};
use crate::runs::store::RunStore;
use memory_args::MemorySystems;
use palimpsest_core::engine::TextSide;
use palimpsest_core::text::{ChatTemplate, known_special_tokens};
use palimpsest_core::timing::{self, Recorder};
use palimpsest_data::benchmarks::dataset::Dataset;
use palimpsest_data::benchmarks::reading::ReadError;
use palimpsest_data::benchmarks::{Benchmark, Retriever, SampleSpec};
use palimpsest_data::case::Case;
use palimpsest_data::case::finding::listed_by_check;
use palimpsest_data::ground::words::counted;
use palimpsest_data::prompt::{JUDGE_FILE, PromptBuilder, Templates, contents};

pub use conditions::{check_evictions, retrievers};
pub use local::{OpenedModel, observed};
pub use memory_args::{MemoryArgs, NamedSystem};
pub use reading::{cases, sound_cases};
pub use spec::{AnswerLimits, DEFAULT_BATCH_SIZE, RunSpec};
pub use thinking::Thinking;
pub use usage::{WrongUsage, WrongValue, positive, wrong};

pub struct OpenedData {
    pub dataset: Dataset,
    pub named: NameAndDigest,
    pub all: Vec<PlannedCase>,
    pub first: Option<Case>,
    pub limits: AnswerLimits,
}

/// Installs an interrupt handler with the given message; returns its flag.
pub type Watch<'a> = &'a dyn Fn(&'static str) -> anyhow::Result<Arc<AtomicBool>>;

pub struct Begin<'a> {
    pub folder: &'a Path,
    pub recorder: Option<&'a Recorder>,
    pub show_progress: bool,
    pub on_text: &'a dyn Fn(&str),
    pub watch: Watch<'a>,
}

impl RunSpec {
    pub fn run(&self, begin: &Begin<'_>) -> anyhow::Result<Summary> {
        self.checked()?;
        let keys = &self.keys()?;
        if let Some(folder) = self.prompts.as_deref().filter(|dir| dir.join(JUDGE_FILE).exists()) {
            let folder = folder.display();
            note(format_args!(
                "note: {folder} holds {JUDGE_FILE}, which does not affect answers; judge with `palimpsest judge --prompts {folder}`"
            ));
        }
        if self.is_endpoint() { self.run_endpoint(begin, keys) } else { self.run_local(begin, keys) }
    }

    pub fn checked(&self) -> Result<(), WrongUsage> {
        self.check().map_err(|e| WrongUsage(format!("{e:#}")))
    }

    /// Reads the dataset once, and keeps cases without histories.
    pub fn open(&self) -> anyhow::Result<OpenedData> {
        let _span = timing::io();
        let spec = SampleSpec { segments: self.sessions, seed: self.seed };
        let pair = (self.data.as_path(), self.questions.as_deref());
        let dataset = Dataset::open_pair(pair, spec, |_| {})?.with_split(self.split.as_deref())?;
        let limits = self.limits(dataset.benchmark())?;
        if let Some(context) = self.context {
            let (thought, reserved) = match self.is_endpoint() {
                true => (self.thinking.endpoint().max_tokens, TEMPLATE_RESERVE),
                false => (0, 0),
            };
            limits.check_room(context, thought, reserved)?;
        }
        let name = dataset.name();
        let help = "`palimpsest data check` lists all its problems";
        let (mut rows, mut first) = (FilePlan::new(dataset.benchmark()), None);
        let (tells, mut findings) = (dataset.benchmark().companion.is_some(), Vec::new());
        for case in dataset.cases()? {
            match case {
                Ok(case) => {
                    rows.sound(&case);
                    findings.extend(case.flags.iter().filter(|_| tells).cloned());
                    first.get_or_insert(case);
                }
                Err(ReadError::Row(problems)) => rows.broken(problems),
                // The number of remaining rows is unknown, so there is no denominator.
                error => {
                    error.with_context(|| format!("{name} cannot be used; {help}"))?;
                }
            }
        }
        for line in listed_by_check(&findings, 3) {
            note(line);
        }
        let (count, broken) = rows.rows();
        if let Some(problem) = rows.first_problem() {
            // The questions of own histories are a table of their own.
            let (sound, of_broken) = match tells {
                true => (counted(rows.counts().questions, "question"), rows.counts().broken_in_words()),
                false => {
                    let are = if broken == 1 { "is" } else { "are" };
                    let of_broken =
                        format!("{broken} of the {} of {name} {are} broken", counted(count, "row"));
                    (counted(count, "row"), of_broken)
                }
            };
            ensure!(broken < count, "{name} cannot be used; {help}: none of its {sound} is sound: {problem}");
            ensure!(!self.strict, "{of_broken}, and --strict refuses that; {help}. The first: {problem}");
            note(format_args!(
                "note: {of_broken}; they are not asked and count as errors ({help}; --strict refuses such a file). The first: {problem}"
            ));
        }
        let all = rows.finish();
        let named = NameAndDigest { name: dataset.name().to_owned(), digest: dataset.digest().to_owned() };
        Ok(OpenedData { dataset, named, all, first, limits })
    }

    pub fn plan(&self, dataset: &Dataset, all: Vec<PlannedCase>) -> anyhow::Result<Vec<PlannedCase>> {
        let selection = Selection {
            sample: self.case_sample(),
            only: self.only.clone(),
            limit: self.limit,
            limit_probes: self.limit_probes,
            shard: self.shard,
            ..Selection::of_all(dataset.benchmark())
        };
        Ok(selection.of(all)?)
    }

    pub fn templates(&self, benchmark: &Benchmark) -> anyhow::Result<Templates> {
        let folder = self.prompts.as_deref();
        if self.query_time && !benchmark.query_time_if_asked {
            return wrong(format!(
                "--query-time has no effect: prompts of {} tell the time of the question wherever the data does; drop it",
                benchmark.title
            ));
        }
        let templates = Templates::load(benchmark, folder)?.with_query_time(self.query_time);
        Ok(if self.memory.memory.is_empty() { templates } else { templates.with_memories(folder)? })
    }

    pub fn builder(&self, templates: Templates, template: ChatTemplate) -> PromptBuilder {
        PromptBuilder::new(templates, template).numbering(self.session_numbers).reading(self.special_tokens)
    }

    fn subject_options(&self, data: &OpenedData, attention: bool) -> SubjectOptions {
        SubjectOptions {
            sampling: self.sampling(data.limits),
            attention,
            selected: self.selected,
            answer_rows: true,
            share_prefix: true,
        }
    }

    /// Identity fields common to local models and endpoints.
    fn identity(&self, data: &OpenedData, conditions: Vec<Condition>) -> Identity {
        let by_words = conditions.iter().any(|one| one.retrieves_by(Retriever::Bm25));
        Identity {
            words: by_words.then_some(palimpsest_data::ground::words::VERSION),
            benchmark: data.dataset.benchmark().name.to_owned(),
            dataset: data.named.clone(),
            sampling: Some(self.sampling(data.limits)),
            seed: self.seed,
            only: self.only.clone(),
            limit: self.limit,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sample: self.case_sample(),
            conditions,
            limit_probes: self.limit_probes,
            ..Identity::default()
        }
    }

    fn answer(
        &self,
        (begin, stop, machine): (&Begin<'_>, &AtomicBool, Machine),
        identity: Identity,
        (dataset, plan): (&Dataset, Vec<PlannedCase>),
        systems: MemorySystems,
        subject: &mut dyn Subject,
    ) -> anyhow::Result<Summary> {
        let header =
            RunHeader { memory_env: systems.environment, ..RunHeader::new(identity, self.shard, machine) };
        let mut store = RunStore::open_or_create(begin.folder, &header, plan)?;
        if self.retry_cut {
            store.retry_cut();
        }
        let sound = dataset.cases()?.filter(|case| !matches!(case, Err(ReadError::Row(_))));
        let cases = sound.map(|case| {
            // It was readable before, so the file has changed.
            case.map_err(|error| RunError::GaveUp(format!("{}: {error}", self.data.display())))
        });
        let mut memory =
            retrievers(dataset.benchmark(), self.seed, &header.identity.conditions, begin.show_progress)?
                .with_systems(systems.searches);
        let summary = runner::run(&mut store, cases, &mut memory, subject, stop, begin.show_progress)
            .with_context(|| format!("{}", begin.folder.display()))?;
        left_out::tell_of_run(store.plan(), &header.identity.conditions)?;
        let broken = store.plan().iter().filter(|case| case.broken.is_some()).count();
        if broken > 0 {
            let rows = counted(broken, "broken row");
            note(format_args!("note: the errors of {rows} stay until the file is mended"));
        }
        Ok(summary)
    }
}

fn machine(device: &str) -> Machine {
    Machine::here(device, rayon::current_num_threads())
}

/// Texts of each case that spell special tokens, known ones and the model's.
pub fn special_tokens(
    dataset: &Dataset,
    model: Option<&str>,
) -> anyhow::Result<Vec<(String, BTreeSet<String>)>> {
    let tokenizer = match model {
        Some(model) => Some(TextSide::open(&ModelStore::open()?.resolve_text(model)?)?.tokenizer),
        None => None,
    };
    let mut cases = Vec::new();
    for case in sound_cases(dataset)? {
        let case = case?;
        let mut found: BTreeSet<String> = BTreeSet::new();
        for text in contents(&case) {
            found.extend(known_special_tokens(text).into_iter().map(str::to_owned));
            found.extend(tokenizer.iter().flat_map(|tokenizer| tokenizer.special_tokens_in(text)));
        }
        if !found.is_empty() {
            cases.push((case.id, found));
        }
    }
    Ok(cases)
}
