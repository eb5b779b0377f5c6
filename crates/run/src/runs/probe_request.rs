//! Requests of a case's probes: each probe is a branch behind the tokens that all prompts of the case begin with.

use std::collections::BTreeMap;

use palimpsest_core::attention::{AnswerRows, KnockoutError, LayerHoles, LayerKind};
use palimpsest_core::engine::{
    self, Branch, EngineError, Generate, Measured, ModelText, Observe, RequestError, Rows, StopWatch, Task,
};
use palimpsest_core::span::Span;
use palimpsest_core::text::{TextError, TokenizedPrompt};
use sha2::{Digest, Sha256};

use super::condition::Question;
use super::contrast::{ContrastError, ContrastTokens};
use super::rows::{Contrast, NoAnswer};
use crate::chat::Sampling;
use palimpsest_data::benchmarks::{Benchmark, GENERATION, QUERY};
use palimpsest_data::case::{Case, Probe};

/// Settings of a [`ModelSubject`](super::model_subject::ModelSubject).
#[derive(Debug, Clone, Copy)]
pub struct SubjectOptions {
    /// Each probe samples from a stream of its own, derived from the seed, the case and the probe.
    pub sampling: Sampling,
    pub attention: bool,
    /// Also record the row `last`, the prompt's last position, and `answer`, the mean over the generated tokens.
    pub answer_rows: bool,
    /// Share the prefill of what a case's prompts have in common. Answers are the same either way; off is for checking that.
    pub share_prefix: bool,
}

/// What a model's probes are asked with.
pub(super) struct Asking<'a> {
    pub text: &'a ModelText,
    /// Roles whose spans are rows, beside the query.
    pub row_roles: Vec<&'static str>,
    pub options: SubjectOptions,
    /// Strings that end an answer; the answer is the text before them.
    pub stops: Vec<String>,
    /// The benchmark that names the deciding token of an answer, where its row is wanted.
    pub decisive: Option<&'static Benchmark>,
}

/// A probe under way.
pub(super) struct PendingProbe<'p> {
    pub question: Question<'p>,
    pub prompt: &'p TokenizedPrompt,
    pub holes: LayerHoles,
    /// Tokens of the probe's options; none where they are not scored.
    options: Vec<Vec<u32>>,
    /// Token sequences of contrasted values.
    values: Option<ContrastTokens>,
    pub scores: Result<Scores, RequestError>,
    pub prefill_seconds: f64,
    /// Decode steps, the one that ends the answer included; 0 before the prompt is whole.
    pub steps: usize,
    pub outcome: Option<Result<Box<Measured>, RequestError>>,
}

/// Log-probabilities right after a prompt.
#[derive(Debug, Default)]
pub(super) struct Scores {
    pub options: BTreeMap<String, f64>,
    pub contrast: Option<Contrast>,
}

/// Why a probe has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Knockout(#[from] KnockoutError),
    #[error(transparent)]
    Contrast(#[from] ContrastError),
}

impl From<ProbeError> for NoAnswer {
    fn from(error: ProbeError) -> Self {
        let too_long = matches!(error, ProbeError::Request(RequestError::RefusedTooLong(_)));
        NoAnswer { message: format!("{:#}", anyhow::Error::from(error)), too_long }
    }
}

impl PendingProbe<'_> {
    /// Takes the log-probabilities of all that was scored. A token that the model has no logit for cannot come.
    pub fn take_scores(&mut self, scored: &[Option<f64>]) {
        let (options, values) = scored.split_at(self.options.len().min(scored.len()));
        let named = self.question.probe.options.iter().cloned().zip(options);
        let named = named.map(|(option, score)| Some((option, (*score)?)));
        self.scores = Ok(Scores {
            options: named.collect::<Option<_>>().unwrap_or_default(),
            contrast: self.values.as_ref().and_then(|tokens| tokens.of_scores(values)),
        });
    }
}

impl Asking<'_> {
    /// A probe that is put to a model with these layers.
    pub fn pending<'p>(
        &self,
        question: Question<'p>,
        prompt: &'p TokenizedPrompt,
        layers: impl FnOnce() -> Vec<LayerKind>,
    ) -> Result<PendingProbe<'p>, ProbeError> {
        let holes = match &question.condition.knockout {
            None => LayerHoles::default(),
            Some(knockout) => {
                let blocked = std::slice::from_ref(knockout);
                LayerHoles::new(blocked, &all_spans(prompt), prompt.tokens.len(), &layers())?
            }
        };
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

    /// A probe's branch behind the first `shared` tokens of its prompt.
    pub fn branch(&self, case: &Case, pending: &PendingProbe<'_>, shared: usize) -> Branch {
        let PendingProbe { question: Question { probe, condition }, prompt, .. } = pending;
        let mut observe = Observe::default();
        // Without rows nothing is recorded.
        if self.options.attention {
            let mut rows = Rows { spans: row_spans(prompt, &self.row_roles), answer: AnswerRows::default() };
            if self.options.answer_rows {
                rows.spans.push(engine::last(prompt.tokens.len()));
                rows.answer.mean = Some(rows.spans.len());
                rows.answer.step = self.decisive.is_some();
            }
            observe.rows = rows;
            observe.keys = all_spans(prompt);
        }
        let mut sampling = self.options.sampling;
        sampling.seed = stream_seed(sampling.seed, &case.id, &probe.id, condition.repetition);
        let generate = Generate {
            watch: StopWatch::new(&self.text.tokenizer, &self.stops),
            // An answer that is begun is not thought about.
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
        Branch { tokens, knockouts: pending.holes.clone(), observe, tasks }
    }

    /// The number of tokens that all of a case's prompts begin with, up to the first query and not inside a row span, at a border after
    /// which the model computes the same bits. Taken over all probes, asked for or not, so that answers do not depend on the selection.
    pub fn shared_tokens(&self, prompts: &[TokenizedPrompt], border: impl Fn(usize) -> usize) -> usize {
        let mut shared = shared_tokens(prompts, &self.row_roles);
        loop {
            // The border of a cut that changes no bit may lie inside a row span again.
            shared = border(shared);
            let rows = prompts.iter().flat_map(|prompt| row_spans(prompt, &self.row_roles));
            match rows.filter(|row| row.start < shared && shared < row.end).map(|row| row.start).min() {
                Some(start) => shared = start,
                None => return shared,
            }
        }
    }
}

/// The spans that tile a prompt, and those over them.
pub(super) fn all_spans(prompt: &TokenizedPrompt) -> Vec<Span> {
    prompt.spans.iter().chain(&prompt.overlays).cloned().collect()
}

/// The rows whose attention is stored: the spans in these roles, the generation prompt where it is among them, and the query.
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

/// The number of tokens that all of a case's prompts begin with, up to the first query and not inside a row span.
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

/// The seed of one answer's sampler.
pub fn stream_seed(seed: u64, case: &str, probe: &str, repetition: u32) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update((case.len() as u64).to_le_bytes());
    hash.update(case);
    hash.update(probe);
    if repetition > 0 {
        // No probe's id ends so.
        hash.update([0]);
        hash.update(repetition.to_le_bytes());
    }
    let digest = hash.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}
