//! A model as a [`Subject`], local or behind a palimpsest server. One request per case: shared prompt prefix, one branch per probe, and
//! attention of query and evidence rows.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use palimpsest_core::attention::Knockout;
use palimpsest_core::engine::{Backend, Event, LocalModel, ModelText, Request, Reuse};

use super::answer_streams::AnswerStreams;
use super::condition::Question;
use super::context_budget::{BudgetError, BudgetedCase, Cut, cut_to_budget};
use super::error::RunError;
use super::probe_output::Outputs;
use super::probe_request::{Asking, PendingProbe, all_spans, no_answer};
use super::rows::NoAnswer;
use super::runner::{ProbeOutcome, Sink, Subject};
use crate::progress::Status;
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::case::Case;
use palimpsest_data::prompt::PromptBuilder;

pub use super::probe_request::{SubjectOptions, row_spans, shared_tokens, stream_seed};

type OnText<'a> = Box<dyn FnMut(&str) + 'a>;

/// Answers a case's probes in batches; batching does not change answers.
pub struct ModelSubject<'a> {
    model: &'a mut dyn Backend,
    asking: Asking<'a>,
    prefetch: Prefetch,
    stop: &'a AtomicBool,
    on_text: Option<OnText<'a>>,
    failed_in_a_row: usize,
}

enum Clock {
    Prefill(Instant),
    Decode(Instant),
}

impl<'a> ModelSubject<'a> {
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

    /// Stops at the next chunk, token or call once `stop` is set. Records attention rows for the query and for spans with `row_roles`
    /// ([`palimpsest_data::benchmarks::row_roles`]).
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
            asking: Asking { text, row_roles, options, stops: Vec::new(), decisive: None },
            prefetch: Prefetch::new(prepare),
            stop,
            on_text: None,
            failed_in_a_row: 0,
        }
    }

    /// Streams answers to `on_text`; an empty piece ends an answer.
    #[must_use]
    pub fn streaming(mut self, on_text: impl FnMut(&str) + 'a) -> Self {
        self.on_text = Some(Box::new(on_text));
        self
    }

    /// Cuts answers before the first stop string; its tokens stay among the generated ones.
    #[must_use]
    pub fn stopping_at(mut self, stops: Vec<String>) -> Self {
        self.asking.stops = stops;
        self
    }

    /// Also records the row [`VERDICT`](palimpsest_data::benchmarks::VERDICT): the generated token that decides the answer according to the
    /// benchmark. Rows of all generated tokens are held until the answer ends.
    #[must_use]
    pub fn deciding(mut self, benchmark: &'static Benchmark) -> Self {
        self.asking.decisive = Some(benchmark);
        self
    }

    /// Answers the probes that share one history. Reports questions lost to a stop to `status`.
    fn answer_part(
        &mut self,
        case: &Case,
        part: &BudgetedCase,
        questions: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        let probes = &case.probes[part.probes.clone()];
        let mut pending = Vec::new();
        for &question in questions {
            let Some(at) = probes.iter().position(|p| p.id == question.probe.id) else { continue };
            let lacks = |knockout: &Knockout| !knockout.missing(&all_spans(&part.prompts[at])).is_empty();
            if question.condition.knockout.as_ref().is_some_and(lacks) {
                sink(question, Ok(ProbeOutcome { left_out: true, ..ProbeOutcome::default() }))?;
                continue;
            }
            match self.asking.pending(question, &part.prompts[at], || self.model.layer_kinds()) {
                Ok(one) => pending.push(one),
                Err(error) => sink(question, Err(no_answer(&error)))?,
            }
        }
        let shared = self.asking.shared_tokens(&part.prompts, |shared| self.model.border(shared));
        // Probes with knock-outs inside the shared prefix come last, as they are read.
        // Those with one eviction stand together, so that they share what it kept.
        pending.sort_by_cached_key(|one| {
            let inside = one.holes.first_row().map_or(shared, |first| first.min(shared));
            (Reverse(inside), one.question.condition.evict.as_ref().map(ToString::to_string))
        });
        if self.asking.options.share_prefix {
            return self.answer(case, (part, shared), pending, status, sink);
        }
        pending.into_iter().try_for_each(|one| self.answer(case, (part, 0), vec![one], status, sink))
    }

    /// Answers probes that share the first `shared` tokens, batch by batch.
    fn answer(
        &mut self,
        case: &Case,
        (part, shared): (&BudgetedCase, usize),
        mut asked: Vec<PendingProbe<'_>>,
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        let Some(first) = asked.first() else { return Ok(()) };
        let request = Request {
            prefix: first.prompt.tokens[..shared].into(),
            reuse: Reuse::Prefix,
            branches: asked.iter().map(|one| self.asking.branch(case, one, shared)).collect(),
        };
        let (stop, asking) = (self.stop, &self.asking);
        let mut outputs = Outputs {
            asking,
            case,
            dropped: &part.dropped,
            dtype: self.model.dtype(),
            failed_in_a_row: &mut self.failed_in_a_row,
        };
        let count = asked.len();
        let tokenizer = &asking.text.tokenizer;
        let mut texts =
            self.on_text.as_mut().map(|show| AnswerStreams::new(count, tokenizer, &asking.stops, show));
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
                        let seconds = begun.elapsed().as_secs_f64();
                        let stored = outputs.hand_on(&mut asked, seconds, &mut handed, sink);
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
                Event::Done(measured) if task > 0 => asked[nth].take_scores(&measured.scores),
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
        let stored = outputs.hand_on(&mut asked, seconds, &mut handed, sink);
        let done = done.and(stored);
        if let Err(RunError::Stopped) = &done {
            status.lose(begun - handed);
        }
        done
    }
}

impl Subject for ModelSubject<'_> {
    fn prepare(&mut self, next: &Arc<Case>) {
        self.prefetch.begin(next);
    }

    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        let parts = match self.prefetch.take(case) {
            Ok(parts) => parts,
            Err(error) => {
                let reason = NoAnswer::from(error);
                return questions.iter().try_for_each(|&question| sink(question, Err(reason.clone())));
            }
        };
        parts.iter().try_for_each(|part| self.answer_part(case, part, questions, status, sink))
    }
}

pub type Prepare = dyn Fn(&Case) -> Prepared + Send + Sync;

pub type Prepared = Result<Vec<BudgetedCase>, BudgetError>;

/// Cuts and tokenises the next case on a worker thread while the model answers the current one. Holds the workers of the next case and, until
/// it starts, of the current one.
struct Prefetch {
    prepare: Arc<Prepare>,
    workers: Vec<(Arc<Case>, JoinHandle<Prepared>)>,
}

impl Prefetch {
    fn new(prepare: Arc<Prepare>) -> Self {
        Prefetch { prepare, workers: Vec::new() }
    }

    fn begin(&mut self, next: &Arc<Case>) {
        let (prepare, case) = (Arc::clone(&self.prepare), Arc::clone(next));
        let worker = thread::Builder::new().name("prepare".to_owned());
        if let Ok(worker) = worker.spawn(move || prepare(&case)) {
            self.workers.truncate(1);
            self.workers.push((Arc::clone(next), worker));
        }
    }

    /// Waits for the case's worker; prepares it here if there is none.
    fn take(&mut self, case: &Case) -> Prepared {
        let at = self.workers.iter().position(|(other, _)| std::ptr::eq(Arc::as_ptr(other), case));
        let prepared = at.and_then(|at| self.workers.remove(at).1.join().ok());
        prepared.unwrap_or_else(|| (self.prepare)(case))
    }
}
