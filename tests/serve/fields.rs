//! Request and reply fields by OpenAI's specification and the RFCs it builds on.

use palimpsest_core::text::Tokenizer;
use serde_json::{Value, json};

use super::{Reply, Served, Setting, fixture, serve, serve_path, user};
use crate::thinking::model::write;

#[test]
fn m08_half_a_character_has_its_bytes() {
    let served = serve("llama-tiny");
    let tokenizer = Tokenizer::from_file(&fixture("llama-tiny").join("tokenizer.json")).unwrap();
    let bytes = tokenizer.token_bytes();
    // Partial bytes of é, €, 😀 and ы, an invalid byte, and whole characters.
    for wanted in [&[0xC3][..], &[0xE2], &[0x82], &[0xF0], &[0xD1], &[0x8B], &[0xFF], b"a", b" "] {
        let id = bytes.iter().position(|token| token.bytes == wanted).unwrap();
        let body = json!({
            "messages": user("Hi"), "logit_bias": {id.to_string(): 100}, "temperature": 0, "max_tokens": 2, "logprobs": true,
            "top_logprobs": 5
        });
        let reply = served.chat(body).ok();
        let first = &reply["choices"][0]["logprobs"]["content"][0];
        assert_eq!(first["bytes"], json!(wanted), "{first}");
        for entry in first["top_logprobs"].as_array().unwrap() {
            let told: Vec<u8> = serde_json::from_value(entry["bytes"].clone()).unwrap();
            let text = entry["token"].as_str().unwrap();
            assert!(text.contains('\u{FFFD}') || told == text.as_bytes(), "{entry}");
        }
    }
}

/// Texts, offsets and top-token counts of an echoed prompt.
fn echoed(served: &Served, prompt: &Value, logprobs: usize) -> (String, Vec<u64>, Vec<usize>, Vec<String>) {
    let body = json!({"prompt": prompt, "echo": true, "logprobs": logprobs, "max_tokens": 0});
    let choice = served.complete(body).ok()["choices"][0].clone();
    let lists = &choice["logprobs"];
    let offsets = serde_json::from_value(lists["text_offset"].clone()).unwrap();
    let top = lists["top_logprobs"].as_array().unwrap().iter();
    let counts = top.filter_map(|top| top.as_object().map(serde_json::Map::len)).collect();
    let tokens = serde_json::from_value(lists["tokens"].clone()).unwrap();
    (choice["text"].as_str().unwrap().to_owned(), offsets, counts, tokens)
}

#[test]
fn m08_offsets_are_those_of_characters_and_as_many_likeliest_tokens_come_as_were_asked_for() {
    let served = serve("llama-tiny");
    // transformers' offsets (`return_offsets_mapping`, 5.24), first of each pair.
    for (text, expected) in [
        ("é€😀x y", vec![0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5]),
        ("aé", vec![0, 1, 1]),
        ("éé", vec![0, 0, 1, 1]),
        ("ab", vec![0, 1]),
        ("\u{FFFD}a", vec![0, 0, 0, 1]),
    ] {
        let tokens = served.post("/tokenize", json!({"prompt": text})).ok()["tokens"].clone();
        for prompt in [json!(text), tokens] {
            let (said, offsets, counts, names) = echoed(&served, &prompt, 5);
            assert_eq!(said, text);
            assert_eq!(offsets, expected, "{text}");
            assert!(counts.iter().all(|&count| count == 5), "{text}: {counts:?}");
            let halves = names.iter().filter(|name| name.starts_with("bytes:\\x")).count();
            assert!(halves >= text.chars().filter(|c| !c.is_ascii()).count(), "{names:?}");
        }
    }
    // Same for generated tokens, whole and streamed, and cut by a stop string.
    for body in [
        json!({"prompt": "é", "echo": true, "logprobs": 5, "max_tokens": 12, "temperature": 2, "seed": 4}),
        json!({"prompt": "One", "logprobs": 5, "max_tokens": 12, "temperature": 2, "seed": 5}),
    ] {
        let reply = served.complete(body.clone()).ok()["choices"][0].clone();
        let text: Vec<char> = reply["text"].as_str().unwrap().chars().collect();
        let offsets: Vec<usize> = serde_json::from_value(reply["logprobs"]["text_offset"].clone()).unwrap();
        let names: Vec<String> = serde_json::from_value(reply["logprobs"]["tokens"].clone()).unwrap();
        assert!(offsets.windows(2).all(|pair| pair[0] <= pair[1]));
        for ((name, &at), top) in
            names.iter().zip(&offsets).zip(reply["logprobs"]["top_logprobs"].as_array().unwrap())
        {
            assert!(at <= text.len());
            let shown: String = text[at..].iter().take(name.chars().count()).collect();
            assert!(
                name.starts_with("bytes:") || name.starts_with('<') || shown == *name,
                "{name:?} {shown:?}"
            );
            assert!(top.is_null() || top.as_object().unwrap().len() == 5, "{top}");
        }
        let frames: Vec<Value> = served.stream("/v1/completions", body.clone()).collect();
        let streamed: Vec<usize> = (frames.iter())
            .filter_map(|frame| frame["choices"][0]["logprobs"]["text_offset"].as_array())
            .flatten()
            .map(|at| at.as_u64().unwrap() as usize)
            .collect();
        assert_eq!(streamed, offsets);
        let mut cut = body;
        let stop: String = text[text.len() / 2..].iter().take(2).collect();
        cut["stop"] = stop.into();
        let reply = served.complete(cut).ok()["choices"][0].clone();
        let offsets: Vec<usize> = serde_json::from_value(reply["logprobs"]["text_offset"].clone()).unwrap();
        let length = reply["text"].as_str().unwrap().chars().count();
        assert!(offsets.iter().all(|&at| at <= length), "{offsets:?} of {length}");
    }
}

/// Tokens of a conversation that is the whole prompt.
fn prompt_tokens(served: &Served, messages: Value) -> Value {
    let body =
        json!({"messages": messages, "max_tokens": 1, "palimpsest": {"rows": ["last"], "token_ids": true}});
    served.chat(body).ok()["choices"][0]["palimpsest"]["prompt_token_ids"].clone()
}

#[test]
fn m10_names_of_functions_and_speakers_are_taken() {
    let served = serve("llama-tiny");
    let call = json!({
        "role": "assistant", "content": null,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    });
    let with = |message: Value| json!([{"role": "user", "content": "x"}, call, message]);
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "ok"});
    let ask = |message: Value| {
        served.chat(json!({"messages": with(message), "max_tokens": 2, "temperature": 0})).ok()
    };
    let plain = ask(result.clone());
    for name in [json!("f"), json!(null), json!(""), json!("another"), json!("é ü")] {
        let mut named = result.clone();
        named["name"] = name.clone();
        let reply = ask(named);
        assert_eq!(reply["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"], "{name}");
        assert_eq!(reply["choices"], plain["choices"], "{name}");
    }
    for role in ["user", "system", "developer", "assistant"] {
        let messages =
            json!([{"role": role, "name": "anna", "content": "Hi"}, {"role": "user", "content": "x"}]);
        served.chat(json!({"messages": messages, "max_tokens": 1})).ok();
    }
    let wrong = json!({"messages": [{"role": "user", "name": 5, "content": "x"}]});
    assert_eq!(served.chat(wrong).refused(400)["param"], "messages[0].name");
}

/// After the published templates of models that show earlier thoughts.
const THOUGHTS: &str = "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ (' ' ~ m.name if m.name else '') ~ '\\n' }}\
    {% if m.reasoning_content is string %}{{ '<think>\\n' ~ m.reasoning_content.strip('\\n') ~ '\\n</think>\\n\\n' }}{% endif %}\
    {% if m.thinking %}{{ '[' ~ m.thinking ~ ']' }}{% endif %}\
    {{ m.content ~ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

#[test]
fn a_thought_that_is_sent_back_and_a_speakers_name_stand_where_the_template_shows_them() {
    let root = tempfile::tempdir().unwrap();
    let serve = |template: &str, name: &str| {
        let folder = root.path().join(name);
        write(&folder, template, &[&["assistant", "\n"]], "<|im_end|>");
        serve_path(&folder, Setting::default())
    };
    let (shows, hides) = (serve(THOUGHTS, "shows"), serve(crate::thinking::templates::QWEN2, "hides"));
    let said = |fields: Value| {
        let mut answer = json!({"role": "assistant", "content": "b"});
        answer.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!([{"role": "user", "content": "a"}, answer, {"role": "user", "content": "c"}])
    };
    let text = |answer: &str| {
        format!(
            "<|im_start|>user\na<|im_end|>\n{answer}<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
        )
    };
    let bare = "<|im_start|>assistant\nb";
    // Written by apply_chat_template of transformers 5.24 for these messages.
    let thought = "<|im_start|>assistant\n<think>\nIt is b.\n</think>\n\n[It is b.]b";
    for (fields, answer) in [
        (json!({}), bare),
        (json!({"reasoning_content": "It is b."}), thought),
        (json!({"reasoning": "It is b."}), thought),
        (json!({"reasoning_content": "It is b.", "reasoning": "other"}), thought),
        (json!({"thinking": "It is b.", "reasoning": "other"}), thought),
        (
            json!({"reasoning_content": "\nIt is b.\n"}),
            "<|im_start|>assistant\n<think>\nIt is b.\n</think>\n\n[\nIt is b.\n]b",
        ),
        (json!({"reasoning_content": null}), bare),
        (json!({"reasoning_content": ""}), bare),
        (json!({"name": "bo"}), "<|im_start|>assistant bo\nb"),
    ] {
        let expected = shows.post("/tokenize", json!({"prompt": text(answer)})).ok()["tokens"].clone();
        assert_eq!(prompt_tokens(&shows, said(fields.clone())), expected, "{fields}");
        let tokenized = shows.post("/tokenize", json!({"messages": said(fields.clone())})).ok();
        assert_eq!(tokenized["tokens"], expected, "{fields}");
        let expected = hides.post("/tokenize", json!({"prompt": text(bare)})).ok()["tokens"].clone();
        assert_eq!(prompt_tokens(&hides, said(fields.clone())), expected, "{fields}");
    }
    let refused = shows.chat(json!({"messages": said(json!({"reasoning_content": 5}))})).refused(400);
    assert_eq!(refused["param"], "messages[1].reasoning_content");
}

fn answer(served: &Served, schema: &Value, strict: bool) -> Reply {
    let format = json!({"name": "x", "strict": strict, "schema": schema});
    served.chat(json!({
        "messages": user("Hi"), "temperature": 0, "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": format}
    }))
}

fn value(reply: Reply) -> Value {
    let reply = reply.ok();
    serde_json::from_str(reply["choices"][0]["message"]["content"].as_str().unwrap()).unwrap()
}

#[test]
fn m12_references_are_pointers_in_fragments() {
    let served = serve("llama-tiny");
    let definitions = json!({
        "x/y": {"type": "boolean"}, "a~b": {"type": "null"}, "x y": {"const": "s"}, "G<T>": {"const": "g"}, "G[T]": {"const": "h"},
        "p%q": {"const": "p"}, "list/of": {"type": "array", "items": {"$ref": "#/$defs/x~1y"}, "minItems": 1, "maxItems": 2},
        "é": {"const": "e"}
    });
    for (reference, expected) in [
        ("#/$defs/x~1y", None),
        ("#/$defs/a~0b", Some(json!(null))),
        ("#/$defs/x%20y", Some(json!("s"))),
        ("#/$defs/G%3CT%3E", Some(json!("g"))),
        ("#/$defs/G[T]", Some(json!("h"))),
        ("#/$defs/p%25q", Some(json!("p"))),
        ("#/$defs/%C3%A9", Some(json!("e"))),
        ("#/$defs/list~1of", None),
        ("#/%24defs/list~1of/items", None),
    ] {
        let schema = json!({
            "type": "object", "properties": {"a": {"$ref": reference}}, "required": ["a"], "additionalProperties": false,
            "$defs": definitions
        });
        for strict in [true, false] {
            let found = value(answer(&served, &schema, strict))["a"].clone();
            let fits = match (&expected, reference.contains("list~1of") && !reference.contains("items")) {
                (Some(expected), _) => found == *expected,
                (None, true) => found.as_array().is_some_and(|list| list.iter().all(Value::is_boolean)),
                (None, false) => found.is_boolean(),
            };
            assert!(fits, "{reference}: {found}");
        }
        // A function's parameters are validated likewise.
        let tool =
            json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": schema}});
        let body = json!({"messages": user("Hi"), "temperature": 0, "max_tokens": 120, "tools": [tool], "tool_choice": "required"});
        served.chat(body).ok();
    }
    for reference in ["#/$defs/none", "#/$defs/x~1z", "#anchor", "other.json"] {
        let schema = json!({"$defs": definitions, "$ref": reference});
        let refused = answer(&served, &schema, true).refused(400);
        assert_eq!(refused["param"], "response_format.json_schema.schema", "{reference}");
    }
}

#[test]
fn bounds_that_are_kept_are_kept_exactly_and_others_are_named() {
    let served = serve("llama-tiny");
    let schema = |text: &str| {
        let number: Value = serde_json::from_str(text).unwrap();
        json!({"type": "object", "properties": {"n": number}, "required": ["n"], "additionalProperties": false})
    };
    // Bounds that leave one number.
    for (bounds, expected) in [
        (
            r#"{"type": "integer", "minimum": 9007199254740991, "maximum": 9007199254740991}"#,
            9007199254740991u64,
        ),
        (
            r#"{"type": "integer", "minimum": 9007199254740992, "maximum": 9007199254740992}"#,
            9007199254740992,
        ),
        (
            r#"{"type": "integer", "exclusiveMinimum": 9007199254740990, "maximum": 9007199254740991}"#,
            9007199254740991,
        ),
        (
            r#"{"type": "integer", "minimum": 1152921504606846976, "maximum": 1152921504606846976}"#,
            1152921504606846976,
        ),
        (r#"{"const": 4503599627370497}"#, 4503599627370497),
    ] {
        assert_eq!(value(answer(&served, &schema(bounds), true))["n"], json!(expected), "{bounds}");
    }
    for (bounds, key) in [
        (r#"{"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740993}"#, "minimum"),
        (r#"{"type": "integer", "maximum": 18446744073709551615}"#, "maximum"),
        (r#"{"type": "integer", "minimum": -9223372036854775808}"#, "minimum"),
        (r#"{"type": "integer", "exclusiveMinimum": 9007199254740992}"#, "exclusiveMinimum"),
        (r#"{"enum": [9007199254740993]}"#, "enum"),
        (r#"{"const": 9007199254740993}"#, "const"),
    ] {
        let refused = answer(&served, &schema(bounds), true).refused(400);
        assert_eq!(refused["param"], "response_format.json_schema.schema");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{key}`")) && message.contains("`/properties/n`"), "{message}");
        let tool = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": schema(bounds)}});
        let refused = served.chat(json!({"messages": user("Hi"), "tools": [tool]})).refused(400);
        assert_eq!(refused["param"], "tools[0].function.parameters");
        // Not enforced.
        answer(&served, &schema(bounds), false).ok();
    }
}
