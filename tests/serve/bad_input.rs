//! Invalid requests are rejected in OpenAI's format, with the faulty field.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use super::{Setting, fixture, serve, serve_path, user};

/// An argument of at most `bound` - 1, by a reference that is no JSON pointer.
fn below(bound: i64) -> Value {
    let (least, most) = (i128::from(bound) - 3, i128::from(bound) - 1);
    let text = format!(
        r##"{{"type": "object", "properties": {{"n": {{"$ref": "#/x/a%20b"}}}}, "required": ["n"],
        "x": {{"a%20b": {{"type": "integer", "minimum": {least}, "maximum": {most}}}}}}}"##
    );
    serde_json::from_str(&text).unwrap()
}

/// A schema whose references lead on, `count` of them.
fn chain(count: usize) -> Value {
    let next = |i: usize| json!({"properties": {"a": {"$ref": format!("#/$defs/{}", i + 1)}}});
    let mut all: serde_json::Map<String, Value> = (0..count).map(|i| (i.to_string(), next(i))).collect();
    all.insert(count.to_string(), json!({"type": "null"}));
    json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": all})
}

/// Changes to a valid request, with the field that is then rejected.
fn chats() -> Vec<(Value, &'static str)> {
    let part = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    let asked = |asked: Value| json!({"palimpsest": asked});
    let span = |span: Value| json!({"palimpsest": {"rows": ["last"], "spans": [span]}});
    let named = |name: &str| {
        let part = json!({"type": "text", "text": "a b c", "span": name});
        json!({"messages": [{"role": "user", "content": [part, part]}], "palimpsest": {"rows": ["last"]}})
    };
    let said =
        |calls: Value| json!({"messages": [{"role": "assistant", "content": null, "tool_calls": calls}]});
    let tool = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let call = json!({"type": "function", "function": {"name": "f"}});
    let format = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": schema}});
    vec![
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "Hello"}), "messages"),
        (json!({"messages": [3]}), "messages[0]"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "king", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].tool_call_id"),
        (
            json!({"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]}),
            "messages[0].tool_call_id",
        ),
        (json!({"messages": [{"role": "assistant"}]}), "messages[0].content"),
        (
            said(json!([{"id": "a", "function": {"name": "f", "arguments": "[1]"}}])),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            said(json!([{"id": "a", "function": {"name": "f", "arguments": {}}}])),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            said(json!([{"id": "a", "type": "shell", "function": {"name": "f"}}])),
            "messages[0].tool_calls[0].type",
        ),
        (said(json!([{"function": {"name": "f"}}])), "messages[0].tool_calls[0].id"),
        (said(json!({"a": 1})), "messages[0].tool_calls"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}),
            "messages[0].tool_calls[0]",
        ),
        (json!({"messages": [{"role": "user", "content": "x", "colour": 1}]}), "messages[0].colour"),
        (part(json!({"type": "image_url", "image_url": {"url": "data:"}})), "messages[0].content[0].type"),
        (part(json!({"type": "text"})), "messages[0].content[0].text"),
        (part(json!({"type": "text", "text": "x", "span": "last"})), "messages[0].content[0].span"),
        (part(json!({"type": "text", "text": "x", "span": ""})), "messages[0].content[0].span"),
        (json!({"messages": user(&"word ".repeat(4000))}), "messages"),
        (json!({"model": 3}), "model"),
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"n": 1.5}), "n"),
        (json!({"n": "2"}), "n"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.1}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"top_k": 1.5}), "top_k"),
        (json!({"min_p": 1.1}), "min_p"),
        (json!({"min_p": "x"}), "min_p"),
        (json!({"cache_salt": ""}), "cache_salt"),
        (json!({"cache_salt": "é".repeat(129)}), "cache_salt"),
        (json!({"cache_salt": 5}), "cache_salt"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"repetition_penalty": 1e9}), "repetition_penalty"),
        (json!({"messages": [{"role": "user", "content": null}]}), "messages[0].content"),
        (json!({"messages": [{"role": "system", "content": null}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "tool", "tool_call_id": "a", "content": null}]}),
            "messages[0].content",
        ),
        (asked(json!({"progress": 1})), "palimpsest.progress"),
        (asked(json!({"progress": true, "heads": "all"})), "palimpsest.rows"),
        (asked(json!({"progress": true, "colour": 1})), "palimpsest.colour"),
        (json!({"max_tokens": 1, "response_format": {"type": "json_object"}}), "max_completion_tokens"),
        (json!({"seed": 0.5}), "seed"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": ["a", "b".repeat(4096)]}), "stop"),
        (json!({"stop": [1]}), "stop"),
        (json!({"stop": {"a": 1}}), "stop"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"max_completion_tokens": 100_000}), "max_completion_tokens"),
        (json!({"max_completion_tokens": 3, "max_tokens": 4}), "max_tokens"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (json!({"reasoning_effort": "low"}), "reasoning_effort"),
        (json!({"chat_template_kwargs": {"enable_thinking": true}}), "chat_template_kwargs"),
        (json!({"chat_template_kwargs": {"other": 1}}), "chat_template_kwargs.other"),
        (json!({"tools": {"type": "function"}}), "tools"),
        (json!({"tools": [5]}), "tools[0]"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": [{"type": "retrieval"}]}), "tools[0].type"),
        (tool(json!({})), "tools[0].function.name"),
        (tool(json!({"name": "a b"})), "tools[0].function.name"),
        (tool(json!({"name": "f", "parameters": [1]})), "tools[0].function.parameters"),
        (tool(json!({"name": "f", "parameters": {"type": "string"}})), "tools[0].function.parameters"),
        (tool(json!({"name": "f", "strict": 1})), "tools[0].function.strict"),
        (tool(json!({"name": "f", "colour": 1})), "tools[0].function.colour"),
        (
            tool(json!({"name": "f", "parameters": {"properties": {"x": {"type": "colour"}}}})),
            "tools[0].function.parameters",
        ),
        (json!({"tools": [call, call]}), "tools[1].function.name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "some"}), "tool_choice"),
        (json!({"tool_choice": 1}), "tool_choice"),
        (
            json!({"tools": [call], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice.function.name",
        ),
        (json!({"tools": [call], "tool_choice": {"type": "function"}}), "tool_choice.function"),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls"),
        (json!({"functions": [1]}), "functions"),
        (json!({"response_format": "json"}), "response_format"),
        (json!({"response_format": {}}), "response_format.type"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_object", "schema": {}}}), "response_format.schema"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (format(json!({})), "response_format.json_schema.name"),
        (format(json!({"name": "a b", "schema": {}})), "response_format.json_schema.name"),
        (format(json!({"name": "a", "strict": "yes"})), "response_format.json_schema.strict"),
        (format(json!({"name": "a", "schema": []})), "response_format.json_schema.schema"),
        (
            format(json!({"name": "a", "strict": true, "schema": below(i64::MIN)})),
            "response_format.json_schema.schema",
        ),
        (format(json!({"name": "a", "schema": chain(3000)})), "response_format.json_schema.schema"),
        (tool(json!({"name": "f", "parameters": chain(3000)})), "tools[0].function.parameters"),
        (
            tool(json!({"name": "f", "strict": true, "parameters": below(i64::MIN)})),
            "tools[0].function.parameters",
        ),
        (json!({"frequency_penalty": 2.1}), "frequency_penalty"),
        (json!({"presence_penalty": "much"}), "presence_penalty"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
        (json!({"logit_bias": {"5": "x"}}), "logit_bias.5"),
        (json!({"logit_bias": {"267": 1}}), "logit_bias.267"),
        (json!({"logit_bias": {"word": 1}}), "logit_bias.word"),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"no_such_field": 1}), "no_such_field"),
        (asked(json!(5)), "palimpsest"),
        (asked(json!({})), "palimpsest.rows"),
        (asked(json!({"rows": []})), "palimpsest.rows"),
        (asked(json!({"rows": [1]})), "palimpsest.rows[0]"),
        (asked(json!({"rows": ["nobody"]})), "palimpsest.rows"),
        (asked(json!({"rows": ["each", "each"]})), "palimpsest.rows"),
        (asked(json!({"rows": ["last"], "heads": "some"})), "palimpsest.heads"),
        (asked(json!({"rows": ["last"], "layers": [3]})), "palimpsest.layers[0]"),
        (asked(json!({"rows": ["last"], "layers": [1, 1]})), "palimpsest.layers[1]"),
        (asked(json!({"rows": ["last"], "layers": "all"})), "palimpsest.layers"),
        (asked(json!({"rows": ["last"], "encoding": "npy"})), "palimpsest.encoding"),
        (asked(json!({"rows": ["last"], "top_keys": 0})), "palimpsest.top_keys"),
        (asked(json!({"rows": ["last"], "top_keys": "5"})), "palimpsest.top_keys"),
        (asked(json!({"rows": ["last"], "colour": 5})), "palimpsest.colour"),
        (span(json!({"label": "a", "message": 0, "end": 2})), "palimpsest.spans[0].start"),
        (span(json!({"label": "a", "start": 0, "end": 2})), "palimpsest.spans[0].message"),
        (span(json!({"label": "a", "message": 1, "start": 0, "end": 2})), "palimpsest.spans[0].message"),
        (
            span(json!({"label": "a", "message": 0, "part": 1, "start": 0, "end": 2})),
            "palimpsest.spans[0].part",
        ),
        (span(json!({"label": "a", "message": 0, "start": 2, "end": 2})), "palimpsest.spans[0].end"),
        (span(json!({"label": "a", "message": 0, "start": 0, "end": 200})), "palimpsest.spans[0].end"),
        (span(json!({"label": "each", "message": 0, "start": 0, "end": 2})), "palimpsest.spans[0].label"),
        (
            span(json!({"label": "template[0]", "message": 0, "start": 0, "end": 2})),
            "palimpsest.spans[0].label",
        ),
        (named("twice"), "messages"),
    ]
}

fn completions() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": [1, 2, "x"]}), "prompt[2]"),
        (json!({"prompt": [1, 267]}), "prompt[1]"),
        (json!({"prompt": ["x", 5]}), "prompt[1]"),
        (json!({"prompt": [[1], [-1]]}), "prompt[1][0]"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 4000}), "max_tokens"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"echo": 1}), "echo"),
        (json!({"presence_penalty": -3}), "presence_penalty"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"suffix": "end"}), "suffix"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"messages": []}), "messages"),
    ]
}

/// It overflowed the stack of the compiler's thread, which ends the process.
#[test]
fn a_schema_with_bounds_below_64_bits_ends_no_server() {
    let served = serve("llama-tiny");
    let plain: Value = serde_json::from_str(
        r#"{"type": "integer", "minimum": -9223372036854775811, "maximum": -9223372036854775809}"#,
    )
    .unwrap();
    for schema in [plain, below(i64::MIN), below(i64::MIN + 2)] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
        served.chat(json!({"messages": user("Hello"), "max_tokens": 2, "response_format": format})).ok();
    }
    for (parameters, choice) in [(below(i64::MIN), "required"), (below(i64::MIN), "auto")] {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
        served
            .chat(json!({"messages": user("Hello"), "max_tokens": 2, "tools": tools, "tool_choice": choice}))
            .ok();
    }
}

#[test]
fn a_refusal_has_openais_shape_and_names_the_field() {
    let served = serve("llama-tiny");
    let chats = chats().into_iter().map(|(change, field)| ("/v1/chat/completions", change, field));
    let completions = completions().into_iter().map(|(change, field)| ("/v1/completions", change, field));
    for (path, change, field) in chats.chain(completions) {
        let mut body = match path {
            "/v1/completions" => json!({"prompt": "Hello there", "max_tokens": 2}),
            _ => json!({"messages": user("Hello there"), "max_tokens": 2}),
        };
        for (key, value) in change.as_object().unwrap() {
            if key == "max_completion_tokens" && change.get("max_tokens").is_none() {
                body.as_object_mut().unwrap().remove("max_tokens");
            }
            body[key] = value.clone();
        }
        let refused = served.post(path, body);
        let error = &refused.json["error"];
        assert_eq!(refused.status, 400, "{change}: {}", refused.json);
        assert_eq!(error["param"], field, "{change}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(!error["message"].as_str().unwrap().is_empty());
        let keys: Vec<&String> = error.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["message", "type", "param", "code"]);
    }
    served.chat(json!({"messages": user("Hello"), "max_tokens": 2})).ok();
}

#[test]
fn what_is_no_request_is_refused_by_status() {
    let served = serve("llama-tiny");
    let path = "/v1/chat/completions";
    let code = |reply: &super::Reply| reply.json["error"]["code"].clone();
    let unknown = served.chat(json!({"model": "gpt-4", "messages": user("x")}));
    assert_eq!((unknown.status, code(&unknown)), (404, json!("model_not_found")));
    assert_eq!(served.post_bytes(path, b"{\"model\": ").status, 400);
    assert_eq!(served.post_bytes(path, b"[]").status, 400);
    assert_eq!(served.post_bytes(path, b"\xff\xfe").status, 400);
    let deep = "[".repeat(10_000);
    assert_eq!(served.post_bytes(path, deep.as_bytes()).status, 400);
    let nowhere = served.get("/v2/models");
    assert_eq!((nowhere.status, code(&nowhere)), (404, json!("unknown_url")));
    let wrong = served.get(path);
    assert_eq!((wrong.status, code(&wrong)), (405, json!("wrong_method")));
    assert_eq!(served.get("/v1/models/../../etc/passwd").status, 404);
    let long = served.chat(json!({"messages": user(&"word ".repeat(4000)), "max_tokens": 2}));
    assert_eq!(code(&long), "context_length_exceeded");
}

#[test]
fn each_for_more_tokens_than_memory_holds_is_refused_with_how_many_are() {
    let served = serve_path(&fixture("llama-tiny"), Setting { context: 8192, ..Setting::default() });
    let spans: Vec<Value> = (0..1500)
        .map(|i| json!({"label": format!("s{i}"), "message": 0, "start": i, "end": i + 9}))
        .collect();
    let asked = |most: usize| {
        let body = json!({
            "messages": user(&"abcdefgh ".repeat(200)), "max_completion_tokens": most,
            "palimpsest": {"rows": ["each"], "spans": spans}
        });
        served.chat(body)
    };
    let refused = asked(6000);
    assert_eq!((refused.status, &refused.json["error"]["param"]), (400, &json!("palimpsest.rows")));
    assert!(refused.json["error"]["message"].as_str().unwrap().contains("max_completion_tokens"));
    asked(2).ok();
}

/// A model with a NaN weight.
pub fn damaged(root: &Path) -> PathBuf {
    let folder = root.join("damaged");
    std::fs::create_dir(&folder).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(fixture("llama-tiny").join(name), folder.join(name)).unwrap();
    }
    let mut tensors =
        candle_core::safetensors::load(fixture("llama-tiny").join("model.safetensors"), &Device::Cpu)
            .unwrap();
    let name = "model.norm.weight";
    let width = tensors[name].elem_count();
    tensors.insert(name.to_owned(), Tensor::full(f32::NAN, width, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, folder.join("model.safetensors")).unwrap();
    folder
}

#[test]
fn a_weight_that_is_no_number_is_a_servers_error_that_says_so_and_the_server_lives() {
    let root = tempfile::tempdir().unwrap();
    let folder = damaged(root.path());
    let served = serve_path(&folder, Setting::default());
    for _ in 0..2 {
        let failed = served.chat(json!({"messages": user("Hello"), "max_tokens": 2}));
        assert_eq!((failed.status, &failed.json["error"]["type"]), (500, &json!("server_error")));
        assert!(failed.json["error"]["message"].as_str().unwrap().contains("not finite"), "{}", failed.json);
    }
    let body = json!({"messages": user("Hello"), "max_tokens": 2});
    let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
    assert_eq!(frames.last().unwrap()["error"]["code"], "model_not_finite");
    assert_eq!(served.get("/health").status, 200);
}
