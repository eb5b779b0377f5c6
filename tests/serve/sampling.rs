//! `top_k`, `min_p` and `repetition_penalty` by definition, in vLLM's order: penalties, temperature, `min_p`, `top_k`, `top_p`.

use std::collections::BTreeSet;

use palimpsest_core::engine::ThinkingOptions;
use serde_json::{Value, json};

use super::{fixture, open, serve};
use crate::parity::prefill;

/// Logits of `llama-tiny` after tokens, recomputed from the start.
fn logits(tokens: &[u32]) -> Vec<f32> {
    let model = open(&fixture("llama-tiny"), 2048, ThinkingOptions::default());
    prefill(model.engine(), tokens, 1).0
}

struct Wanted {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    repetition: f32,
}

/// The tokens that can be sampled, by definition.
fn possible(tokens: &[u32], wanted: &Wanted) -> BTreeSet<u32> {
    let mut scores: Vec<f64> = logits(tokens).into_iter().map(f64::from).collect();
    for token in tokens.iter().collect::<BTreeSet<_>>() {
        let score = &mut scores[*token as usize];
        *score = if *score > 0.0 {
            *score / f64::from(wanted.repetition)
        } else {
            *score * f64::from(wanted.repetition)
        };
    }
    let softmax = |kept: &[(u32, f64)]| -> Vec<(u32, f64, f64)> {
        let sum: f64 = kept.iter().map(|(_, score)| (score / wanted.temperature).exp()).sum();
        kept.iter().map(|&(token, score)| (token, score, (score / wanted.temperature).exp() / sum)).collect()
    };
    let mut all: Vec<(u32, f64)> = (0..).zip(scores).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let likeliest = softmax(&all)[0].2;
    let mut kept: Vec<(u32, f64)> = softmax(&all)
        .into_iter()
        .filter(|(_, _, p)| *p >= wanted.min_p * likeliest)
        .map(|(token, score, _)| (token, score))
        .collect();
    kept.truncate(wanted.top_k);
    let mut before = 0.0;
    let mut nucleus = BTreeSet::new();
    for (token, _, p) in softmax(&kept) {
        if before >= wanted.top_p {
            break;
        }
        before += p;
        nucleus.insert(token);
    }
    nucleus
}

#[test]
fn what_may_be_drawn_is_what_the_definition_leaves_and_all_of_it_is_drawn() {
    let served = serve("llama-tiny");
    let local = open(&fixture("llama-tiny"), 64, ThinkingOptions::default());
    let prompt = local.tokenizer().encode("The fig tree stands by the well.").unwrap();
    let plain = Wanted { temperature: 1.5, top_k: 1000, top_p: 1.0, min_p: 0.0, repetition: 1.0 };
    let likely = logits(&prompt);
    let mut sorted = likely.clone();
    sorted.sort_by(f32::total_cmp);
    // Leaves out all but about eight.
    let (first, eighth) = (f64::from(sorted[sorted.len() - 1]), f64::from(sorted[sorted.len() - 8]));
    let min_p = ((eighth - first) / 1.5).exp() * 0.99;
    let cases = [
        (json!({"top_k": 3}), Wanted { top_k: 3, ..plain }),
        (json!({"min_p": min_p}), Wanted { min_p, ..plain }),
        (json!({"top_k": 6, "top_p": 0.6}), Wanted { top_k: 6, top_p: 0.6, ..plain }),
        (json!({"top_k": 5, "min_p": min_p, "top_p": 0.9}), Wanted { top_k: 5, min_p, top_p: 0.9, ..plain }),
        (json!({"top_k": 4, "repetition_penalty": 3.0}), Wanted { top_k: 4, repetition: 3.0, ..plain }),
        (json!({"top_k": 1, "temperature": 2.0}), Wanted { top_k: 1, temperature: 2.0, ..plain }),
    ];
    for (change, wanted) in cases {
        let mut body = json!({
            "prompt": prompt, "temperature": 1.5, "max_tokens": 1, "n": 128, "logprobs": 0, "seed": 3,
            "palimpsest": {"rows": ["last"], "token_ids": true}
        });
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        let reply = served.complete(body).ok();
        let drawn: BTreeSet<u32> = (reply["choices"].as_array().unwrap().iter())
            .filter_map(|choice| choice["palimpsest"]["token_ids"][0].as_u64())
            .map(|token| u32::try_from(token).unwrap())
            .collect();
        let expected: BTreeSet<u32> = possible(&prompt, &wanted)
            .into_iter()
            .filter(|token| !local.stop_tokens().contains(token))
            .collect();
        assert_eq!(drawn, expected, "{change}");
    }
}

#[test]
fn repetition_counts_tokens_of_prompt_and_answer_once_each() {
    let served = serve("llama-tiny");
    let local = open(&fixture("llama-tiny"), 64, ThinkingOptions::default());
    let prompt = local.tokenizer().encode("The fig tree stands by the well.").unwrap();
    let greedy = |penalty: f32| {
        let mut tokens = prompt.clone();
        let wanted = Wanted { temperature: 1.0, top_k: 1, top_p: 1.0, min_p: 0.0, repetition: penalty };
        while tokens.len() < prompt.len() + 12 {
            let best = *possible(&tokens, &wanted).first().unwrap();
            if local.stop_tokens().contains(&best) {
                break;
            }
            tokens.push(best);
        }
        tokens.split_off(prompt.len())
    };
    let mut texts = Vec::new();
    for penalty in [1.0, 1.3, 5.0, 0.5] {
        let body = json!({
            "prompt": prompt, "temperature": 0, "max_tokens": 12, "repetition_penalty": penalty
        });
        let reply = served.complete(body).ok();
        let text = reply["choices"][0]["text"].clone();
        assert_eq!(text, local.tokenizer().decode(&greedy(penalty), true).unwrap(), "{penalty}");
        texts.push(text);
    }
    assert!(texts[2] != texts[0] && texts[3] != texts[0], "{texts:?}");
}

#[test]
fn values_that_ask_for_nothing_change_nothing_and_chats_take_them_too() {
    let served = serve("llama-tiny");
    let ask = |change: Value| {
        let mut body = json!({"messages": super::user("Where is it?"), "max_tokens": 8, "seed": 5});
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        served.chat(body).ok()["choices"][0]["message"]["content"].clone()
    };
    let plain = ask(json!({}));
    assert_eq!(ask(json!({"top_k": 0, "min_p": 0, "repetition_penalty": 1})), plain);
    assert_eq!(ask(json!({"top_k": -1})), plain);
    assert_eq!(ask(json!({"top_k": 100_000})), plain);
    assert_eq!(ask(json!({"top_k": 1})), ask(json!({"temperature": 0})));
    assert_eq!(ask(json!({"min_p": 1})), ask(json!({"temperature": 0})));
}
