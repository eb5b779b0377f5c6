//! Log-probabilities of generated and prompt tokens equal the engine's.

use candle_core::{D, Device};
use palimpsest_core::attention::NoObserver;
use palimpsest_core::engine::ThinkingOptions;
use serde_json::{Value, json};

use super::{fixture, open, serve, user};

/// The engine's log-softmax at every position, in one pass.
fn log_probabilities(name: &str, tokens: &[u32]) -> Vec<Vec<f32>> {
    let model = open(&fixture(name), 2048, ThinkingOptions::default());
    let engine = model.engine();
    let cache = &mut engine.decoder().cache(tokens.len()).unwrap();
    let logits = engine.prefill(cache, tokens, tokens.len(), &mut NoObserver, &mut |_| true).unwrap();
    let log_p = candle_nn::ops::log_softmax(&logits, D::Minus1).unwrap();
    log_p.to_device(&Device::Cpu).unwrap().to_vec2().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn an_echoed_prompt_has_the_probabilities_of_its_tokens_under_the_engine() {
    let text = "The fig tree stands by the well, and the well is as old as the tree is, they say.";
    for name in ["llama-tiny", "qwen35-text-tiny", "gpt-oss-tiny"] {
        let served = serve(name);
        let tokens: Vec<u32> =
            serde_json::from_value(served.post("/tokenize", json!({"prompt": text})).ok()["tokens"].clone())
                .unwrap();
        let expected = log_probabilities(name, &tokens);
        let body = json!({"prompt": tokens, "temperature": 0, "max_tokens": 1, "logprobs": 2, "echo": true});
        for round in 0..2 {
            let reply = served.complete(body.clone()).ok();
            let choice = &reply["choices"][0];
            assert!(choice["text"].as_str().unwrap().starts_with(text), "{name}, {round}");
            let lists = &choice["logprobs"];
            let of = |key: &str| lists[key].as_array().unwrap().clone();
            let (log_p, top, texts) = (of("token_logprobs"), of("top_logprobs"), of("tokens"));
            // One more was generated, or the end of the text.
            assert_eq!([log_p.len(), top.len(), texts.len(), of("text_offset").len()], [tokens.len() + 1; 4]);
            assert_eq!((&log_p[0], &top[0]), (&Value::Null, &Value::Null));
            for i in 1..=tokens.len() {
                let row = &expected[i - 1];
                let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let token = if i < tokens.len() { row[tokens[i] as usize] } else { best };
                assert!((number(&log_p[i]) - f64::from(token)).abs() < 1e-4, "{name}, token {i}");
                let top: Vec<f64> = top[i].as_object().unwrap().values().map(number).collect();
                let most = top.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                assert!((most - f64::from(best)).abs() < 1e-4 && top.len() <= 2, "{name}, token {i}");
                // The greedy choice has exactly the maximum.
                assert_eq!(number(&log_p[i]) == most, token == best, "{name}, token {i}");
            }
            let joined: String = texts[..tokens.len()].iter().map(|text| text.as_str().unwrap()).collect();
            assert_eq!(joined, text);
            let offsets: Vec<u64> = of("text_offset").iter().map(|at| at.as_u64().unwrap()).collect();
            assert_eq!(offsets[tokens.len()] as usize, text.chars().count());
        }
        // A prompt whose probabilities were read is cached like any other.
        let plain = json!({"prompt": tokens, "temperature": 0, "max_tokens": 8});
        let after = served.complete(plain.clone()).ok();
        let fresh = serve(name).complete(plain).ok();
        assert_eq!(after["choices"], fresh["choices"], "{name}");
        let cached = after["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        // Layers that can rewind anywhere keep it.
        assert!(name != "llama-tiny" || cached > 0);
    }
}

#[test]
fn generated_tokens_have_theirs_in_both_endpoints_whole_and_streamed() {
    let served = serve("llama-tiny");
    let body = json!({
        "messages": user("Tell me"), "temperature": 1.2, "seed": 3, "max_tokens": 6, "logprobs": true, "top_logprobs": 3
    });
    let reply = served.chat(body.clone()).ok();
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 6);
    let rendered = served.post("/tokenize", json!({"messages": user("Tell me")})).ok();
    let tokens: Vec<u32> = serde_json::from_value(rendered["tokens"].clone()).unwrap();
    let first = &log_probabilities("llama-tiny", &tokens)[tokens.len() - 1];
    let best = first.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for entry in &content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert!(top.windows(2).all(|pair| number(&pair[0]["logprob"]) >= number(&pair[1]["logprob"])));
        assert!(number(&entry["logprob"]) <= number(&top[0]["logprob"]));
        let bytes: Option<Vec<u8>> = serde_json::from_value(entry["bytes"].clone()).unwrap();
        let text = entry["token"].as_str().unwrap();
        assert!(text.contains('\u{FFFD}') || bytes.is_some_and(|bytes| bytes == text.as_bytes()));
    }
    assert!((number(&content[0]["top_logprobs"][0]["logprob"]) - f64::from(best)).abs() < 1e-4);
    let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
    let streamed: Vec<Value> = frames
        .iter()
        .filter_map(|frame| frame["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, content);

    let body = json!({"prompt": "One two", "temperature": 0, "max_tokens": 5, "logprobs": 1});
    let reply = served.complete(body.clone()).ok();
    let lists = &reply["choices"][0]["logprobs"];
    assert_eq!(lists["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(lists["text_offset"][0], 0);
    let frames: Vec<Value> = served.stream("/v1/completions", body).collect();
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let lists: Vec<Value> = frames
            .iter()
            .filter_map(|frame| frame["choices"][0]["logprobs"][key].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(json!(lists), reply["choices"][0]["logprobs"][key], "{key}");
    }
}
