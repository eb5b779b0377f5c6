//! Answers equal the engine's, whole and streamed, whoever asked before.

use std::path::Path;

use candle_core::DType;
use palimpsest::chat::{ChatModel, Message, MessageRole, Sampling};
use palimpsest_core::engine::ThinkingOptions;
use palimpsest_core::text::{ThinkingMode, Tokenizer};
use serde_json::{Value, json};

use super::{Setting, fixture, joined, open, open_in, serve, serve_path, user};
use crate::thinking::model::write;
use crate::thinking::templates::QWEN3;

const GREEDY: usize = 12;

/// Full softmax attention, linear layers, windows with sinks, and windows.
const MODELS: [&str; 4] = ["llama-tiny", "qwen35-text-tiny", "gpt-oss-tiny", "gemma3-tiny"];

fn message(role: MessageRole, content: &str) -> Message {
    Message { role, content: content.to_owned() }
}

/// Conversations that share a prefix, of several chunks each.
fn conversations() -> Vec<Vec<Message>> {
    let system = "You answer from these notes. ".to_owned() + &"The fig tree stands by the well. ".repeat(6);
    let ask =
        |question: &str| vec![message(MessageRole::System, &system), message(MessageRole::User, question)];
    let mut again = ask("Where is the fig tree?");
    again.push(message(MessageRole::Assistant, "By the well."));
    again.push(message(MessageRole::User, "And the well?"));
    vec![ask("Where is the fig tree?"), ask("Who planted it?"), again, ask("Where is the fig tree?")]
}

fn greedy(messages: &[Message]) -> Value {
    json!({"messages": messages, "temperature": 0, "max_completion_tokens": GREEDY})
}

fn content(reply: &Value) -> &str {
    reply["choices"][0]["message"]["content"].as_str().unwrap()
}

#[test]
fn greedy_answers_are_those_of_the_local_model_whatever_was_asked_before_and_streams_join_to_them() {
    let formats = [(None, None), (Some(DType::BF16), None), (None, Some(DType::BF16))];
    for (name, formats) in MODELS.into_iter().flat_map(|name| formats.map(|formats| (name, formats))) {
        let served = serve_path(&fixture(name), Setting { formats, ..Setting::default() });
        let mut local = open_in(&fixture(name), 2048, ThinkingOptions::default(), formats);
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: GREEDY };
        let mut reused = 0;
        for messages in conversations() {
            let expected = local.reply(&messages, &sampling).unwrap();
            let reply = served.chat(greedy(&messages)).ok();
            assert_eq!(content(&reply), expected.text, "{name}");
            let usage = &reply["usage"];
            assert_eq!(usage["prompt_tokens"], json!(expected.prompt_tokens), "{name}");
            assert_eq!(usage["completion_tokens"], json!(expected.completion_tokens), "{name}");
            reused += usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();

            let mut body = greedy(&messages);
            body["stream_options"] = json!({"include_usage": true});
            let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
            let (text, reason) = joined(&frames, 0, "content");
            assert_eq!(text, expected.text, "{name}");
            assert_eq!(reply["choices"][0]["finish_reason"], reason.as_str());
            assert_eq!(frames[0]["choices"][0]["delta"]["role"], "assistant");
            let last = &frames[frames.len() - 2];
            assert_eq!(last["choices"], json!([]));
            for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                assert_eq!(last["usage"][key], usage[key], "{name}");
            }
        }
        assert!(reused > 0, "{name}: nothing of the cache was kept");
    }
}

#[test]
fn a_plain_request_gets_openais_shape_and_nothing_else() {
    let served = serve("llama-tiny");
    let reply = served.chat(json!({"messages": user("Hello"), "max_tokens": 3})).ok();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&reply), ["id", "object", "created", "model", "choices", "usage"]);
    assert_eq!(keys(&reply["choices"][0]), ["index", "message", "logprobs", "finish_reason"]);
    assert_eq!(keys(&reply["choices"][0]["message"]), ["role", "content", "refusal"]);
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["choices"][0]["logprobs"], Value::Null);
    let reply = served.complete(json!({"prompt": "Hello", "max_tokens": 3})).ok();
    assert_eq!(keys(&reply), ["id", "object", "created", "model", "choices", "usage"]);
    assert_eq!(keys(&reply["choices"][0]), ["index", "text", "logprobs", "finish_reason"]);
    assert_eq!(reply["object"], "text_completion");
}

#[test]
fn a_seed_repeats_its_answers_and_each_of_several_has_its_own() {
    let served = serve("llama-tiny");
    let ask = |seed: u64| {
        let body = json!({
            "messages": user("Tell me"), "temperature": 1.5, "seed": seed, "n": 3, "max_tokens": 8
        });
        served.chat(body).ok()
    };
    let texts = |reply: &Value| -> Vec<String> {
        let choices = reply["choices"].as_array().unwrap();
        assert!((0..3).all(|i| choices[i]["index"] == i));
        choices.iter().map(|choice| choice["message"]["content"].to_string()).collect()
    };
    let (first, again, other) = (ask(7), ask(7), ask(1_000_000));
    assert_eq!(texts(&first), texts(&again));
    assert_ne!(texts(&first), texts(&other));
    assert_ne!(texts(&first)[0], texts(&first)[1]);
    assert_eq!(first["usage"]["completion_tokens"], 24);
    let once = served.chat(json!({"messages": user("Tell me"), "max_tokens": 1})).ok();
    assert_eq!(first["usage"]["prompt_tokens"], once["usage"]["prompt_tokens"]);
}

#[test]
fn a_text_ends_before_a_stop_string_and_an_answer_of_no_tokens_is_the_prompt_again() {
    let served = serve("llama-tiny");
    let body = json!({"prompt": "One two three", "temperature": 0, "max_tokens": 24});
    let whole = served.complete(body.clone()).ok();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let characters: Vec<char> = text.chars().collect();
    let stop: String = characters[6..9].iter().collect();
    let mut with = body.clone();
    with["stop"] = json!([stop, "never said"]);
    let stopped = served.complete(with.clone()).ok();
    let expected = &text[..text.find(&stop).unwrap()];
    assert_eq!(stopped["choices"][0]["text"], expected);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert!(stopped["usage"]["completion_tokens"].as_u64() < whole["usage"]["completion_tokens"].as_u64());
    let frames: Vec<Value> = served.stream("/v1/completions", with).collect();
    assert_eq!(joined(&frames, 0, "text"), (expected.to_owned(), "stop".to_owned()));
    let nothing = served.complete(json!({"prompt": ["One", "Two"], "max_tokens": 0, "echo": true})).ok();
    assert_eq!(nothing["choices"][0]["text"], "One");
    assert_eq!((&nothing["choices"][1]["text"], &nothing["choices"][1]["index"]), (&json!("Two"), &json!(1)));
    assert_eq!(nothing["usage"]["completion_tokens"], 0);
}

/// A model that thinks and then answers; its thought and answer.
fn thinking(folder: &Path) -> (&'static str, &'static str) {
    let chain = [
        "\n",
        "<think>",
        "Let me see:",
        " it was",
        " Rome, or",
        "</think>",
        "\n\n",
        "You moved",
        " to Oslo.",
        "<|im_end|>",
    ];
    write(folder, QWEN3, &[&chain], "<|im_end|>");
    ("Let me see: it was Rome, or", "You moved to Oslo.")
}

#[test]
fn thoughts_come_apart_from_answers_and_within_the_limit_of_both() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("thinker");
    let (thought, answer) = thinking(&folder);
    let options = ThinkingOptions { mode: ThinkingMode::On, max: 64, ..ThinkingOptions::default() };
    let served = serve_path(&folder, Setting { thinking: options, ..Setting::default() });
    let body = json!({"messages": user("Where?"), "temperature": 0, "max_completion_tokens": 50});
    let reply = served.chat(body.clone()).ok();
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!(thought), &json!(answer)));
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    let mut local = open(&folder, 2048, options);
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 50 };
    let expected = local.reply(&[message_of("Where?")], &sampling).unwrap();
    assert_eq!((expected.text.as_str(), expected.thought.as_deref()), (answer, Some(thought)));
    assert_eq!(reply["usage"]["completion_tokens"], json!(expected.completion_tokens));
    assert!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() >= 5);
    let frames: Vec<Value> = served.stream("/v1/chat/completions", body).collect();
    assert_eq!(joined(&frames, 0, "reasoning_content").0, thought);
    assert_eq!(joined(&frames, 0, "content"), (answer.to_owned(), "stop".to_owned()));

    let cut =
        served.chat(json!({"messages": user("Where?"), "temperature": 0, "max_completion_tokens": 3})).ok();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["choices"][0]["message"]["content"], Value::Null);
    assert_eq!(cut["usage"]["completion_tokens"], 3);
    let off = json!({
        "messages": user("Where?"), "temperature": 0, "max_completion_tokens": 3,
        "chat_template_kwargs": {"enable_thinking": false}
    });
    let off = served.chat(off).ok();
    assert!(off["choices"][0]["message"].get("reasoning_content").is_none(), "{off}");
}

fn message_of(content: &str) -> Message {
    message(MessageRole::User, content)
}

#[test]
fn tokens_are_the_tokenisers_both_ways() {
    let served = serve("llama-tiny");
    let local = open(&fixture("llama-tiny"), 64, ThinkingOptions::default());
    let text = "Où est le figuier? <|im_end|>";
    let expected = local.tokenizer().encode(text).unwrap();
    let reply = served.post("/tokenize", json!({"prompt": text, "return_token_strs": true})).ok();
    assert_eq!(reply["tokens"], json!(expected));
    assert_eq!((&reply["count"], &reply["max_model_len"]), (&json!(expected.len()), &json!(2048)));
    assert_eq!(reply["token_strs"].as_array().unwrap().len(), expected.len());
    assert_eq!(served.post("/detokenize", json!({"tokens": expected})).ok()["prompt"], text);
    let rendered = local.template().render(&[message_of("Hello")], true).unwrap();
    let chat = served.post("/tokenize", json!({"messages": user("Hello")})).ok();
    assert_eq!(chat["tokens"], json!(local.tokenizer().encode(&rendered).unwrap()));
    // The served tokeniser file gives the same tokens.
    let file = served.get("/tokenizer.json").ok().to_string();
    let elsewhere = Tokenizer::from_bytes(file.as_bytes(), "served").unwrap();
    assert_eq!(elsewhere.encode(text).unwrap(), expected);
    assert_eq!(elsewhere.decode(&expected, false).unwrap(), text);
    let info = served.get("/tokenizer_info").ok();
    assert_eq!((&info["eos_token"], &info["bos_token"]), (&json!("<|im_end|>"), &Value::Null));
    let models = served.get("/v1/models").ok();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("llama-tiny")));
    assert_eq!(served.get("/v1/models/llama-tiny").ok()["object"], "model");
    assert_eq!(served.get("/v1/models/gpt-4").status, 404);
    assert_eq!(served.get("/health").ok()["status"], "ok");
}
