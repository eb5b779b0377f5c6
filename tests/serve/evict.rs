//! Cache evictions for one answer: what is kept is told, and the answer is the engine's over what was kept.

use palimpsest::chat::Sampling;
use palimpsest_core::engine::{Branch, Generate, Observe, Request, Reuse, Rows, Task, ThinkingOptions};
use palimpsest_core::evict::Eviction;
use palimpsest_core::span::Span;
use serde_json::{Value, json};

use super::attention::{close, flat, spans};
use super::{Reply, Served, fixture, joined, open, serve, user};

const GREEDY: usize = 7;

/// Full softmax attention, windows beside it, and linear layers.
const MODELS: [&str; 3] = ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny"];

const DOCUMENTS: [(&str, &str); 3] = [
    ("one", "The fig tree stands by the well."),
    ("two", "The olive tree was felled in March."),
    ("three", "A lemon tree grows behind the school."),
];

fn body(attention: Value) -> Value {
    let documents = DOCUMENTS.map(|(title, text)| json!({"title": title, "text": text}));
    json!({
        "messages": user("Which tree is left?"), "documents": documents, "temperature": 0, "seed": 1,
        "max_completion_tokens": GREEDY, "palimpsest": attention
    })
}

fn ask(served: &Served, attention: Value) -> Value {
    served.chat(body(attention)).ok()["choices"][0].clone()
}

fn rows(evict: Option<&str>) -> Value {
    let rows = ["messages[0]", "last", "answer"];
    json!({"rows": rows, "heads": "all", "token_ids": true, "evict": evict})
}

/// Labels and shares of a reply, in order.
fn kept(told: &Value) -> Vec<(&str, f64)> {
    let entries = told["kept"].as_array().unwrap().iter();
    entries.map(|one| (one["label"].as_str().unwrap(), one["share"].as_f64().unwrap())).collect()
}

#[test]
fn a_policy_that_keeps_all_changes_no_bit_and_says_so() {
    for name in MODELS {
        let served = serve(name);
        let plain = ask(&served, rows(None));
        for policy in ["streaming:1.0", "snapkv:1.0@question", "oldest:100000"] {
            let evicting = ask(&served, rows(Some(policy)));
            assert_eq!(evicting["message"], plain["message"], "{name}, {policy}");
            for field in ["token_ids", "mass", "share", "spans"] {
                let (found, expected) = (&evicting["palimpsest"][field], &plain["palimpsest"][field]);
                assert_eq!(found, expected, "{name}, {policy}: {field}");
            }
            let told = &evicting["palimpsest"]["evict"];
            assert_eq!((&told["policy"], &told["all"]), (&json!(policy), &json!(1.0)), "{name}");
            let expected: Vec<(&str, f64)> =
                ["template[0]", "one", "two", "three"].map(|label| (label, 1.0)).to_vec();
            assert_eq!(kept(told), expected, "{name}, {policy}");
        }
        assert_eq!(plain["palimpsest"].get("evict"), None, "{name}");
    }
}

#[test]
fn the_answer_and_its_masses_are_those_of_the_same_request_to_the_model() {
    for name in MODELS {
        let served = serve(name);
        for policy in ["snapkv:0.5", "knorm:20", "snapkv:0.5@question"] {
            let evicting = ask(&served, rows(Some(policy)));
            let attention = &evicting["palimpsest"];
            let keys: Vec<Span> =
                spans(attention).into_iter().filter(|span| span.label != "generated").collect();
            let tokens: Vec<u32> = serde_json::from_value(attention["prompt_token_ids"].clone()).unwrap();
            let at = keys.iter().find(|span| span.label == "messages[0]").unwrap().start;
            assert_eq!(attention["evict"]["from"], at, "{name}");

            let mut model = open(&fixture(name), 2048, ThinkingOptions::default());
            let rows = Rows::named(&["messages[0]", "last", "answer"], &keys, tokens.len()).unwrap();
            let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 1, max_new_tokens: GREEDY };
            let stop = model.stop_tokens().to_vec();
            let history = Span::new("all of it", 0..at).as_overlay();
            let of_eviction = keys.iter().cloned().chain([history]).collect();
            let branch = Branch {
                tokens: tokens.clone(),
                evict: Some(Eviction { evict: policy.parse().unwrap(), at, spans: of_eviction, seed: 1 }),
                observe: Observe { rows, keys: keys.clone(), ..Observe::default() },
                tasks: vec![Task::Generate(Box::new(Generate::new(sampling, stop)))],
                ..Branch::default()
            };
            let request = Request { reuse: Reuse::Prefix, branches: vec![branch], ..Request::default() };
            let expected = model.session().answer(request, &mut |_| true).unwrap();
            assert_eq!(attention["token_ids"], json!(expected.generated.tokens), "{name}, {policy}");
            let (shape, found) = flat(&attention["mass"]);
            let width = *shape.last().unwrap();
            // Generated tokens come after the tiles.
            let found: Vec<f32> = found.chunks(width).flat_map(|row| row[..keys.len()].to_vec()).collect();
            close(name, &found, &expected.masses.mass.iter().copied().collect::<Vec<_>>());

            // Means over layers and heads, summed here entry by entry.
            let shares = expected.kept.unwrap().shares;
            let (layers, heads, _) = shares.dim();
            let mean = |i: usize| {
                let each = (0..layers).flat_map(|l| (0..heads).map(move |h| (l, h)));
                each.map(|(l, h)| f64::from(shares[[l, h, i]])).sum::<f64>() / (layers * heads) as f64
            };
            let told = kept(&attention["evict"]);
            assert_eq!(told.len(), 4, "{name}");
            for (i, (label, share)) in told.into_iter().enumerate() {
                assert_eq!(label, keys[i].label, "{name}");
                assert!((share - mean(i)).abs() < 1e-9, "{name}, {policy}: {label} {share}");
            }
            let all = attention["evict"]["all"].as_f64().unwrap();
            let budget = if policy == "knorm:20" { 20 } else { at / 2 };
            assert!((all * at as f64 - budget as f64).abs() < 1e-3, "{name}, {policy}: {all} of {at}");
        }
    }
}

#[test]
fn the_oldest_documents_go_first_and_later_ones_stay_whole() {
    let served = serve("llama-tiny");
    let evicting = ask(&served, rows(Some("oldest:0.6")));
    let attention = &evicting["palimpsest"];
    let shares: Vec<f64> = kept(&attention["evict"])
        .into_iter()
        .filter_map(|(label, share)| DOCUMENTS.iter().any(|(title, _)| *title == label).then_some(share))
        .collect();
    assert!(shares[0] < 1.0 && shares[0] <= shares[1] && shares[1] <= shares[2], "{shares:?}");
    assert_eq!(shares[2], 1.0, "{shares:?}");
    // Later rows do not see evicted keys: no head of the answer's row pays them anything.
    let oldest = ask(&served, rows(Some("oldest:0.3")));
    let told = kept(&oldest["palimpsest"]["evict"]);
    assert!(told.contains(&("one", 0.0)), "{told:?}");
    let (shape, mass) = flat(&oldest["palimpsest"]["mass"]);
    let one = spans(&oldest["palimpsest"]).iter().position(|span| span.label == "one").unwrap();
    assert!(mass.chunks(shape[3]).all(|row| row[one] == 0.0));
    let (_, plain) = flat(&ask(&served, rows(None))["palimpsest"]["mass"]);
    assert!(plain.chunks(shape[3]).all(|row| row[one] > 0.0));
}

#[test]
fn the_system_message_is_no_session_and_parts_of_messages_are() {
    let served = serve("llama-tiny");
    let part = |text: &str, span: &str| json!({"type": "text", "text": text, "span": span});
    let [one, two, three] = DOCUMENTS.map(|(title, text)| part(&format!("{text} "), title));
    let asked = json!({
        "messages": [
            {"role": "system", "content": "Answer from the documents."},
            {"role": "user", "content": [one, two, three, part("Which tree is left?", "question")]}
        ],
        "temperature": 0, "max_completion_tokens": 2, "palimpsest": {"evict": "oldest:0.6"}
    });
    let reply = served.chat(asked).ok();
    let told = kept(&reply["choices"][0]["palimpsest"]["evict"]);
    let labels: Vec<&str> = told.iter().map(|(label, _)| *label).collect();
    assert_eq!(labels, ["template[0]", "messages[0]", "template[1]", "one", "two", "three"]);
    assert!(told[1].1 == 1.0 && told[3].1 < 1.0 && told[5].1 == 1.0, "{told:?}");
}

#[test]
fn no_attention_need_be_asked_for_and_plain_requests_about_it_keep_their_bits() {
    for name in MODELS {
        let fresh = ask(&serve(name), rows(Some("snapkv:0.4")));
        let served = serve(name);
        let plain = ask(&served, rows(None));
        let alone = ask(&served, json!({"evict": "snapkv:0.4"}));
        assert_eq!(alone["message"], fresh["message"], "{name}");
        assert_eq!(alone["palimpsest"]["evict"], fresh["palimpsest"]["evict"], "{name}");
        for field in ["rows", "mass", "share"] {
            assert_eq!(alone["palimpsest"].get(field), None, "{name}: {field}");
        }
        // The prompt is cached by now, by requests with and without an eviction.
        let again = ask(&served, rows(None));
        assert_eq!(again["palimpsest"], plain["palimpsest"], "{name}");
        let after = ask(&served, rows(Some("snapkv:0.4")));
        assert_eq!(after["message"], fresh["message"], "{name}");
        assert_eq!(after["palimpsest"]["evict"], fresh["palimpsest"]["evict"], "{name}");
        close(name, &flat(&after["palimpsest"]["mass"]).1, &flat(&fresh["palimpsest"]["mass"]).1);
    }
}

#[test]
fn policies_that_draw_do_so_by_the_requests_seed() {
    let served = serve("llama-tiny");
    let drawn = |seed: u64| {
        let mut body = body(rows(Some("random:0.5")));
        body["seed"] = seed.into();
        served.chat(body).ok()["choices"][0]["palimpsest"].clone()
    };
    let [first, again, other] = [1, 1, 2].map(drawn);
    assert_eq!(first["mass"], again["mass"]);
    assert_ne!(first["mass"], other["mass"]);
}

#[test]
fn the_last_frame_of_a_stream_says_what_was_kept() {
    let served = serve("llama-tiny");
    let whole = ask(&served, json!({"evict": "snapkv:0.5"}));
    let path = "/v1/chat/completions";
    let frames: Vec<Value> = served.stream(path, body(json!({"evict": "snapkv:0.5"}))).collect();
    assert_eq!(joined(&frames, 0, "content").0.trim(), whole["message"]["content"].as_str().unwrap());
    let told: Vec<&Value> =
        frames.iter().filter(|frame| frame["choices"][0].get("palimpsest").is_some()).collect();
    let [last] = told[..] else { panic!("{told:?}") };
    assert!(last["choices"][0]["finish_reason"].is_string());
    assert_eq!(last["choices"][0]["palimpsest"]["evict"], whole["palimpsest"]["evict"]);
}

#[test]
fn a_given_answer_is_measured_over_what_was_kept() {
    let served = serve("llama-tiny");
    let generated = ask(&served, rows(Some("snapkv:0.5")));
    let mut asked = rows(Some("snapkv:0.5"));
    asked["answer"] = generated["palimpsest"]["token_ids"].clone();
    let given = ask(&served, asked);
    for field in ["mass", "evict", "token_ids"] {
        assert_eq!(given["palimpsest"][field], generated["palimpsest"][field], "{field}");
    }
}

#[test]
fn a_completion_names_its_question() {
    let served = serve("llama-tiny");
    let complete = |attention: Value| -> Reply {
        let prompt = "The fig tree stands by the well. The olive tree was felled. Which tree is left?";
        served.complete(json!({"prompt": prompt, "max_tokens": 2, "temperature": 0, "palimpsest": attention}))
    };
    let error = complete(json!({"evict": "streaming:0.5"})).refused(400);
    assert_eq!(error["param"], "palimpsest.evict");
    assert!(error["message"].as_str().unwrap().contains("name a span `question`"), "{error}");
    let range = |label: &str, start: usize, end: usize| json!({"label": label, "start": start, "end": end});
    let ranges = json!([range("fig", 0, 32), range("question", 60, 79)]);
    let reply = complete(json!({"evict": "streaming:0.5", "spans": ranges})).ok();
    let told = &reply["choices"][0]["palimpsest"];
    let start = spans(told).into_iter().find(|span| span.label == "question").unwrap().start;
    assert_eq!(told["evict"]["from"], start);
    let labels: Vec<&str> = kept(&told["evict"]).into_iter().map(|(label, _)| label).collect();
    assert_eq!(labels, ["prompt", "fig"]);
    let all = told["evict"]["all"].as_f64().unwrap();
    assert!((all * start as f64 - (start / 2) as f64).abs() < 1e-3, "{all}");
    // Ranges may overlap: a key that two of them have goes once.
    let ranges =
        json!([range("a", 0, 32), range("b", 15, 32), range("c", 33, 59), range("question", 60, 79)]);
    let reply = complete(json!({"evict": "oldest:21", "spans": ranges})).ok();
    let told = &reply["choices"][0]["palimpsest"]["evict"];
    let left = told["all"].as_f64().unwrap() * told["from"].as_f64().unwrap();
    assert!((0.0..21.01).contains(&left), "{told}");
}

#[test]
fn evictions_that_cannot_be_are_refused_by_name() {
    let served = serve("llama-tiny");
    let refused = |attention: Value, part: &str| {
        let error = served.chat(body(attention)).refused(400);
        assert_eq!(error["param"], "palimpsest.evict", "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    };
    refused(json!({"evict": "snapkv"}), "it has no `:`");
    refused(json!({"evict": "best:0.5"}), "`best` is no policy");
    refused(json!({"evict": "snapkv:1.5"}), "neither a share");
    refused(json!({"evict": "snapkv:0.5@answer"}), "`@question`");
    refused(json!({"evict": "oracle:0.5"}), "marks as evidence");
    refused(json!({"evict": 0.5}), "is 0.5; give a string");
    for (other, value) in [
        ("knockouts", json!(["messages[0]->one"])),
        ("causes", json!(true)),
        ("cite", json!(true)),
        ("score", json!(true)),
        ("targets", json!([{"token": 3}])),
        ("top_keys", json!(2)),
        ("measures", json!(["mass", "value_norm"])),
    ] {
        let mut attention = json!({"rows": ["last"], "evict": "snapkv:0.5"});
        attention[other] = value;
        refused(attention, &format!("palimpsest.{other}; leave one of them out"));
    }
    let echoed = json!({
        "prompt": "A tree. Which?", "max_tokens": 2, "echo": true, "logprobs": 0,
        "palimpsest": {"evict": "snapkv:0.5", "spans": [{"label": "question", "start": 8, "end": 14}]}
    });
    let error = served.complete(echoed).refused(400);
    assert_eq!(error["param"], "palimpsest.evict", "{error}");
    // Nothing is asked, or nothing stands before the question.
    let mut unasked = body(json!({"evict": "snapkv:0.5"}));
    unasked.as_object_mut().unwrap().remove("documents");
    let part = |text: &str| json!({"type": "text", "text": text});
    unasked["messages"] = json!([{"role": "user", "content": [part("Which tree?"), part("")]}]);
    let error = served.chat(unasked).refused(400);
    assert_eq!(error["param"], "palimpsest.evict", "{error}");
    let whole = json!({
        "prompt": "Which tree?", "max_tokens": 2,
        "palimpsest": {"evict": "snapkv:0.5", "spans": [{"label": "question", "start": 0, "end": 11}]}
    });
    let error = served.complete(whole).refused(400);
    assert!(error["message"].as_str().unwrap().contains("before the question"), "{error}");
}
