//! Chat templates render as in transformers, construct by construct.

use palimpsest_core::text::{
    ChatTemplate, ChatTurn, Message, MessageRole, Speaker, Tool, ToolCall, ToolLayout,
};
use serde_json::{Map, Value, json};

fn user() -> ChatTurn {
    ChatTurn::new(Speaker::User, "x")
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new("test", source, Some("<s>"), None).unwrap()
}

#[test]
fn constructs_of_templates_render_as_in_transformers() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/jinja.json");
    let table: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let part = |name: &str| table[name].as_str().unwrap();
    let rows = table["rows"].as_array().unwrap();
    assert!(rows.len() > 180);
    let mut wrong = Vec::new();
    for row in rows {
        let (source, expected) = (row[0].as_str().unwrap(), row[1].as_str());
        let whole = format!("{}{source}{}", part("before"), part("after"));
        let made = ChatTemplate::new("test", &whole, None, None);
        let text = made.and_then(|made| made.render_turns(&[user()], &[table["tool"].clone()], &[], true));
        match (text, expected) {
            (Ok(text), Some(expected)) if text == expected => {}
            // A template that transformers cannot render is rejected with its line.
            (Err(error), None) if error.to_string().contains("line ") => {}
            (text, _) => wrong.push(format!("{source}: {text:?} instead of {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Qwen 3.5's call layout, with functions written by `TOJSON`.
const QWEN: &str = r#"{% for t in tools or [] %}{{ t | TOJSON }}
{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
<function={{ c.function.name }}>
{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>
{{ v | tojson if v is not string else v }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

fn tool() -> Tool {
    let Value::Object(parameters) = json!({"type": "object", "properties": {"n": {"type": "string"}}}) else {
        unreachable!()
    };
    Tool { name: "f".to_owned(), description: Some("doés f".to_owned()), parameters, strict: false }
}

fn turns() -> Vec<ChatTurn> {
    let arguments = Map::from_iter([("n".to_owned(), json!(1))]);
    let call = ToolCall { id: "c1".to_owned(), name: "f".to_owned(), arguments };
    let asked = ChatTurn { calls: vec![call], ..ChatTurn::new(Speaker::Assistant, "") };
    let result = ChatTurn { call_id: Some("c1".to_owned()), ..ChatTurn::new(Speaker::Tool, "ok") };
    vec![user(), asked, result]
}

#[test]
fn m06_arguments_of_tojson_keep_the_templates_own_layout() {
    // From render_jinja_template of transformers 5.24.
    let after = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n\
                 </function>\n</tool_call><|im_end|>\n<|im_start|>tool\nok<|im_end|>\n<|im_start|>assistant\n";
    for (arguments, listed) in [
        (
            r#"(separators=(",", ":"))"#,
            r#"{"type":"function","function":{"name":"f","description":"doés f","parameters":{"type":"object","properties":{"n":{"type":"string"}}}}}"#,
        ),
        (
            "(sort_keys=true)",
            r#"{"function": {"description": "doés f", "name": "f", "parameters": {"properties": {"n": {"type": "string"}}, "type": "object"}}, "type": "function"}"#,
        ),
        (
            "(ensure_ascii=true)",
            r#"{"type": "function", "function": {"name": "f", "description": "do\u00e9s f", "parameters": {"type": "object", "properties": {"n": {"type": "string"}}}}}"#,
        ),
        (
            "",
            r#"{"type": "function", "function": {"name": "f", "description": "doés f", "parameters": {"type": "object", "properties": {"n": {"type": "string"}}}}}"#,
        ),
    ] {
        let template = template(&QWEN.replace("TOJSON", &format!("tojson{arguments}")));
        let layout = ToolLayout::of(&template).unwrap();
        assert!(layout.native && layout.calls.call.contains("<function="), "{arguments}");
        let text = template.render_turns(&turns(), &[tool().json()], &[], true).unwrap();
        assert_eq!(text, format!("{listed}\n{after}"), "{arguments}");
    }
}

#[test]
fn a_template_that_fails_on_functions_documents_or_system_text_is_refused_by_its_line() {
    let lists = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}";
    let shows = "{% for m in messages %}\n{{ m.role ~ m.content }}{% endfor %}";
    for fails in [
        "{{ t | xmlattr }}",
        "{{ t.nothing.more }}",
        "{{ t | tojson(colour='red') }}",
        "{{ 'a' + t.function.parameters.nothing }}",
        "{{ t.function.frobnicate() }}",
        "{{ t is sparkling }}",
    ] {
        let source = format!("{shows}\n{{% for t in tools or [] %}}\n{fails}{{% endfor %}}");
        let error = ToolLayout::of(&template(&source)).unwrap_err();
        assert!(!error.is_raised() && error.to_string().contains("line 4"), "{fails}: {error}");
        let source = format!("{shows}{{% for t in documents or [] %}}\n{fails}{{% endfor %}}");
        assert!(template(&source).takes_documents().is_err(), "{fails}");
        // A failing call in a template that lists functions.
        let source = format!(
            "{lists}{{% for m in messages %}}{{{{ m.role ~ m.content }}}}{{% for t in m.tool_calls or [] %}}\n{fails}{{% endfor %}}{{% endfor %}}"
        );
        assert!(ToolLayout::of(&template(&source)).is_err(), "{fails}");
        let source = format!(
            "{{% for t in messages %}}{{{{ t.content }}}}{{% if t.role == 'system' %}}\n{fails}{{% endif %}}{{% endfor %}}"
        );
        let template = template(&source);
        assert!(!template.folds_system(), "{fails}");
        let system = Message { role: MessageRole::System, content: "s".to_owned() };
        assert!(template.render(&[system], true).unwrap_err().to_string().contains("line 2"), "{fails}");
    }
    // A template that raises gets our layout.
    let says_no = format!("{{% if tools %}}{{{{ raise_exception('no tools') }}}}{{% endif %}}{shows}");
    assert_eq!(ToolLayout::of(&template(&says_no)).unwrap(), ToolLayout::PLAIN);
    let says_no = format!("{{% if documents %}}{{{{ raise_exception('no') }}}}{{% endif %}}{shows}");
    assert!(!template(&says_no).takes_documents().unwrap());
}
