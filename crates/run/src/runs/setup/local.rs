//! Setup of local runs.

use std::collections::BTreeSet;

use super::conditions::{check_evictions, check_knockouts, check_templates};
use super::left_out::leave_out;
use super::{Begin, OpenedData, RunSpec, machine};
use crate::chat::endpoint::Keys;
use crate::models::{self, Opened};
use crate::progress::note;
use crate::runs::context_budget::{Cut, cut_to_budget};
use crate::runs::header::{AttentionBy, ContextPolicy, Identity, Machine, NameAndDigest};
use crate::runs::model_subject::ModelSubject;
use crate::runs::plan::{PlannedCase, PlannedProbe};
use crate::runs::runner::Summary;
use palimpsest_core::digest::sha256;
use palimpsest_core::engine::memory_plan::{Branches, ObservedSpans};
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};
use palimpsest_core::text::BorderRule;
use palimpsest_core::timing::Recorder;
use palimpsest_data::benchmarks::{Benchmark, row_roles, wants_verdict_row};
use palimpsest_data::prompt::Templates;

pub struct OpenedModel {
    pub data: OpenedData,
    pub templates: Templates,
    pub options: LocalOptions,
    pub model: LocalModel,
    pub digest: String,
    /// Of a model of the hub.
    pub commit: Option<String>,
}

/// Upper bounds for the attention observer: keys of the shared history with all probes' evidence, and per batched probe its own rows
/// (query, generation prompt, `last`, `answer`, and all generated ones for the verdict row).
pub fn observed(all: &[PlannedCase], benchmark: &Benchmark, batch: usize, generated: usize) -> ObservedSpans {
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
        // Evidence on whole segments adds no overlay.
        let overlays = distinct.iter().filter(|(_, _, turn, _)| turn.is_some()).count();
        (rows + widest * batch.max(1), overlays)
    };
    let (rows, overlays): (Vec<usize>, Vec<usize>) = all.iter().map(of_case).unzip();
    let most = |counts: Vec<usize>| counts.into_iter().max().unwrap_or(0);
    ObservedSpans { rows: most(rows).max(usual.rows), keys: usual.keys + most(overlays), generated, ..usual }
}

impl RunSpec {
    pub fn open_local(&self, recorder: Option<&Recorder>) -> anyhow::Result<OpenedModel> {
        let options = self.loaded.options()?;
        recorder.inspect(|recorder| recorder.wait_for(&options.devices));
        let data = self.open()?;
        let OpenedData { dataset, all, limits, .. } = &data;
        let templates = self.templates(dataset.benchmark())?;
        let most = all.iter().map(|case| case.probes.len()).max().unwrap_or(0);
        let most = most.saturating_mul(self.repeat as usize).saturating_mul(self.hidings());
        let batch = self.batch_size.min(most);
        let options = LocalOptions {
            branches: Branches::for_answers(batch, limits.max_new_tokens),
            observed: ObservedSpans {
                selected: self.selected,
                ..observed(all, dataset.benchmark(), batch, limits.max_new_tokens)
            },
            context: self.context.map_or(ContextLength::Whole, ContextLength::Exactly),
            allow_longer: self.allow_longer,
            hides_keys: self.hidings() > 1,
            keeps: self.keeps(batch),
            thinking: self.thinking.local(),
            ..options
        };
        if !self.evictions.is_empty()
            && let Ok((name, description, _)) = models::description(&self.model)
        {
            check_evictions(&self.evictions, &name, &description.spec.layer_kinds())?;
        }
        let Opened { model, digest, commit } = models::open(&self.model, &options)?;
        let kinds = model.engine().decoder().spec().layer_kinds();
        check_evictions(&self.evictions, model.model_name(), &kinds)?;
        limits.check_room(model.context(), model.max_thinking(), 0)?;
        if model.template().is_plain() {
            note(format_args!(
                "note: {} has no chat template (a base model); its prompts use the plain layout of docs/data.md, and an answer ends where the \
                 next turn begins (--stop)",
                model.model_name()
            ));
        }
        Ok(OpenedModel { data, templates, options, model, digest, commit })
    }

    pub(super) fn run_local(&self, begin: &Begin<'_>, keys: &Keys) -> anyhow::Result<Summary> {
        let OpenedModel { mut data, templates, mut model, digest, commit, .. } =
            self.open_local(begin.recorder)?;
        let (all, limits) = (std::mem::take(&mut data.all), data.limits);
        let dataset = &data.dataset;
        let prompts = sha256(format!("{}\n{}", templates.digest(), model.template().source()).as_bytes());
        let formats = model.engine().decoder().formats();
        let builder = self.builder(templates, model.template().clone());
        let prompt = check_templates(&builder, data.first.as_ref())?;
        check_knockouts(
            &self.knockouts,
            &all,
            prompt.as_ref(),
            &model.engine().decoder().spec().layer_kinds(),
        )?;
        let stops = self.stop_strings(model.template().stop_strings());
        let cut = Cut::of_model(limits.truncation, self.seed, model.text(), limits.max_new_tokens);
        let conditions = self.choose(dataset, &builder, Some((model.tokenizer().as_ref(), cut.budget)))?;
        let stop =
            (begin.watch)("stopping: answers that have ended are kept, those under way will be asked again")?;
        let systems = self.memory.start_systems((self.seed, keys), begin.folder, &conditions, &stop)?;
        let identity = Identity {
            model: NameAndDigest { name: model.model_name().to_owned(), digest },
            model_commit: commit,
            dtype: Some(formats.dtype.as_str().to_owned()),
            cache_dtype: (formats.cache != formats.dtype).then(|| formats.cache.as_str().to_owned()),
            prompts: Some(prompts),
            context: ContextPolicy {
                tokens: Some(limits.truncation.context(model.context())),
                policy: limits.truncation.policy().to_owned(),
                reserved: Some(limits.truncation.reserved()).filter(|&tokens| tokens > 0),
                numbers: self.session_numbers,
                query_time: self.query_time,
                ..ContextPolicy::default()
            },
            memory: systems.identities.clone(),
            attention: !self.no_attention,
            selected: self.selected,
            thinking: self.thinking.local_policy(&model),
            stop: stops.clone(),
            special_tokens: self.special_tokens,
            borders: BorderRule::FirstCharacter,
            ..self.identity(&data, conditions)
        };
        let mut plan = self.plan(dataset, all)?;
        let part = (dataset, self.seed, self.shard.is_some());
        leave_out(&mut plan, &identity.conditions, part, |case| {
            cut_to_budget(&builder, model.tokenizer(), case, cut)
        })?;
        let decoder = model.engine().decoder();
        let settled = (0..decoder.spec().layers.len()).filter_map(|layer| decoder.attention_kernel(layer));
        let attention_kernel = AttentionBy::of(self.loaded.on.attention_kernel, settled);
        let machine = Machine { attention_kernel, ..machine(&self.loaded.on.device) };
        let options = self.subject_options(&data, !self.no_attention);
        let mut subject =
            ModelSubject::local(&mut model, builder, cut, row_roles(dataset.benchmark()), options, &stop)
                .stopping_at(stops);
        if wants_verdict_row(dataset.benchmark()) {
            subject = subject.deciding(dataset.benchmark());
        }
        if self.stream {
            subject = subject.streaming(begin.on_text);
        }
        self.answer((begin, &stop, machine), identity, (dataset, plan), systems, &mut subject)
    }
}
