//! A request's masses equal a direct measurement on the same tokens, in every output form.

use base64::Engine as _;
use ndarray::{Array2, Axis};
use palimpsest::chat::Sampling;
use palimpsest_core::attention::{LargestKeys, Masses, NO_KEY, TopKeys, uniform_share};
use palimpsest_core::engine::{LocalModel, Measurement, Observe, Rows, ThinkingOptions};
use palimpsest_core::span::Span;
use serde_json::{Value, json};

use super::{CHUNK, Served, fixture, open, serve};

/// Full softmax attention, linear layers, and windows with sinks.
const MODELS: [&str; 3] = ["llama-tiny", "qwen35-text-tiny", "gpt-oss-tiny"];

const GREEDY: usize = 9;

fn documents() -> Value {
    json!([
        {"role": "system", "content": "Answer from the documents."},
        {"role": "user", "content": [
            {"type": "text", "text": "The fig tree stands by the well. ", "span": "doc-1"},
            {"type": "text", "text": "The olive tree was felled in March, they say. ", "span": "doc-2"},
            {"type": "text", "text": "Which tree is left?", "span": "question"},
            {"type": "text", "text": " Be brief."}
        ]}
    ])
}

fn body(more: Value) -> Value {
    let mut body = json!({
        "messages": documents(), "temperature": 0, "max_completion_tokens": GREEDY,
        "palimpsest": {
            "rows": ["question", "last", "answer", "each"],
            "spans": [{"label": "felled", "message": 1, "part": 1, "start": 15, "end": 30}]
        }
    });
    for (key, value) in more.as_object().unwrap() {
        body["palimpsest"][key] = value.clone();
    }
    body
}

pub fn spans(attention: &Value) -> Vec<Span> {
    let span = |json: &Value| {
        let at = |key: &str| json[key].as_u64().unwrap() as usize;
        let span = Span::new(json["label"].as_str().unwrap(), at("start")..at("end"));
        if json["overlay"] == true { span.as_overlay() } else { span }
    };
    attention["spans"].as_array().unwrap().iter().map(span).collect()
}

/// Direct measurement over spans of the prompt.
fn measured(model: &LocalModel, tokens: &[u32], keys: &[Span], rows: &[&str]) -> (Vec<u32>, Masses) {
    let rows = Rows::named(rows, keys, tokens.len()).unwrap();
    let observe = Observe { rows, keys: keys.to_vec(), ..Observe::default() };
    let engine = model.engine();
    let measurement = &mut Measurement::new(&observe, tokens.len(), GREEDY, engine).unwrap();
    let cache = &mut engine.decoder().cache(tokens.len() + GREEDY).unwrap();
    let logits = engine.prefill(cache, tokens, 1, &mut *measurement, &mut |_| true).unwrap();
    let logits = logits.get(0).unwrap();
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: GREEDY };
    let how = (&sampling, model.stop_tokens());
    let said = engine.decode(cache, &logits, how, measurement, &mut |_| true).unwrap();
    let masses = measurement.finish(said.tokens.len()).unwrap();
    (said.tokens, masses)
}

/// Values of nested arrays, row-major, with their shape.
pub fn flat(json: &Value) -> (Vec<usize>, Vec<f32>) {
    match json {
        Value::Array(list) => {
            let parts: Vec<_> = list.iter().map(flat).collect();
            let mut shape = vec![list.len()];
            shape.extend(parts.first().map_or(&[][..], |(shape, _)| shape.as_slice()));
            assert!(parts.windows(2).all(|pair| pair[0].0 == pair[1].0), "ragged");
            (shape, parts.into_iter().flat_map(|(_, values)| values).collect())
        }
        number => (Vec::new(), vec![number.as_f64().unwrap() as f32]),
    }
}

pub fn close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 1e-6, "{what}, number {i}: {a} is not {b}");
    }
}

fn tokens_of(served: &Served, messages: &Value) -> Vec<u32> {
    // Content parts are concatenated without separators.
    let reply = served.post("/tokenize", json!({"messages": messages})).ok();
    serde_json::from_value(reply["tokens"].clone()).unwrap()
}

#[test]
fn spans_tile_the_prompt_under_the_names_of_messages_and_parts() {
    let served = serve("llama-tiny");
    let reply = served.chat(body(json!({}))).ok();
    let attention = &reply["choices"][0]["palimpsest"];
    let spans = spans(attention);
    let labels: Vec<&str> = spans.iter().map(|span| span.label.as_str()).collect();
    let expected = [
        "template[0]",
        "messages[0]",
        "template[1]",
        "doc-1",
        "doc-2",
        "question",
        "messages[1].content[3]",
        "template[2]",
        "generated",
        "felled",
    ];
    assert_eq!(labels, expected);
    let tokens = tokens_of(&served, &documents());
    let n = tokens.len();
    assert_eq!((spans[0].start, spans[7].end), (0, n));
    assert!(spans[..9].windows(2).all(|pair| pair[0].end == pair[1].start));
    assert_eq!(spans[8].len() as u64, reply["usage"]["completion_tokens"].as_u64().unwrap());
    assert!(spans[9].overlay && spans[..9].iter().all(|span| !span.overlay));
    assert_eq!(attention["rows"], json!(["question", "last", "answer"]));
    assert_eq!(attention["layers"], json!([0, 1, 2]));
    // Each span holds the tokens of its text.
    let text = |span: &Span| {
        served.post("/detokenize", json!({"tokens": tokens[span.range()]})).ok()["prompt"].clone()
    };
    assert_eq!(text(&spans[1]), "Answer from the documents.");
    assert_eq!(text(&spans[5]), "Which tree is left?");
    let felled = text(&spans[9]).as_str().unwrap().to_owned();
    assert!(felled.contains("felled") && felled.len() <= 20, "{felled:?}");
}

/// ` the` and ` a` are tokens of this vocabulary.
#[test]
fn a_token_across_a_border_belongs_to_the_span_of_its_word() {
    let served = serve("llama-tiny");
    let parts = [("old", "Once. "), ("new", "the fig. "), ("space", " "), ("question", "a tree?")];
    let part = |(label, text): &(&str, &str)| json!({"type": "text", "text": text, "span": label});
    let messages = json!([{"role": "user", "content": parts.iter().map(part).collect::<Vec<_>>()}]);
    let fig = |start: usize, end: usize| json!([{"label": "fig", "message": 0, "part": 1, "start": start, "end": end}]);
    let ask = |ranges: Value| {
        let body =
            json!({"messages": messages, "max_tokens": 1, "palimpsest": {"rows": ["last"], "spans": ranges}});
        served.chat(body)
    };
    let told = ask(fig(0, 3)).ok()["choices"][0]["palimpsest"].clone();
    let tokens = tokens_of(&served, &messages);
    let text = |label: &str, tokens: &[u32], told: &Value| {
        let span = spans(told).into_iter().find(|span| span.label == label).unwrap();
        served.post("/detokenize", json!({"tokens": tokens[span.range()]})).ok()["prompt"].clone()
    };
    let expected =
        [("old", "Once."), ("new", " the fig. "), ("space", ""), ("question", " a tree?"), ("fig", " the")];
    for (label, expected) in expected {
        assert_eq!(text(label, &tokens, &told), expected, "{label}");
    }
    // Likewise for completions.
    let prompt: String = parts.iter().map(|(_, text)| *text).collect();
    let range = |label: &str, start: usize, end: usize| json!({"label": label, "start": start, "end": end});
    let ranges =
        json!([range("old", 0, 6), range("new", 6, 15), range("question", 16, 23), range("fig", 6, 9)]);
    let body = json!({"prompt": prompt, "max_tokens": 1, "palimpsest": {"rows": ["last"], "spans": ranges, "token_ids": true}});
    let told = served.post("/v1/completions", body).ok()["choices"][0]["palimpsest"].clone();
    let tokens: Vec<u32> = serde_json::from_value(told["prompt_token_ids"].clone()).unwrap();
    for (label, expected) in expected.into_iter().filter(|(label, _)| *label != "space") {
        assert_eq!(text(label, &tokens, &told), expected, "{label}");
    }
    // White space that is part of a word's token cannot be a span.
    let refused = ask(json!([{"label": "space", "message": 0, "part": 0, "start": 5, "end": 6}]));
    assert_eq!((refused.status, &refused.json["error"]["param"]), (400, &json!("palimpsest.spans[0]")));
    assert!(
        refused.json["error"]["message"].as_str().unwrap().contains("no white space"),
        "{}",
        refused.json
    );
}

#[test]
fn masses_are_those_of_a_measurement_on_the_same_tokens() {
    for name in MODELS {
        let served = serve(name);
        let local = open(&fixture(name), 2048, ThinkingOptions::default());
        // A prompt with the same prefix comes first: the cached part changes no value.
        served.chat(json!({"messages": documents(), "max_tokens": 2})).ok();
        let tokens = tokens_of(&served, &documents());
        assert!(tokens.len() > 3 * CHUNK);
        let all = served.chat(body(json!({"heads": "all"}))).ok();
        let mean = served.chat(body(json!({}))).ok();
        let (all, mean) = (&all["choices"][0]["palimpsest"], &mean["choices"][0]["palimpsest"]);
        let listed = spans(all);
        let at = listed.iter().position(|span| span.label == "generated").unwrap();
        let mut keys = listed.clone();
        let generated = keys.remove(at);
        let rows = ["question", "last", "answer", "each"];
        let (said, masses) = measured(&local, &tokens, &keys, &rows);
        assert_eq!(generated.range(), tokens.len()..tokens.len() + said.len(), "{name}");
        assert_eq!(all["layers"], json!(masses.layers), "{name}");

        let (layers, heads, rows, _) = masses.mass.dim();
        let (shape, found) = flat(&all["mass"]);
        assert_eq!(shape, [layers, heads, 3, listed.len()], "{name}");
        let found = ndarray::Array4::from_shape_vec((layers, heads, rows, listed.len()), found).unwrap();
        let sink = |l: usize, h: usize, r: usize| masses.sink.as_ref().map_or(0.0, |sink| sink[[l, h, r]]);
        for l in 0..layers {
            for h in 0..heads {
                for r in 0..rows {
                    let row = found.slice(ndarray::s![l, h, r, ..]).to_vec();
                    let mut of_keys = row.clone();
                    let to_generated = of_keys.remove(at);
                    close(name, &of_keys, &masses.mass.slice(ndarray::s![l, h, r, ..]).to_vec());
                    let sum: f32 = row[..=at].iter().sum::<f32>() + sink(l, h, r);
                    assert!(
                        (sum - 1.0).abs() < 1e-5,
                        "{name}: tiles, generated tokens and sinks sum to {sum}"
                    );
                    // Only the answer's row sees generated tokens.
                    assert!(r == 2 || to_generated == 0.0, "{name}: {to_generated}");
                }
            }
        }
        assert!(found.slice(ndarray::s![.., .., 2, at]).iter().any(|&mass| mass > 0.01), "{name}");
        let (shape, of_mean) = flat(&mean["mass"]);
        assert_eq!(shape, [layers, 3, listed.len()]);
        close(name, &of_mean, &found.mean_axis(Axis(1)).unwrap().iter().copied().collect::<Vec<_>>());

        let (shape, share) = flat(&mean["share"]);
        assert_eq!(shape, [layers, 3, listed.len()]);
        for (i, share) in share.iter().enumerate() {
            let (l, r, k) = (i / listed.len() / 3, i / listed.len() % 3, i % listed.len());
            let row = &masses.rows[r];
            // A position before the prompt's end sees no generated token.
            let key = if r < 2 && k == at { 0..0 } else { listed[k].range() };
            let expected = uniform_share(row.range(), key, masses.uniform.windows[l]) as f32;
            assert!((share - expected).abs() < 1e-6, "{name}: {share} is not {expected}");
        }
        assert_eq!(all.get("sink").is_some(), masses.sink.is_some(), "{name}");
        if let Some(sink) = &masses.sink {
            close(name, &flat(&all["sink"]).1, &sink.iter().copied().collect::<Vec<_>>());
        }
        assert_eq!(all.get("delta_share").is_some(), masses.delta.is_some(), "{name}");
        if let Some(delta) = &masses.delta {
            let (shape, found) = flat(&all["delta_share"]);
            assert_eq!(shape, [delta.layers.len(), delta.share.dim().1, 3, listed.len()]);
            let rows: Vec<f32> = found
                .chunks(listed.len())
                .flat_map(|row| row.iter().enumerate().filter(|(k, _)| *k != at).map(|(_, x)| *x))
                .collect();
            close(name, &rows, &delta.share.iter().copied().collect::<Vec<_>>());
            assert_eq!(all["delta_layers"], json!(delta.layers));
        }

        let each = masses.each.unwrap().mass;
        let (shape, found) = flat(&all["each"]);
        assert_eq!(shape, [said.len(), layers, heads, listed.len()], "{name}");
        for (i, row) in found.chunks(listed.len()).enumerate() {
            let (t, l, h) = (i / heads / layers, i / heads % layers, i % heads);
            let mut of_keys = row.to_vec();
            of_keys.remove(at);
            close(name, &of_keys, &each.slice(ndarray::s![l, h, t, ..]).to_vec());
        }
    }
}

#[test]
fn a_stream_gives_each_tokens_row_with_it_and_the_rest_at_the_end() {
    for name in MODELS {
        let served = serve(name);
        for heads in ["mean", "all"] {
            let whole = served.chat(body(json!({"heads": heads}))).ok();
            let whole = &whole["choices"][0]["palimpsest"];
            let frames: Vec<Value> =
                served.stream("/v1/chat/completions", body(json!({"heads": heads}))).collect();
            let told: Vec<&Value> =
                frames.iter().filter_map(|frame| frame["choices"][0].get("palimpsest")).collect();
            let (last, rows) = told.split_last().unwrap();
            let joined: Vec<Value> =
                rows.iter().flat_map(|row| row["each"].as_array().unwrap().clone()).collect();
            assert!(rows.len() > 2, "row by row");
            let (shape, found) = flat(&joined.into());
            let (expected_shape, expected) = flat(&whole["each"]);
            assert_eq!(shape, expected_shape, "{name}");
            close(name, &found, &expected);
            let mut rest = whole.clone();
            rest.as_object_mut().unwrap().remove("each");
            assert_eq!(**last, rest, "{name}");
        }
    }
}

#[test]
fn layers_are_those_asked_for_and_a_safetensors_file_holds_the_same_numbers() {
    for name in MODELS {
        let served = serve(name);
        let ask = |more: Value| served.chat(body(more)).ok()["choices"][0]["palimpsest"].clone();
        let all = ask(json!({}));
        let some = ask(json!({"layers": [2, 1]}));
        let layers: Vec<usize> = serde_json::from_value(all["layers"].clone()).unwrap();
        let kept: Vec<usize> = (0..layers.len()).filter(|&l| [1, 2].contains(&layers[l])).collect();
        assert_eq!(some["layers"], json!(kept.iter().map(|&l| layers[l]).collect::<Vec<_>>()), "{name}");
        for key in ["mass", "share", "sink"] {
            let Some(all) = all.get(key) else { continue };
            let expected: Vec<Value> = kept.iter().map(|&l| all[l].clone()).collect();
            assert_eq!(some[key], json!(expected), "{name}: {key}");
        }
        let file = ask(json!({"encoding": "safetensors"}));
        assert_eq!(
            (&file["spans"], &file["rows"], &file["layers"]),
            (&all["spans"], &all["rows"], &all["layers"])
        );
        assert!(file.get("mass").is_none());
        let bytes = base64::engine::general_purpose::STANDARD.decode(file["data"].as_str().unwrap()).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut names = tensors.names();
        names.sort_unstable();
        let mut expected: Vec<&str> = ["mass", "share", "sink", "delta_share", "each"]
            .into_iter()
            .filter(|key| all.get(key).is_some())
            .collect();
        expected.sort_unstable();
        assert_eq!(names, expected, "{name}");
        for key in names {
            let tensor = tensors.tensor(key).unwrap();
            let (shape, numbers) = flat(&all[key]);
            assert_eq!(tensor.shape(), shape, "{name}: {key}");
            let found: Vec<f32> =
                tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            assert_eq!(found, numbers, "{name}: {key}");
        }
    }
}

#[test]
fn a_text_that_is_continued_is_one_span_with_ranges_over_it() {
    let served = serve("llama-tiny");
    let text = "The fig tree stands by the well, and";
    let ask = |prompt: Value, spans: Value| {
        let asked = json!({"rows": ["last", "each"], "spans": spans});
        served.complete(json!({"prompt": prompt, "temperature": 0, "max_tokens": 4, "palimpsest": asked}))
    };
    let reply = ask(json!(text), json!([{"label": "tree", "start": 4, "end": 12}])).ok();
    let attention = &reply["choices"][0]["palimpsest"];
    let spans = spans(attention);
    let labels: Vec<&str> = spans.iter().map(|span| span.label.as_str()).collect();
    assert_eq!(labels, ["prompt", "generated", "tree"]);
    let (shape, each) = flat(&attention["each"]);
    assert_eq!(shape, [4, 3, 3]);
    let each = Array2::from_shape_vec((12, 3), each).unwrap();
    assert!(each.outer_iter().all(|row| (row[0] + row[1] - 1.0).abs() < 1e-6));
    // The first token is predicted by the prompt's last position, which sees nothing else.
    assert!((0..3).all(|layer| (each[[layer, 0]] - 1.0).abs() < 1e-6));
    let tokens = served.post("/tokenize", json!({"prompt": text})).ok()["tokens"].clone();
    let of_tokens = ask(tokens.clone(), json!([])).ok();
    assert_eq!(of_tokens["choices"][0]["text"], reply["choices"][0]["text"]);
    let refused = ask(tokens.clone(), json!([{"label": "tree", "start": 4, "end": 12}]));
    assert_eq!((refused.status, &refused.json["error"]["param"]), (400, &json!("palimpsest.spans[0]")));

    // Ranges of tokens, for token prompts.
    let in_tokens = |prompt: &Value, end: usize| {
        let span = json!({"label": "tree", "start": spans[2].start, "end": end});
        let asked = json!({"rows": ["last", "each"], "spans": [span], "units": "tokens"});
        served.complete(json!({"prompt": prompt, "temperature": 0, "max_tokens": 4, "palimpsest": asked}))
    };
    let same = in_tokens(&tokens, spans[2].end).ok();
    assert_eq!(same["choices"][0]["palimpsest"], *attention);
    let n = tokens.as_array().unwrap().len();
    for (prompt, end, param) in
        [(&tokens, n + 1, "palimpsest.spans[0].end"), (&json!(text), spans[2].end, "palimpsest.units")]
    {
        let refused = in_tokens(prompt, end);
        assert_eq!((refused.status, &refused.json["error"]["param"]), (400, &json!(param)));
    }
}

/// The keys with the most mass from positions of these tokens, read in one pass.
fn largest(model: &LocalModel, tokens: &[u32], rows: Vec<usize>, k: usize) -> LargestKeys {
    let mut observer = TopKeys::new(k, rows);
    let engine = model.engine();
    let cache = &mut engine.decoder().cache(tokens.len()).unwrap();
    engine.prefill(cache, tokens, 1, &mut observer, &mut |_| true).unwrap();
    observer.finish().unwrap()
}

#[test]
fn the_keys_with_the_largest_weights_are_told_one_by_one() {
    const K: usize = 4;
    for name in MODELS {
        let served = serve(name);
        let local = open(&fixture(name), 2048, ThinkingOptions::default());
        let tokens = tokens_of(&served, &documents());
        let plain = served.chat(body(json!({"heads": "all", "token_ids": true}))).ok();
        let plain = &plain["choices"][0]["palimpsest"];
        let said: Vec<u32> = serde_json::from_value(plain["token_ids"].clone()).unwrap();
        let (n, g) = (tokens.len(), said.len());
        let question = spans(plain).into_iter().find(|span| span.label == "question").unwrap();
        let positions: Vec<usize> = question.range().chain([n - 1]).chain(n - 1..n - 1 + g).collect();
        let read: Vec<u32> = tokens.iter().chain(&said).copied().collect();
        let expected = largest(&local, &read, positions.clone(), K);
        let [layers, heads, rows, _] = expected.shape;
        let weight = |l: usize, h: usize, p: usize, key: u64| {
            let at = ((l * heads + h) * rows + p) * K;
            (0..K).find(|i| u64::from(expected.keys[at + i]) == key).map(|i| expected.weights[at + i])
        };
        // Alone, and two continuations in one batch.
        for choices in [1, 2] {
            let mut asked = body(json!({"heads": "all", "top_keys": K}));
            asked["n"] = json!(choices);
            let reply = served.chat(asked).ok();
            for choice in reply["choices"].as_array().unwrap() {
                let attention = &choice["palimpsest"];
                assert_eq!(attention["top_positions"], json!(positions), "{name}");
                close(name, &flat(&attention["mass"]).1, &flat(&plain["mass"]).1);
                close(name, &flat(&attention["each"]).1, &flat(&plain["each"]).1);
                let found = attention["top_keys"].as_array().unwrap();
                assert_eq!((found.len(), found[0].as_array().unwrap().len()), (layers, heads), "{name}");
                assert_eq!(found[0][0].as_array().unwrap().len(), rows, "{name}");
                for (l, h, p) in
                    (0..layers * heads * rows).map(|i| (i / rows / heads, i / rows % heads, i % rows))
                {
                    let pairs = found[l][h][p].as_array().unwrap();
                    let at = ((l * heads + h) * rows + p) * K;
                    let known = (0..K).filter(|i| expected.keys[at + i] != NO_KEY).count();
                    assert_eq!(pairs.len(), known, "{name}");
                    for (i, pair) in pairs.iter().enumerate() {
                        let paid = pair[1].as_f64().unwrap() as f32;
                        let place = expected.weights[at + i];
                        assert!((paid - place).abs() < 1e-5, "{name}: {paid} is not {place}");
                        // Keys of nearly equal weight may swap.
                        let of_key = weight(l, h, p, pair[0].as_u64().unwrap())
                            .unwrap_or(expected.weights[at + K - 1]);
                        assert!((paid - of_key).abs() < 1e-5, "{name}: {pair} is not {of_key}");
                    }
                }
            }
        }
    }
}

#[test]
fn keys_of_the_mean_are_ranked_by_it_and_come_as_tensors_too() {
    for name in MODELS {
        let served = serve(name);
        let ask = |more: Value| served.chat(body(more)).ok()["choices"][0]["palimpsest"].clone();
        // More keys than tokens: all of them, so that their mean can be computed by hand.
        let all = ask(json!({"heads": "all", "top_keys": 512}));
        let mean = ask(json!({"top_keys": 3, "layers": all["layers"]}));
        let heads = all["top_keys"][0].as_array().unwrap().len();
        for (l, layer) in all["top_keys"].as_array().unwrap().iter().enumerate() {
            for p in 0..layer[0].as_array().unwrap().len() {
                let mut paid = std::collections::BTreeMap::<u64, f64>::new();
                for pair in (0..heads).flat_map(|head| layer[head][p].as_array().unwrap()) {
                    *paid.entry(pair[0].as_u64().unwrap()).or_default() +=
                        pair[1].as_f64().unwrap() / heads as f64;
                }
                let mut sorted: Vec<f64> = paid.values().copied().collect();
                sorted.sort_unstable_by(|a, b| b.total_cmp(a));
                let told = mean["top_keys"][l][p].as_array().unwrap();
                assert_eq!(told.len(), 3.min(sorted.len()));
                for (pair, expected) in told.iter().zip(sorted) {
                    let (key, weight) = (pair[0].as_u64().unwrap(), pair[1].as_f64().unwrap());
                    assert!((weight - expected).abs() < 1e-6, "{name}: {weight} is not {expected}");
                    assert!((weight - paid[&key]).abs() < 1e-6, "{name}: {key}");
                }
            }
        }
        let file = ask(json!({"top_keys": 3, "encoding": "safetensors"}));
        let bytes = base64::engine::general_purpose::STANDARD.decode(file["data"].as_str().unwrap()).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let (keys, weights) = (tensors.tensor("top_keys").unwrap(), tensors.tensor("top_weights").unwrap());
        assert_eq!(keys.shape(), weights.shape());
        assert_eq!(keys.shape().len(), 3);
        let keys = keys.data().as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let weights = weights.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let pairs: Vec<f32> = keys.zip(weights).flat_map(|(key, weight)| [key as f32, weight]).collect();
        assert_eq!(pairs, flat(&mean["top_keys"]).1, "{name}");
    }
}
