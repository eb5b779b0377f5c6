//! Samples cases for estimates, and sums up what all estimates count.

use std::collections::BTreeSet;

use crate::cards::Recording;
use crate::memory::View;
use crate::progress::{grouped, note};
use crate::runs::condition::Condition;
use crate::runs::context_budget::BudgetedCase;
use crate::runs::model_subject::{row_spans, shared_tokens};
use crate::runs::plan::PlannedCase;
use crate::runs::setup::{RunSpec, retrievers, sound_cases};
use palimpsest_core::engine::memory_plan::gigabytes;
use palimpsest_core::model::{DecoderSpec, LayerSpec};
use palimpsest_core::span::Span;
use palimpsest_data::benchmarks::dataset::Dataset;
use palimpsest_data::case::Case;
use palimpsest_data::ground::words::counted;

const SAMPLE: usize = 8;

/// Evenly spaced cases; broken rows are skipped.
pub(super) fn sample(plan: &[PlannedCase]) -> Vec<&PlannedCase> {
    let sound: Vec<&PlannedCase> = plan.iter().filter(|case| case.broken.is_none()).collect();
    let n = sound.len().min(SAMPLE);
    (0..n).filter_map(|i| sound.get((2 * i + 1) * sound.len() / (2 * n)).copied()).collect()
}

pub(super) fn count_of_cases(plan: &[PlannedCase]) -> String {
    let sound = plan.iter().filter(|case| case.broken.is_none()).count();
    match plan.len() - sound {
        0 => counted(sound, "case"),
        broken => format!("{} ({} apart)", counted(sound, "case"), counted(broken, "broken row")),
    }
}

/// Calls `of` with each sampled case under each condition that is read, and its planned probe ids. Returns the number of cases.
pub(super) fn each_sampled(
    job: &RunSpec,
    dataset: &Dataset,
    plan: &[PlannedCase],
    conditions: (&[Condition], impl Fn(&&Condition) -> bool),
    mut of: impl FnMut(&Case, &[&str]) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let (conditions, is_read) = conditions;
    let mut memory = retrievers(dataset.benchmark(), job.seed, conditions, true)?;
    let wanted = sample(plan);
    note(format_args!("cutting and tokenising {} of {} cases", wanted.len(), plan.len()));
    let mut left: BTreeSet<&str> = wanted.iter().map(|case| case.case.as_str()).collect();
    for case in sound_cases(dataset)? {
        if left.is_empty() {
            break;
        }
        let case = case?;
        let Some(planned) = wanted.iter().find(|planned| planned.case == case.id) else { continue };
        left.remove(planned.case.as_str());
        let asked: Vec<&str> = planned.probes.iter().map(|probe| probe.id.as_str()).collect();
        for condition in conditions.iter().filter(&is_read) {
            for View { case, .. } in condition.views(&mut memory, &case) {
                of(&case, &asked)?;
            }
        }
    }
    anyhow::ensure!(left.is_empty(), "{}: the file changed while it was read", job.data.display());
    Ok(wanted.len())
}

pub(super) fn asked_of<'a, P>(case: &Case, part: &'a BudgetedCase<P>, asked: &[&str]) -> Vec<&'a P> {
    let probes = case.probes[part.probes.clone()].iter().zip(&part.prompts);
    probes.filter(|(probe, _)| asked.contains(&probe.id.as_str())).map(|(_, prompt)| prompt).collect()
}

/// True if the condition does not reuse another one's prompts.
pub(super) fn has_own_prompts(condition: &&Condition) -> bool {
    condition.repetition == 0 && condition.is_open()
}

/// Token counts of a context and its asked prompts.
#[derive(Default)]
pub(super) struct SampledContext {
    /// Tokens of the common prefix.
    pub shared: usize,
    /// Further tokens of each asked prompt.
    pub own: Vec<usize>,
    /// Size of the attention files.
    pub bytes: usize,
    /// Recording of the prompt with the most rows: evidence rows are shared by all prompts and recorded once.
    pub recording: Recording,
}

impl SampledContext {
    pub fn longest(&self) -> usize {
        self.shared + self.own.iter().max().unwrap_or(&0)
    }

    /// Adds a prompt with `own` tokens after the shared ones. `rows`: number and tokens of its row spans.
    pub fn push(&mut self, own: usize, rows: (usize, usize), spans: usize, sizes: Sizes<'_>) {
        // The rows `last` and `answer` are recorded too.
        let tokens = self.shared + own + sizes.most_new;
        self.bytes += store_bytes(sizes.spec, (rows.0 + 2, spans), tokens);
        self.own.push(own);
        self.recording.rows = self.recording.rows.max(rows.1);
        self.recording.spans = self.recording.spans.max(spans);
    }
}

/// Size of attention files: of the model, and the maximum tokens of an answer.
#[derive(Clone, Copy)]
pub(super) struct Sizes<'a> {
    pub spec: &'a DecoderSpec,
    pub most_new: usize,
}

/// Contexts with asked prompts, in the model's own tokens.
pub(super) fn contexts_of(
    case: &Case,
    parts: &[BudgetedCase],
    (asked, roles): (&[&str], &[&str]),
    sizes: Sizes<'_>,
) -> Vec<SampledContext> {
    let of_part = |part: &BudgetedCase| {
        let shared = shared_tokens(&part.prompts, roles);
        let mut context = SampledContext { shared, ..SampledContext::default() };
        for prompt in asked_of(case, part, asked) {
            let rows = row_spans(prompt, roles);
            let rows = (rows.len(), rows.iter().map(Span::len).sum());
            context.push(
                prompt.tokens.len() - shared,
                rows,
                prompt.spans.len() + prompt.overlays.len(),
                sizes,
            );
        }
        context
    };
    parts.iter().map(of_part).filter(|context| !context.own.is_empty()).collect()
}

pub(super) struct Sampled<'a> {
    job: &'a RunSpec,
    plan: &'a [PlannedCase],
    answers: usize,
    cases: usize,
    /// Cases of the run per sampled case; excludes broken rows.
    pub scale: f64,
    /// Answers per question: each blocked path and each eviction repeats the cost.
    pub repeat: usize,
    pub batch: usize,
}

impl<'a> Sampled<'a> {
    pub fn of(job: &'a RunSpec, plan: &'a [PlannedCase], conditions: &[Condition], cases: usize) -> Self {
        let repeat = job.repeat as usize * job.hidings();
        let most = plan.iter().map(|case| case.probes.len()).max().unwrap_or(1) * repeat;
        let sound = plan.iter().filter(|case| case.broken.is_none()).count();
        Sampled {
            job,
            plan,
            answers: answers(conditions, plan),
            cases,
            scale: sound as f64 / cases.max(1) as f64,
            repeat,
            batch: job.batch_size.min(most).max(1),
        }
    }

    pub fn asked(&self) -> String {
        format!("{} answers on {}", self.answers, count_of_cases(self.plan))
    }

    /// Lines of tokens, of `time` if known, and of bytes, for answers of `most_new` tokens. `tokens` names the tokenizer.
    pub fn text(&self, contexts: &[SampledContext], most_new: usize, tokens: &str, time: &str) -> String {
        let whole = |count: usize| (count as f64 * self.scale).round() as u64;
        let (mut computed, mut reused, mut bytes) = (0, 0, 0);
        for context in contexts {
            computed += context.shared + context.own.iter().sum::<usize>() * self.repeat;
            reused += context.shared * (context.own.len() * self.repeat).saturating_sub(1);
            bytes += context.bytes * self.repeat;
        }
        let lengths = || contexts.iter().map(SampledContext::longest);
        let mut text = format!(
            "tokens in   {} computed, {} reused (from {} cases, whose longest prompts have {} to {} tokens{tokens})\n\
             tokens out  {} at most ({most_new} an answer)\n{time}",
            grouped(whole(computed)),
            grouped(whole(reused)),
            self.cases,
            grouped(lengths().min().unwrap_or(0) as u64),
            grouped(lengths().max().unwrap_or(0) as u64),
            grouped((self.answers * most_new) as u64),
        );
        if !self.job.no_attention {
            text += &format!("bytes       {} of attention files\n", gigabytes(whole(bytes)));
        }
        text
    }
}

pub(super) fn answers(conditions: &[Condition], plan: &[PlannedCase]) -> usize {
    let sound = plan.iter().filter(|case| case.broken.is_none());
    sound.map(|case| case.probes.len()).sum::<usize>() * conditions.len()
}

pub(super) fn at_least_plain(conditions: Vec<Condition>) -> Vec<Condition> {
    if conditions.is_empty() { vec![Condition::PLAIN] } else { conditions }
}

/// Size of a prompt's attention file without header: masses and shares of every layer, and the tokens.
fn store_bytes(spec: &DecoderSpec, (rows, keys): (usize, usize), tokens: usize) -> usize {
    let of_layer = |layer: &LayerSpec| match (layer.attention(), layer.linear()) {
        (Some(attention), _) => rows * keys * (attention.heads + 1),
        (_, Some(delta)) => 2 * rows * keys * delta.value_heads,
        _ => 0,
    };
    4 * (spec.layers.iter().map(of_layer).sum::<usize>() + tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_spread_evenly_and_whole_where_the_plan_is_short() {
        let plan = |n: usize| {
            let case = |i: usize| PlannedCase::of(&Case { id: i.to_string(), ..Case::default() });
            (0..n).map(case).collect::<Vec<_>>()
        };
        let ids = |n| sample(&plan(n)).iter().map(|case| case.case.parse().unwrap()).collect::<Vec<usize>>();
        assert_eq!(ids(3), [0, 1, 2]);
        assert_eq!(ids(400), [25, 75, 125, 175, 225, 275, 325, 375]);
        let mut plan = plan(3);
        assert_eq!(count_of_cases(&plan), "3 cases");
        plan[1].broken = Some("torn".to_owned());
        assert_eq!(count_of_cases(&plan), "2 cases (1 broken row apart)");
    }
}
