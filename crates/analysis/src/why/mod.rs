//! Labels each answer of a run with the reason for it, by interventions on its context.
//!
//! Called by `palimpsest why`; `table`, `report` and `export` show the rows. [`measure`] reads a finished run, runs its model and appends
//! one row per answer to `why.jsonl` ([`palimpsest_run::runs::why_rows`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, bail, ensure};
use palimpsest_core::ablate::{Said, Target, first_linear};
use palimpsest_core::attention::{AttentionStore, LayerKind};
use palimpsest_core::engine::{EngineError, LocalModel, ModelText, RequestError};

use crate::losses::Losses;
use crate::losses::fact::Level;
use crate::losses::trace::Trace;
use palimpsest_data::benchmarks::{Benchmark, Side};
use palimpsest_data::ground::jsonl::RowLog;
use palimpsest_data::ground::order::unique;
use palimpsest_run::progress::{Status, Steps};
use palimpsest_run::runs::causes::case::{pair, shared};
use palimpsest_run::runs::condition::named;
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::judge_name::JudgeChoice;
use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::rows::{AnswerKey, AnswerRow};
use palimpsest_run::runs::store::RunFolder;
use palimpsest_run::runs::why_rows::{WHY, WhyRow, WhySettings};

pub mod certificate;
pub mod controls;
pub mod decide;
pub mod evidence;
pub mod label;
pub mod labels;
pub mod readings;
pub mod search;
pub mod signals;

use decide::{Facts, Presence};
use evidence::{Evidence, names_current, roles, spans};
use label::{Context, investigate, labelled};
use readings::{Anew, ReadError, Reader, prompt};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    pub skipped: usize,
    pub done: usize,
    pub readings: usize,
    /// Answers without a row: the judge gave no verdict on a regenerated answer.
    pub unjudged: usize,
    pub stopped: bool,
}

/// Answers to label: no errors, under conditions that neither block nor evict.
pub fn asked(folder: &RunFolder) -> Vec<&AnswerRow> {
    let conditions = folder.header.identity.conditions_or_plain();
    let hides = |name: &str| conditions.iter().any(|one| one.name == name && !one.is_open());
    folder.answers.iter().filter(|row| row.error.is_none() && !hides(&row.condition)).collect()
}

/// Rejects benchmarks without roles of both sides.
pub fn check_sides(benchmark: &Benchmark) -> anyhow::Result<()> {
    ensure!(
        [Side::Newer, Side::Older].iter().all(|side| !roles(benchmark, *side).is_empty()),
        "labels need newer evidence that replaces older evidence, and {} has no such sides; give a run of a benchmark that has them",
        benchmark.title
    );
    Ok(())
}

/// Verdicts to explain: the latest of the chosen judges.
pub fn verdicts<'a>(folder: &'a RunFolder, choice: JudgeChoice<'_>) -> anyhow::Result<Judged<'a>> {
    let (judged, _) = folder.judged_last(choice)?;
    let dir = folder.dir.display();
    judged.with_context(|| {
        format!("{dir} has no verdicts, and a label explains one; judge it with `palimpsest judge {dir} --judge JUDGE`")
    })
}

pub type JudgeAnew<'a> = &'a mut dyn FnMut(&AnswerRow, &str) -> anyhow::Result<bool>;

/// Labels the rows that `folder` lacks and appends them. Answers without a contrast are regenerated for `judge`, if given. `model` must be
/// the run's. Checks `stop` after each chunk and reading.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    choice: JudgeChoice<'_>,
    (settings, mut judge): (WhySettings, Option<JudgeAnew<'_>>),
    stop: &AtomicBool,
    show_progress: bool,
) -> anyhow::Result<Measured> {
    let benchmark = folder.benchmark()?;
    check_sides(benchmark)?;
    let judged = verdicts(folder, choice)?;
    let kinds = model.engine().decoder().spec().layer_kinds();
    if let Some(layer) = first_linear(&kinds) {
        bail!(
            "layer {layer} is a linear-attention layer, which has no keys to hide, so a hidden session would still be seen; \
             labels need a model with softmax attention at all layers"
        );
    }
    let losses = Losses::open(folder, benchmark, choice)?;
    let mut log: RowLog<WhyRow> = RowLog::open(&folder.dir, WHY)?;
    let own = log.rows.iter().filter(|row| row.judge == judged.name.label && row.settings == settings);
    let there: BTreeSet<AnswerKey> = own.map(|row| row.key().owned()).collect();
    let traces = losses.as_ref().map(traces).unwrap_or_default();
    let asked = asked(folder);
    let is_missing = |row: &&AnswerRow| !there.contains(&row.key().owned());
    let mut left = asked.iter().copied().filter(is_missing).count();
    let mut measured = Measured { skipped: asked.len() - left, ..Measured::default() };
    let mut steps = Steps::new("answers", left, show_progress).brief(true);
    let status = steps.status();
    let text = model.text().clone();
    let run = Run { folder, benchmark, judged, traces, settings, text, kinds, stop, status: &status };
    // Prompts of one case and condition share a prefix.
    let groups = unique(asked.iter().map(|row| (&row.case, &row.condition)));
    let of_group = |group| asked.iter().copied().filter(move |row| (&row.case, &row.condition) == group);
    let longest = |group| of_group(group).filter(is_missing).filter_map(|row| row.prompt_tokens).max();
    let mut histories: usize = groups.iter().filter_map(|group| longest(*group)).sum();
    for group in groups {
        let rows = of_group(group);
        let read = rows.map(|row| Ok((row, folder.attention(row)?))).collect::<Result<Vec<_>, RunError>>()?;
        let shared = shared(&read.iter().filter_map(|(_, store)| store.as_ref()).collect::<Vec<_>>());
        let mut history = longest(group).unwrap_or(0);
        for (row, store) in read.iter().filter(|(row, _)| is_missing(row)) {
            let name = format!("{} {}", row.case, named(&row.probe, &row.condition));
            status.begin(&name, "starting");
            // As many forward passes as the answers so far had, and at first as many as there can be in place.
            let each = match measured.done {
                0 => 1 + 2 * (1 + settings.controls) + settings.readings,
                done => measured.readings.div_ceil(done),
            };
            let own =
                row.prompt_tokens.unwrap_or(0).saturating_sub(shared) + row.completion_tokens.unwrap_or(0);
            status.expect(histories, left * each * own);
            histories -= std::mem::take(&mut history);
            left -= 1;
            let judge = judge.as_mut().map(|judge| &mut **judge as JudgeAnew<'_>);
            let mut unjudged = None;
            match run.label(model, (row, store.as_ref(), shared), judge) {
                Ok(None) => {}
                Ok(Some(row)) => {
                    measured.readings += row.readings;
                    measured.done += 1;
                    log.append(row)?;
                }
                Err(error) => match error.downcast::<ReadError>()? {
                    ReadError::Model(RequestError::Engine(EngineError::Interrupted)) => {
                        return Ok(Measured { stopped: true, ..measured });
                    }
                    ReadError::Model(error) => bail!("case {}: {error}", row.case),
                    ReadError::Judge(error) => {
                        measured.unjudged += 1;
                        unjudged = Some(format!("{error:#}"));
                    }
                },
            }
            steps.step(&name, unjudged.as_deref());
        }
    }
    Ok(measured)
}

type Traces<'a> = BTreeMap<AnswerKey<&'a str>, &'a Trace>;

fn traces(losses: &Losses) -> Traces<'_> {
    let conditions = losses.systems.iter().flat_map(|system| &system.conditions);
    let all = conditions.flat_map(|condition| {
        let traces = condition.traces.get(&Level::Source).into_iter().flatten();
        traces.map(|trace| (AnswerKey::of(&trace.case, &trace.probe, &condition.name), trace))
    });
    all.collect()
}

struct Run<'a> {
    folder: &'a RunFolder,
    benchmark: &'static Benchmark,
    judged: Judged<'a>,
    traces: Traces<'a>,
    settings: WhySettings,
    text: ModelText,
    kinds: Vec<LayerKind>,
    stop: &'a AtomicBool,
    status: &'a Status,
}

impl Run<'_> {
    /// `None` without a verdict. With scores, only the maximum is right.
    fn correct(&self, key: AnswerKey<&str>) -> Option<bool> {
        let verdict = self.judged.get(key).filter(|row| row.is_clean())?;
        let best = self.benchmark.rubric().verdict.most().unwrap_or(1);
        Some(verdict.worth(best).is_some_and(|worth| worth >= 1.0))
    }

    /// Row of an answer whose prompt shares a prefix of `shared` tokens with its case; `None` if it is not in the plan.
    fn label(
        &self,
        model: &mut LocalModel,
        (row, store, shared): (&AnswerRow, Option<&AttentionStore>, usize),
        judge: Option<JudgeAnew<'_>>,
    ) -> anyhow::Result<Option<WhyRow>> {
        let mut plan = self.folder.plan.iter().flat_map(|case| case.probes.iter().map(move |p| (case, p)));
        let planned = plan.find(|(case, probe)| case.case == row.case && probe.id == row.probe);
        let Some(planned) = planned else { return Ok(None) };
        let trace = self.traces.get(&row.key()).copied();
        let evidence = Evidence { planned, row, store, trace };
        let mut facts = Facts {
            correct: self.correct(row.key()),
            names_current: names_current(row),
            newer: evidence.presence(self.benchmark, Side::Newer),
            older: evidence.presence(self.benchmark, Side::Older),
            ..Facts::default()
        };
        let mut judge = judge.map(|judge| move |answer: &str| judge(row, answer));
        let anew = match (&mut judge, facts.correct, self.folder.header.identity.sampling) {
            (Some(judge), Some(right), Some(sampling)) => {
                Some(Anew { text: &self.text, sampling, right, judge })
            }
            _ => None,
        };
        let found = match store {
            Some(store) => self.read(model, (row, store, shared), &facts, anew)?,
            None => None,
        };
        let found = found.unwrap_or_else(|| {
            let why = "it cannot be measured: its attention was not recorded, or it ended inside its thought";
            facts.unread = Some(why.to_owned());
            let (label, why) = labelled(&facts);
            WhyRow { label, why, ..WhyRow::default() }
        });
        Ok(Some(WhyRow {
            case: row.case.clone(),
            probe: row.probe.clone(),
            condition: row.condition.clone(),
            judge: self.judged.name.label.clone(),
            settings: self.settings,
            ..found
        }))
    }

    /// Reads an answer again, if possible and informative: by contrast if there is one, else by the model's own answer.
    fn read<'a>(
        &'a self,
        model: &'a mut LocalModel,
        (row, store, shared): (&AnswerRow, &'a AttentionStore, usize),
        facts: &Facts,
        anew: Option<Anew<'a>>,
    ) -> anyhow::Result<Option<WhyRow>> {
        let values = row.contrast.as_ref().map(|contrast| pair(store, contrast, &self.text)).transpose()?;
        // Text or context may already decide.
        let misjudged = facts.correct == Some(false) && facts.names_current;
        let wants = !misjudged && !matches!(facts.newer, Presence::Lost(_) | Presence::Unclear(_));
        let Some(prompt) = prompt(store, shared, &self.kinds).filter(|_| wants) else { return Ok(None) };
        let (target, anew) = match &values {
            Some(values) => (Target::Values(values), None),
            None if store.thought() >= store.generated.len() => return Ok(None),
            None => (Target::Answer(Said { tokens: &store.generated, thought: store.thought() }), anew),
        };
        let spans = |side: Side| spans(store, &roles(self.benchmark, side));
        let (newer, older) = (spans(Side::Newer), spans(Side::Older));
        let context = Context { store, newer, older, settings: self.settings };
        let mut reader = Reader::new(model.session(), prompt, (target, anew), (self.stop, self.status))?;
        Ok(Some(investigate(&mut reader, &context, facts.clone())?))
    }
}
