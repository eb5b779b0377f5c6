//! Builds requests: each probe is a branch after its case's shared prompt prefix.

use std::collections::BTreeMap;

use palimpsest_core::attention::{AnswerRows, LayerHoles, LayerKind};
use palimpsest_core::engine::{
    self, Branch, Generate, Measured, ModelText, Observe, RequestError, Rows, StopWatch, Task,
};
use palimpsest_core::evict::Eviction;
use palimpsest_core::span::Span;
use palimpsest_core::text::TokenizedPrompt;
use sha2::{Digest, Sha256};

use super::condition::{Condition, Question};
use super::contrast::ContrastTokens;
use super::rows::{Contrast, NoAnswer};
use crate::chat::Sampling;
use palimpsest_data::benchmarks::{Benchmark, GENERATION, QUERY};
use palimpsest_data::case::{Case, Probe};

#[derive(Debug, Clone, Copy)]
pub struct SubjectOptions {
    /// Each probe samples from its own stream, derived from seed, case and probe.
    pub sampling: Sampling,
    pub attention: bool,
    /// Also record what the layers' choices of keys left to the rows.
    pub selected: bool,
    /// Also record the rows `last` (last prompt position) and `answer` (mean over generated tokens).
    pub answer_rows: bool,
    /// Share the prefill of the common prefix. Does not change answers; off only to verify that.
    pub share_prefix: bool,
}

pub(super) struct Asking<'a> {
    pub text: &'a ModelText,
    pub row_roles: Vec<&'static str>,
    pub options: SubjectOptions,
    /// Stop strings; excluded from the answer.
    pub stops: Vec<String>,
    /// Benchmark that names an answer's deciding token, if that row is recorded.
    pub decisive: Option<&'static Benchmark>,
}

pub(super) struct PendingProbe<'p> {
    pub question: Question<'p>,
    pub prompt: &'p TokenizedPrompt,
    pub holes: LayerHoles,
    options: Vec<Vec<u32>>,
    values: Option<ContrastTokens>,
    pub scores: Result<Scores, RequestError>,
    pub prefill_seconds: f64,
    /// Decode steps, including the final one; 0 until the prompt is prefilled.
    pub steps: usize,
    pub outcome: Option<Result<Box<Measured>, RequestError>>,
}

/// Log-probabilities of options, and of contrasted values.
pub(super) type Scores = (BTreeMap<String, f64>, Option<Contrast>);

/// The error row of a probe.
pub(super) fn no_answer(error: &anyhow::Error) -> NoAnswer {
    let too_long = matches!(error.downcast_ref(), Some(RequestError::RefusedTooLong(_)));
    NoAnswer { too_long, ..NoAnswer::from(format!("{error:#}")) }
}

impl PendingProbe<'_> {
    /// Stores the log-probabilities of options and values. Out-of-vocabulary tokens cannot occur.
    pub fn take_scores(&mut self, scored: &[Option<f64>]) {
        let (options, values) = scored.split_at(self.options.len().min(scored.len()));
        let named = self.question.probe.options.iter().cloned().zip(options);
        let named = named.map(|(option, score)| Some((option, (*score)?)));
        let contrast = self.values.as_ref().and_then(|tokens| tokens.of_scores(values));
        self.scores = Ok((named.collect::<Option<_>>().unwrap_or_default(), contrast));
    }
}

impl Asking<'_> {
    pub fn pending<'p>(
        &self,
        question: Question<'p>,
        prompt: &'p TokenizedPrompt,
        layers: impl FnOnce() -> Vec<LayerKind>,
    ) -> anyhow::Result<PendingProbe<'p>> {
        let holes = match &question.condition.knockout {
            None => LayerHoles::default(),
            Some(knockout) => {
                let blocked = std::slice::from_ref(knockout);
                LayerHoles::new(blocked, &all_spans(prompt), prompt.tokens.len(), &layers())?
            }
        };
        anyhow::ensure!(
            question.condition.evict.is_none() || question_start(prompt) > Some(0),
            "nothing of its prompt stands before the question, so that there are no keys to evict"
        );
        let Probe { prefix, options, contrast, .. } = question.probe;
        let room = self.text.context.saturating_sub(prompt.tokens.len());
        let fits = |texts: &Vec<Vec<u32>>| texts.iter().all(|tokens| tokens.len() <= room);
        let options = self.text.option_tokens(prefix, options)?.filter(fits).unwrap_or_default();
        let values = match contrast {
            Some(contrasted) => ContrastTokens::new(contrasted, prefix, self.text)?,
            None => None,
        };
        Ok(PendingProbe {
            question,
            prompt,
            holes,
            options,
            values: values.filter(|values| fits(&values.sequences())),
            scores: Ok(Scores::default()),
            prefill_seconds: 0.0,
            steps: 0,
            outcome: None,
        })
    }

    pub fn branch(&self, case: &Case, pending: &PendingProbe<'_>, shared: usize) -> Branch {
        let PendingProbe { question: Question { probe, condition }, prompt, .. } = pending;
        let mut observe = Observe::default();
        if self.options.attention {
            let mut rows = Rows { spans: row_spans(prompt, &self.row_roles), answer: AnswerRows::default() };
            if self.options.answer_rows {
                rows.spans.push(engine::last(prompt.tokens.len()));
                rows.answer.mean = Some(rows.spans.len());
                rows.answer.step = self.decisive.is_some();
            }
            observe.rows = rows;
            observe.keys = all_spans(prompt);
            observe.selected = self.options.selected;
        }
        let mut sampling = self.options.sampling;
        sampling.seed = stream_seed(sampling.seed, &case.id, &probe.id, condition.repetition);
        let generate = Generate {
            watch: StopWatch::new(&self.text.tokenizer, &self.stops),
            // An answer with a prefix skips the thought.
            thinker: self.text.thinker().filter(|_| probe.prefix.is_empty()),
            ..Generate::new(sampling, self.text.stop.clone())
        };
        let mut tasks = vec![Task::Generate(Box::new(generate))];
        let mut scored = pending.options.clone();
        scored.extend(pending.values.iter().flat_map(ContrastTokens::sequences));
        if !scored.is_empty() {
            tasks.push(Task::Score(scored));
        }
        let tokens = prompt.tokens[shared..].to_vec();
        let evict = self.eviction(case, condition, prompt);
        Branch { tokens, knockouts: pending.holes.clone(), evict, observe, tasks }
    }

    /// The condition's eviction from a prompt, if any. Draws depend on the run's seed and the case alone.
    fn eviction(&self, case: &Case, condition: &Condition, prompt: &TokenizedPrompt) -> Option<Eviction> {
        let seed = stream_seed(self.options.sampling.seed, &case.id, "", 0);
        let (evict, at) = (condition.evict.clone()?, question_start(prompt)?);
        Some(Eviction { evict, at, spans: all_spans(prompt), seed })
    }

    /// Length of the common prompt prefix: ends before the first query, outside row spans, at a `border` that keeps results bit-equal.
    /// Computed over all probes, so that answers do not depend on the selection.
    pub fn shared_tokens(&self, prompts: &[TokenizedPrompt], border: impl Fn(usize) -> usize) -> usize {
        let mut shared = shared_tokens(prompts, &self.row_roles);
        loop {
            // Moving to a border may land inside a row span again.
            shared = border(shared);
            let rows = prompts.iter().flat_map(|prompt| row_spans(prompt, &self.row_roles));
            match rows.filter(|row| row.start < shared && shared < row.end).map(|row| row.start).min() {
                Some(start) => shared = start,
                None => return shared,
            }
        }
    }
}

/// The question's first token.
pub(super) fn question_start(prompt: &TokenizedPrompt) -> Option<usize> {
    prompt.spans.iter().find(|span| span.is(QUERY)).map(|span| span.start)
}

pub(super) fn all_spans(prompt: &TokenizedPrompt) -> Vec<Span> {
    prompt.spans.iter().chain(&prompt.overlays).cloned().collect()
}

pub fn row_spans(prompt: &TokenizedPrompt, row_roles: &[&str]) -> Vec<Span> {
    let of = |role| prompt.spans.iter().chain(&prompt.overlays).filter(move |s| s.is(role)).cloned();
    let mut rows: Vec<Span> = row_roles.iter().copied().chain([QUERY]).flat_map(of).collect();
    if row_roles.contains(&GENERATION) {
        let tokens = prompt.tokens.len();
        let after = rows.iter().filter(|row| row.is(QUERY)).map(|row| row.end).max();
        rows.extend(after.map(|after| Span::new(GENERATION, after.min(tokens.saturating_sub(1))..tokens)));
    }
    rows
}

/// Length of the common prompt prefix, before the first query and outside row spans.
pub fn shared_tokens(prompts: &[TokenizedPrompt], row_roles: &[&str]) -> usize {
    let Some((first, others)) = prompts.split_first() else { return 0 };
    let mut shared = first.tokens.len();
    for other in others {
        shared = shared.min(first.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count());
    }
    for prompt in prompts {
        for row in row_spans(prompt, row_roles) {
            if row.is(QUERY) || row.end > shared {
                shared = shared.min(row.start);
            }
        }
    }
    shared
}

pub fn stream_seed(seed: u64, case: &str, probe: &str, repetition: u32) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update((case.len() as u64).to_le_bytes());
    hash.update(case);
    hash.update(probe);
    if repetition > 0 {
        // Separator: no probe id ends in NUL.
        hash.update([0]);
        hash.update(repetition.to_le_bytes());
    }
    let digest = hash.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}
