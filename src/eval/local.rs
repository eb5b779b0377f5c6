//! The local engine as a [`Subject`]: one prefill of the shared history a case, then each probe's suffix and answer, with
//! the attention of query and new session recorded on the way.

use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

use super::fit::{Fitted, fit};
use super::runner::{ProbeOutcome, Sink, Subject};
use super::store::RunError;
use crate::attention::{AttentionStore, MassObserver, Masses, SpanError};
use crate::chat::{LocalError, LocalModel, Parts, Sampling};
use crate::data::{Case, Probe};
use crate::engine::EngineError;
use crate::progress::Status;
use crate::prompt::{PromptBuilder, PromptError, Span, SpanRole, StreamDecoder, TokenizedPrompt};

/// Answers a case's probes with a local model.
pub struct LocalSubject<'a> {
    model: &'a mut LocalModel,
    builder: PromptBuilder,
    options: SubjectOptions,
    stop: &'a AtomicBool,
    /// Shown every piece of an answer as it is generated.
    on_text: Option<OnText<'a>>,
}

type OnText<'a> = Box<dyn FnMut(&str) + 'a>;

/// What [`LocalSubject`] does.
#[derive(Debug, Clone, Copy)]
pub struct SubjectOptions {
    /// How tokens are chosen. Each probe samples from a stream of its own, derived from the seed, the case and the probe, so
    /// that answers do not depend on what was asked before.
    pub sampling: Sampling,
    /// Seed of the truncation's ties.
    pub seed: u64,
    /// Whether attention is recorded.
    pub attention: bool,
    /// Whether the probes of a case share the prefill of what their prompts have in common. Answers are the same either
    /// way; off is for checking that.
    pub share_prefix: bool,
}

impl<'a> LocalSubject<'a> {
    /// A subject that stops at the next chunk or token when `stop` is set.
    pub fn new(
        model: &'a mut LocalModel,
        builder: PromptBuilder,
        options: SubjectOptions,
        stop: &'a AtomicBool,
    ) -> Self {
        LocalSubject { model, builder, options, stop, on_text: None }
    }

    /// Shows every piece of an answer to `on_text` as it is generated; an empty piece ends an answer.
    #[must_use]
    pub fn streaming(mut self, on_text: impl FnMut(&str) + 'a) -> Self {
        self.on_text = Some(Box::new(on_text));
        self
    }

    fn try_case(
        &mut self,
        case: &Case,
        wanted: &[&Probe],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), CaseError> {
        let budget = self.model.context().saturating_sub(self.options.sampling.max_new_tokens);
        let fitted = fit(&self.builder, self.model.tokenizer(), case, budget, self.options.seed)
            .map_err(|e| CaseError::Failed(format!("{:#}", anyhow::Error::from(e))))?;
        let shared = shared_tokens(&fitted);

        // What is measured in the shared part is measured once and handed to every probe.
        let mut before = None;
        for probe in wanted {
            let Some(at) = case.probes.iter().position(|p| p.id == probe.id) else { continue };
            let (_, prompt) = &fitted.prompts[at];
            status.begin(&format!("{} {}", case.id, probe.id), "reading");
            let outcome = self.try_probe(case, probe, prompt, shared, &mut before, status);
            match outcome {
                Ok(mut outcome) => {
                    outcome.dropped_sessions.clone_from(&fitted.dropped);
                    sink(probe, Ok(outcome)).map_err(CaseError::Run)?;
                }
                Err(ProbeError::Engine(EngineError::Interrupted)) => {
                    return Err(CaseError::Run(RunError::Stopped));
                }
                Err(error) => {
                    before = None;
                    sink(probe, Err(format!("{:#}", anyhow::Error::from(error)))).map_err(CaseError::Run)?;
                }
            }
        }
        Ok(())
    }

    /// Answers one probe. `before` is the observer of the shared part, whose tokens are then at the start of the cache; it is
    /// made by the first probe. Chunks begin anew at the border of the shared part whether or not it is reused, so that the
    /// arithmetic, and with it every bit of the answer, is the same.
    fn try_probe(
        &mut self,
        case: &Case,
        probe: &Probe,
        prompt: &TokenizedPrompt,
        shared: usize,
        before: &mut Option<MassObserver>,
        status: &Status,
    ) -> Result<ProbeOutcome, ProbeError> {
        let attention = self.options.attention;
        let stop = self.stop;
        let name = self.model.model_name().to_owned();
        let shares = self.options.share_prefix;
        let observer = |rows: Vec<Span>| MassObserver::new(rows, prompt.spans.clone(), prompt.tokens.len());
        // An observer of no rows wants nothing.
        let rows = if attention { row_spans(prompt) } else { Vec::new() };

        // 1. The shared part, once a case.
        let reusable = shares.then(|| before.take()).flatten();
        let keep = if reusable.is_some() { shared } else { 0 };
        let Parts { engine, cache, tokenizer, stop: stop_tokens } = self.model.parts(keep)?;
        let reusable = reusable.filter(|_| cache.len() == shared);
        if reusable.is_none() {
            cache.truncate(0)?;
        }
        let mut read = cache.len();
        let mut go_on = |tokens: usize| {
            read += tokens;
            status.reading(read, prompt.tokens.len());
            !stop.load(Ordering::Relaxed)
        };
        let first = match reusable {
            Some(observer) => observer,
            None => {
                let inside = rows.iter().filter(|s| s.end <= shared).cloned().collect();
                let keep = if attention { shared } else { 0 };
                let mut observer = observer(inside)?.keeping(keep);
                if shared > 0 {
                    engine.read(cache, &prompt.tokens[..shared], &mut observer, &mut go_on)?;
                    cache.mark()?;
                }
                observer
            }
        };

        // 2. This probe's own part.
        let mut own = first.fork(&observer(rows)?, shared).ok_or(ProbeError::Unshared)?;
        let rest = &prompt.tokens[shared..];
        let logits = engine.prefill(cache, rest, 1, &mut own, &mut go_on)?.squeeze(0)?;

        // 3. The answer.
        let mut sampling = self.options.sampling;
        sampling.seed = stream_seed(sampling.seed, &case.id, &probe.id);
        let mut on_text = self.on_text.as_mut();
        let mut answered = 0;
        let mut pieces = StreamDecoder::new(tokenizer, true);
        let generated = engine.decode(cache, &logits, &sampling, stop_tokens, &mut |token| {
            if let (Some(on_text), Ok(Some(piece))) = (&mut on_text, pieces.push(token)) {
                on_text(&piece);
            }
            answered += 1;
            status.answering(answered);
            !stop.load(Ordering::Relaxed)
        })?;
        if let Some(on_text) = on_text {
            if let Ok(Some(piece)) = pieces.finish() {
                on_text(&piece);
            }
            on_text("");
        }
        let answer = tokenizer.decode(&generated.tokens, true)?;
        let attention = match attention {
            false => None,
            true => {
                let Masses { layers, mass, sink, delta } = own.finish()?;
                Some(AttentionStore {
                    mass,
                    sink,
                    delta,
                    layers,
                    rows: own.rows().to_vec(),
                    keys: own.keys().to_vec(),
                    tokens: prompt.tokens.clone(),
                    case: case.id.clone(),
                    probe: probe.id.clone(),
                    model: name,
                    dtype: format!("{:?}", engine.decoder().dtype()).to_lowercase(),
                })
            }
        };
        *before = Some(first);
        Ok(ProbeOutcome {
            answer: answer.trim().to_owned(),
            stop: generated.stop,
            prompt_tokens: Some(prompt.tokens.len()),
            completion_tokens: Some(generated.tokens.len()),
            dropped_sessions: Vec::new(),
            attention,
        })
    }
}

/// Why a probe has no answer.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Model(#[from] LocalError),
    #[error(transparent)]
    Spans(#[from] SpanError),
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error("This is a bug: probes share tokens but not spans")]
    Unshared,
}

impl From<candle_core::Error> for ProbeError {
    fn from(error: candle_core::Error) -> Self {
        ProbeError::Engine(error.into())
    }
}

/// What ended a case early.
enum CaseError {
    /// The run ends.
    Run(RunError),
    /// No probe of this case can be answered.
    Failed(String),
}

impl Subject for LocalSubject<'_> {
    fn answer_case(
        &mut self,
        case: &Case,
        probes: &[&Probe],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        match self.try_case(case, probes, status, sink) {
            Ok(()) => Ok(()),
            Err(CaseError::Run(error)) => Err(error),
            Err(CaseError::Failed(reason)) => {
                probes.iter().try_for_each(|probe| sink(probe, Err(reason.clone())))
            }
        }
    }
}

/// The rows whose attention is stored: every evidence session that has earlier evidence to look back at, and the query.
fn row_spans(prompt: &TokenizedPrompt) -> Vec<Span> {
    let of = |role| prompt.spans.iter().filter(move |s| s.role == Some(role)).cloned();
    of(SpanRole::New).chain(of(SpanRole::Query)).collect()
}

/// How many tokens all of a case's prompts begin with, up to the first query and not inside a row span. Taken over all
/// probes, asked for or not, so that answers do not depend on the selection.
fn shared_tokens(fitted: &Fitted) -> usize {
    let Some(((_, first), others)) = fitted.prompts.split_first() else { return 0 };
    let mut shared = first.tokens.len();
    for (_, other) in others {
        shared = shared.min(first.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count());
    }
    for (_, prompt) in &fitted.prompts {
        for row in row_spans(prompt) {
            if row.role == Some(SpanRole::Query) || row.end > shared {
                shared = shared.min(row.start);
            }
        }
    }
    shared
}

/// The seed of one probe's sampler.
fn stream_seed(seed: u64, case: &str, probe: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update((case.len() as u64).to_le_bytes());
    hash.update(case);
    hash.update(probe);
    let digest = hash.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}
