//! Parses chat completions. Everything but the text is optional; unreadable parts are ignored.

use serde_json::Value;

use super::failure::Failure;
use crate::chat::loose_json::{is_cut, parsed};
use crate::chat::{Reply, StopReason};
use palimpsest_core::text::Split;

const FILTERED: &str = "(the server's content filter withheld the answer)";

#[derive(Clone, Copy, PartialEq)]
enum Finish {
    Turn,
    Limit,
    Filter,
    Broken,
    Call,
}

const LIMIT: &str = "length max_tokens model_length max_output_tokens model_context_window_exceeded";
/// OpenAI, Anthropic, Gemini, Zhipu, Bedrock.
const FILTER: &str = "content_filter refusal safety sensitive guardrail_intervened content_filtered";
/// OpenRouter, vLLM and SGLang, mistral.rs, DeepSeek, Zhipu.
const BROKEN: &str =
    "error abort aborted cancelled canceled insufficient_system_resource network_error timeout failed";
const CALL: &str = "tool_calls function_call tool_use";

impl Finish {
    /// Maps `finish_reason`; unknown or missing values mean end of turn.
    fn of(reason: &str) -> Self {
        let reason = reason.to_ascii_lowercase();
        let known = |(words, _): &(&str, Finish)| words.split(' ').any(|word| word == reason);
        let all = [
            (LIMIT, Finish::Limit),
            (FILTER, Finish::Filter),
            (BROKEN, Finish::Broken),
            (CALL, Finish::Call),
        ];
        all.into_iter().find(known).map_or(Finish::Turn, |(_, finish)| finish)
    }
}

/// `in_thought`: the model was told to think, so a truncated reply starts inside a thought.
pub(super) fn read(bytes: &[u8], in_thought: bool) -> Result<Reply, Failure> {
    let body = String::from_utf8_lossy(bytes);
    let unreadable = |reason: String| Failure::Unreadable { reason, body: body.to_string() };
    let completion = parsed(&body).map_err(|error| match is_cut(&body) {
        true => Failure::Cut {
            how: "the connection broke in the middle of the reply".to_owned(),
            body: body.to_string(),
        },
        false => unreadable(format!("it is no chat completion: {error}")),
    })?;
    let Some(choice) = completion["choices"].get(0) else {
        return Err(unreadable("it has no choices".to_owned()));
    };
    let message = &choice["message"];
    let reason = choice["finish_reason"].as_str().or_else(|| choice["finish_reason"]["type"].as_str());
    let finish = reason.map_or(Finish::Turn, Finish::of);
    let called = ["tool_calls", "function_call"].iter().any(|field| is_something(&message[*field]));
    match finish {
        Finish::Broken => {
            let how =
                format!("the server broke the reply off (finish_reason {})", reason.unwrap_or_default());
            return Err(Failure::Cut { how, body: body.to_string() });
        }
        Finish::Call if called => {
            return Err(unreadable("it ends in the call of a tool, and none was offered".to_owned()));
        }
        _ => {}
    }
    let (content, of_parts) = split(&message["content"]);
    let fields = [&message["reasoning_content"], &message["reasoning"]].map(Value::as_str);
    let own = fields.into_iter().flatten().chain([&*of_parts]).map(str::trim).find(|text| !text.is_empty());
    // The template may have opened the thought, so a truncated thought has no marker.
    let inside = in_thought && finish == Finish::Limit && own.is_none() && !Split::is_marked(&content);
    let Split { thought, answer } = match inside && !content.trim().is_empty() {
        true => Split { thought: Some(content.trim().to_owned()), answer: None },
        false => Split::of_foreign(&content),
    };
    let answer = answer.filter(|answer| !answer.trim().is_empty());
    // A refusal replaces the content on hosted models; a content filter counts as refusal, since a retry gives the same.
    let refusal = message["refusal"].as_str().filter(|text| !text.trim().is_empty());
    let refusal = refusal.or_else(|| (finish == Finish::Filter).then_some(FILTERED));
    let refusal = refusal.filter(|_| answer.is_none());
    let thought = match (own, thought) {
        (Some(own), Some(thought)) => Some(format!("{own}\n\n{thought}")),
        (own, thought) => own.map(str::to_owned).or(thought),
    };
    if answer.is_none() && refusal.is_none() && thought.is_none() {
        let why = reason.unwrap_or("none");
        let reason = format!(
            "its message has no content (finish_reason {why}); a reasoning model needs more new tokens"
        );
        let content = &message["content"];
        let is_empty =
            message.is_object() && (content.is_null() || content.is_string() || content.is_array());
        return Err(if is_empty {
            Failure::Empty { reason, body: body.to_string() }
        } else {
            unreadable(reason)
        });
    }
    let stop = match finish {
        _ if refusal.is_some() => StopReason::Refused,
        Finish::Limit => StopReason::MaxNewTokens,
        _ => StopReason::EndOfTurn,
    };
    let answer = answer.or(refusal.map(str::to_owned));
    Ok(Reply {
        stop: stop.seen_in(answer.is_some()),
        text: answer.unwrap_or_default(),
        thought,
        prompt_tokens: count(&completion["usage"]["prompt_tokens"]),
        completion_tokens: count(&completion["usage"]["completion_tokens"]),
    })
}

/// Splits content into text and thoughts. Content is a string, or parts `{"type": "text", "text": "..."}` and
/// `{"type": "thinking", "thinking": [...]}` with parts or a string.
fn split(content: &Value) -> (String, String) {
    let (mut text, mut thought) = (String::new(), String::new());
    match content {
        Value::String(all) => text.push_str(all),
        Value::Array(parts) => {
            for (more, of_part) in parts.iter().map(split) {
                text.push_str(&more);
                thought.push_str(&of_part);
            }
        }
        Value::Object(part) => {
            text.extend(part.get("text").and_then(Value::as_str));
            thought.extend(part.get("thinking").map(|inner| split(inner).0));
        }
        _ => {}
    }
    (text, thought)
}

fn is_something(value: &Value) -> bool {
    value.as_array().map_or(value.is_object(), |list| !list.is_empty())
}

/// Token count from `10`, `10.0` or `"10"`; otherwise, and for 0, unknown.
fn count(value: &Value) -> Option<usize> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    (number.fract() == 0.0 && (1.0..1e15).contains(&number)).then_some(number as usize)
}
