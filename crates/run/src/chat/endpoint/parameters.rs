//! Request parameters that a server rejects by name: reasoning models reject `temperature`, Mistral `seed`, some servers `top_p`.
//! A rejected parameter is omitted by all clones of an endpoint from then on, and reported.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::chat::Sampling;
use crate::chat::loose_json::parsed;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Parameter {
    Temperature,
    TopP,
    Seed,
    Stop,
    ReasoningEffort,
    ChatTemplateKwargs,
    ResponseFormat,
    /// Newer hosted models reject `max_tokens` in favour of its successor; older servers know only `max_tokens`.
    MaxTokens,
}

/// Lower-case phrases that reject a parameter whatever its value.
const UNSUPPORTED: [&str; 12] = [
    "not support",
    "n't support",
    "unsupported",
    "unrecogni",
    "unknown",
    "unexpected",
    "not permitted",
    "forbidden",
    "not allowed",
    "deprecated",
    "both",
    "not available",
];

impl Parameter {
    /// In the order of a request's fields: calls that a run keeps are found by the digest of the whole body.
    pub const ALL: [Parameter; 8] = [
        Parameter::Temperature,
        Parameter::TopP,
        Parameter::Seed,
        Parameter::MaxTokens,
        Parameter::ReasoningEffort,
        Parameter::ChatTemplateKwargs,
        Parameter::Stop,
        Parameter::ResponseFormat,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Parameter::Temperature => "temperature",
            Parameter::TopP => "top_p",
            Parameter::Seed => "seed",
            Parameter::Stop => "stop",
            Parameter::ReasoningEffort => "reasoning_effort",
            Parameter::ChatTemplateKwargs => "chat_template_kwargs",
            Parameter::ResponseFormat => "response_format",
            Parameter::MaxTokens => "max_tokens",
        }
    }

    pub fn is_named(text: &str) -> bool {
        Parameter::ALL.iter().any(|parameter| word(text, parameter.name()).is_some())
    }

    /// True for a default, or a value equal to the server's default behaviour.
    fn is_plain(self, sampling: &Sampling) -> bool {
        match self {
            Parameter::Temperature => sampling.temperature == 0.0,
            Parameter::TopP => sampling.top_p == 1.0,
            Parameter::Seed => true,
            _ => false,
        }
    }

    /// The sent parameter that a rejection names, in its `param` field or first in its text. If two exclude each other (`temperature` and
    /// `top_p`), the one with no effect is chosen. A user's value that is out of range is not omitted.
    pub fn refused(body: &str, sent: &[Parameter], sampling: &Sampling) -> Option<Self> {
        let lower = body.to_lowercase();
        let field = parsed(body).ok().and_then(|body| {
            let named = [&body["error"]["param"], &body["param"]].into_iter().find_map(Value::as_str);
            named.map(str::to_owned)
        });
        let at = |parameter: &Parameter| match &field {
            Some(field) if field == parameter.name() => Some(0),
            _ => word(&lower, parameter.name()),
        };
        let mut named: Vec<(usize, Parameter)> =
            sent.iter().filter_map(|parameter| Some((at(parameter)?, *parameter))).collect();
        named.sort();
        let is_unsupported = UNSUPPORTED.iter().any(|words| lower.contains(words));
        let may_go = |parameter: &Parameter| match parameter {
            Parameter::MaxTokens => lower.contains("max_completion_tokens"),
            parameter => is_unsupported || parameter.is_plain(sampling),
        };
        let named = || named.iter().map(|(_, parameter)| *parameter).filter(may_go);
        let changes_nothing =
            |parameter: &Parameter| *parameter == Parameter::TopP && parameter.is_plain(sampling);
        match lower.contains("both") {
            true => named().find(changes_nothing).or_else(|| named().next()),
            false => named().next(),
        }
    }
}

/// Index of a word, not inside a longer word.
fn word(text: &str, word: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(at, _)| at).find(|&at| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        let after = text.get(at + word.len()..).and_then(|after| after.chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[derive(Debug, Clone, Default)]
pub(super) struct LeftOut(Arc<Mutex<Vec<Parameter>>>);

impl LeftOut {
    pub fn now(&self) -> Vec<Parameter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn add(&self, parameters: &[Parameter]) -> Vec<Parameter> {
        let mut left_out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<Parameter> =
            parameters.iter().copied().filter(|parameter| !left_out.contains(parameter)).collect();
        left_out.extend(&new);
        left_out.sort();
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of: sampling, rejected parameter, message of OpenAI, Azure, vLLM, Mistral, Gemini, Anthropic, Bedrock, LiteLLM, TGI or Groq.
    /// The last lines are user values out of range, and names of other things.
    const REFUSALS: &str = r#"
greedy temperature {"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.", "param": "temperature", "code": "unsupported_value"}}
drawn temperature {"error": {"message": "Unsupported value: 'temperature' does not support 3 with this model.", "param": "temperature"}}
greedy max_tokens {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "param": "max_tokens"}}
greedy top_p {"error": {"message": "Unsupported parameter. Supported: temperature, seed.", "param": "top_p"}}
greedy seed {"error": {"message": "Unrecognized request argument supplied: seed", "param": null}}
greedy seed {"object": "error", "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 0}]}}
greedy seed [{"error": {"code": 400, "message": "Invalid JSON payload received. Unknown name \"seed\": Cannot find field."}}]
drawn temperature {"error": {"message": "`temperature` is deprecated for this model."}}
greedy top_p {"message": "`temperature` and `top_p` cannot both be specified for this model. Please use only one."}
drawn temperature {"message": "`temperature` and `top_p` cannot both be specified for this model. Please use only one."}
greedy top_p litellm.UnsupportedParamsError: openai does not support parameters: ['top_p'], for model=o3
greedy temperature Input validation error: `temperature` must be strictly positive
greedy top_p Input validation error: `top_p` must be > 0.0 and < 1.0
greedy stop {"error": {"message": "Unsupported parameter: 'stop' is not supported with this model."}}
greedy reasoning_effort {"error": {"message": "reasoning_effort is not supported with this model"}}
greedy chat_template_kwargs Unrecognized request argument supplied: chat_template_kwargs
greedy response_format {"error": "'response_format.type' must be 'text': json_schema is not supported"}
drawn - {"error": {"message": "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.", "param": "temperature"}}
greedy - {"error": {"message": "max_tokens is too large: 99999", "param": "max_tokens"}}
greedy - unsupported: stop_token_ids, seeds, top_p_decay
greedy - the model does not support images
"#;

    #[test]
    fn a_parameter_that_is_refused_is_known_by_its_name() {
        let greedy = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 9 };
        let drawn = Sampling { temperature: 3.0, top_p: 0.9, ..greedy };
        for line in REFUSALS.trim().lines() {
            let [sampling, expected, body] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let sampling = if sampling == "greedy" { greedy } else { drawn };
            let found = Parameter::refused(body, &Parameter::ALL, &sampling);
            assert_eq!(found.map_or("-", Parameter::name), expected, "{body}");
        }
        let rest = [Parameter::Seed, Parameter::TopP];
        let found = Parameter::refused("temperature, seed: not supported", &rest, &greedy);
        assert_eq!(found, Some(Parameter::Seed));
    }
}
