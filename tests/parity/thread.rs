//! The thread that owns a model: it gives the engine's answers, streams, and can be cancelled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use palimpsest_core::attention::Masses;
use palimpsest_core::engine::thread::{EngineThread, Limits};
use palimpsest_core::engine::{
    Engine, EngineError, Event, Generate, Measured, Measurement, Next, Observe, Request, RequestError, Rows,
    Sampling, Task,
};
use palimpsest_core::model::Cache;
use palimpsest_core::span::Span;

use super::reference::TokensFile;
use super::{TINY, apart, engine, fixture, greedy, numbers};

const NEW_TOKENS: usize = 12;

/// Last prompt logits, the answer, and masses.
pub type Found = (Vec<f32>, Vec<u32>, Masses);

/// A repeatable request for one answer.
#[derive(Clone)]
pub struct Asked {
    pub tokens: Vec<u32>,
    pub observe: Observe,
    pub sampling: Sampling,
}

impl Asked {
    pub fn new(tokens: Vec<u32>, sampling: Sampling) -> Self {
        Asked { tokens, observe: Observe::default(), sampling }
    }

    pub fn task(&self) -> Task {
        Task::Generate(Box::new(Generate::new(self.sampling, Vec::new())))
    }

    pub fn request(&self) -> Request {
        Request::of(self.tokens.clone(), self.observe.clone(), self.task())
    }

    /// Calls the engine directly.
    pub fn by(&self, engine: &Engine, context: usize) -> Found {
        let Asked { tokens, observe, sampling } = self;
        let mut cache = engine.decoder().cache(context).unwrap();
        let room = sampling.max_new_tokens;
        let mut measurement = Measurement::new(observe, tokens.len(), room, engine).unwrap();
        let keep = observe.logits.max(1);
        let logits = engine.prefill(&mut cache, tokens, keep, &mut measurement, &mut |_| true).unwrap();
        let last = logits.get(keep - 1).unwrap();
        let said =
            engine.decode(&mut cache, &last, (sampling, &[]), &mut measurement, &mut |_| true).unwrap();
        let masses = measurement.finish(said.tokens.len()).unwrap();
        (numbers(&logits), said.tokens, masses)
    }
}

/// Starts a thread with its own loop.
pub fn start(engine: Engine, cache: Cache, limits: Limits) -> EngineThread {
    let (handle, work) = EngineThread::here(engine, cache, limits);
    std::thread::spawn(move || work.run());
    handle
}

/// Single-task requests whose events come from a ticket.
pub trait Ask {
    fn ask(&self, request: Request) -> Ticket;
}

impl Ask for EngineThread {
    fn ask(&self, request: Request) -> Ticket {
        let (events, heard) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&cancelled);
        self.submit(request, move |event| events.send(event).is_ok() && !flag.load(Ordering::Relaxed));
        Ticket { events: heard, cancelled }
    }
}

/// A queued request of one task. Dropping it cancels the request.
#[derive(Debug)]
pub struct Ticket {
    events: mpsc::Receiver<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Ticket {
    pub fn next_event(&self) -> Option<Event> {
        self.events.recv().ok()
    }

    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub fn wait(self) -> Result<Measured, RequestError> {
        while let Some(event) = self.next_event() {
            match event {
                Event::Done(measured) => return Ok(*measured),
                Event::Failed(error) => return Err(error),
                _ => {}
            }
        }
        Err(RequestError::Gone)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

fn asked(file: &TokensFile) -> Asked {
    let (tokens, keys) = (file.tokens.clone(), file.keys());
    let rows = Rows::named(&["new", "query", "last", "answer", "each"], &keys, tokens.len()).unwrap();
    let observe = Observe { logits: 2, rows, keys, ..Observe::default() };
    Asked { observe, ..Asked::new(tokens, greedy(NEW_TOKENS)) }
}

fn thread(name: &str) -> (EngineThread, Asked) {
    let file = TokensFile::of(name);
    let context = file.tokens.len() + NEW_TOKENS;
    let engine = engine(&fixture(name), 37);
    let cache = engine.decoder().cache(context).unwrap();
    (start(engine, cache, Limits::of_context(context)), asked(&file))
}

/// Same, calling the engine directly.
fn directly(name: &str) -> Found {
    let asked = asked(&TokensFile::of(name));
    asked.by(&engine(&fixture(name), 37), asked.tokens.len() + NEW_TOKENS)
}

fn same(measured: &Measured, (logits, tokens, masses): &Found) {
    assert_eq!(measured.logits.iter().copied().collect::<Vec<f32>>(), *logits);
    assert_eq!(measured.generated.tokens, *tokens);
    near(&measured.masses, masses);
}

/// Rows of several chunks are summed chunk by chunk.
fn near(a: &Masses, b: &Masses) {
    assert_eq!((&a.layers, &a.rows), (&b.layers, &b.rows));
    let flat = |masses: &Masses| -> Vec<f32> {
        let each = masses.each.iter().flat_map(|each| &each.mass);
        let delta = masses.delta.iter().flat_map(|delta| delta.signed.iter().chain(&delta.share));
        masses.mass.iter().chain(masses.sink.iter().flatten()).chain(delta).chain(each).copied().collect()
    };
    let apart = apart(&flat(a), &flat(b));
    assert!(apart < 1e-6, "masses are {apart:e} apart");
}

#[test]
fn requests_from_several_threads_are_answered_in_turn_as_if_each_were_alone() {
    for name in [TINY[0], "qwen35-text-tiny", "gpt-oss-tiny"] {
        let expected = directly(name);
        let (model, asked) = thread(name);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (model, request, expected) = (model.clone(), asked.request(), &expected);
                scope.spawn(move || {
                    let ticket = model.ask(request);
                    let (mut read, mut said) = (0, Vec::new());
                    while let Some(event) = ticket.next_event() {
                        match event {
                            Event::Begun(tokens) | Event::Prefilled(tokens) => read += tokens,
                            Event::Prompt | Event::Scored(_) | Event::Logits(..) => {}
                            Event::Token(chosen) => said.push(chosen.token),
                            Event::Done(measured) => same(&measured, expected),
                            Event::Failed(error) => panic!("{error}"),
                        }
                    }
                    assert_eq!(said, expected.1, "tokens come one by one, before the end");
                    assert_eq!(read, TokensFile::of(name).tokens.len());
                });
            }
        });
    }
}

#[test]
fn a_request_is_cancelled_while_it_waits_while_it_reads_and_while_it_answers() {
    let expected = directly(TINY[0]);
    let (model, asked) = thread(TINY[0]);
    let interrupted = |error: &RequestError| matches!(error, RequestError::Engine(EngineError::Interrupted));
    // After the first chunk, and after the third token, the sink cancels.
    for until in [Some(37), None] {
        let (told, heard) = mpsc::channel();
        let (mut read, mut said) = (0, 0);
        model.submit(asked.request(), move |event| match event {
            Event::Begun(tokens) | Event::Prefilled(tokens) => {
                read += tokens;
                until.is_none_or(|until| read < until)
            }
            Event::Token(_) => {
                said += 1;
                said < 3
            }
            Event::Prompt => true,
            Event::Scored(_) | Event::Logits(..) | Event::Done(_) => {
                panic!("it was cancelled, and asks for no probabilities")
            }
            Event::Failed(error) => {
                let _ = told.send((read, said, error));
                true
            }
        });
        let (read, said, error) = heard.recv().unwrap();
        assert!(interrupted(&error), "{error}");
        assert_eq!((read == 37, said), (until.is_some(), if until.is_some() { 0 } else { 3 }));
    }
    // Queued behind another one; and by a disconnected client.
    let first = model.ask(asked.request());
    let second = model.ask(asked.request());
    second.cancel();
    drop(model.ask(asked.request()));
    same(&first.wait().unwrap(), &expected);
    assert!(interrupted(&second.wait().unwrap_err()));
    // None of this affects the next one.
    same(&model.ask(asked.request()).wait().unwrap(), &expected);
}

#[test]
fn what_cannot_be_served_is_an_error_of_its_own_request_and_a_sampled_answer_is_the_seeds() {
    let (model, asked) = thread(TINY[0]);
    let said = |asked: Asked| model.ask(asked.request()).wait().unwrap_err().to_string();
    let long = Sampling { max_new_tokens: NEW_TOKENS + 1, ..asked.sampling };
    assert!(said(Asked { sampling: long, ..asked.clone() }).contains("do not fit the context"));
    let outside = Observe { keys: vec![Span::new("far", 0..10_000)], ..asked.observe.clone() };
    assert!(said(Asked { observe: outside, ..asked.clone() }).contains("`far`"));
    assert!(said(Asked::new(Vec::new(), asked.sampling)).contains("no tokens"));
    let sampled = |seed| {
        let sampling = Sampling { temperature: 1.0, seed, ..asked.sampling };
        let sampled = Asked { sampling, ..asked.clone() };
        model.ask(sampled.request()).wait().unwrap().generated.tokens
    };
    assert_eq!(sampled(3), sampled(3));
    assert_ne!(sampled(3), sampled(4));
    let sampling = Sampling { max_new_tokens: 0, ..asked.sampling };
    let rows = Rows::named(&["new"], &asked.observe.keys, asked.tokens.len()).unwrap();
    let observe = Observe { rows, ..asked.observe };
    let measured = model.ask(Asked { sampling, observe, ..asked }.request()).wait().unwrap();
    assert!(measured.generated.tokens.is_empty() && measured.masses.each.is_none());
}

/// A thread with short chunks, and a plain request for it.
fn plain(name: &str) -> (EngineThread, impl Fn(&[u32]) -> Request + use<>) {
    let engine = engine(&fixture(name), 16);
    let cache = engine.decoder().cache(400).unwrap();
    let thread = start(engine, cache, Limits::of_context(400));
    (thread, |tokens: &[u32]| Asked::new(tokens.to_vec(), greedy(8)).request())
}

#[test]
fn what_prompts_share_is_kept_and_changes_no_bit() {
    // Full softmax attention, linear layers, windows with sinks, and windows.
    for name in [TINY[0], "qwen35-text-tiny", "gpt-oss-tiny", "gemma3-tiny", "gemma4-tiny"] {
        let tokens = TokensFile::of(name).tokens;
        let other = |shared: usize, more: u32| -> Vec<u32> {
            tokens[..shared].iter().copied().chain((0..more).map(|i| 3 + i * 7919 % 61)).collect()
        };
        // In turn: longer, shorter, diverging inside a chunk and at its border, repeated, and unrelated.
        let prompts = [
            tokens.clone(),
            other(100, 30),
            other(100, 5),
            other(96, 9),
            tokens.clone(),
            other(32, 1),
            other(33, 80),
            other(0, 50),
            tokens.clone(),
            tokens[..97].to_vec(),
            tokens[..96].to_vec(),
        ];
        let (kept, request) = plain(name);
        let mut reused = Vec::new();
        for prompt in &prompts {
            let found = kept.ask(request(prompt)).wait().unwrap();
            let (fresh, request) = plain(name);
            let expected = fresh.ask(request(prompt)).wait().unwrap();
            assert_eq!(found.logits, expected.logits, "{name}, {} tokens", prompt.len());
            assert_eq!(found.generated, expected.generated, "{name}, {} tokens", prompt.len());
            assert_eq!(expected.reused, 0);
            assert!(found.reused < prompt.len());
            reused.push(found.reused);
        }
        if [TINY[0]].contains(&name) {
            // Up to the last shared token, except the last two of a prompt.
            assert!(reused[1] >= 100 && reused[2] >= 100, "{reused:?}");
            assert_eq!((reused[0], reused[7]), (0, 0), "{reused:?}");
            assert_eq!(reused[8..], [tokens.len() - 2, 95, 94], "{reused:?}");
        }
        assert!(reused.iter().sum::<usize>() > 0, "{name}: {reused:?}");
    }
}

#[test]
fn a_prompt_that_is_measured_keeps_what_lies_before_its_rows_and_gets_the_same_masses() {
    for name in [TINY[0], "qwen35-text-tiny", "gpt-oss-tiny"] {
        let (model, _) = plain(name);
        let file = TokensFile::of(name);
        let first = model.ask(asked(&file).request()).wait().unwrap();
        let again = model.ask(asked(&file).request()).wait().unwrap();
        assert_eq!(first.logits, again.logits, "{name}");
        near(&first.masses, &again.masses);
        let mut late = asked(&file);
        late.observe.rows =
            Rows::named(&["last", "answer", "each"], &late.observe.keys, late.tokens.len()).unwrap();
        let late = model.ask(late.request()).wait().unwrap();
        let linear = name.starts_with("qwen35");
        assert_eq!(late.reused > 64, !linear, "{name}: {}", late.reused);
        assert_eq!(late.masses.each, first.masses.each, "{name}");
    }
}

#[test]
fn an_answer_ends_where_its_sink_says_and_a_panic_ends_its_request_alone() {
    let expected = directly(TINY[0]);
    let (model, asked) = thread(TINY[0]);
    let (told, heard) = mpsc::channel();
    let mut said = 0;
    model.submit(asked.request(), move |event| match event {
        Event::Token(_) => {
            said += 1;
            if said == 4 { Next::End } else { Next::Go }
        }
        Event::Done(measured) => {
            told.send(measured).unwrap();
            Next::Cancel
        }
        _ => Next::Go,
    });
    let measured = heard.recv().unwrap();
    assert_eq!(measured.generated.tokens, expected.1[..4]);
    assert_eq!(measured.masses.each.as_ref().unwrap().mass.dim().2, 4);
    let (told, heard) = mpsc::channel();
    model.submit(asked.request(), move |event| match event {
        Event::Token(_) => panic!("of this test"),
        Event::Failed(error) => {
            told.send(error).unwrap();
            true
        }
        _ => true,
    });
    assert!(matches!(heard.recv().unwrap(), RequestError::Panicked));
    same(&model.ask(asked.request()).wait().unwrap(), &expected);
}
