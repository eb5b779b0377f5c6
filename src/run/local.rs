//! The local engine as a [`Subject`]: one prefill of the shared history a case, then each probe's suffix, with the attention
//! of the query and of evidence recorded on the way, then the answers, as one batch where the model was opened with room for it.
//! The next case is cut to size and tokenised meanwhile.
//!
//! Probes of a case may have different evidence. The shared history is measured once, for the union of their rows over the
//! union of their spans; each probe takes its own from it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use candle_core::Tensor;
use sha2::{Digest, Sha256};

use super::answer_streams::AnswerStreams;
use super::condition::Question;
use super::context_budget::{BudgetError, BudgetedCase, Cut, Dropped, cut_to_budget};
use super::cost::Cost;
use super::energy::{Joulemeter, Spent};
use super::error::RunError;
use super::runner::{ProbeOutcome, Sink, Subject};
use crate::benchmarks::{Benchmark, GENERATION, QUERY, VERDICT};
use crate::chat::Sampling;
use crate::data::Case;
use crate::data::truncate::Truncation;
use crate::progress::Status;
use crate::prompt::PromptBuilder;
use palimpsest_core::attention::{
    AnswerRows, AttentionStore, KnockoutError, LayerHoles, Masses, Observer, SpanError, Step,
};
use palimpsest_core::engine::{
    self, BatchSequence, EngineError, Generated, Measurement, Rows, StopWatch, before_stop,
};
use palimpsest_core::engine::{LocalError, LocalModel, Parts};
use palimpsest_core::model::branch_rows;
use palimpsest_core::span::Span;
use palimpsest_core::text::TextError;
use palimpsest_core::text::{Split, TokenizedPrompt};

/// Answers a case's probes with a local model. Probes are decoded as one batch as far as the model's
/// [`LocalModel::branches`] reach; answers are the same either way.
pub struct LocalSubject<'a> {
    /// Roles whose spans are rows, beside the query.
    row_roles: Vec<&'static str>,
    model: &'a mut LocalModel,
    builder: Arc<PromptBuilder>,
    options: SubjectOptions,
    stop: &'a AtomicBool,
    /// Shown every piece of an answer as it is generated.
    on_text: OnText<'a>,
    /// Strings that end an answer, which is what comes before them.
    stops: Vec<String>,
    /// Who says which token of an answer decides, where its row is wanted.
    decisive: Option<&'static Benchmark>,
    meter: Joulemeter,
    /// The case that comes next, and until it is begun the one under way, with who prepares it.
    coming: Vec<(Case, Preparing)>,
}

/// Who cuts and tokenises a case.
type Preparing = JoinHandle<Result<Vec<BudgetedCase>, BudgetError>>;

type OnText<'a> = Option<Box<dyn FnMut(&str) + 'a>>;

/// Takes what came of one probe.
type ProbeSink<'a> = dyn FnMut(Question<'_>, Result<ProbeOutcome, ProbeError>) -> Result<(), RunError> + 'a;

/// What [`LocalSubject`] does.
#[derive(Debug, Clone, Copy)]
pub struct SubjectOptions {
    /// How tokens are chosen. Each probe samples from a stream of its own, derived from the seed, the case and the probe, so
    /// that answers do not depend on what was asked before.
    pub sampling: Sampling,
    /// How histories that do not fit are cut.
    pub truncation: Truncation,
    /// Seed of the truncation's draws.
    pub seed: u64,
    /// Whether attention is recorded.
    pub attention: bool,
    /// Whether the answer's rows are recorded too: `last`, the prompt's last position, and `answer`, the mean over the generated
    /// tokens. Answers and the other rows are the same either way.
    pub answer_rows: bool,
    /// Whether the probes of a case share the prefill of what their prompts have in common. Answers are the same either
    /// way; off is for checking that.
    pub share_prefix: bool,
}

/// A probe whose prompt is in the cache or in a branch of it.
struct Prefilled<'p> {
    /// Of its last token, f32 (vocab).
    logits: Tensor,
    prompt: &'p TokenizedPrompt,
    sampling: Sampling,
    measurement: Measurement,
    /// Of the probe's options.
    scores: BTreeMap<String, f64>,
    /// Tokens that were in the cache already.
    reused: usize,
    spent: Spent,
}

/// Probes that are to be decoded as one batch, in order, with those that failed on the way there.
#[derive(Default)]
struct Batch<'p> {
    questions: Vec<(Question<'p>, Result<Prefilled<'p>, ProbeError>)>,
    sequences: Vec<BatchSequence>,
}

impl<'a> LocalSubject<'a> {
    /// A subject that stops at the next chunk or token when `stop` is set. Spans in `row_roles` are recorded as rows, beside the
    /// query ([`crate::benchmarks::row_roles`]).
    pub fn new(
        model: &'a mut LocalModel,
        builder: PromptBuilder,
        row_roles: Vec<&'static str>,
        options: SubjectOptions,
        stop: &'a AtomicBool,
    ) -> Self {
        let meter = Joulemeter::of(Some(model.hardware()));
        LocalSubject {
            row_roles,
            model,
            builder: Arc::new(builder),
            options,
            stop,
            on_text: None,
            stops: Vec::new(),
            decisive: None,
            meter,
            coming: Vec::new(),
        }
    }

    /// Shows every piece of an answer to `on_text` as it is generated; an empty piece ends an answer. Of answers that are
    /// decoded as one batch the first is shown first.
    #[must_use]
    pub fn streaming(mut self, on_text: impl FnMut(&str) + 'a) -> Self {
        self.on_text = Some(Box::new(on_text));
        self
    }

    /// Ends an answer at the first of these strings, none of them empty; it is no part of it, though the tokens that spell it are among the
    /// generated ones.
    #[must_use]
    pub fn stopping_at(mut self, stops: Vec<String>) -> Self {
        self.stops = stops;
        self
    }

    /// Also records the row [`VERDICT`]: the generated token at which an answer decides, by what the benchmark says of its text. The
    /// rows of all generated tokens are held until the answer is there.
    #[must_use]
    pub fn deciding(mut self, benchmark: &'static Benchmark) -> Self {
        self.decisive = Some(benchmark);
        self
    }

    fn cut(&self) -> Cut {
        let SubjectOptions { truncation: by, seed, .. } = self.options;
        Cut { budget: by.budget(self.model.context(), self.room()), by, seed }
    }

    /// Most tokens that are generated: a thought's and an answer's.
    fn room(&self) -> usize {
        self.model.max_thinking() + self.options.sampling.max_new_tokens
    }

    /// The case as it will be shown, from the thread that has prepared it.
    fn fitted(&mut self, case: &Case) -> Result<Vec<BudgetedCase>, BudgetError> {
        let at = self.coming.iter().position(|(other, _)| other == case);
        let prepared = at.and_then(|at| self.coming.remove(at).1.join().ok());
        prepared.unwrap_or_else(|| cut_to_budget(&self.builder, self.model.tokenizer(), case, self.cut()))
    }

    fn try_case(
        &mut self,
        case: &Case,
        wanted: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), CaseError> {
        let parts = self.fitted(case).map_err(|e| CaseError::Failed(said(e)))?;
        for fitted in &parts {
            let of_part = &case.probes[fitted.probes.clone()];
            let wanted: Vec<Question<'_>> =
                wanted.iter().filter(|q| of_part.iter().any(|p| p.id == q.probe.id)).copied().collect();
            if !wanted.is_empty() {
                self.try_part(case, fitted, &wanted, status, sink)?;
            }
        }
        Ok(())
    }

    /// The probes of a case that are shown one history. What a stop cuts off of them is told to `status`.
    fn try_part(
        &mut self,
        case: &Case,
        fitted: &BudgetedCase,
        wanted: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), CaseError> {
        let under_way = Cell::new(0);
        let mut counting = |question: Question<'_>, outcome: Result<ProbeOutcome, String>| {
            under_way.set(under_way.get() - 1);
            sink(question, outcome)
        };
        let done = self.put_part(case, fitted, wanted, (status, &under_way), &mut counting);
        if let Err(CaseError::Run(RunError::Stopped)) = &done {
            status.lose(under_way.get());
        }
        done
    }

    /// [`Self::try_part`], counting in `under_way` the probes that were begun; `sink` takes those that have ended off again.
    fn put_part(
        &mut self,
        case: &Case,
        fitted: &BudgetedCase,
        wanted: &[Question<'_>],
        (status, under_way): (&Status, &Cell<usize>),
        sink: &mut Sink<'_>,
    ) -> Result<(), CaseError> {
        let begin = || under_way.set(under_way.get() + 1);
        let probes = &case.probes[fitted.probes.clone()];
        let shared = self.shared_tokens(fitted);
        let union = self.union(fitted, shared);
        let branches = self.model.branches();
        let most = if self.options.share_prefix { branches.count.min(wanted.len()) } else { 1 };
        let new = self.room();
        let mut sink = |question: Question<'_>, outcome: Result<ProbeOutcome, ProbeError>| {
            let outcome = outcome.map(|o| ProbeOutcome { dropped: fitted.dropped.clone(), ..o });
            match outcome {
                Err(ProbeError::Engine(EngineError::Interrupted)) => Err(RunError::Stopped),
                outcome => sink(question, outcome.map_err(said)),
            }
        };

        // 1. What is blocked, and up to where the shared part is as it is without: all of it, but for paths that begin inside.
        let mut asked = Vec::new();
        for &question in wanted {
            let Some(at) = probes.iter().position(|p| p.id == question.probe.id) else { continue };
            let prompt = &fitted.prompts[at];
            match self.holes(question, prompt) {
                Ok(holes) => {
                    let kept = holes.first_row().map_or(shared, |first| first.min(shared));
                    asked.push((question, prompt, holes, kept));
                }
                Err(error) => {
                    begin();
                    sink(question, Err(error.into()))?;
                }
            }
        }
        // Each leaves in the cache what lies before its own rows.
        asked.sort_by_key(|&(.., kept)| std::cmp::Reverse(kept));

        // 2. What is measured in the shared part is measured once and handed to every probe.
        let mut before = None;
        let mut batch = Batch::default();
        for (question, prompt, holes, kept) in asked {
            if kept < shared {
                // What comes is read over what the batch shares.
                self.answer(case, std::mem::take(&mut batch), status, &mut sink)?;
            }
            status.begin(&format!("{} {question}", case.id), "prefill");
            begin();
            let blocked = Blocked { holes, kept };
            let prefilled = self.prefill(case, question, (prompt, blocked), &union, &mut before, status);
            let rows = branch_rows(shared, prompt.tokens.len() - shared + new);
            if most < 2 || rows > branches.tokens || kept < shared {
                self.answer(case, std::mem::take(&mut batch), status, &mut sink)?;
                sink(
                    question,
                    prefilled.and_then(|prefilled| self.answer_in_place(case, question, prefilled, status)),
                )?;
                continue;
            }
            let branched = prefilled.and_then(|prefilled| {
                let Parts { cache, thinker, .. } = self.model.parts(usize::MAX)?;
                let branch = cache.branch(shared, new)?;
                batch.sequences.push(BatchSequence {
                    branch,
                    logits: prefilled.logits.clone(),
                    sampling: prefilled.sampling,
                    thinker,
                    watch: StopWatch::new(self.model.tokenizer(), &self.stops),
                });
                Ok(prefilled)
            });
            if let Err(ProbeError::Engine(EngineError::Interrupted)) = &branched {
                return Err(CaseError::Run(RunError::Stopped));
            }
            batch.questions.push((question, branched));
            if batch.sequences.len() == most {
                self.answer(case, std::mem::take(&mut batch), status, &mut sink)?;
            }
        }
        self.answer(case, batch, status, &mut sink)?;
        Ok(())
    }

    /// Prefills the prompt of one probe. `before` is the measurement of the shared part, whose tokens are then at the start of the
    /// cache; it is made by the first probe. Chunks begin anew at the border of the shared part whether or not it is reused,
    /// so that the arithmetic, and with it every bit of the answer, is the same.
    fn prefill<'p>(
        &mut self,
        case: &Case,
        Question { probe, condition }: Question<'_>,
        (prompt, Blocked { holes, kept }): (&'p TokenizedPrompt, Blocked),
        union: &Union,
        before: &mut Option<Measurement>,
        status: &Status,
    ) -> Result<Prefilled<'p>, ProbeError> {
        let attention = self.options.attention;
        let stop = self.stop;
        let shares = self.options.share_prefix;
        let shared = union.tokens;
        let keys: Vec<Span> = prompt.spans.iter().chain(&prompt.overlays).cloned().collect();
        let length = prompt.tokens.len();
        let mut rows = Rows { spans: self.row_spans(prompt), answer: AnswerRows::default() };
        if self.options.answer_rows {
            rows.spans.push(engine::last(length));
            rows.answer.mean = Some(rows.spans.len());
            rows.answer.step = self.decisive.is_some();
        }
        // A measurement of no rows records nothing.
        let (rows, inside) = if attention { (rows, union.rows.clone()) } else { Default::default() };

        // 1. The shared part, once a case.
        let begun = self.meter.begin();
        let reusable = shares.then(|| before.take()).flatten();
        let keep = if reusable.is_some() { kept } else { 0 };
        let Parts { engine, cache, .. } = self.model.parts(keep)?;
        let reusable = reusable.filter(|_| cache.len() == kept);
        if reusable.is_none() {
            cache.truncate(0)?;
        }
        let reused = cache.len();
        let mut cached = reused;
        let meter = &mut self.meter;
        let mut go_on = |tokens: usize| {
            cached += tokens;
            // Counters begin anew every few minutes, and a prefill may take hours.
            meter.joules();
            status.prefill(cached, prompt.tokens.len());
            !stop.load(Ordering::Relaxed)
        };
        let first = match reusable {
            Some(measurement) => measurement,
            None => {
                let keep = if attention { shared } else { 0 };
                let mut measurement = Measurement::shared(inside, union.keys.clone(), length, keep)?;
                if shared > 0 {
                    engine.fill_cache(cache, &prompt.tokens[..shared], &mut measurement, &mut go_on)?;
                    cache.mark()?;
                }
                measurement
            }
        };
        let first = before.insert(first);

        // 2. This probe's own part.
        let own = Measurement::new(rows, keys, length)?;
        let (held, mut measurement) = match own.clone().after(first, cache.truncate(kept)?) {
            Some(measurement) => (cache.len(), measurement),
            // A row span that lies across the first blocked row is read anew, and all before it.
            None if kept < shared => (cache.truncate(0)?, own),
            None => return Err(ProbeError::Unshared),
        };
        cache.hide(holes);
        let rest = &prompt.tokens[held..];
        let logits = measurement.prefill(engine, cache, rest, 1, &mut go_on)?.squeeze(0)?;
        let scores = self.model.score_options(&logits, &probe.options)?;
        let mut sampling = self.options.sampling;
        sampling.seed = stream_seed(sampling.seed, &case.id, &probe.id, condition.repetition);
        let spent = self.meter.end(&begun);
        Ok(Prefilled { logits, prompt, sampling, measurement, scores, reused, spent })
    }

    /// Answers the probe whose prompt is in the cache.
    fn answer_in_place(
        &mut self,
        case: &Case,
        question: Question<'_>,
        mut prefilled: Prefilled<'_>,
        status: &Status,
    ) -> Result<ProbeOutcome, ProbeError> {
        let stop_asked = self.stop;
        let begun = self.meter.begin();
        let watch = StopWatch::new(self.model.tokenizer(), &self.stops);
        let Parts { engine, cache, tokenizer, stop, thinker } = self.model.parts(usize::MAX)?;
        let stops = &self.stops;
        let mut texts = self.on_text.as_mut().map(|show| AnswerStreams::new(1, tokenizer, stops, show));
        let mut answered = 0;
        let how = (&prefilled.sampling, stop, thinker, watch);
        let generated =
            prefilled.measurement.decode_thinking(engine, cache, &prefilled.logits, how, &mut |token| {
                texts.iter_mut().for_each(|texts| texts.take(0, Some(token)));
                answered += 1;
                status.decode(answered);
                !stop_asked.load(Ordering::Relaxed)
            })?;
        texts.iter_mut().for_each(|texts| texts.take(0, None));
        let spent = self.meter.end(&begun);
        self.outcome(case, question, &prefilled, &generated, spent)
    }

    /// Decodes the probes of a batch and hands their outcomes on in order.
    fn answer(
        &mut self,
        case: &Case,
        batch: Batch<'_>,
        status: &Status,
        sink: &mut ProbeSink<'_>,
    ) -> Result<(), RunError> {
        let Batch { mut questions, sequences } = batch;
        if questions.is_empty() {
            return Ok(());
        }
        let stop_asked = self.stop;
        let names: Vec<String> =
            questions.iter().filter(|(_, prefilled)| prefilled.is_ok()).map(|(q, _)| q.to_string()).collect();
        if !names.is_empty() {
            status.begin(&format!("{} {}", case.id, names.join(", ")), "decode");
        }
        let begun = self.meter.begin();
        let generated = self.model.parts(usize::MAX).map_err(ProbeError::from).and_then(|parts| {
            let Parts { engine, cache, tokenizer, stop, .. } = parts;
            let (count, stops) = (sequences.len(), &self.stops);
            let mut texts =
                self.on_text.as_mut().map(|show| AnswerStreams::new(count, tokenizer, stops, show));
            let mut answered = 0;
            let prefilled = questions.iter_mut().filter_map(|(_, prefilled)| prefilled.as_mut().ok());
            let observers: Vec<&mut dyn Observer> =
                prefilled.map(|prefilled| &mut prefilled.measurement as &mut dyn Observer).collect();
            Ok(engine.decode_batch(cache, sequences, observers, stop, &mut |nth, token| {
                texts.iter_mut().for_each(|texts| texts.take(nth, token));
                answered += usize::from(token.is_some());
                status.decode(answered);
                !stop_asked.load(Ordering::Relaxed)
            })?)
        });
        // What failed for all is the error of each of them.
        let (mut generated, failed) = match generated {
            Ok(generated) => (generated.into_iter(), None),
            Err(error) => (Vec::new().into_iter(), Some(said(error))),
        };
        let spent = self.meter.end(&begun);
        // Each answer takes a step more than it has tokens, for the one that ends it.
        let steps = |generated: &Generated| (generated.tokens.len() + 1) as f64;
        let all: f64 = generated.as_slice().iter().flatten().map(steps).sum();
        let mut done = Ok(());
        for (question, prefilled) in questions {
            let outcome = prefilled.and_then(|prefilled| match (generated.next(), &failed) {
                (Some(generated), _) => {
                    let generated = generated?;
                    let own = spent.share(steps(&generated) / all.max(1.0));
                    self.outcome(case, question, &prefilled, &generated, own)
                }
                (None, failed) => Err(ProbeError::Batch(failed.clone().unwrap_or_default())),
            });
            match sink(question, outcome) {
                // What has ended beside what a stop cuts off is kept.
                Err(RunError::Stopped) => done = Err(RunError::Stopped),
                stored => stored?,
            }
        }
        done
    }

    fn outcome(
        &self,
        case: &Case,
        question: Question<'_>,
        prefilled: &Prefilled<'_>,
        generated: &Generated,
        decode: Spent,
    ) -> Result<ProbeOutcome, ProbeError> {
        let (Split { thought, answer }, stop) = self.model.split(generated)?;
        let answer = answer.map(|answer| before_stop(&answer, &self.stops).trim_end().to_owned());
        let attention = match self.options.attention && stop.has_answer() {
            true => {
                let answer = answer.as_deref().unwrap_or_default();
                Some(self.measured(case, question, prefilled, (generated, answer))?)
            }
            false => None,
        };
        Ok(ProbeOutcome {
            answer: answer.unwrap_or_default(),
            thought,
            max_thinking: Some(self.model.max_thinking()).filter(|&most| most > 0),
            stop,
            prompt_tokens: Some(prefilled.prompt.tokens.len()),
            completion_tokens: Some(generated.tokens.len()),
            dropped: Dropped::default(),
            scores: prefilled.scores.clone(),
            attention,
            cost: Some(Cost {
                tokens_computed: Some(prefilled.prompt.tokens.len() - prefilled.reused),
                tokens_reused: prefilled.reused,
                tokens_generated: Some(generated.tokens.len()),
                ..Cost::of(prefilled.spent, decode)
            }),
        })
    }

    /// The attention file of an answered probe.
    fn measured(
        &self,
        case: &Case,
        question: Question<'_>,
        prefilled: &Prefilled<'_>,
        (generated, text): (&Generated, &str),
    ) -> Result<AttentionStore, ProbeError> {
        let answer = if self.options.answer_rows { generated.tokens.as_slice() } else { &[] };
        let step = self.decisive_token(generated, text)?.filter(|_| self.options.answer_rows);
        let step = step.map(|token| Step { label: VERDICT, token });
        let masses = prefilled.measurement.finish_with(answer.len(), step)?;
        let Masses { layers, rows, mass, uniform, sink, delta, each: _ } = masses;
        let dtype = self.model.engine().decoder().dtype();
        Ok(AttentionStore {
            mass,
            sink,
            uniform: Some(uniform),
            delta,
            layers,
            rows,
            keys: prefilled.measurement.keys().to_vec(),
            tokens: prefilled.prompt.tokens.clone(),
            generated: answer.to_vec(),
            case: case.id.clone(),
            probe: question.probe.id.clone(),
            condition: question.condition.name.clone(),
            model: self.model.model_name().to_owned(),
            dtype: format!("{dtype:?}").to_lowercase(),
        })
    }
}

impl LocalSubject<'_> {
    /// The token of an answer, whose text is `answer`, at which it decides.
    fn decisive_token(&self, generated: &Generated, answer: &str) -> Result<Option<usize>, TextError> {
        let Some(at) = self.decisive.and_then(|benchmark| (benchmark.decisive)(answer)) else {
            return Ok(None);
        };
        let tokens = generated.tokens.get(generated.thought..).unwrap_or_default();
        let text = |n: usize| self.model.tokenizer().decode(tokens.get(..n).unwrap_or_default(), true);
        // The answer is trimmed; a marker of its thought may stand before it.
        let Some(begins) = text(tokens.len())?.find(answer) else { return Ok(None) };
        // The fewest tokens whose text reaches beyond the place. The text of part of a character is no text yet.
        let (mut less, mut enough) = (0, tokens.len() + 1);
        while enough - less > 1 {
            let middle = less.midpoint(enough);
            if text(middle)?.trim_end_matches(char::REPLACEMENT_CHARACTER).len() > begins + at {
                enough = middle;
            } else {
                less = middle;
            }
        }
        Ok((enough <= tokens.len()).then_some(less))
    }
}

/// An error with its causes.
fn said(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
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
    Prompt(#[from] TextError),
    #[error(transparent)]
    Knockout(#[from] KnockoutError),
    #[error("This is a bug: probes share tokens but not spans")]
    Unshared,
    /// What failed for the whole batch.
    #[error("{0}")]
    Batch(String),
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

impl From<RunError> for CaseError {
    fn from(error: RunError) -> Self {
        CaseError::Run(error)
    }
}

impl Subject for LocalSubject<'_> {
    fn prepare(&mut self, next: &Case) {
        let (builder, tokenizer) = (Arc::clone(&self.builder), Arc::clone(self.model.tokenizer()));
        let (case, cut) = (next.clone(), self.cut());
        let worker = thread::Builder::new().name("prepare".to_owned());
        // Where there is no thread to be had, the case is prepared when it is its turn.
        if let Ok(worker) = worker.spawn(move || cut_to_budget(&builder, &tokenizer, &case, cut)) {
            self.coming.truncate(1);
            self.coming.push((next.clone(), worker));
        }
    }

    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        match self.try_case(case, questions, status, sink) {
            Ok(()) => Ok(()),
            Err(CaseError::Run(error)) => Err(error),
            Err(CaseError::Failed(reason)) => {
                questions.iter().try_for_each(|&question| sink(question, Err(reason.clone())))
            }
        }
    }
}

/// What is hidden from a probe's rows.
struct Blocked {
    holes: LayerHoles,
    /// How many of the shared tokens come before the first row that anything is hidden from.
    kept: usize,
}

/// What the probes of a case measure of the tokens that all of their prompts begin with.
struct Union {
    /// How many.
    tokens: usize,
    /// All rows that end there.
    rows: Vec<Span>,
    /// All key spans that begin there.
    keys: Vec<Span>,
}

impl LocalSubject<'_> {
    /// What a question's condition hides from the rows of its prompt.
    fn holes(&self, question: Question<'_>, prompt: &TokenizedPrompt) -> Result<LayerHoles, KnockoutError> {
        let Some(knockout) = &question.condition.knockout else { return Ok(LayerHoles::default()) };
        let spans: Vec<Span> = prompt.spans.iter().chain(&prompt.overlays).cloned().collect();
        let layers = self.model.engine().decoder().spec().layer_kinds();
        LayerHoles::new(std::slice::from_ref(knockout), &spans, prompt.tokens.len(), &layers)
    }

    /// The rows whose attention is stored: the spans in roles that the benchmark's curves begin with, and the query.
    fn row_spans(&self, prompt: &TokenizedPrompt) -> Vec<Span> {
        row_spans(prompt, &self.row_roles)
    }

    /// How many tokens all of a case's prompts begin with, up to the first query and not inside a row span. Taken over all
    /// probes, asked for or not, so that answers do not depend on the selection.
    fn shared_tokens(&self, fitted: &BudgetedCase) -> usize {
        let engine = self.model.engine();
        let mut shared = shared_tokens(&fitted.prompts, &self.row_roles);
        loop {
            // Where a prompt can be cut without a change of its bits, which may be inside a row span again.
            shared = engine.border(shared);
            let rows = || fitted.prompts.iter().flat_map(|prompt| self.row_spans(prompt));
            match rows().filter(|row| row.start < shared && shared < row.end).map(|row| row.start).min() {
                Some(start) => shared = start,
                None => return shared,
            }
        }
    }

    fn union(&self, fitted: &BudgetedCase, tokens: usize) -> Union {
        let mut union = Union { tokens, rows: Vec::new(), keys: Vec::new() };
        let mut seen: (BTreeSet<_>, BTreeSet<_>) = Default::default();
        for prompt in &fitted.prompts {
            let rows = self.row_spans(prompt).into_iter();
            union.rows.extend(rows.filter(|s| s.end <= tokens && seen.0.insert((s.start, s.end))));
            let keys = prompt.spans.iter().chain(&prompt.overlays).cloned();
            union.keys.extend(keys.filter(|s| s.start < tokens && seen.1.insert((s.start, s.end))));
        }
        union
    }
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

/// How many tokens all of a case's prompts begin with, up to the first query and not inside a row span.
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
