//! Sentences of an answer with the spans they attend to and causally depend on.

use palimpsest_core::ablate::{History, Metric, Said, Target};
use palimpsest_core::attention::{Hole, LayerHoles};
use palimpsest_core::engine::ThinkingOptions;
use palimpsest_core::span::Span;
use serde_json::{Value, json};

use super::attention::{flat, spans};
use super::{Served, fixture, joined, open, serve};

/// Full softmax attention, windows beside it, and linear layers.
const MODELS: [&str; 3] = ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny"];

const TWO: &str = "The fig tree is old. It stands by the well.";

fn body(answer: Option<&str>, more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Which tree is left?"}], "temperature": 0, "max_completion_tokens": 48,
        "documents": [
            {"title": "one", "text": "The fig tree stands by the well."},
            {"title": "two", "text": "The olive tree was felled in March."},
            {"title": "number three", "text": "No ship came."}
        ],
        "palimpsest": {"cite": true}
    });
    if let Some(answer) = answer {
        body["palimpsest"]["answer"] = answer.into();
    }
    for (key, value) in more.as_object().unwrap() {
        body["palimpsest"][key] = value.clone();
    }
    body
}

fn chat(served: &Served, body: Value) -> Value {
    served.chat(body).ok()["choices"][0].clone()
}

fn number(json: &Value, key: &str) -> f64 {
    json[key].as_f64().unwrap_or_else(|| panic!("{key} of {json}"))
}

fn list<'a>(json: &'a Value, key: &str) -> &'a Vec<Value> {
    json[key].as_array().unwrap_or_else(|| panic!("{key} of {json}"))
}

#[test]
fn a_sentence_has_the_effects_of_causes_and_the_masses_of_its_rows() {
    for name in MODELS {
        let served = serve(name);
        let asked = chat(
            &served,
            body(Some(TWO), json!({"rows": ["each"], "heads": "all", "token_ids": true, "causes": true})),
        );
        let attention = &asked["palimpsest"];
        let (cite, causes) = (&attention["cite"], &attention["causes"]);
        let sentences = list(cite, "sentences");
        assert_eq!(sentences.len(), 2, "{name}: {cite}");
        assert_eq!(sentences[0]["text"], "The fig tree is old.");
        assert_eq!((&sentences[1]["start"], &sentences[1]["end"]), (&json!(21), &json!(43)));
        let tokens: Vec<[usize; 2]> =
            sentences.iter().map(|one| serde_json::from_value(one["tokens"].clone()).unwrap()).collect();
        let answer: Vec<u32> = serde_json::from_value(attention["token_ids"].clone()).unwrap();
        assert_eq!((tokens[0][0], tokens[0][1], tokens[1][1]), (0, tokens[1][0], answer.len()), "{name}");

        // The effect on the whole answer is the mean over its tokens.
        for (nth, span) in list(causes, "spans").iter().enumerate() {
            let parts = sentences.iter().zip(&tokens).map(|(sentence, [start, end])| {
                number(&sentence["spans"][nth], "log_p_drop") * (end - start) as f64
            });
            let whole = parts.sum::<f64>() / answer.len() as f64;
            assert!((whole - number(span, "log_p_drop")).abs() < 1e-9, "{name}: {span}");
        }

        // Masses of its tokens' rows, over all heads and the full-attention layers.
        let (shape, each) = flat(&attention["each"]);
        let [_, _, heads, columns] = shape[..] else { panic!("{shape:?}") };
        let layers: Vec<usize> = serde_json::from_value(cite["layers"].clone()).unwrap();
        let all: Vec<usize> = serde_json::from_value(attention["layers"].clone()).unwrap();
        let told = spans(attention);
        for (sentence, [start, end]) in sentences.iter().zip(&tokens) {
            for span in list(sentence, "spans") {
                let column = told.iter().position(|one| one.label == span["label"]).unwrap();
                let (mut sum, mut count) = (0.0, 0.0);
                for token in *start..*end {
                    for layer in &layers {
                        let place = all.iter().position(|one| one == layer).unwrap();
                        for head in 0..heads {
                            let at = ((token * all.len() + place) * heads + head) * columns + column;
                            (sum, count) = (sum + f64::from(each[at]), count + 1.0);
                        }
                    }
                }
                assert!((sum / count - number(span, "mass")).abs() < 1e-6, "{name}: {span}");
                assert!(number(span, "density") > 0.0, "{name}: {span}");
            }
        }

        // A citation covers a sentence of the content and appears in both places.
        let content: Vec<char> = asked["message"]["content"].as_str().unwrap().chars().collect();
        let mut cited = Vec::new();
        for one in list(&asked["message"], "annotations") {
            assert_eq!(one["type"], "url_citation");
            let place = &one["url_citation"];
            let at = |key: &str| place[key].as_u64().unwrap() as usize;
            let text: String = content[at("start_index")..at("end_index")].iter().collect();
            let sentence = sentences.iter().find(|sentence| sentence["text"] == text).unwrap();
            let span = list(sentence, "spans").iter().find(|span| span["label"] == place["title"]).unwrap();
            assert!(list(span, "cited").contains(&one["kind"]), "{name}: {one}");
            let own = if one["kind"] == "cause" { "log_p_drop" } else { "density" };
            assert_eq!(span[own], one["score"], "{name}");
            assert!(
                place["url"].as_str().unwrap().starts_with('#')
                    && !place["url"].as_str().unwrap().contains(' ')
            );
            cited.push(one.clone());
        }
        let kinds = sentences.iter().flat_map(|one| list(one, "spans")).flat_map(|span| list(span, "cited"));
        assert_eq!(kinds.count(), cited.len(), "{name}");
        assert!(!cited.is_empty(), "{name}");
        assert_eq!(causes["softmax_only"] == true, name == "qwen35-text-tiny");
    }
}

#[test]
fn a_sentence_that_is_the_whole_answer_has_the_effects_of_causes_on_the_same_tokens() {
    for name in MODELS {
        let served = serve(name);
        let asked = chat(&served, body(Some("The fig tree by the well"), json!({"token_ids": true})));
        let attention = &asked["palimpsest"];
        let cite = &attention["cite"];
        let [sentence] = &list(cite, "sentences")[..] else { panic!("{cite}") };
        let tokens: Vec<u32> = serde_json::from_value(attention["prompt_token_ids"].clone()).unwrap();
        let answer: Vec<u32> = serde_json::from_value(attention["token_ids"].clone()).unwrap();
        let from = cite["from"].as_u64().unwrap() as usize;
        let mut model = open(&fixture(name), 4096, ThinkingOptions::default());
        let kinds = model.engine().decoder().spec().layer_kinds();
        let told: Vec<Span> = spans(attention);
        let hole = |span: &Value| {
            let keys = told.iter().find(|one| one.label == span["label"]).unwrap().range();
            LayerHoles::at_softmax(&(0..kinds.len()), &kinds, vec![Hole { rows: from..usize::MAX, keys }])
        };
        let holes: Vec<LayerHoles> = list(sentence, "spans").iter().map(hole).collect();
        let history = History { tokens: tokens[..from].into(), rest: &tokens[from..] };
        let session = model.session();
        let target = Target::Answer(Said { tokens: &answer, thought: 0 });
        let read = Metric::read(session, &history, target, &mut |_| true).unwrap();
        let mut found = vec![0.0; holes.len()];
        read.effects(session, &history, &holes, &mut |_| true, &mut |nth, row| {
            found[nth] = row.effect().unwrap().log_p_drop;
            true
        })
        .unwrap();
        assert!((read.value() - number(sentence, "log_p")).abs() < 1e-5, "{name}");
        for (span, expected) in list(sentence, "spans").iter().zip(&found) {
            assert!((number(span, "log_p_drop") - expected).abs() < 1e-5, "{name}: {span}, {expected}");
        }
        assert!(found.iter().any(|drop| drop.abs() > 1e-4), "{name}: {found:?}");
    }
}

#[test]
fn a_stream_cites_in_its_last_chunk_and_the_answer_is_as_without() {
    for name in MODELS {
        let served = serve(name);
        let mut plain = body(None, json!({}));
        plain["palimpsest"] = Value::Null;
        let plain = chat(&served, plain);
        assert_eq!(plain["message"].get("annotations"), None, "{name}");
        let mut whole = chat(&served, body(None, json!({})));
        let annotations = whole["message"].as_object_mut().unwrap().remove("annotations").unwrap();
        assert_eq!(whole["message"], plain["message"], "{name}");
        assert_eq!(whole["palimpsest"].get("each"), None, "{name}: only what was asked for");
        let frames: Vec<Value> = served.stream("/v1/chat/completions", body(None, json!({}))).collect();
        assert_eq!(joined(&frames, 0, "content").0, plain["message"]["content"].as_str().unwrap(), "{name}");
        let with = |frame: &&Value| frame["choices"][0]["delta"].get("annotations").is_some();
        let told: Vec<&Value> = frames.iter().filter(with).collect();
        let [last] = told[..] else { panic!("{name}: {told:?}") };
        assert!(last["choices"][0]["finish_reason"].is_string());
        assert_eq!(last["choices"][0]["delta"]["annotations"], annotations, "{name}");
        assert_eq!(last["choices"][0]["palimpsest"]["cite"], whole["palimpsest"]["cite"], "{name}");
        // Each of several answers has its own citations.
        let mut two = body(None, json!({}));
        (two["n"], two["temperature"], two["seed"]) = (json!(2), json!(1), json!(3));
        for choice in list(&served.chat(two).ok(), "choices") {
            let text = choice["message"]["content"].as_str().unwrap();
            for sentence in list(&choice["palimpsest"]["cite"], "sentences") {
                assert!(text.contains(sentence["text"].as_str().unwrap()), "{name}: {choice}");
            }
            assert!(choice["message"]["annotations"].is_array());
        }
    }
}

#[test]
fn an_answer_without_a_document_owes_it_nothing() {
    let served = serve("llama-tiny");
    let blocked = json!({"knockouts": ["messages[0]->two"], "causes": true});
    let asked = chat(&served, body(Some(TWO), blocked));
    let of = |label: &str| {
        let sentences = list(&asked["palimpsest"]["cite"], "sentences").iter();
        let spans = sentences.flat_map(|one| list(one, "spans")).filter(|span| span["label"] == label);
        spans.map(|span| (number(span, "log_p_drop"), number(span, "mass"))).collect::<Vec<_>>()
    };
    assert!(of("two").iter().all(|numbers| *numbers == (0.0, 0.0)), "{:?}", of("two"));
    assert!(of("one").iter().all(|(drop, mass)| *drop != 0.0 && *mass > 0.0), "{:?}", of("one"));
    let free = chat(&served, body(Some(TWO), json!({"causes": true})));
    assert_ne!(free["palimpsest"]["causes"]["log_p"], asked["palimpsest"]["causes"]["log_p"]);
}

#[test]
fn citations_that_cannot_be_made_are_refused_by_name() {
    let served = serve("llama-tiny");
    let refused = |body: Value, field: &str, part: &str| {
        let error = served.chat(body).refused(400);
        assert_eq!(error["param"], field, "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    };
    refused(body(None, json!({"cite": "yes"})), "palimpsest.cite", "boolean");
    refused(body(None, json!({"cite": {"controls": 65}})), "palimpsest.cite.controls", "64");
    refused(body(None, json!({"cite": {"spans": ["four"]}})), "palimpsest.cite.spans", "\"four\"");
    let two = json!({"cite": {"controls": 2}, "causes": {"controls": 3}});
    refused(body(None, two), "palimpsest.cite", "same readings");
    let mut none = body(None, json!({}));
    none["documents"] = json!([]);
    refused(none, "palimpsest.cite.spans", "no documents");
    let completion =
        served.complete(json!({"prompt": "The fig", "max_tokens": 2, "palimpsest": {"cite": true}}));
    assert_eq!(completion.refused(400)["param"], "palimpsest.cite");
}
