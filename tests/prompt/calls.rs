//! Layouts of tool calls are detected by rendering, and calls are parsed back.

use std::collections::BTreeSet;
use std::sync::Arc;

use palimpsest_core::text::{CallLayout, CallReader, ChatTemplate, Ending, Tool, ToolCall, ToolLayout};
use serde_json::{Map, Value, json};

fn tools() -> Arc<[Tool]> {
    let tool = |name: &str, properties: Value| Tool {
        name: name.to_owned(),
        description: None,
        parameters: Map::from_iter([("properties".to_owned(), properties)]),
        strict: false,
    };
    Arc::new([
        tool("look", json!({"where": {"type": "string"}, "deep": {"type": "boolean"}})),
        tool("look_2", json!({})),
    ])
}

fn calls() -> Vec<ToolCall> {
    let call = |name: &str, arguments: Value| {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        ToolCall { id: "call_0".to_owned(), name: name.to_owned(), arguments }
    };
    vec![call("look", json!({"where": "a \"b\" }{<x\nthere", "deep": true})), call("look_2", json!({}))]
}

/// Templates that write calls like the published ones of the families.
fn layouts() -> Vec<&'static CallLayout> {
    let before = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\
                  {% for c in m.tool_calls or [] %}{% set f = c.function %}";
    let pairs = "{% for k, v in f.arguments.items() %}";
    let value = "{{ v | tojson if v is not string else v }}";
    let calls = [
        "\n<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}\n</tool_call>".to_owned(),
        format!("<tool_call>\n<function={{{{ f.name }}}}>\n{pairs}<parameter={{{{ k }}}}>\n{value}\n</parameter>\n{{% endfor %}}</function>\n</tool_call>"),
        format!("<tool_call>{{{{ f.name }}}}\n{pairs}<arg_key>{{{{ k }}}}</arg_key>\n<arg_value>{value}</arg_value>\n{{% endfor %}}</tool_call>"),
        format!("<minimax:tool_call>\n<invoke name=\"{{{{ f.name }}}}\">\n{pairs}<parameter name=\"{{{{ k }}}}\">{value}</parameter>\n{{% endfor %}}</invoke>\n</minimax:tool_call>"),
        "{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}".to_owned(),
    ];
    let of = |call: &String| {
        let source = format!("{before}{call}{{% endfor %}}{{% endfor %}}<|assistant|>");
        let template = ChatTemplate::new("test", &source, None, None).unwrap();
        let layout = ToolLayout::of(&template).unwrap();
        assert!(layout.native, "{call}");
        layout.calls
    };
    calls.iter().map(of).collect()
}

#[test]
fn every_layout_is_found_by_rendering_and_a_template_without_functions_has_the_plain_one() {
    let layouts = layouts();
    let distinct: BTreeSet<_> = layouts.iter().map(|layout| (layout.call, layout.after_name)).collect();
    assert_eq!(distinct.len(), 5);
    let deaf = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
    let layout = ToolLayout::of(&ChatTemplate::new("test", deaf, None, None).unwrap()).unwrap();
    assert_eq!(layout, ToolLayout::PLAIN);
}

#[test]
fn what_a_layout_writes_is_read_back_however_it_is_cut() {
    for layout in layouts() {
        let mut calls = calls();
        if !layout.many {
            calls.truncate(1);
        }
        let said = if layout.at_start { "" } else { "Let me <look>: " };
        let text = format!("{said}{}", layout.write(&calls));
        for cut in 1..text.len() {
            let mut reader = CallReader::new(layout, tools());
            let (mut out, mut pieces) = (String::new(), Vec::new());
            for piece in text.as_bytes().chunks(cut).map(String::from_utf8_lossy) {
                let read = reader.push(&piece);
                out.push_str(&read.text);
                pieces.extend(read.calls);
            }
            assert_eq!(reader.calls(), calls.len(), "{layout:?}");
            out.push_str(&reader.finish(Ending::Turn).text);
            assert_eq!(out.trim(), said.trim(), "{layout:?}");
            for (i, call) in calls.iter().enumerate() {
                let of = pieces.iter().filter(|piece| piece.index == i);
                let names: Vec<_> = of.clone().filter_map(|piece| piece.name.as_deref()).collect();
                assert_eq!(names, [call.name.as_str()]);
                let json: String = of.map(|piece| piece.arguments.as_str()).collect();
                let read: Value = serde_json::from_str(&json).unwrap();
                assert_eq!(read, Value::from(call.arguments.clone()), "{layout:?}, {cut}");
            }
        }
    }
}

#[test]
fn what_only_looks_like_a_call_is_text() {
    let plain = ToolLayout::PLAIN.calls;
    for text in [
        "a <tool_call>",
        "<tool_call> is a tag",
        "<tool_call>\n{\"name\": \"nobody\", \"arguments\": {}}",
        "x <tool_",
    ] {
        let mut reader = CallReader::new(plain, tools());
        let mut out: String = text.chars().map(|c| reader.push(&c.to_string()).text).collect();
        assert_eq!(reader.calls(), 0);
        out.push_str(&reader.finish(Ending::Turn).text);
        assert_eq!(out, text);
    }
}

#[test]
fn markup_of_a_call_that_was_cut_is_no_text() {
    for layout in layouts().into_iter().filter(|layout| !layout.at_start) {
        let text = format!("Let me look: {}", layout.write(&calls()[..1]));
        let marker = text.find(layout.marker).unwrap();
        for cut in (marker..text.len()).filter(|&cut| text.is_char_boundary(cut)) {
            let mut reader = CallReader::new(layout, tools());
            let out = reader.push(&text[..cut]).text;
            let out = out + &reader.finish(Ending::Limit).text;
            assert_eq!(out.trim(), "Let me look:", "{layout:?}, {cut}");
        }
        // At a stop string, a partial marker may be text.
        let mut reader = CallReader::new(layout, tools());
        let out = reader.push("a <").text;
        assert_eq!(out + &reader.finish(Ending::StopString).text, "a <");
    }
}
