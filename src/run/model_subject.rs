//! A model as a [`Subject`], on this machine or behind a palimpsest server: one request a case, whose prefix is what its probes' prompts
//! share and whose branches are the probes, with the attention of the query and of evidence recorded on the way. The next case is cut to
//! size and tokenised meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use palimpsest_core::attention::{AnswerRows, AttentionStore, KnockoutError, LayerHoles, Masses, Step};
use palimpsest_core::engine::{
    self, Backend, Branch, EngineError, Event, Generate, Generated, LocalModel, Measured, ModelText, Observe,
    Request, RequestError, Reuse, Rows, StopWatch, Task,
};
use palimpsest_core::span::Span;
use palimpsest_core::text::{Split, TextError, TokenizedPrompt};
use sha2::{Digest, Sha256};

use super::answer_streams::AnswerStreams;
use super::condition::Question;
use super::context_budget::{BudgetError, BudgetedCase, Cut, Dropped, cut_to_budget};
use super::contrast::{ContrastError, ContrastTokens};
use super::cost::Cost;
use super::error::RunError;
use super::rows::{Contrast, NoAnswer};
use super::runner::{ProbeOutcome, Sink, Subject};
use super::subject::count_failure;
use crate::benchmarks::{Benchmark, GENERATION, QUERY, VERDICT};
use crate::chat::Sampling;
use crate::data::{Case, Probe};
use crate::progress::Status;
use crate::prompt::PromptBuilder;

/// Answers a case's probes with a model. A local model generates as many answers together as its [`LocalModel::branches`] reach; they
/// are the same either way.
pub struct ModelSubject<'a> {
    model: &'a mut dyn Backend,
    text: &'a ModelText,
    prepare: Arc<Prepare>,
    /// Roles whose spans are rows, beside the query.
    row_roles: Vec<&'static str>,
    options: SubjectOptions,
    stop: &'a AtomicBool,
    /// Shown every piece of an answer as it is generated.
    on_text: OnText<'a>,
    /// Strings that end an answer; the answer is the text before them.
    stops: Vec<String>,
    /// The benchmark that names the deciding token of an answer, where its row is wanted.
    decisive: Option<&'static Benchmark>,
    /// The next case and, until it is begun, the one under way, with their workers.
    prefetched: Vec<(Case, JoinHandle<Prepared>)>,
    failed_in_a_row: usize,
}

/// Cuts a case to its budget and tokenises its prompts.
pub type Prepare = dyn Fn(&Case) -> Prepared + Send + Sync;

/// A case as its probes are shown it.
pub type Prepared = Result<Vec<BudgetedCase>, BudgetError>;

type OnText<'a> = Option<Box<dyn FnMut(&str) + 'a>>;

/// Settings of a [`ModelSubject`].
#[derive(Debug, Clone, Copy)]
pub struct SubjectOptions {
    /// The sampling settings. Each probe samples from a stream of its own, derived from the seed, the case and the probe, so
    /// that answers do not depend on what was asked before.
    pub sampling: Sampling,
    /// True if attention is recorded.
    pub attention: bool,
    /// True if the answer's rows are recorded too: `last`, the prompt's last position, and `answer`, the mean over the generated
    /// tokens. Answers and the other rows are the same either way.
    pub answer_rows: bool,
    /// True if the probes of a case share the prefill of what their prompts have in common. Answers are the same either
    /// way; off is for checking that.
    pub share_prefix: bool,
}

/// A probe under way.
struct Asked<'p> {
    question: Question<'p>,
    prompt: &'p TokenizedPrompt,
    holes: LayerHoles,
    /// Tokens that the probe's options come to; none where they are not scored.
    options: Vec<Vec<u32>>,
    /// Sequences of the values that are held against each other, where there are such.
    values: Option<ContrastTokens>,
    scores: Result<Scores, RequestError>,
    prefill_seconds: f64,
    /// Decode steps, the one that ends the answer included; 0 before the prompt is whole.
    steps: usize,
    outcome: Option<Result<Box<Measured>, RequestError>>,
}

/// Log-probabilities right after a prompt.
#[derive(Debug, Default)]
struct Scores {
    options: BTreeMap<String, f64>,
    contrast: Option<Contrast>,
}

/// The part of a request that takes its time.
enum Clock {
    Prefill(Instant),
    Decode(Instant),
}

impl Asked<'_> {
    /// Of the log-probabilities of all that was scored. A token that the model has no logit for cannot come.
    fn scores(&self, scored: &[Option<f64>]) -> Scores {
        let (options, values) = scored.split_at(self.options.len().min(scored.len()));
        let named = self.question.probe.options.iter().cloned().zip(options);
        Scores {
            options: named
                .map(|(option, score)| Some((option, (*score)?)))
                .collect::<Option<_>>()
                .unwrap_or_default(),
            contrast: self.values.as_ref().and_then(|tokens| tokens.of_scores(values)),
        }
    }
}

impl<'a> ModelSubject<'a> {
    /// A model on this machine, whose prompts `builder` makes and `cut` fits into its context.
    pub fn local(
        model: &'a mut LocalModel,
        builder: PromptBuilder,
        cut: Cut,
        row_roles: Vec<&'static str>,
        options: SubjectOptions,
        stop: &'a AtomicBool,
    ) -> Self {
        let tokenizer = Arc::clone(model.tokenizer());
        let prepare = Arc::new(move |case: &Case| cut_to_budget(&builder, &tokenizer, case, cut));
        let (session, text) = model.parts();
        ModelSubject::new(session, text, prepare, row_roles, options, stop)
    }

    /// A model anywhere, which stops at the next chunk or token, or before the next call, when `stop` is set. Spans in `row_roles` are
    /// recorded as rows, beside the query ([`crate::benchmarks::row_roles`]).
    pub fn new(
        model: &'a mut dyn Backend,
        text: &'a ModelText,
        prepare: Arc<Prepare>,
        row_roles: Vec<&'static str>,
        options: SubjectOptions,
        stop: &'a AtomicBool,
    ) -> Self {
        ModelSubject {
            model,
            text,
            prepare,
            row_roles,
            options,
            stop,
            on_text: None,
            stops: Vec::new(),
            decisive: None,
            prefetched: Vec::new(),
            failed_in_a_row: 0,
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

    /// The case as its probes are shown it, from its worker where it has one.
    fn prepared(&mut self, case: &Case) -> Prepared {
        let at = self.prefetched.iter().position(|(other, _)| other == case);
        let prepared = at.and_then(|at| self.prefetched.remove(at).1.join().ok());
        prepared.unwrap_or_else(|| (self.prepare)(case))
    }

    fn try_case(
        &mut self,
        case: &Case,
        wanted: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), CaseError> {
        let parts = self.prepared(case).map_err(|e| CaseError::Failed(e.into()))?;
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
        let probes = &case.probes[fitted.probes.clone()];
        let mut asked = Vec::new();
        for &question in wanted {
            let Some(at) = probes.iter().position(|p| p.id == question.probe.id) else { continue };
            match self.asked(question, &fitted.prompts[at]) {
                Ok(one) => asked.push(one),
                Err(error) => sink(question, Err(error.into()))?,
            }
        }
        let shared = self.shared_tokens(fitted);
        // Those with knock-outs inside the shared part come last, as they are read.
        asked.sort_by_key(|one| {
            std::cmp::Reverse(one.holes.first_row().map_or(shared, |first| first.min(shared)))
        });
        if self.options.share_prefix {
            return Ok(self.answer(case, (fitted, shared), asked, status, sink)?);
        }
        // Without a prefix nothing is taken from what was asked before.
        Ok(asked.into_iter().try_for_each(|one| self.answer(case, (fitted, 0), vec![one], status, sink))?)
    }

    fn asked<'p>(
        &self,
        question: Question<'p>,
        prompt: &'p TokenizedPrompt,
    ) -> Result<Asked<'p>, ProbeError> {
        let holes = self.holes(question, prompt)?;
        let Probe { prefix, options, contrast, .. } = question.probe;
        let room = self.text.context.saturating_sub(prompt.tokens.len());
        let fits = |texts: &Vec<Vec<u32>>| texts.iter().all(|tokens| tokens.len() <= room);
        let options = self.text.option_tokens(prefix, options)?.filter(fits).unwrap_or_default();
        let values = match contrast {
            Some(contrasted) => ContrastTokens::new(contrasted, prefix, self.text)?,
            None => None,
        };
        Ok(Asked {
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
    fn branch(&self, case: &Case, one: &Asked<'_>, shared: usize) -> Branch {
        let Question { probe, condition } = one.question;
        let length = one.prompt.tokens.len();
        let mut observe = Observe::default();
        // Without rows nothing is recorded.
        if self.options.attention {
            let mut rows =
                Rows { spans: row_spans(one.prompt, &self.row_roles), answer: AnswerRows::default() };
            if self.options.answer_rows {
                rows.spans.push(engine::last(length));
                rows.answer.mean = Some(rows.spans.len());
                rows.answer.step = self.decisive.is_some();
            }
            observe.rows = rows;
            observe.keys = one.prompt.spans.iter().chain(&one.prompt.overlays).cloned().collect();
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
        let mut scored = one.options.clone();
        scored.extend(one.values.iter().flat_map(ContrastTokens::sequences));
        if !scored.is_empty() {
            tasks.push(Task::Score(scored));
        }
        Branch { tokens: one.prompt.tokens[shared..].to_vec(), knockouts: one.holes.clone(), observe, tasks }
    }

    /// Answers probes whose prompts begin with the same `shared` tokens, and hands their outcomes on, batch by batch.
    fn answer(
        &mut self,
        case: &Case,
        (fitted, shared): (&BudgetedCase, usize),
        mut asked: Vec<Asked<'_>>,
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        let Some(first) = asked.first() else { return Ok(()) };
        let request = Request {
            prefix: first.prompt.tokens[..shared].into(),
            reuse: Reuse::Prefix,
            branches: asked.iter().map(|one| self.branch(case, one, shared)).collect(),
        };
        let (stop, text) = (self.stop, self.text);
        let mut outcomes = Outcomes {
            text,
            options: self.options,
            stops: &self.stops,
            decisive: self.decisive,
            dtype: self.model.dtype(),
            case,
            dropped: &fitted.dropped,
            failed_in_a_row: &mut self.failed_in_a_row,
        };
        let count = asked.len();
        let mut texts =
            self.on_text.as_mut().map(|show| AnswerStreams::new(count, &text.tokenizer, &self.stops, show));
        let mut clock = Clock::Prefill(Instant::now());
        let (mut cached, mut answered, mut begun, mut handed) = (0, 0, 0, 0);
        let mut done: Result<(), RunError> = Ok(());
        let first_phase = self.model.first_phase();
        self.model.run(request, &mut |nth, task, event| {
            if nth >= count {
                return true;
            }
            match event {
                Event::Begun(held) if task == 0 => {
                    if let Clock::Decode(begun) = clock {
                        // The answers of the batch before have ended.
                        let seconds = begun.elapsed().as_secs_f64();
                        let stored = outcomes.hand_on(&mut asked, seconds, &mut handed, sink);
                        done = std::mem::replace(&mut done, Ok(())).and(stored);
                        clock = Clock::Prefill(Instant::now());
                    }
                    status.begin(&format!("{} {}", case.id, asked[nth].question), first_phase);
                    (cached, begun) = (held, begun + 1);
                }
                Event::Prefilled(tokens) if task == 0 && tokens > 0 => {
                    cached += tokens;
                    status.prefill(cached, asked[nth].prompt.tokens.len());
                }
                Event::Prompt if task == 0 => {
                    if let Clock::Prefill(begun) = clock {
                        asked[nth].prefill_seconds = begun.elapsed().as_secs_f64();
                        asked[nth].steps = 1;
                        clock = Clock::Prefill(Instant::now());
                    }
                }
                Event::Token(chosen) => {
                    if let Clock::Prefill(_) = clock {
                        let batch = asked.iter().filter(|one| one.steps > 0 && one.outcome.is_none());
                        let names: Vec<String> = batch.map(|one| one.question.to_string()).collect();
                        status.begin(&format!("{} {}", case.id, names.join(", ")), "decode");
                        clock = Clock::Decode(Instant::now());
                        answered = 0;
                    }
                    texts.iter_mut().for_each(|texts| texts.take(nth, Some(chosen.token)));
                    asked[nth].steps += 1;
                    answered += 1;
                    status.decode(answered);
                }
                Event::Done(measured) if task > 0 => {
                    asked[nth].scores = Ok(asked[nth].scores(&measured.scores));
                }
                Event::Failed(error) if task > 0 => asked[nth].scores = Err(error),
                Event::Done(measured) => {
                    texts.iter_mut().for_each(|texts| texts.take(nth, None));
                    asked[nth].outcome = Some(Ok(measured));
                }
                Event::Failed(error) => asked[nth].outcome = Some(Err(error)),
                _ => {}
            }
            done.is_ok() && !stop.load(Ordering::Relaxed)
        });
        let (Clock::Decode(since) | Clock::Prefill(since)) = clock;
        let seconds = since.elapsed().as_secs_f64();
        let stored = outcomes.hand_on(&mut asked, seconds, &mut handed, sink);
        let done = done.and(stored);
        if let Err(RunError::Stopped) = &done {
            status.lose(begun - handed);
        }
        done
    }
}

/// Turns the outputs of a case into outcomes.
struct Outcomes<'a> {
    text: &'a ModelText,
    options: SubjectOptions,
    stops: &'a [String],
    decisive: Option<&'static Benchmark>,
    dtype: String,
    case: &'a Case,
    dropped: &'a Dropped,
    failed_in_a_row: &'a mut usize,
}

impl Outcomes<'_> {
    /// Hands on the outcomes that are there, of answers that were generated together in these seconds. Counts them in `handed`.
    fn hand_on(
        &mut self,
        asked: &mut [Asked<'_>],
        seconds: f64,
        handed: &mut usize,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        let done = |one: &Asked<'_>| matches!(one.outcome, Some(Ok(_)));
        let all: usize = asked.iter().filter(|one| done(one)).map(|one| one.steps).sum();
        let mut stopped = Ok(());
        for one in asked {
            let Some(outcome) = one.outcome.take() else { continue };
            let decode_seconds = seconds * (one.steps as f64 / all.max(1) as f64);
            let outcome = outcome.map_err(ProbeError::from).and_then(|measured| {
                let scores = std::mem::replace(&mut one.scores, Ok(Scores::default()))?;
                self.outcome(one, (*measured, scores), decode_seconds)
            });
            match outcome {
                // Answers that ended beside those that a stop cuts off are kept.
                Err(ProbeError::Request(RequestError::Engine(EngineError::Interrupted))) => {
                    stopped = Err(RunError::Stopped);
                }
                outcome => {
                    *handed += 1;
                    let unreachable = match &outcome {
                        Err(ProbeError::Request(RequestError::Unreachable(error))) => Some(error.clone()),
                        _ => None,
                    };
                    if outcome.is_ok() {
                        *self.failed_in_a_row = 0;
                    }
                    match sink(one.question, outcome.map_err(NoAnswer::from)) {
                        Err(RunError::Stopped) => stopped = Err(RunError::Stopped),
                        stored => stored?,
                    }
                    if let Some(error) = unreachable {
                        count_failure(self.failed_in_a_row, &NoAnswer::Failed(error))?;
                    }
                }
            }
        }
        stopped
    }

    fn outcome(
        &self,
        one: &Asked<'_>,
        (measured, scores): (Measured, Scores),
        decode_seconds: f64,
    ) -> Result<ProbeOutcome, ProbeError> {
        let Measured { generated, reused, call_seconds, .. } = &measured;
        let (Split { thought, answer }, stop) = match one.question.probe.prefix.is_empty() {
            true => self.text.split(generated)?,
            false => self.text.continuation(generated)?,
        };
        let answer = answer.map(|text| self.text.before_stop(&text, generated, self.stops)).transpose()?;
        let attention = match self.options.attention && stop.has_answer() {
            true => Some(self.measured(one, &measured, answer.as_deref().unwrap_or_default())?),
            false => None,
        };
        let (prompt, generated) = (one.prompt.tokens.len(), generated.tokens.len());
        let cost = match *call_seconds {
            None => Cost::of(one.prefill_seconds, decode_seconds),
            // The time of a prefill elsewhere is unknown here.
            Some(seconds) => Cost::of_call(seconds),
        };
        Ok(ProbeOutcome {
            answer: answer.unwrap_or_default(),
            thought,
            max_thinking: Some(self.text.max_thinking).filter(|&most| most > 0),
            stop,
            prompt_tokens: Some(prompt),
            completion_tokens: Some(generated),
            dropped: self.dropped.clone(),
            scores: scores.options,
            contrast: scores.contrast,
            attention,
            refused_parameters: Vec::new(),
            cost: Some(Cost {
                tokens_computed: Some(prompt - reused),
                tokens_reused: Some(*reused),
                tokens_generated: Some(generated),
                ..cost
            }),
        })
    }

    /// The attention file of an answer, whose text is `text`.
    fn measured(
        &self,
        one: &Asked<'_>,
        measured: &Measured,
        text: &str,
    ) -> Result<AttentionStore, ProbeError> {
        let Measured { generated, measurement, masses, .. } = measured;
        let answer = if self.options.answer_rows { generated.tokens.as_slice() } else { &[] };
        let step = self.decisive_token(generated, text)?.filter(|_| self.options.answer_rows);
        let masses = match step.map(|token| Step { label: VERDICT, token }) {
            None => masses.clone(),
            step => measurement.finish_with(answer.len(), step)?,
        };
        let Masses { layers, rows, mass, uniform, sink, delta, each: _ } = masses;
        Ok(AttentionStore {
            mass,
            sink,
            uniform: Some(uniform),
            delta,
            layers,
            rows,
            keys: one.prompt.spans.iter().chain(&one.prompt.overlays).cloned().collect(),
            tokens: one.prompt.tokens.clone(),
            generated: answer.to_vec(),
            case: self.case.id.clone(),
            probe: one.question.probe.id.clone(),
            condition: one.question.condition.name.clone(),
            model: self.text.name.clone(),
            dtype: self.dtype.clone(),
        })
    }

    /// The token of an answer, whose text is `answer`, at which it decides.
    fn decisive_token(&self, generated: &Generated, answer: &str) -> Result<Option<usize>, TextError> {
        let Some(at) = self.decisive.and_then(|benchmark| (benchmark.decisive)(answer)) else {
            return Ok(None);
        };
        let tokens = generated.tokens.get(generated.thought..).unwrap_or_default();
        let text = |n: usize| self.text.tokenizer.decode(tokens.get(..n).unwrap_or_default(), true);
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

impl From<ProbeError> for NoAnswer {
    fn from(error: ProbeError) -> Self {
        let too_long = matches!(error, ProbeError::Request(RequestError::RefusedTooLong(_)));
        let kind = if too_long { NoAnswer::TooLong } else { NoAnswer::Failed };
        kind(said(error))
    }
}

/// Why a probe has no answer.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
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

/// The early end of a case.
enum CaseError {
    Run(RunError),
    /// No probe of this case can be answered.
    Failed(NoAnswer),
}

impl From<RunError> for CaseError {
    fn from(error: RunError) -> Self {
        CaseError::Run(error)
    }
}

impl Subject for ModelSubject<'_> {
    fn prepare(&mut self, next: &Case) {
        let (prepare, case) = (Arc::clone(&self.prepare), next.clone());
        let worker = thread::Builder::new().name("prepare".to_owned());
        // Where there is no thread to be had, the case is prepared when it is its turn.
        if let Ok(worker) = worker.spawn(move || prepare(&case)) {
            self.prefetched.truncate(1);
            self.prefetched.push((next.clone(), worker));
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

impl ModelSubject<'_> {
    /// The keys that a question's condition hides from rows of its prompt.
    fn holes(&self, question: Question<'_>, prompt: &TokenizedPrompt) -> Result<LayerHoles, KnockoutError> {
        let Some(knockout) = &question.condition.knockout else { return Ok(LayerHoles::default()) };
        let spans: Vec<Span> = prompt.spans.iter().chain(&prompt.overlays).cloned().collect();
        let layers = self.model.layer_kinds();
        LayerHoles::new(std::slice::from_ref(knockout), &spans, prompt.tokens.len(), &layers)
    }

    /// The number of tokens that all of a case's prompts begin with, up to the first query and not inside a row span. Taken over all
    /// probes, asked for or not, so that answers do not depend on the selection.
    fn shared_tokens(&self, fitted: &BudgetedCase) -> usize {
        let mut shared = shared_tokens(&fitted.prompts, &self.row_roles);
        loop {
            // The border of a cut that changes no bit may lie inside a row span again.
            shared = self.model.border(shared);
            let rows = || fitted.prompts.iter().flat_map(|prompt| row_spans(prompt, &self.row_roles));
            match rows().filter(|row| row.start < shared && shared < row.end).map(|row| row.start).min() {
                Some(start) => shared = start,
                None => return shared,
            }
        }
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
