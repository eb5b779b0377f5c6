//! The thread that owns a model: its answers are those of the engine, it streams, and it can be cancelled.

use std::sync::mpsc;

use palimpsest::engine::thread::{EngineThread, Event, Measured, Request, RequestError};
use palimpsest::engine::{EngineError, Measurement, Rows, Sampling};
use palimpsest::prompt::Span;

use super::reference::TokensFile;
use super::{TINY, engine, fixture, greedy};

const NEW_TOKENS: usize = 12;

fn request(file: &TokensFile) -> Request {
    let (tokens, keys) = (file.tokens.clone(), file.keys());
    let rows = Rows::named(&["new", "query", "last", "answer", "each"], &keys, tokens.len()).unwrap();
    Request { tokens, keep: 2, rows, keys, sampling: greedy(NEW_TOKENS), stop: Vec::new() }
}

fn thread(name: &str) -> (EngineThread, Request) {
    let file = TokensFile::of(name);
    let context = file.tokens.len() + NEW_TOKENS;
    (EngineThread::start(engine(&fixture(name), 37), context).unwrap(), request(&file))
}

/// The same, called directly.
fn directly(name: &str) -> (Vec<f32>, Vec<u32>, palimpsest::attention::Masses) {
    let file = TokensFile::of(name);
    let Request { tokens, rows, keys, sampling, .. } = request(&file);
    let engine = engine(&fixture(name), 37);
    let mut cache = engine.decoder().cache(tokens.len() + NEW_TOKENS).unwrap();
    let mut measurement = Measurement::new(rows, keys, tokens.len()).unwrap();
    let logits = measurement.prefill(&engine, &mut cache, &tokens, 2, &mut |_| true).unwrap();
    let last = logits.get(1).unwrap();
    let said = measurement.decode(&engine, &mut cache, &last, (&sampling, &[]), &mut |_| true).unwrap();
    let masses = measurement.finish(said.tokens.len()).unwrap();
    (logits.flatten_all().unwrap().to_vec1().unwrap(), said.tokens, masses)
}

fn same(measured: &Measured, (logits, tokens, masses): &(Vec<f32>, Vec<u32>, palimpsest::attention::Masses)) {
    assert_eq!(measured.logits.iter().copied().collect::<Vec<f32>>(), *logits);
    assert_eq!(measured.generated.tokens, *tokens);
    assert_eq!(measured.masses, *masses);
}

#[test]
fn requests_from_several_threads_are_answered_in_turn_as_if_each_were_alone() {
    for name in [TINY[0], "qwen35-text-tiny", "gpt-oss-tiny"] {
        let expected = directly(name);
        let (model, request) = thread(name);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (model, request, expected) = (model.clone(), request.clone(), &expected);
                scope.spawn(move || {
                    let ticket = model.ask(request);
                    let (mut read, mut said) = (0, Vec::new());
                    while let Some(event) = ticket.next_event() {
                        match event {
                            Event::Prefilled(tokens) => read += tokens,
                            Event::Token(token) => said.push(token),
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
    let (model, request) = thread(TINY[0]);
    let interrupted = |error: &RequestError| matches!(error, RequestError::Engine(EngineError::Interrupted));
    // After the first chunk, and after the third token: the sink says when.
    for until in [Some(37), None] {
        let (told, heard) = mpsc::channel();
        let (mut read, mut said) = (0, 0);
        model.submit(request.clone(), move |event| match event {
            Event::Prefilled(tokens) => {
                read += tokens;
                until.is_none_or(|until| read < until)
            }
            Event::Token(_) => {
                said += 1;
                said < 3
            }
            Event::Done(_) => panic!("it was cancelled"),
            Event::Failed(error) => {
                let _ = told.send((read, said, error));
                true
            }
        });
        let (read, said, error) = heard.recv().unwrap();
        assert!(interrupted(&error), "{error}");
        assert_eq!((read == 37, said), (until.is_some(), if until.is_some() { 0 } else { 3 }));
    }
    // Behind another one, before its turn; and by a client that went away.
    let first = model.ask(request.clone());
    let second = model.ask(request.clone());
    second.cancel();
    drop(model.ask(request.clone()));
    same(&first.wait().unwrap(), &expected);
    assert!(interrupted(&second.wait().unwrap_err()));
    // None of this is seen by the next one.
    same(&model.ask(request).wait().unwrap(), &expected);
}

#[test]
fn what_cannot_be_served_is_an_error_of_its_own_request_and_a_sampled_answer_is_the_seeds() {
    let (model, request) = thread(TINY[0]);
    let said = |request: Request| model.ask(request).wait().unwrap_err().to_string();
    let long = Sampling { max_new_tokens: NEW_TOKENS + 1, ..request.sampling };
    assert!(said(Request { sampling: long, ..request.clone() }).contains("do not fit the context"));
    let outside = vec![Span::new("far", 0..10_000)];
    assert!(said(Request { keys: outside, ..request.clone() }).contains("`far`"));
    assert!(
        said(Request { tokens: Vec::new(), rows: Rows::default(), keys: Vec::new(), ..request.clone() })
            .contains("no tokens")
    );
    let sampled = |seed| {
        let sampling = Sampling { temperature: 1.0, seed, ..request.sampling };
        model.ask(Request { sampling, ..request.clone() }).wait().unwrap().generated.tokens
    };
    assert_eq!(sampled(3), sampled(3));
    assert_ne!(sampled(3), sampled(4));
    let nothing = Sampling { max_new_tokens: 0, ..request.sampling };
    let rows = Rows::named(&["new"], &request.keys, request.tokens.len()).unwrap();
    let measured = model.ask(Request { sampling: nothing, rows, ..request }).wait().unwrap();
    assert!(measured.generated.tokens.is_empty() && measured.masses.each.is_none());
}
