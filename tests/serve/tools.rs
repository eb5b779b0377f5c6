//! Tool calls match their schemas, whole and streamed, under every tool choice.

use std::path::Path;

use palimpsest_core::engine::ThinkingOptions;
use palimpsest_core::text::{ChatTurn, Speaker, Tool, ToolCall, compose};
use serde_json::{Map, Value, json};

use super::schema::misfit;
use super::{Setting, fixture, joined, open, serve, serve_path, user};
use crate::thinking::model::write;

/// ChatML that lists functions and writes calls as tagged JSON, as the templates of Qwen 2.5 and 3 and Hermes do.
const NATIVE: &str = "{% if tools %}<|im_start|>system\\n{% for t in tools %}{{ t | tojson }}\\n{% endfor %}<|im_end|>\\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}{% for c in m.tool_calls or [] %}\
    {{ '\\n<tool_call>\\n{\"name\": \"' ~ c.function.name ~ '\", \"arguments\": ' }}{{ c.function.arguments | tojson }}\
    {{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Same, with each argument in its own tags.
const TAGS: &str = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\
    {{ '\\n' ~ m.content }}{% for c in m.tool_calls or [] %}{{ '<tool_call>\\n<function=' ~ c.function.name ~ '>\\n' }}\
    {% for k, v in c.function.arguments.items() %}{{ '<parameter=' ~ k ~ '>\\n' }}{{ v | tojson if v is not string else v }}\
    {{ '\\n</parameter>\\n' }}{% endfor %}{{ '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

fn parameters() -> [Value; 2] {
    [
        json!({
            "type": "object", "required": ["place", "deep"], "additionalProperties": false,
            "properties": {
                "place": {"type": "string", "enum": ["the well", "the \"fig\" tree"]},
                "deep": {"type": "boolean"}, "times": {"type": "integer", "minimum": 0, "maximum": 99}
            }
        }),
        json!({"type": "object", "properties": {}, "additionalProperties": false}),
    ]
}

fn tools() -> Value {
    let [look, wait] = parameters();
    json!([
        {"type": "function", "function": {"name": "look", "description": "Looks there.", "parameters": look, "strict": true}},
        {"type": "function", "function": {"name": "wait_2", "parameters": wait}}
    ])
}

fn body(change: Value) -> Value {
    let mut body = json!({
        "messages": user("Look into the well."), "tools": tools(), "max_completion_tokens": 1500, "temperature": 0
    });
    for (key, value) in change.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// A choice's calls as names and arguments, checked against their schemas.
fn calls(choice: &Value) -> Vec<(String, Value)> {
    let list = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("no call: {choice}"));
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        let schema = &parameters()[usize::from(name != "look")];
        assert!(["look", "wait_2"].contains(&name.as_str()));
        assert_eq!(misfit(&arguments, schema, schema), None);
        (name, arguments)
    };
    list.iter().map(call).collect()
}

/// The calls of a stream: first the name, then pieces of arguments.
fn streamed(frames: &[Value], choice: usize) -> Vec<(String, Value)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    let of = frames.iter().filter_map(|frame| frame["choices"].as_array()?.first());
    for delta in
        of.filter(|said| said["index"] == choice).filter_map(|said| said["delta"]["tool_calls"].as_array())
    {
        for piece in delta {
            let index = piece["index"].as_u64().unwrap() as usize;
            if let Some(name) = piece["function"]["name"].as_str() {
                assert_eq!((index, &piece["type"]), (calls.len(), &json!("function")));
                assert!(piece["id"].is_string());
                calls.push((name.to_owned(), String::new()));
            }
            calls[index].1.push_str(piece["function"]["arguments"].as_str().unwrap());
        }
    }
    calls.into_iter().map(|(name, json)| (name, serde_json::from_str(&json).unwrap())).collect()
}

/// Random models, in the plain layout and in those of two templates.
fn models(root: &Path) -> Vec<std::path::PathBuf> {
    let mut models = vec![fixture("llama-tiny")];
    for (name, template) in [("native", NATIVE), ("tags", TAGS)] {
        let folder = root.join(name);
        std::fs::create_dir(&folder).unwrap();
        for file in [
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "model.safetensors",
        ] {
            std::fs::copy(fixture("llama-tiny").join(file), folder.join(file)).unwrap();
        }
        std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
        models.push(folder);
    }
    models
}

#[test]
fn a_model_that_must_call_calls_within_the_schemas_and_its_stream_says_the_same() {
    let root = tempfile::tempdir().unwrap();
    for model in models(root.path()) {
        let served = serve_path(&model, Setting { context: 4096, ..Setting::default() });
        let named = json!({"type": "function", "function": {"name": "look"}});
        for change in [
            json!({"tool_choice": "required", "parallel_tool_calls": false}),
            json!({"tool_choice": "required", "temperature": 1.2, "seed": 3, "n": 2}),
            json!({"tool_choice": named}),
            json!({"tool_choice": named, "temperature": 1.5, "seed": 8, "n": 3}),
        ] {
            let body = body(change.clone());
            let reply = served.chat(body.clone()).ok();
            let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
            for (i, choice) in reply["choices"].as_array().unwrap().iter().enumerate() {
                let made = calls(choice);
                let at = format!("{}, {change}", model.display());
                assert_eq!(
                    (&choice["finish_reason"], &choice["message"]["content"]),
                    (&json!("tool_calls"), &Value::Null),
                    "{at}"
                );
                assert!(
                    !made.is_empty() && (made.len() == 1 || change.get("parallel_tool_calls").is_none()),
                    "{at}"
                );
                assert!(
                    change["tool_choice"] == "required" || (made.len() == 1 && made[0].0 == "look"),
                    "{at}"
                );
                assert_eq!(streamed(&frames, i), made, "{at}");
                assert_eq!(joined(&frames, i, "content"), (String::new(), "tool_calls".to_owned()), "{at}");
            }
        }
        let mut cut = body(json!({"tool_choice": "required", "max_completion_tokens": 3}));
        let reply = served.chat(cut.clone()).ok();
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        cut["tool_choice"] = json!("none");
        let free = served.chat(cut.clone()).ok();
        cut.as_object_mut().unwrap().remove("tools");
        cut.as_object_mut().unwrap().remove("tool_choice");
        assert_eq!(
            free["choices"],
            served.chat(cut).ok()["choices"],
            "without a call the model is told of nothing"
        );
    }
}

#[test]
fn a_model_that_may_call_is_kept_to_the_schema_from_its_own_marker_on() {
    let root = tempfile::tempdir().unwrap();
    for (template, thought) in [(NATIVE, false), (TAGS, false), (crate::thinking::templates::QWEN3, true)] {
        let folder = root.path().join(format!("chain-{}-{thought}", template.len()));
        let chain = ["\n", "Let me see:", "<tool_call>"];
        let thinking = ["\n", "<think>", " it was", "</think>", "Let me see:", "<tool_call>"];
        write(&folder, template, &[if thought { &thinking[..] } else { &chain[..] }], "<|im_end|>");
        let mode = match thought {
            true => palimpsest_core::text::ThinkingMode::On,
            false => palimpsest_core::text::ThinkingMode::Auto,
        };
        let thinking = ThinkingOptions { mode, max: 64, ..ThinkingOptions::default() };
        let served = serve_path(&folder, Setting { thinking, context: 4096, ..Setting::default() });
        let free = served
            .chat(json!({"messages": user("Look."), "temperature": 0, "max_completion_tokens": 30}))
            .ok();
        assert_eq!(free["choices"][0]["message"]["content"], "Let me see:<tool_call>");
        for change in [json!({}), json!({"tool_choice": "auto", "n": 2})] {
            let body = body(change);
            let reply = served.chat(body.clone()).ok();
            let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
            for (i, choice) in reply["choices"].as_array().unwrap().iter().enumerate() {
                assert_eq!(choice["message"]["content"], "Let me see:", "{choice}");
                assert_eq!(choice["finish_reason"], "tool_calls");
                assert_eq!(choice["message"].get("reasoning_content").is_some(), thought);
                assert_eq!(streamed(&frames, i), calls(choice));
                assert_eq!(
                    joined(&frames, i, "content"),
                    ("Let me see:".to_owned(), "tool_calls".to_owned())
                );
            }
        }
        // A format or a call, and no text.
        let schema = json!({"type": "boolean"});
        let both = body(json!({
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        }));
        let reply = served.chat(both).ok();
        let choice = &reply["choices"][0];
        match choice["finish_reason"].as_str().unwrap() {
            "tool_calls" => assert!(!calls(choice).is_empty()),
            _ => assert!(["true", "false"].contains(&choice["message"]["content"].as_str().unwrap())),
        }
    }
}

#[test]
fn an_answer_without_a_call_is_what_it_is_where_nothing_may_be_called() {
    // The same prompt: the template lists no functions, and the client describes the plain layout in a message.
    let served = serve("llama-tiny");
    let reply = served.chat(body(json!({"max_completion_tokens": 12}))).ok();
    let choice = &reply["choices"][0];
    assert!(choice["message"].get("tool_calls").is_none(), "{choice}");
    let tools: Vec<Tool> = told();
    let turns = [ChatTurn::new(Speaker::User, "Look into the well.")];
    let composed = compose(&turns, &tools);
    let messages: Vec<Value> = composed
        .iter()
        .map(|one| json!({"role": one.turn.role.name(), "content": one.turn.content}))
        .collect();
    let same = served.chat(json!({"messages": messages, "max_completion_tokens": 12, "temperature": 0})).ok();
    assert_eq!(reply["choices"], same["choices"]);
    assert_eq!(reply["usage"]["prompt_tokens"], same["usage"]["prompt_tokens"]);
}

fn told() -> Vec<Tool> {
    let tool = |value: &Value| {
        let function = &value["function"];
        Tool {
            name: function["name"].as_str().unwrap().to_owned(),
            description: function["description"].as_str().map(str::to_owned),
            parameters: function["parameters"].as_object().unwrap().clone(),
            strict: false,
        }
    };
    tools().as_array().unwrap().iter().map(tool).collect()
}

/// A conversation with a call and its result, as clients send it.
fn history() -> Value {
    let arguments = json!({"place": "the well", "deep": true}).to_string();
    json!([
        {"role": "system", "content": "You look."},
        {"role": "user", "content": "Look into the well."},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}},
            {"id": "call_2", "type": "function", "function": {"name": "wait_2", "arguments": ""}}
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Water."},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "Done.", "span": "waited"}]},
        {"role": "user", "content": "And now?"}
    ])
}

/// The rendered conversation.
fn rendered(model: &Path, native: bool) -> String {
    let local = open(model, 64, ThinkingOptions::default());
    let call = |id: &str, name: &str, arguments: Value| ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.as_object().unwrap().clone(),
    };
    let result = |id: &str, name: &str, content: &str| ChatTurn {
        call_id: Some(id.to_owned()),
        name: Some(name.to_owned()),
        ..ChatTurn::new(Speaker::Tool, content)
    };
    let turns = [
        ChatTurn::new(Speaker::System, "You look."),
        ChatTurn::new(Speaker::User, "Look into the well."),
        ChatTurn {
            calls: vec![
                call("call_1", "look", json!({"place": "the well", "deep": true})),
                call("call_2", "wait_2", Value::Object(Map::new())),
            ],
            ..ChatTurn::new(Speaker::Assistant, "")
        },
        result("call_1", "look", "Water."),
        result("call_2", "wait_2", "Done."),
        ChatTurn::new(Speaker::User, "And now?"),
    ];
    let tools = told();
    if native {
        let listed: Vec<Value> = tools.iter().map(Tool::json).collect();
        return local.template().render_turns(&turns, &listed, &[], true).unwrap();
    }
    let composed: Vec<ChatTurn> = compose(&turns, &tools).into_iter().map(|one| one.turn).collect();
    local.template().render_turns(&composed, &[], &[], true).unwrap()
}

#[test]
fn calls_and_results_are_given_back_to_the_model_and_what_the_client_wrote_has_exact_spans() {
    let root = tempfile::tempdir().unwrap();
    for model in models(root.path()) {
        let native = model.starts_with(root.path());
        let text = rendered(&model, native);
        for part in ["Looks there.", "the well", "Water.", "Done.", "<tool_call>"] {
            assert!(text.contains(part), "{}: {part}: {text}", model.display());
        }
        let served = serve_path(&model, Setting::default());
        let ask = |palimpsest: Value| {
            let body = json!({
                "messages": history(), "tools": tools(), "max_completion_tokens": 2, "temperature": 0,
                "palimpsest": palimpsest
            });
            served.chat(body).ok()
        };
        let reply = ask(json!({"rows": ["last"]}));
        let local = open(&model, 64, ThinkingOptions::default());
        let tokens = local.tokenizer().encode(&text).unwrap();
        assert_eq!(reply["usage"]["prompt_tokens"], json!(tokens.len()), "{}", model.display());
        let spans = reply["choices"][0]["palimpsest"]["spans"].as_array().unwrap();
        let mut reached = 0;
        let mut own = Vec::new();
        for span in spans {
            let (start, end) =
                (span["start"].as_u64().unwrap() as usize, span["end"].as_u64().unwrap() as usize);
            assert_eq!(start, reached, "{span}");
            reached = end;
            let label = span["label"].as_str().unwrap();
            if !label.starts_with("template") {
                own.push((label.to_owned(), local.tokenizer().decode(&tokens[start..end], false).unwrap()));
            }
        }
        assert_eq!(reached, tokens.len());
        let expected = [
            ("messages[0]", "You look."),
            ("messages[1]", "Look into the well."),
            ("messages[3]", "Water."),
            ("waited", "Done."),
            ("messages[5]", "And now?"),
        ];
        // A token across a border belongs to the span of its first non-space character.
        assert_eq!(own.len(), expected.len(), "{own:?}");
        for ((label, text), (wanted, content)) in own.iter().zip(expected) {
            assert_eq!(label, wanted);
            assert!(text.starts_with(content) || content.starts_with(text.trim()), "{label}: {text:?}");
        }
    }
}

#[test]
fn a_schema_of_a_function_that_cannot_be_enforced_is_refused_with_its_place() {
    let served = serve_path(&fixture("llama-tiny"), Setting { context: 4096, ..Setting::default() });
    let mut tools = tools();
    tools[1]["function"]["parameters"] = json!({"type": "object", "properties": {"x": {"not": {}}}});
    tools[1]["function"]["strict"] = json!(true);
    for choice in ["auto", "required"] {
        let refused = served.chat(body(json!({"tools": tools, "tool_choice": choice})));
        assert_eq!(
            (refused.status, &refused.json["error"]["param"]),
            (400, &json!("tools[1].function.parameters"))
        );
    }
    tools[1]["function"]["strict"] = json!(false);
    served.chat(body(json!({"tools": tools, "max_completion_tokens": 2}))).ok();
}

#[test]
fn markup_of_a_call_that_is_cut_is_in_no_content() {
    let root = tempfile::tempdir().unwrap();
    for model in models(root.path()) {
        let served = serve_path(&model, Setting::default());
        for most in 1..28 {
            let body = body(json!({"tool_choice": "required", "max_completion_tokens": most}));
            let reply = served.chat(body.clone()).ok();
            let choice = &reply["choices"][0];
            if choice["finish_reason"] != "length" {
                continue;
            }
            let text = choice["message"]["content"].as_str().unwrap_or_default();
            assert_eq!(text, "", "{model:?}, {most}: {choice}");
            let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
            assert_eq!(joined(&frames, 0, "content"), (String::new(), "length".to_owned()), "{most}");
        }
    }
}

#[test]
fn an_answer_without_content_may_come_back_as_null() {
    let served = serve("llama-tiny");
    let call = json!({"id": "a", "type": "function", "function": {"name": "wait_2", "arguments": "{}"}});
    for said in [
        json!({"role": "assistant", "content": null}),
        json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": null}),
        json!({"role": "assistant", "content": null, "reasoning_content": "I wonder"}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "assistant", "tool_calls": [call]}),
    ] {
        let messages = json!([{"role": "user", "content": "x"}, said, {"role": "user", "content": "y"}]);
        for palimpsest in [Value::Null, json!({"rows": ["last"]})] {
            served.chat(json!({"messages": messages, "max_tokens": 2, "palimpsest": palimpsest})).ok();
        }
    }
}
