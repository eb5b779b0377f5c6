use palimpsest::chat::{Message, MessageRole};
use palimpsest_core::text::TextError;
use palimpsest_core::text::{ChatTemplate, GgufTokenizer};

use super::{CHATML, TRIMS_AND_RAISES};

fn message(role: MessageRole, content: &str) -> Message {
    Message { role, content: content.to_owned() }
}

fn conversation() -> Vec<Message> {
    vec![message(MessageRole::System, "Be brief."), message(MessageRole::User, " Hi <b> & 'you' ")]
}

fn render(source: &str) -> Result<String, TextError> {
    ChatTemplate::new("test", source, Some("<s>"), Some("</s>"))?.render(&conversation(), true)
}

#[test]
fn chatml_renders_as_in_transformers() {
    assert_eq!(
        render(CHATML).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <b> & 'you' <|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn template_without_system_role_gets_the_system_text_in_the_first_user_message() {
    let template = ChatTemplate::new("test", TRIMS_AND_RAISES, Some("<s>"), None).unwrap();
    assert!(template.folds_system());
    assert_eq!(
        template.render(&conversation(), true).unwrap(),
        "<s><turn>user\nBe brief.\n\n Hi <b> & 'you'<end>\n<turn>model\n"
    );
    let silent = "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}:{{ m.content }}{% endif %}{% endfor %}";
    let template = ChatTemplate::new("test", silent, None, None).unwrap();
    assert!(template.folds_system(), "dropping the system message is no support for it");
    assert!(!ChatTemplate::new("test", CHATML, None, None).unwrap().folds_system());
}

#[test]
fn blocks_are_trimmed_and_python_methods_work() {
    let source = "\
{% for message in messages %}
    {% if message['role'].startswith('sys') %}
[{{ message.content.strip() }}]
    {% else %}
{{ message.get('content').split('<')[0].rstrip().upper() }}|{{ message.items() | list | length }}|{{ eos_token }}
    {% endif %}
    {% if loop.index0 > 5 %}{% break %}{% endif %}
{% endfor %}
";
    assert_eq!(render(source).unwrap(), "[Be brief.]\n HI|2|</s>\n");
}

#[test]
fn constructs_of_published_templates_work() {
    for (source, expected) in [
        // newest first, through a namespace (Qwen 3)
        (
            "{%- set ns = namespace(last=-1, open=true) %}\
             {%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}\
             {%- if ns.open and message.role == 'user' and message.content is string \
             and not (message.content.startswith('<t>') and message.content.endswith('</t>')) %}\
             {%- set ns.open = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}\
             {{- messages[0].content ~ ns.last }}",
            "Be brief.1",
        ),
        (
            "{{ messages[0].content }}{{ messages[-1].content.split('<b>')[-1].lstrip('\\n').rstrip(' ') }}",
            "Be brief. & 'you'",
        ),
        // the system message removed from the list, a date only if the host offers one (Llama 3.1)
        (
            "{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}\
             {%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}\
             {%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}\
             {%- else %}{%- set system = '' %}{%- endif %}\
             {{- date_string + '|' + system + '|' }}{%- if tools is not none %}{{- 'tools' }}{%- endif %}{{- messages|length }}",
            "01 Jan 2025|Be brief.|1",
        ),
        // alternation checks and content that may be a list of parts (Gemma 3)
        (
            "{%- if messages[0]['role'] == 'system' -%}{%- if messages[0]['content'] is string -%}\
             {%- set prefix = messages[0]['content'] + '\\n\\n' -%}{%- else -%}{%- set prefix = messages[0]['content'][0]['text'] -%}{%- endif -%}\
             {%- set loop_messages = messages[1:] -%}{%- else -%}{%- set prefix = '' -%}{%- set loop_messages = messages -%}{%- endif -%}\
             {%- for message in loop_messages -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\
             {{ raise_exception('Conversation roles must alternate') }}{%- endif -%}\
             {{ (prefix if loop.first else '') }}{%- if message['content'] is string -%}{{ message['content'] | trim }}\
             {%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}{{ item.text }}{%- endfor -%}\
             {%- else -%}{{ raise_exception('Invalid content type') }}{%- endif -%}{%- endfor -%}",
            "Be brief.\n\nHi <b> & 'you'",
        ),
        // none is not iterable (Qwen 3 Coder)
        (
            "{{ messages[0].content }}{% if tools is iterable and tools | length > 0 %}tools{% endif %}\
             {{ [] is iterable }}{{ 'a' is iterable }}",
            "Be brief.TrueTrue",
        ),
        // macros
        (
            "{%- macro show(text, prefix='') %}{{ prefix ~ text }}{%- endmacro %}{{ show(messages[0].content, prefix='> ') }}",
            "> Be brief.",
        ),
    ] {
        assert_eq!(render(source).unwrap(), expected, "{source}");
    }
}

#[test]
fn tojson_writes_what_python_writes() {
    let source = r#"{{ messages | last | tojson }}{{ "\\u003c <" | tojson }}{{ [1, {'a': none}] | tojson(indent=2) }}{{ 'ü' | tojson(ensure_ascii=false) }}"#;
    let expected = r#"{"role": "user", "content": " Hi <b> & 'you' "}"\\u003c <"[
  1,
  {
    "a": null
  }
]"ü""#;
    let template = ChatTemplate::new("test", source, None, None).unwrap();
    assert_eq!(template.render(&conversation()[1..], false).unwrap(), expected);
}

#[test]
fn generation_blocks_print_their_body() {
    let source =
        "{% for m in messages %}\n{%- generation -%}\n{{ m.content }}\n{%- endgeneration %}\n;{% endfor %}";
    assert_eq!(render(source).unwrap(), "Be brief.; Hi <b> & 'you' ;");
}

#[test]
fn date_is_an_input_and_fixed_by_default() {
    let source = "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.content }}{% endfor %}";
    let template = ChatTemplate::new("test", source, None, None).unwrap();
    assert!(template.render(&conversation(), true).unwrap().starts_with("2025-01-01"));
    let then = jiff::civil::date(2024, 2, 29).at(0, 0, 0, 0);
    assert!(template.render_on(&conversation(), true, then).unwrap().starts_with("2024-02-29"));
}

#[test]
fn raising_template_is_an_error_with_name_line_and_reason() {
    let source = "{% for m in messages %}\n{% if m.role == 'user' %}\n{{ raise_exception('no users here') }}\n{% endif %}\n{% endfor %}";
    let error = render(source).unwrap_err().to_string();
    assert!(error.contains("template test, line 3"), "{error}");
    assert!(error.contains("no users here"), "{error}");
}

#[test]
fn unknown_constructs_are_errors_with_name_and_line() {
    for source in
        ["\n{% frobnicate %}", "\n{{ messages | frobnicate }}", "\n{{ messages[0].content.frobnicate() }}"]
    {
        let error = render(source).unwrap_err().to_string();
        assert!(error.contains("frobnicate") && error.contains("take it out of the template"), "{error}");
        assert!(error.contains("template test, line 2"), "{error}");
    }
}

#[test]
fn endless_template_runs_out_of_fuel() {
    let source = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    let error = render(source).unwrap_err().to_string();
    assert!(error.contains("fuel"), "{error}");
}

#[test]
fn flooding_template_is_cut_off() {
    let source = "{% for a in range(100000) %}{{ '0123456789' * 10 }}{% endfor %}";
    let error = render(source).unwrap_err().to_string();
    assert!(error.contains("exceeds"), "{error}");
}

#[test]
fn base_model_gets_the_plain_layout_and_says_so() {
    let template = ChatTemplate::plain(Some("<s>")).unwrap();
    assert!(template.is_plain());
    assert_eq!(
        template.render(&conversation(), true).unwrap(),
        "<s>### System\nBe brief.\n\n### User\n Hi <b> & 'you' \n\n### Assistant\n"
    );
    let metadata = GgufTokenizer {
        model: "llama".to_owned(),
        tokens: vec!["<bos>".to_owned()],
        bos: Some(0),
        add_bos: Some(false),
        ..GgufTokenizer::default()
    };
    let template = ChatTemplate::from_gguf(&metadata).unwrap();
    assert!(template.is_plain());
    assert!(template.render(&conversation(), false).unwrap().starts_with("### System"));
}

#[test]
fn token_that_the_template_writes_and_the_model_lacks_is_an_error_that_names_it() {
    let error = |source: &str, bos| ChatTemplate::new("test", source, bos, None).unwrap_err().to_string();
    let body = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let text = error(&format!("{{{{ bos_token }}}}{body}"), None);
    assert!(
        text.contains("template test writes bos_token") && text.contains("tokenizer_config.json"),
        "{text}"
    );
    // Other undefined values render as nothing, as in transformers, and do not hide it.
    let text = error(&format!("{body}{{{{ eos_token + 'x' }}}}"), Some("<s>"));
    assert!(text.contains("eos_token"), "{text}");
    for fine in [
        "{{ bos_token if bos_token is defined }}",
        "{% if bos_token %}{{ bos_token }}{% endif %}",
        "{{ absent }}",
    ] {
        let template = ChatTemplate::new("test", &format!("{fine}{body}"), None, None).unwrap();
        assert_eq!(template.render(&conversation()[1..], true).unwrap(), " Hi <b> & 'you' ");
    }
}

#[test]
fn template_and_tokenizer_that_do_not_belong_together_are_refused_by_the_token_that_is_missing() {
    let tokenizer = super::tokenizer("smollm");
    let check =
        |source: &str, bos| ChatTemplate::new("test", source, bos, None).unwrap().check_tokens(&tokenizer);
    check(CHATML, None).unwrap();
    check(TRIMS_AND_RAISES, Some("<s>")).unwrap();
    let text = check(TRIMS_AND_RAISES, Some("<B>")).unwrap_err().to_string();
    assert!(text.contains("template test writes \"<B>\""), "{text}");
    // The tokeniser knows ChatML, not Gemma's turns.
    let gemma = "{% for m in messages %}{{ '<start_of_turn>' + m.role + '\\n' + m.content + '<end_of_turn>\\n' }}{% endfor %}";
    let text = check(gemma, None).unwrap_err().to_string();
    assert!(text.contains("\"<start_of_turn>\"") && text.contains("belong to the model"), "{text}");
    // Only rendered markers count.
    check("{% if false %}<start_of_turn>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}", None)
        .unwrap();
}

#[test]
fn folder_gives_its_template_by_file_or_config_or_name() {
    let dir = tempfile::tempdir().unwrap();
    let config = |json: &str| std::fs::write(dir.path().join("tokenizer_config.json"), json).unwrap();
    let rendered = || {
        ChatTemplate::from_folder(dir.path()).map(|template| template.render(&conversation(), false).unwrap())
    };

    assert!(ChatTemplate::from_folder(dir.path()).unwrap().is_plain());
    config(
        r#"{"bos_token": {"content": "<B>"}, "chat_template": "{{ bos_token }}config {{ messages[0].content }}"}"#,
    );
    assert_eq!(rendered().unwrap(), "<B>config Be brief.");
    config(
        r#"{"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "named {{ messages[0].content }}"}]}"#,
    );
    assert_eq!(rendered().unwrap(), "named Be brief.");
    config(r#"{"chat_template": [{"name": "tool_use", "template": "no"}]}"#);
    assert!(rendered().unwrap_err().to_string().contains("default"));
    config("{");
    assert!(rendered().unwrap_err().to_string().contains("tokenizer_config.json"));
    config(r#"{"bos_token": "<B>", "chat_template": "config"}"#);
    std::fs::write(dir.path().join("chat_template.jinja"), "{{ bos_token }}file {{ messages[0].content }}")
        .unwrap();
    assert_eq!(rendered().unwrap(), "<B>file Be brief.");
}
