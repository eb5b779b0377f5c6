//! Answers in a format match it, whatever the model prefers.

use std::path::{Path, PathBuf};

use palimpsest_core::engine::ThinkingOptions;
use palimpsest_core::text::ThinkingMode;
use serde_json::{Value, json};

use super::schema::misfit;
use super::{Served, Setting, joined, serve, serve_path, user};
use crate::thinking::model::write;
use crate::thinking::templates::QWEN3;

/// Schemas with short values only: a random model never ends free text.
fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "boolean"}),
        json!({
            "type": "object",
            "properties": {
                "place": {"enum": ["Rome", "Oslo", "a \"quoted\" \u{e9}l\u{e8}ve"]},
                "sure": {"type": "boolean"},
                "year": {"type": "integer", "minimum": 1990, "maximum": 2030},
                "word": {"type": "string", "minLength": 2, "maxLength": 5}
            },
            "required": ["place", "sure", "year", "word"], "additionalProperties": false
        }),
        json!({
            "type": "array", "minItems": 2, "maxItems": 4,
            "items": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 9}]}
        }),
        json!({
            "$defs": {"leaf": {
                "type": "object", "properties": {"flag": {"type": ["boolean", "null"]}, "kind": {"const": "leaf"}},
                "required": ["kind"], "additionalProperties": false
            }},
            "type": "object", "required": ["left", "right"], "additionalProperties": false,
            "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}}
        }),
    ]
}

/// `llama-tiny` with a SentencePiece-like vocabulary of pieces and single bytes.
fn with_bytes(root: &Path) -> PathBuf {
    let (tiny, folder) = (super::fixture("llama-tiny"), root.join("bytes"));
    std::fs::create_dir(&folder).unwrap();
    for file in ["config.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(tiny.join(file), folder.join(file)).unwrap();
    }
    let mut tokenizer: Value =
        serde_json::from_slice(&std::fs::read(tiny.join("tokenizer.json")).unwrap()).unwrap();
    let pieces = ["\u{2581}", "Ro", "me", "false", "{\"", "\":", "\u{2581}\"", "\u{e9}"].map(str::to_owned);
    let vocab = (0..256).map(|byte| format!("<0x{byte:02X}>")).chain(pieces).enumerate();
    let vocab: serde_json::Map<String, Value> = vocab.map(|(id, token)| (token, id.into())).collect();
    tokenizer["model"] = json!({"type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": []});
    tokenizer["normalizer"] = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    tokenizer["pre_tokenizer"] = Value::Null;
    tokenizer["decoder"] = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}
    ]});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

fn asked(schema: &Value, change: Value) -> Value {
    let mut body = json!({
        "messages": user("Where is the fig tree?"), "max_completion_tokens": 600, "temperature": 0,
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}
        }
    });
    for (key, value) in change.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn content(choice: &Value) -> &str {
    choice["message"]["content"].as_str().unwrap()
}

fn parsed(choice: &Value) -> Value {
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    serde_json::from_str(content(choice)).unwrap_or_else(|error| panic!("{error}: {choice}"))
}

#[test]
fn a_model_of_random_weights_keeps_to_every_schema_and_its_stream_says_the_same() {
    let root = tempfile::tempdir().unwrap();
    let models = ["llama-tiny", "qwen35-text-tiny", "gpt-oss-tiny"].map(super::fixture);
    for path in models.into_iter().chain([with_bytes(root.path())]) {
        let name = path.display().to_string();
        let served = serve_path(&path, Setting::default());
        for schema in schemas() {
            for change in [json!({}), json!({"temperature": 1.3, "seed": 5, "n": 2, "top_p": 0.9})] {
                let body = asked(&schema, change);
                let reply = served.chat(body.clone()).ok();
                let choices = reply["choices"].as_array().unwrap();
                for choice in choices {
                    let value = parsed(choice);
                    assert_eq!(misfit(&value, &schema, &schema), None, "{name}");
                }
                let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
                for (i, choice) in choices.iter().enumerate() {
                    let streamed = joined(&frames, i, "content");
                    assert_eq!(streamed, (content(choice).to_owned(), "stop".to_owned()), "{name}");
                }
            }
        }
    }
}

#[test]
fn attention_of_an_answer_in_a_format_is_told_for_each_of_its_tokens() {
    let served = serve("llama-tiny");
    let schema = &schemas()[1];
    let body = asked(schema, json!({"palimpsest": {"rows": ["answer", "each"]}}));
    let reply = served.chat(body).ok();
    let choice = &reply["choices"][0];
    assert_eq!(misfit(&parsed(choice), schema, schema), None);
    let attention = &choice["palimpsest"];
    let each = attention["each"].as_array().unwrap();
    assert_eq!(json!(each.len()), reply["usage"]["completion_tokens"]);
    let sum = |row: &Value| row.as_array().unwrap().iter().map(|mass| mass.as_f64().unwrap()).sum::<f64>();
    assert!(
        (sum(&attention["mass"][0][0]) - 1.0).abs() < 1e-4
            && (sum(&each[each.len() - 1][0]) - 1.0).abs() < 1e-4
    );
}

#[test]
fn an_answer_as_an_object_is_one_and_what_is_cut_says_so() {
    let served = serve("llama-tiny");
    let token = |text: &str| served.post("/tokenize", json!({"prompt": text})).ok()["tokens"][0].to_string();
    let body = |bias: Value, most: usize| {
        json!({
            "messages": user("Hello"), "max_completion_tokens": most, "temperature": 0,
            "response_format": {"type": "json_object"}, "logit_bias": bias
        })
    };
    let ended = served.chat(body(json!({token("}"): 100}), 40)).ok();
    assert_eq!(parsed(&ended["choices"][0]), json!({}));
    let mut bias = json!({token("}"): 50, token("1"): 20});
    bias[token("\"")] = json!(60);
    bias[token("}")] = json!(-100);
    let cut = served.chat(body(bias, 9)).ok();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    let text = content(&cut["choices"][0]);
    assert!(text.starts_with("{\"") && serde_json::from_str::<Value>(text).is_ok(), "{cut}");
}

/// True if an object repeats a key, at any depth.
fn doubled(text: &str) -> bool {
    use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
    struct Once(bool);
    impl<'de> Deserialize<'de> for Once {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Look;
            impl<'de> Visitor<'de> for Look {
                type Value = Once;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("JSON")
                }
                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Once, A::Error> {
                    let (mut keys, mut twice) = (std::collections::BTreeSet::new(), false);
                    while let Some((key, value)) = map.next_entry::<String, Once>()? {
                        twice |= !keys.insert(key) || value.0;
                    }
                    Ok(Once(twice))
                }
                fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Once, A::Error> {
                    let mut twice = false;
                    while let Some(value) = list.next_element::<Once>()? {
                        twice |= value.0;
                    }
                    Ok(Once(twice))
                }
                fn visit_str<E>(self, _: &str) -> Result<Once, E> {
                    Ok(Once(false))
                }
                fn visit_bool<E>(self, _: bool) -> Result<Once, E> {
                    Ok(Once(false))
                }
                fn visit_u64<E>(self, _: u64) -> Result<Once, E> {
                    Ok(Once(false))
                }
                fn visit_i64<E>(self, _: i64) -> Result<Once, E> {
                    Ok(Once(false))
                }
                fn visit_f64<E>(self, _: f64) -> Result<Once, E> {
                    Ok(Once(false))
                }
                fn visit_unit<E>(self) -> Result<Once, E> {
                    Ok(Once(false))
                }
            }
            from.deserialize_any(Look)
        }
    }
    match serde_json::from_str::<Once>(text) {
        Ok(Once(doubled)) => doubled,
        // Grammatical JSON that this reader cannot represent.
        Err(error)
            if error.to_string().contains("out of range") || error.to_string().contains("surrogate") =>
        {
            false
        }
        Err(error) => panic!("{error}: {text}"),
    }
}

#[test]
fn an_object_is_closed_before_the_limit_and_no_key_of_it_comes_twice() {
    let root = tempfile::tempdir().unwrap();
    for path in [super::fixture("llama-tiny"), with_bytes(root.path())] {
        let served = serve_path(&path, Setting::default());
        let token = |text: &str| {
            let tokens = served.post("/tokenize", json!({"prompt": text})).ok()["tokens"].clone();
            tokens.as_array().unwrap().last().unwrap().to_string()
        };
        // One model never closes, and one likes to open keys and objects.
        let open = json!({token("}"): -100});
        let keys = json!({token("}"): -100, token("\""): 8, token(":"): 6, token(","): 6, token("{"): 5});
        let mut cut = 0;
        for bias in [open, keys] {
            for most in [4, 5, 6, 7, 9, 12, 20, 40, 90] {
                let body = json!({
                    "messages": user("Hello"), "max_completion_tokens": most, "temperature": 1.2, "seed": most, "n": 3,
                    "response_format": {"type": "json_object"}, "logit_bias": bias
                });
                let reply = served.chat(body.clone()).ok();
                let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
                for (i, choice) in reply["choices"].as_array().unwrap().iter().enumerate() {
                    let text = content(choice);
                    assert!(!doubled(text), "{most}: {text}");
                    cut += usize::from(choice["finish_reason"] == "length");
                    assert_eq!(joined(&frames, i, "content").0, text);
                }
            }
        }
        assert!(cut > 20, "{cut} ran into the limit");
    }
}

#[test]
fn probabilities_are_those_before_the_format() {
    let served = serve("llama-tiny");
    let with = json!({"logprobs": true, "top_logprobs": 3, "max_completion_tokens": 1});
    let kept = served.chat(asked(&json!({"type": "boolean"}), with.clone())).ok();
    let mut free = with;
    free["messages"] = user("Where is the fig tree?");
    free["temperature"] = json!(0);
    let free = served.chat(free).ok();
    let first = |reply: &Value| reply["choices"][0]["logprobs"]["content"][0].clone();
    let (kept, free) = (first(&kept), first(&free));
    assert_eq!(kept["top_logprobs"], free["top_logprobs"]);
    assert_ne!(kept["token"], free["token"], "a random model does not begin with a boolean by itself");
    assert!(kept["logprob"].as_f64() < free["logprob"].as_f64());
}

#[test]
fn a_schema_that_cannot_be_enforced_is_refused_with_the_reason_and_the_server_lives() {
    let served = serve("llama-tiny");
    let deep = (0..100)
        .fold(json!({"type": "null"}), |inner, _| json!({"anyOf": [inner, {"type": "array", "items": {}}]}));
    let many: Vec<String> = (0..200_000).map(|i| format!("value {i}")).collect();
    for (schema, said) in [
        (json!({"type": "colour"}), "colour"),
        (json!({"$ref": "http://127.0.0.1/x.json"}), "ref"),
        (json!({"$ref": "#/$defs/nowhere"}), "nowhere"),
        (json!({"$ref": "#"}), "no answer"),
        (json!({"type": "string", "pattern": "(unclosed"}), "regex parse error"),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), "minimum"),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"enum": many}), "values"),
    ] {
        let refused = served.chat(asked(&schema, json!({})));
        let error = &refused.json["error"];
        assert_eq!(refused.status, 400, "{}", refused.json);
        assert_eq!(error["param"], "response_format.json_schema.schema");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(said) && message.len() < 500, "{message}");
    }
    // Non-strict schemas leave unenforceable parts to the model.
    let mut body = asked(&json!({"type": "boolean", "not": {"const": 5}}), json!({}));
    assert_eq!(served.chat(body.clone()).status, 400);
    body["response_format"]["json_schema"]["strict"] = json!(false);
    assert!(parsed(&served.chat(body).ok()["choices"][0]).is_boolean());
    let nested = served.chat(asked(&deep, json!({"max_completion_tokens": 8})));
    assert!(matches!(nested.status, 200 | 400), "{}", nested.json);
    assert_eq!(served.get("/health").status, 200);
}

fn thinker(chain: &[&str]) -> (tempfile::TempDir, Served) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("thinker");
    write(&folder, QWEN3, &[chain], "<|im_end|>");
    let thinking = ThinkingOptions { mode: ThinkingMode::On, max: 64, ..ThinkingOptions::default() };
    (root, serve_path(&folder, Setting { thinking, ..Setting::default() }))
}

#[test]
fn a_format_begins_with_the_answer_after_the_thought_or_without_one() {
    let schema = json!({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2});
    let thought = ["\n", "<think>", "Let me see:", " it was", " Rome, or", "</think>", "\n\n", "You moved"];
    for (chain, expected) in [
        (&thought[..], Some("Let me see: it was Rome, or")),
        // The model may think but does not: its first token is the answer's.
        (&["\n", "You moved", " to Oslo."][..], None),
    ] {
        let (_root, served) = thinker(chain);
        let body = asked(&schema, json!({"max_completion_tokens": 60}));
        let reply = served.chat(body.clone()).ok();
        let choice = &reply["choices"][0];
        assert_eq!(misfit(&parsed(choice), &schema, &schema), None);
        assert_eq!(choice["message"]["reasoning_content"].as_str(), expected);
        let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
        assert_eq!(joined(&frames, 0, "content").0, content(choice));
        assert_eq!(joined(&frames, 0, "reasoning_content").0, expected.unwrap_or_default());
    }
}
