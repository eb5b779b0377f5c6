//! Models that think before they answer.

mod families;
mod judge;
pub mod model;
mod split;
pub mod templates;

use palimpsest_core::text::{
    ChatTemplate, Message, MessageRole, ReasoningEffort, Thinking, ThinkingMode, ThoughtFormat,
};
use templates::{GEMMA3, GLM4_MOE, GPT_OSS, LLAMA, MINIMAX_M2, QWEN2, QWEN3, QWEN3_5};

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new("of the test", source, Some("<B>"), Some("<E>")).unwrap()
}

fn user(content: &str) -> Vec<Message> {
    vec![Message { role: MessageRole::User, content: content.to_owned() }]
}

/// The text after the user's message.
fn tail(template: &ChatTemplate) -> String {
    let text = template.render(&user("MARK"), true).unwrap();
    text.rsplit_once("MARK").unwrap().1.to_owned()
}

#[test]
fn what_a_template_can_is_found_by_rendering_it() {
    let tags = Some(ThoughtFormat::Tags);
    let switched = Thinking { format: tags, switch: Some("enable_thinking"), effort: false };
    for (source, expected) in [
        (LLAMA, Thinking::default()),
        (GEMMA3, Thinking::default()),
        (QWEN2, Thinking::default()),
        (QWEN3, switched),
        (QWEN3_5, switched),
        (GLM4_MOE, switched),
        (MINIMAX_M2, Thinking { format: tags, ..Thinking::default() }),
        (GPT_OSS, Thinking { format: Some(ThoughtFormat::Channels), switch: None, effort: true }),
        // DeepSeek V3.1's variable.
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' if thinking else '</think>' }}",
            Thinking { format: tags, switch: Some("thinking"), effort: false },
        ),
        // It opens no thought itself, and strips thoughts from earlier answers.
        (
            "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}",
            Thinking { format: tags, ..Thinking::default() },
        ),
        // A variable of that name unrelated to thinking.
        (
            "{{ enable_thinking }}{% for m in messages %}{{ m.content }}{% endfor %}{{ enable_thinking }}",
            Thinking::default(),
        ),
    ] {
        assert_eq!(*template(source).thinking(), expected, "{source}");
    }
    assert_eq!(*ChatTemplate::plain(None).unwrap().thinking(), Thinking::default());
}

/// The expected texts are transformers' with the published templates of llama.cpp's repository (Qwen-Qwen3-0.6B, Qwen3.5-4B, GLM-4.6,
/// MiniMax-M2, openai-gpt-oss-120b): `_compile_jinja_template(source).render(messages, add_generation_prompt=True, enable_thinking=...)`,
/// after the user's message.
#[test]
fn thoughts_are_switched_as_transformers_switches_them() {
    let off = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    for (source, expected_off, expected_on) in [
        (QWEN3, off, "<|im_end|>\n<|im_start|>assistant\n"),
        (QWEN3_5, off, "<|im_end|>\n<|im_start|>assistant\n<think>\n"),
        (GLM4_MOE, "/nothink<|assistant|>\n<think></think>", "<|assistant|>"),
    ] {
        let template = template(source);
        for (mode, expected, on) in [
            (ThinkingMode::Off, expected_off, false),
            (ThinkingMode::Auto, expected_off, false),
            (ThinkingMode::On, expected_on, true),
        ] {
            let (set, thoughts) = template.with_thinking(mode, None).unwrap();
            assert_eq!(tail(&set), expected, "{mode:?}");
            let thoughts = thoughts.unwrap();
            assert_eq!(
                (thoughts.on, thoughts.opened),
                (on, on && expected.ends_with("<think>\n")),
                "{mode:?}"
            );
        }
        // As published, until it is set.
        assert_eq!(tail(&template), expected_on);
        assert_eq!(
            template.render_past_thought(&user("MARK")).unwrap().rsplit_once("MARK").unwrap().1,
            expected_off
        );
    }
    for (source, expected, past) in [
        (MINIMAX_M2, "[e~[\n]~b]ai\n<think>\n", "[e~[\n]~b]ai\n<think>\n\n</think>\n\n"),
        (GPT_OSS, "<|end|><|start|>assistant", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ] {
        for mode in [ThinkingMode::Auto, ThinkingMode::On] {
            let (set, thoughts) = template(source).with_thinking(mode, None).unwrap();
            assert_eq!(tail(&set), expected);
            assert!(thoughts.unwrap().on);
        }
        let text = template(source).render_past_thought(&user("MARK")).unwrap();
        assert_eq!(text.rsplit_once("MARK").unwrap().1, past);
    }
    for source in [LLAMA, GEMMA3, QWEN2] {
        for mode in [ThinkingMode::Auto, ThinkingMode::Off] {
            let (set, thoughts) = template(source).with_thinking(mode, None).unwrap();
            assert_eq!((tail(&set), thoughts), (tail(&template(source)), None));
        }
        assert_eq!(
            template(source).render_past_thought(&user("x")).unwrap(),
            template(source).render(&user("x"), true).unwrap()
        );
    }
}

#[test]
fn what_a_template_cannot_is_refused_with_its_name_and_the_remedy() {
    for (source, mode, said) in [
        (MINIMAX_M2, ThinkingMode::Off, "always thinks"),
        (GPT_OSS, ThinkingMode::Off, "always thinks"),
        (LLAMA, ThinkingMode::On, "no thoughts to switch on"),
    ] {
        let error = template(source).with_thinking(mode, None).unwrap_err().to_string();
        assert!(
            error.contains("of the test") && error.contains(said) && error.contains("; leave thinking "),
            "{error}"
        );
    }
    let error =
        template(QWEN3).with_thinking(ThinkingMode::On, Some(ReasoningEffort::Low)).unwrap_err().to_string();
    assert!(error.contains("of the test") && error.contains("`reasoning_effort`; leave it out"), "{error}");
    for effort in [ReasoningEffort::Low, ReasoningEffort::Medium, ReasoningEffort::High] {
        let (set, _) = template(GPT_OSS).with_thinking(ThinkingMode::Auto, Some(effort)).unwrap();
        let text = set.render(&user("x"), true).unwrap();
        assert!(text.contains(&format!("Reasoning: {}<", effort.name())), "{text}");
    }
}
