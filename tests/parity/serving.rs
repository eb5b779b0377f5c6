//! Concurrent requests: each gets the bits of the runner's engine alone, whatever is cached and whoever else is served.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use palimpsest_core::attention::Masses;
use palimpsest_core::engine::thread::{Caller, EngineLoop, EngineThread, Limits, Scope};
use palimpsest_core::engine::{
    Branch, EngineError, Event, Measured, Next, Observe, Request, RequestError, Reuse, Rows, Sampling, Sink,
    Task,
};
use palimpsest_core::span::Span;

use super::checkpoint::Llama;
use super::thread::{Ask, Asked, Found, start};
use super::{TINY, apart, engine, fixture, greedy};

const CONTEXT: usize = 2048;
const NEW: usize = 10;

/// Full softmax attention, experts, windows, windows with sinks, linear layers; and quantised files.
const MODELS: [&str; 8] = [
    "llama-tiny",
    "qwen3-moe-tiny",
    "gemma3-tiny",
    "gpt-oss-tiny",
    "qwen35-text-tiny",
    "gguf-llama",
    "gguf-gemma3",
    "gguf-qwen35-text",
];

fn path(name: &str) -> std::path::PathBuf {
    let folder = fixture(name);
    let file = folder.join("model.gguf");
    if file.exists() { file } else { folder }
}

/// Tokens of a text; two with different seeds share no prefix.
fn text(seed: usize, l: usize) -> Vec<u32> {
    (0..l).map(|i| 3 + ((i + 17 * seed) * 7919 % 61) as u32).collect()
}

/// Concatenates `parts`.
fn joined(parts: &[Vec<u32>]) -> Vec<u32> {
    parts.concat()
}

/// A request that measures the last position, each generated token, and a span near the end.
fn measured(tokens: Vec<u32>) -> Asked {
    let n = tokens.len();
    let keys = vec![Span::new("a", 0..n / 3), Span::new("b", n / 3..n - 8), Span::new("c", n - 8..n)];
    let rows = Rows::named(&["c", "last", "answer", "each"], &keys, n).unwrap();
    let observe = Observe { rows, keys, ..Observe::default() };
    Asked { observe, ..plain(tokens) }
}

/// A request without measurements.
fn plain(tokens: Vec<u32>) -> Asked {
    Asked::new(tokens, greedy(NEW))
}

/// The runner's engine on a request: its chunks are four times as long, and its cache covers the whole context.
fn alone(name: &str, asked: &Asked) -> Found {
    asked.by(&engine(&path(name), 1024), CONTEXT)
}

fn same(what: &str, found: &Measured, (logits, tokens, masses): &Found) {
    assert_eq!(found.logits.iter().copied().collect::<Vec<f32>>(), *logits, "{what}: logits");
    assert_eq!(found.generated.tokens, *tokens, "{what}: tokens");
    let flat = |masses: &Masses| -> Vec<f32> {
        let each = masses.each.as_ref().unwrap();
        let delta = masses.delta.iter().chain(&each.delta).flat_map(|delta| &delta.share);
        masses.mass.iter().chain(&each.mass).chain(delta).copied().collect()
    };
    let masses = apart(&flat(&found.masses), &flat(masses));
    assert!(masses < 1e-6, "{what}: masses are {masses:e} apart");
}

fn thread(name: &str, limits: Limits) -> EngineThread {
    let engine = engine(&path(name), 256);
    let cache = engine.decoder().cache(CONTEXT).unwrap();
    start(engine, cache, limits)
}

fn many() -> Limits {
    Limits { parallel: 6, tokens: 8 * CONTEXT, prompts: 12 }
}

/// Prompts with a common prefix longer than a runner's chunk that diverge at different places; another of that length, and short ones.
fn prompts() -> Vec<Vec<u32>> {
    let (history, question) = (text(0, 1100), |nth: usize| text(20 + nth, 30 + nth));
    vec![
        joined(&[history.clone(), question(1)]),
        joined(&[history.clone(), question(2)]),
        joined(&[text(3, 1050), question(3)]),
        joined(&[history[..500].to_vec(), question(4), text(5, 700)]),
        text(6, 40),
        joined(&[history.clone(), question(1), text(7, 64)]),
        joined(&[history.clone(), question(2)]),
        joined(&[history[..130].to_vec(), text(8, 1)]),
        text(9, 1),
    ]
}

#[test]
fn answers_logits_and_masses_are_those_of_the_runners_engine_whoever_else_is_served() {
    for name in MODELS {
        let requests: Vec<Asked> = prompts()
            .into_iter()
            .enumerate()
            // Measured and plain requests are mixed.
            .map(|(nth, tokens)| match nth % 2 {
                0 if tokens.len() > 30 => measured(tokens),
                _ => plain(tokens),
            })
            .collect();
        let expected: Vec<_> = requests.iter().map(|request| alone(name, request)).collect();
        let thread = thread(name, many());
        // All at once, then in turn, then at once in another order with one cancelled.
        let order: Vec<usize> = (0..requests.len()).collect();
        for (round, order) in [order.clone(), order.iter().rev().copied().collect()].into_iter().enumerate() {
            let tickets: Vec<_> =
                order.iter().map(|&nth| (nth, thread.ask(requests[nth].request()))).collect();
            drop(thread.ask(plain(text(11, 900)).request()));
            for (nth, ticket) in tickets {
                let found = ticket.wait().unwrap();
                let expected = &expected[nth];
                assert_eq!(found.generated.tokens, expected.1, "{name}, prompt {nth}, round {round}");
                if requests[nth].observe.rows.answer.any() {
                    same(&format!("{name}, prompt {nth}, round {round}"), &found, expected);
                } else {
                    let logits: Vec<f32> = found.logits.iter().copied().collect();
                    assert_eq!(logits, expected.0, "{name}, prompt {nth}, round {round}");
                }
            }
            let one = thread.ask(requests[round].request()).wait().unwrap();
            assert_eq!(one.generated.tokens, expected[round].1, "{name}, alone");
        }
        let load = thread.load();
        assert!(load.found > 0 && load.stepped > load.steps, "{name}: {load:?}");
        assert_eq!((load.running, load.waiting), (0, 0), "{name}");
        assert!(load.cached > 0 && load.cached <= load.room, "{name}: {load:?}");
    }
}

#[test]
fn what_waiting_prompts_share_is_read_once() {
    let thread = thread(TINY[0], many());
    let history = text(0, 1000);
    let tickets: Vec<_> = (0..6)
        .map(|nth| {
            let tokens = joined(&[history.clone(), text(20 + nth, 12)]);
            thread.ask(plain(tokens).request())
        })
        .collect();
    tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
    let load = thread.load();
    assert!((1012..1012 + 6 * 14).contains(&(load.read as usize)), "{load:?}");
    assert_eq!(load.found + load.read, 6 * 1012);
}

#[test]
fn prompts_of_different_scopes_share_nothing_while_they_wait_or_later() {
    for name in [TINY[0], "qwen35-text-tiny"] {
        let engine = engine(&path(name), 256);
        let cache = engine.decoder().cache(CONTEXT).unwrap();
        let (thread, mut work) = EngineThread::here(engine, cache, many());
        let history = text(0, 600);
        let asked = |nth: usize| plain(joined(&[history.clone(), text(20 + nth, 12)]));
        let expected: Vec<_> = (0..2).map(|nth| alone(name, &asked(nth))).collect();
        let (told, heard) = mpsc::channel();
        // Each scope asks twice at once; then again.
        let ask = |scope: u8, nth: usize| {
            let told = told.clone();
            let sink: Sink = Box::new(move |event| {
                match event {
                    Event::Done(measured) => told.send((scope, nth, measured)).unwrap(),
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
                Next::Go
            });
            let caller = Caller::within(Scope([scope; 32]));
            thread.submit_of(caller, asked(nth).request(), vec![sink]);
        };
        let answers = |work: &mut EngineLoop| {
            while work.turn() {}
            let mut reused = [0, 0];
            for (scope, nth, measured) in heard.try_iter() {
                assert_eq!(measured.generated.tokens, expected[nth].1, "{name}");
                reused[usize::from(scope)] += measured.reused;
            }
            reused
        };
        [(0, 0), (1, 0), (0, 1), (1, 1)].into_iter().for_each(|(scope, nth)| ask(scope, nth));
        let [first, second] = answers(&mut work);
        // The history is read once in each scope.
        assert_eq!(first, second, "{name}");
        assert!((400..612).contains(&first), "{name}: {first}");
        assert_eq!(thread.load().read as usize, 4 * 612 - first - second, "{name}");
        ask(1, 0);
        let [none, again] = answers(&mut work);
        assert!(none == 0 && again > 400, "{name}: {again}");
    }
}

#[test]
fn choices_of_a_prompt_read_it_once_and_each_says_what_it_would_alone() {
    for name in [TINY[0], "gemma3-tiny", "qwen35-text-tiny"] {
        let tokens = text(0, 600);
        let asked = |seed| {
            let sampling = Sampling { temperature: 1.3, seed, ..greedy(NEW) };
            Asked { sampling, ..measured(tokens.clone()) }
        };
        let expected: Vec<_> = (0..5).map(|seed| alone(name, &asked(seed))).collect();
        // More choices than slots.
        let thread = thread(name, Limits { parallel: 2, ..many() });
        let (told, heard) = mpsc::channel();
        let sinks: Vec<Sink> = (0..5)
            .map(|seed| -> Sink {
                let told = told.clone();
                Box::new(move |event| {
                    match event {
                        Event::Done(measured) => told.send((seed, measured)).unwrap(),
                        Event::Failed(error) => panic!("{error}"),
                        _ => {}
                    }
                    Next::Go
                })
            })
            .collect();
        let Asked { tokens, observe, .. } = asked(0);
        let tasks: Vec<Task> = (0..5).map(|seed| asked(seed).task()).collect();
        let branches = vec![Branch { tokens, observe, tasks, ..Branch::default() }];
        thread.submit_all(Request { reuse: Reuse::Longest, branches, ..Request::default() }, sinks);
        for _ in 0..5 {
            let (seed, measured) = heard.recv().unwrap();
            same(&format!("{name}, seed {seed}"), &measured, &expected[seed as usize]);
        }
        assert_eq!(thread.load().read, 600, "{name}");
        assert_ne!(expected[0].1, expected[1].1, "{name}: seeds differ");
    }
}

#[test]
fn what_does_not_fit_waits_and_what_was_used_longest_ago_makes_room() {
    for name in [TINY[0], "qwen35-text-tiny"] {
        // Room for barely more than one context.
        let thread = thread(name, Limits { parallel: 8, tokens: 1, prompts: 1 });
        let room = thread.load().room;
        assert_eq!(room, CONTEXT + Limits::BESIDE, "{name}");
        let requests: Vec<Asked> =
            (0..5).map(|nth| Asked::new(text(nth, 700 + 40 * nth), greedy(300))).collect();
        let tickets: Vec<_> = requests.iter().map(|request| thread.ask(request.request())).collect();
        for (request, ticket) in requests.iter().zip(tickets) {
            let found = ticket.wait().unwrap();
            assert_eq!(found.generated.tokens, alone(name, request).1, "{name}");
            assert!(thread.load().cached <= room, "{name}");
        }
        assert!(thread.load().evicted > 0, "{name}");
        let long = Asked::new(text(0, CONTEXT), greedy(1));
        assert!(matches!(thread.ask(long.request()).wait(), Err(RequestError::TooLong { .. })));
    }
}

#[test]
fn a_cancelled_request_waits_for_no_slot() {
    let thread = thread(TINY[0], Limits { parallel: 1, tokens: 8 * CONTEXT, prompts: 4 });
    let first = thread.ask(Asked::new(text(0, 20), greedy(CONTEXT - 40)).request());
    while !matches!(first.next_event(), Some(Event::Token(_))) {}
    let second = thread.ask(plain(text(1, 20)).request());
    second.cancel();
    assert!(matches!(second.wait(), Err(RequestError::Engine(EngineError::Interrupted))));
    // The first one still has the slot.
    first.cancel();
    assert!(matches!(first.wait(), Err(RequestError::Engine(EngineError::Interrupted))));
}

#[test]
fn a_long_prompt_and_those_who_are_answered_go_on_in_turn_and_a_short_prompt_overtakes_it() {
    let thread = thread(TINY[0], many());
    let log = Arc::new(Mutex::new(Vec::new()));
    let (told, heard) = mpsc::channel();
    let submit = |who: char, tokens: Vec<u32>, new: usize, wait: bool| {
        let (log, told) = (Arc::clone(&log), told.clone());
        let mut begun = false;
        let (started, seen) = mpsc::channel();
        thread.submit(Asked::new(tokens, greedy(new)).request(), move |event| {
            match event {
                Event::Begun(read) | Event::Prefilled(read) => log.lock().unwrap().push((who, read)),
                Event::Token(_) => {
                    log.lock().unwrap().push((who, 0));
                    if !begun {
                        begun = true;
                        let _ = started.send(());
                    }
                }
                Event::Prompt | Event::Scored(_) | Event::Logits(..) => {}
                Event::Done(_) => told.send(who).unwrap(),
                Event::Failed(error) => panic!("{error}"),
            }
            true
        });
        if wait {
            seen.recv().unwrap();
        }
    };
    submit('a', text(1, 20), 400, true);
    submit('l', text(2, 1900), 4, false);
    submit('s', text(3, 20), 4, false);
    let ended: Vec<char> = (0..3).map(|_| heard.recv().unwrap()).collect();
    let log = log.lock().unwrap();
    let chunks: Vec<usize> = (0..log.len()).filter(|&at| log[at].0 == 'l' && log[at].1 > 0).collect();
    assert!(chunks.len() > 3, "it is read in several chunks");
    for pair in chunks.windows(2) {
        let between = log[pair[0]..pair[1]].iter().filter(|(who, read)| *who == 'a' && *read == 0).count();
        assert!(between > 0, "nobody is answered between two chunks");
    }
    let place = |who| ended.iter().position(|one| *one == who).unwrap();
    assert!(place('s') < place('l'), "{ended:?}");
}

#[test]
fn many_long_prompts_of_one_caller_keep_a_short_one_of_another_waiting_for_none_of_them() {
    let engine = engine(&path(TINY[0]), 64);
    let cache = engine.decoder().cache(CONTEXT).unwrap();
    let (thread, mut work) = EngineThread::here(engine, cache, many());
    let ended = Arc::new(Mutex::new(Vec::new()));
    let submit = |caller: Caller, who: usize, tokens: Vec<u32>| {
        let ended = Arc::clone(&ended);
        let sink: Sink = Box::new(move |event| {
            match event {
                Event::Done(_) => ended.lock().unwrap().push(who),
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
            Next::Go
        });
        thread.submit_of(caller, Asked::new(tokens, greedy(2)).request(), vec![sink]);
    };
    let many = Caller::new();
    (0..12).for_each(|nth| submit(many, nth, text(nth, 600)));
    // One of them has started when the short one arrives.
    work.turn();
    submit(Caller::new(), 99, text(99, 20));
    while work.turn() {}
    let ended = ended.lock().unwrap();
    assert_eq!(ended.iter().position(|&who| who == 99), Some(0), "{ended:?}");
    // A caller's requests finish in order.
    assert_eq!(ended[1..], (0..12).collect::<Vec<_>>());
}

/// A checkpoint in which one token gives NaN.
fn with_a_broken_token(broken: u32, dir: &std::path::Path) -> std::path::PathBuf {
    let mut model = Llama::fixture(TINY[0]);
    let name = "model.embed_tokens.weight";
    let mut rows: Vec<Vec<f32>> = model.tensors[name].to_vec2().unwrap();
    rows[broken as usize][3] = f32::NAN;
    model.tensors.insert(name.into(), Tensor::new(rows, &Device::Cpu).unwrap());
    model.write_folder(dir)
}

#[test]
fn what_goes_wrong_in_one_request_ends_it_alone() {
    let history = text(0, 300);
    let sound: Vec<Asked> =
        (0..3).map(|nth| measured(joined(&[history.clone(), text(20 + nth, 30)]))).collect();
    let expected: Vec<_> = sound.iter().map(|request| alone(TINY[0], request)).collect();
    let said = |token: &u32| expected.iter().any(|(_, tokens, _)| tokens.contains(token));
    let broken = (100..200).find(|token| !said(token)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(&with_a_broken_token(broken, dir.path()), 64);
    let cache = engine.decoder().cache(CONTEXT).unwrap();
    let thread = start(engine, cache, many());
    let panics = |at: usize| {
        let (told, heard) = mpsc::channel();
        let mut seen = 0;
        thread.submit(sound[0].request(), move |event| match event {
            Event::Failed(error) => told.send(error).is_ok(),
            _ => {
                seen += 1;
                assert!(seen != at, "of this test");
                true
            }
        });
        heard
    };
    for _ in 0..2 {
        let tickets: Vec<_> = sound.iter().map(|request| thread.ask(request.request())).collect();
        // One prompt gives NaN after the same prefix; and some sinks panic: at once, or at a token.
        let bad = joined(&[history.clone(), vec![5, 6, broken, 7, 8]]);
        let bad = thread.ask(plain(bad).request());
        let panicked = [panics(1), panics(5), panics(9)];
        assert!(matches!(
            bad.wait().unwrap_err(),
            RequestError::Engine(EngineError::NotFinite { position: 304, .. })
        ));
        for heard in panicked {
            assert!(matches!(heard.recv().unwrap(), RequestError::Panicked));
        }
        for (ticket, expected) in tickets.into_iter().zip(&expected) {
            same("beside a broken one", &ticket.wait().unwrap(), expected);
        }
    }
    // No request is left.
    let begun = Instant::now();
    while thread.load().running + thread.load().waiting > 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", thread.load());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn models_that_cannot_go_back_anywhere_keep_their_prompts_after_one_whose_probabilities_are_told() {
    for name in ["qwen35-text-tiny", "gemma3-tiny", "gpt-oss-tiny"] {
        let thread = thread(name, many());
        let tokens = text(0, 700);
        let observe = Observe { likeliest: Some(0), ..Observe::default() };
        let told = Asked { observe, ..Asked::new(tokens.clone(), greedy(1)) };
        let told = thread.ask(told.request()).wait().unwrap();
        assert_eq!((told.prompt.len(), told.reused), (699, 0), "{name}");
        let more = joined(&[tokens, text(1, 20)]);
        let more = plain(more);
        let found = thread.ask(more.request()).wait().unwrap();
        assert!(found.reused >= 512, "{name}: {} tokens were found", found.reused);
        let expected = alone(name, &more);
        assert_eq!(found.generated.tokens, expected.1, "{name}");
        assert_eq!(found.logits.iter().copied().collect::<Vec<f32>>(), expected.0, "{name}");
    }
}
