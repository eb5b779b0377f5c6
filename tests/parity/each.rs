//! Rows of generated tokens: equal to transformers', to a second pass, and together equal to alone.

use candle_core::Device;
use palimpsest::selftest::rule::Numbers;
use palimpsest_core::attention::{Event, MassObserver, Masses, NoObserver, Observer, SpanError};
use palimpsest_core::engine::{Branch, Engine, Measurement, Observe, Request, Reuse, Rows};
use palimpsest_core::model::Cache;
use palimpsest_core::span::Span;

use super::reference::{TokensFile, assert_f32};
use super::{TINY, answering, apart, engine, fixture, greedy, numbers, session};

/// Tolerance between the decode kernels' sums and those of a second pass.
const PASSES: f32 = 1e-5;

/// Rows of every kind, for spans of a prompt.
fn observe(keys: Vec<Span>, tokens: usize) -> Observe {
    let rows = Rows::named(&["new", "answer", "query", "each", "last"], &keys, tokens).unwrap();
    Observe { rows, keys, ..Observe::default() }
}

fn measurement(engine: &Engine, keys: Vec<Span>, tokens: usize) -> Measurement {
    Measurement::new(&observe(keys, tokens), tokens, 0, engine).unwrap()
}

/// The reference.
fn expected(name: &str) -> (Vec<u32>, Numbers) {
    let path = fixture("each").join(format!("{name}.safetensors"));
    let tensors = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let of = |key: &'static str| Some((key, numbers(tensors.get(&format!("{key}_each"))?)));
    let found = ["mass", "sink", "delta_signed", "delta_share"].into_iter().filter_map(of).collect();
    (tensors["generated"].to_vec1().unwrap(), found)
}

/// Masses of the generated tokens, one by one.
fn each(masses: &Masses) -> Numbers {
    let each = masses.each.as_ref().unwrap();
    let mut found = Numbers::from([("mass", each.mass.iter().copied().collect())]);
    if let Some(sink) = &each.sink {
        found.insert("sink", sink.iter().copied().collect());
    }
    if let Some(delta) = &each.delta {
        found.insert("delta_signed", delta.signed.iter().copied().collect());
        found.insert("delta_share", delta.share.iter().copied().collect());
    }
    found
}

/// Prefills a prompt after the cached tokens and generates up to `n` tokens or an end token.
fn answer(
    engine: &Engine,
    cache: &mut Cache,
    tokens: &[u32],
    (n, stop): (usize, &[u32]),
    measurement: &mut Measurement,
) -> Vec<u32> {
    let logits = engine.prefill(cache, tokens, 1, &mut *measurement, &mut |_| true).unwrap();
    let (logits, how) = (logits.squeeze(0).unwrap(), (&greedy(n), stop));
    engine.decode(cache, &logits, how, measurement, &mut |_| true).unwrap().tokens
}

/// Prefills a prompt and generates `n` tokens.
fn measured(engine: &Engine, cache: &mut Cache, tokens: &[u32], n: usize) -> (Vec<u32>, Masses) {
    cache.truncate(0).unwrap();
    let mut measurement = measurement(engine, TokensFile::of(TINY[0]).keys(), tokens.len());
    let said = answer(engine, cache, tokens, (n, &[]), &mut measurement);
    let masses = measurement.finish(said.len()).unwrap();
    (said, masses)
}

#[test]
fn what_each_generated_token_pays_is_that_of_transformers_and_of_a_second_pass() {
    for name in TINY {
        let file = TokensFile::of(name);
        let (greedy, expected) = expected(name);
        let n = greedy.len();
        let prompt = file.tokens.len();
        // Spans are the same in all fixtures; one chunk ends before the last position, one at it.
        for chunk in [37, 151] {
            let engine = engine(&fixture(name), chunk);
            let mut cache = engine.decoder().cache(prompt + n).unwrap();
            let (said, masses) = measured(&engine, &mut cache, &file.tokens, n);
            assert_eq!(said, greedy, "{name}");
            assert_f32(&format!("{name}, each"), &each(&masses), &expected);

            // 1. Other rows: `answer` is the mean, `last` the first.
            let labels: Vec<&str> = masses.rows.iter().map(|row| row.label.as_str()).collect();
            assert_eq!(labels, ["new", "answer", "query", "last"]);
            let of_each = &masses.each.as_ref().unwrap().mass;
            assert_eq!(masses.rows[1].range(), prompt - 1..prompt - 1 + n);
            for ((l, h, r, k), &mass) in masses.mass.indexed_iter() {
                let row = of_each.slice(ndarray::s![l, h, .., k]);
                match r {
                    1 => assert!((mass - row.mean().unwrap()).abs() < 1e-6, "{name}"),
                    3 => assert_eq!(mass, row[0], "{name}"),
                    _ => {}
                }
            }

            // 2. A second pass over prompt and answer.
            let whole = [&file.tokens[..], &greedy].concat();
            let rows = (0..n).map(|i| Span::new(format!("{i}"), prompt - 1 + i..prompt + i)).collect();
            let mut observer = MassObserver::new(rows, file.keys(), whole.len()).unwrap();
            let mut again = engine.decoder().cache(whole.len()).unwrap();
            engine.prefill(&mut again, &whole, 1, &mut observer, &mut |_| true).unwrap();
            let Masses { mass, sink, delta, .. } = observer.finish().unwrap();
            let mut second = Numbers::from([("mass", mass.iter().copied().collect())]);
            if let Some(sink) = sink {
                second.insert("sink", sink.iter().copied().collect());
            }
            if let Some(delta) = delta {
                second.insert("delta_signed", delta.signed.iter().copied().collect());
                second.insert("delta_share", delta.share.iter().copied().collect());
            }
            for (key, found) in each(&masses) {
                let apart = apart(&found, &second[key]);
                // Mamba-2's weights are not bounded by 1.
                let scale = second[key].iter().fold(1.0, |most: f32, x| most.max(x.abs()));
                let apart = apart / scale;
                assert!(apart < PASSES, "{name}, chunk {chunk}: {key} is {apart:e} off a second pass");
            }
        }
    }
}

#[test]
fn recording_changes_no_bit_of_what_is_decoded_and_none_of_the_prompts_masses() {
    for name in TINY {
        let TokensFile { tokens, .. } = TokensFile::of(name);
        let engine = engine(&fixture(name), 64);
        let mut cache = engine.decoder().cache(tokens.len() + 8).unwrap();
        let keys = TokensFile::of(name).keys();
        let step = |observer: &mut dyn Observer, cache: &mut Cache| {
            cache.truncate(0).unwrap();
            engine.prefill(cache, &tokens, 1, &mut *observer, &mut |_| true).unwrap();
            let decoder = engine.decoder();
            let read = (5..13).map(|token| {
                let phase = palimpsest_core::model::Phase::Decode;
                let hidden = decoder.forward(&[token], 1, cache, phase, &mut *observer).unwrap();
                numbers(&decoder.logits(&hidden, phase).unwrap())
            });
            read.flatten().map(f32::to_bits).collect::<Vec<u32>>()
        };
        let plain = step(&mut NoObserver, &mut cache);
        let mut with = measurement(&engine, keys.clone(), tokens.len());
        assert_eq!(step(&mut with, &mut cache), plain, "{name}");
        let mut without = TokensFile::of(name).observer();
        step(&mut without, &mut cache);
        let (with, without) = (with.finish(8).unwrap(), without.finish().unwrap());
        for (row, place) in [(0, 0), (2, 1)] {
            let of = |masses: &Masses, row| masses.mass.index_axis(ndarray::Axis(2), row).to_owned();
            assert_eq!(of(&with, row), of(&without, place), "{name}");
        }
    }
}

#[test]
fn the_rows_of_an_answer_are_those_of_its_tokens_and_not_of_the_thought_before_them() {
    const THOUGHT: usize = 5;
    for name in TINY {
        let TokensFile { tokens, .. } = TokensFile::of(name);
        let (said, _) = expected(name);
        let n = said.len();
        assert!(n > THOUGHT + 2);
        let engine = engine(&fixture(name), 64);
        let mut cache = engine.decoder().cache(tokens.len() + n).unwrap();
        let mut decoded = |thought: Option<usize>| {
            cache.truncate(0).unwrap();
            let mut measurement = measurement(&engine, TokensFile::of(name).keys(), tokens.len());
            engine.prefill(&mut cache, &tokens, 1, &mut measurement, &mut |_| true).unwrap();
            for (i, &token) in said.iter().enumerate().take(n - 1) {
                if thought == Some(i + 1) {
                    measurement.observe(Event::Thought(i + 1)).unwrap();
                }
                let phase = palimpsest_core::model::Phase::Decode;
                engine.decoder().forward(&[token], 1, &mut cache, phase, &mut measurement).unwrap();
            }
            measurement.finish(n).unwrap()
        };
        let (whole, answer) = (decoded(None), decoded(Some(THOUGHT)));
        assert_eq!(answer.rows[1].label, "answer");
        assert_eq!(answer.rows[1].range(), tokens.len() - 1 + THOUGHT..tokens.len() - 1 + n);
        let each = |masses: &Masses| masses.each.as_ref().unwrap().mass.clone(); // (layers, heads, n, spans)
        let of_answer = each(&whole).slice(ndarray::s![.., .., THOUGHT.., ..]).to_owned();
        assert_eq!(each(&answer), of_answer, "{name}");
        for ((l, h, k), &mass) in answer.mass.index_axis(ndarray::Axis(2), 1).indexed_iter() {
            let mean = of_answer.slice(ndarray::s![l, h, .., k]).mean().unwrap();
            assert!((mass - mean).abs() < 1e-6, "{name}: {mass} is not {mean}");
        }
        let delta =
            |masses: &Masses| masses.each.as_ref().unwrap().delta.as_ref().map(|delta| delta.signed.clone());
        if let (Some(whole), Some(answer)) = (delta(&whole), delta(&answer)) {
            let expected = whole.slice(ndarray::s![.., .., THOUGHT.., ..]).to_owned();
            let apart = answer.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Mamba-2's weights are not bounded by 1.
            let scale = expected.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
            assert!(apart < 1e-6 * scale, "{name}: {apart}");
        }
    }
}

#[test]
fn branches_record_what_each_records_alone_and_what_transformers_says() {
    for name in TINY {
        let file = TokensFile::of(name);
        let (greedy_tokens, expected) = expected(name);
        let n = greedy_tokens.len();
        let engine = engine(&fixture(name), 64);
        // The fixture's prompt and two that share it up to the beginning of the question.
        let shared = 139;
        let mut others: Vec<Vec<u32>> = vec![file.tokens.clone()];
        for more in [3, 9] {
            let own = (0..more).map(|i| 3 + (i * 7919 % 61) as u32);
            others.push(file.tokens[..shared].iter().copied().chain(own).collect());
        }
        // Spans that reach the fixture's end reach the end of the others, so that all three sum over keys in the same parts.
        let spans = |tokens: usize| -> Vec<Span> {
            let own = |span: Span| match span.end > shared {
                true => Span::new(span.label, span.start..tokens),
                false => span,
            };
            file.keys().into_iter().map(own).collect()
        };
        let mut cache = engine.decoder().cache(400).unwrap();
        // 1. One after the other.
        let alone: Vec<(Vec<u32>, Masses)> = (others.iter())
            .map(|tokens| {
                cache.truncate(0).unwrap();
                let mut measurement = measurement(&engine, spans(tokens.len()), tokens.len());
                let (before, own) = tokens.split_at(shared);
                engine.fill_cache(&mut cache, before, &mut measurement, &mut |_| true).unwrap();
                let said = answer(&engine, &mut cache, own, (n, &[]), &mut measurement);
                (said, measurement.finish(n).unwrap())
            })
            .collect();
        assert_eq!(alone[0].0, greedy_tokens, "{name}");
        assert_f32(&format!("{name}, each after a shared prefix"), &each(&alone[0].1), &expected);
        // 2. Together. One of them ends early.
        let branch = |(nth, tokens): (usize, &Vec<u32>)| Branch {
            tokens: tokens[shared..].to_vec(),
            observe: observe(spans(tokens.len()), tokens.len()),
            tasks: vec![answering(if nth == 1 { 4 } else { n }, &[])],
            ..Branch::default()
        };
        let branches = others.iter().enumerate().map(branch).collect();
        let request = Request { prefix: file.tokens[..shared].into(), reuse: Reuse::Prefix, branches };
        let together = session(&engine, 400, (others.len(), 300)).answers(request, &mut |_, _, _| true);
        for (nth, measured) in together.into_iter().flatten().enumerate() {
            let measured = measured.unwrap();
            let (said, masses) = (measured.generated.tokens, measured.masses);
            let (tokens, of_alone) = &alone[nth];
            if nth == 1 {
                assert_eq!(said, tokens[..4], "{name}");
                let first = ndarray::s![.., .., ..4, ..];
                let (found, all) = (masses.each.unwrap(), of_alone.each.as_ref().unwrap());
                assert_eq!(found.mass, all.mass.slice(first), "{name}");
                continue;
            }
            assert_eq!(&said, tokens, "{name}");
            assert_eq!(&masses, of_alone, "{name}, branch {nth}");
        }
    }
}

#[test]
fn an_answer_that_ends_by_itself_has_no_row_for_its_end() {
    let file = TokensFile::of(TINY[0]);
    let (greedy_tokens, _) = expected(TINY[0]);
    let engine = engine(&fixture(TINY[0]), 64);
    let mut cache = engine.decoder().cache(file.tokens.len() + 12).unwrap();
    let (_, whole) = measured(&engine, &mut cache, &file.tokens, 12);
    cache.truncate(0).unwrap();
    let stop = greedy_tokens[5];
    let n = greedy_tokens.iter().position(|&token| token == stop).unwrap();
    let mut measurement = measurement(&engine, file.keys(), file.tokens.len());
    let said = answer(&engine, &mut cache, &file.tokens, (12, &[stop]), &mut measurement);
    assert_eq!(said, greedy_tokens[..n]);
    let masses = measurement.finish(n).unwrap();
    assert_eq!(masses.each.unwrap().mass, whole.each.unwrap().mass.slice(ndarray::s![.., .., ..n, ..]));
    assert!(measurement.finish(n + 2).is_err(), "more tokens than rows");
}

#[test]
fn rows_have_names_that_no_span_may_have() {
    let span = |label: &str| vec![Span::new("a", 0..2), Span::new(label, 2..4)];
    for label in ["last", "answer", "each"] {
        let error = Rows::named(&["a"], &span(label), 4).unwrap_err();
        assert!(error.to_string().contains(&format!("span `{label}`")), "{error}");
    }
    let error = Rows::named(&["a", "b"], &span("c"), 4).unwrap_err();
    assert_eq!(error, SpanError::UnknownRow { label: "b".to_owned() });
    let error = Rows::named(&["each", "each"], &span("c"), 4).unwrap_err();
    assert_eq!(error, SpanError::RowTwice { label: "each".to_owned() });
}
