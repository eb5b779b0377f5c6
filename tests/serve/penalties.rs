//! Penalties and biases match OpenAI's definition; probabilities stay the model's.

use palimpsest_core::engine::ThinkingOptions;
use serde_json::{Value, json};

use super::{fixture, joined, open, serve};
use crate::parity::prefill;

const NEW: usize = 14;

/// Greedy tokens of `llama-tiny` after a prompt, recomputed at every position, with penalties and biases applied to the logits.
fn greedy(prompt: &[u32], frequency: f32, presence: f32, bias: &[(u32, f32)]) -> Vec<u32> {
    let model = open(&fixture("llama-tiny"), 2048, ThinkingOptions::default());
    let stop = model.stop_tokens().to_vec();
    let mut tokens = prompt.to_vec();
    while tokens.len() < prompt.len() + NEW {
        let (logits, _) = prefill(model.engine(), &tokens, 1);
        let score = |token: u32| {
            let count = tokens[prompt.len()..].iter().filter(|&&one| one == token).count() as f32;
            let added: f32 = bias.iter().filter(|(one, _)| *one == token).map(|(_, bias)| bias).sum();
            logits[token as usize] - count * frequency - if count > 0.0 { presence } else { 0.0 } + added
        };
        let best = (0..logits.len() as u32).max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap();
        if stop.contains(&best) {
            break;
        }
        tokens.push(best);
    }
    tokens.split_off(prompt.len())
}

/// Request fields and their meaning: both penalties, and biases by token.
type Case = (Value, f32, f32, Vec<(u32, f32)>);

#[test]
fn penalties_and_biases_are_those_of_the_definition_and_probabilities_the_models() {
    let served = serve("llama-tiny");
    let local = open(&fixture("llama-tiny"), 64, ThinkingOptions::default());
    let prompt = local.tokenizer().encode("The fig tree stands by the well.").unwrap();
    let free = greedy(&prompt, 0.0, 0.0, &[]);
    let often = free[1];
    let cases: [Case; 5] = [
        (json!({}), 0.0, 0.0, vec![]),
        (json!({"frequency_penalty": 1.5}), 1.5, 0.0, vec![]),
        (json!({"presence_penalty": 2.0}), 0.0, 2.0, vec![]),
        (json!({"frequency_penalty": -0.5, "presence_penalty": 0.75}), -0.5, 0.75, vec![]),
        (
            json!({"logit_bias": {often.to_string(): -100, "7": 0.25}}),
            0.0,
            0.0,
            vec![(often, -100.0), (7, 0.25)],
        ),
    ];
    let mut texts = Vec::new();
    for (change, frequency, presence, bias) in cases {
        let expected = greedy(&prompt, frequency, presence, &bias);
        let mut body = json!({"prompt": prompt, "temperature": 0, "max_tokens": NEW, "logprobs": 0});
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        let reply = served.complete(body).ok();
        let text = reply["choices"][0]["text"].as_str().unwrap().to_owned();
        assert_eq!(text, local.tokenizer().decode(&expected, true).unwrap(), "{change}");
        texts.push(text);
        assert!(bias.is_empty() || !expected.contains(&often));
        // Each token's probability is that of the model alone.
        let told = reply["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
        let both = [&prompt[..], &expected].concat();
        let scored = json!({"prompt": both, "max_tokens": 0, "echo": true, "logprobs": 0});
        let scored = served.complete(scored).ok();
        let scored = scored["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
        for (i, one) in scored[prompt.len()..].iter().enumerate() {
            assert!((one.as_f64().unwrap() - told[i].as_f64().unwrap()).abs() < 1e-4, "{change}, token {i}");
        }
    }
    assert!(texts[1] != texts[0] && texts[2] != texts[0] && texts[4] != texts[0], "{texts:?}");
    let zero = json!({
        "prompt": prompt, "temperature": 0, "max_tokens": NEW, "frequency_penalty": 0, "presence_penalty": 0,
        "logit_bias": {}
    });
    assert_eq!(served.complete(zero).ok()["choices"][0]["text"], texts[0].as_str());
}

#[test]
fn an_echoed_prompt_is_streamed_with_its_probabilities_before_the_answer() {
    let served = serve("llama-tiny");
    for most in [0, 4] {
        let body = json!({
            "prompt": ["The fig tree stands by the well, as they say.", "x"], "temperature": 0, "max_tokens": most,
            "logprobs": 2, "echo": true
        });
        let whole = served.complete(body.clone()).ok();
        let frames: Vec<Value> = served.stream("/v1/completions", body).collect();
        for choice in 0..2 {
            let expected = &whole["choices"][choice];
            assert_eq!(joined(&frames, choice, "text").0, expected["text"].as_str().unwrap());
            for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let of = frames.iter().filter(|frame| frame["choices"][0]["index"] == choice);
                let lists: Vec<Value> = of
                    .filter_map(|frame| frame["choices"][0]["logprobs"][key].as_array())
                    .flatten()
                    .cloned()
                    .collect();
                assert_eq!(json!(lists), expected["logprobs"][key], "{key}");
            }
        }
    }
}
