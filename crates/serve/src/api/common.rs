//! Fields common to both completions endpoints.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::app::App;
use super::attention_request::AttentionRequest;
use super::error::ApiError;
use super::json::{count, found, read_part, real, wrong};
use palimpsest_core::engine::{Sampling, TokenRules};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Common {
    model: String,
    #[serde(default)]
    pub stream: bool,
    stream_options: Option<StreamOptions>,
    #[serde(default = "one", deserialize_with = "count::<1, 128, _, _>")]
    pub n: usize,
    #[serde(default, rename = "stop", deserialize_with = "stops")]
    pub stops: Vec<String>,
    #[serde(default = "whole", deserialize_with = "real::<0, 200, _, _>")]
    temperature: f64,
    #[serde(default = "whole", deserialize_with = "real::<0, 100, _, _>")]
    top_p: f64,
    #[serde(default = "rand::random", deserialize_with = "seed")]
    seed: u64,
    #[serde(default, deserialize_with = "real::<{ -200 }, 200, _, _>")]
    frequency_penalty: f64,
    #[serde(default, deserialize_with = "real::<{ -200 }, 200, _, _>")]
    presence_penalty: f64,
    #[serde(default = "whole", deserialize_with = "real::<1, 10000, _, _>")]
    repetition_penalty: f64,
    #[serde(default)]
    logit_bias: BTreeMap<String, Value>,
    #[serde(default, deserialize_with = "top_k")]
    top_k: Option<usize>,
    #[serde(default, deserialize_with = "real::<0, 100, _, _>")]
    min_p: f64,
    palimpsest: Option<AttentionRequest>,
    #[serde(skip)]
    pub rules: TokenRules,
    #[serde(skip)]
    pub progress: bool,
}

fn one() -> usize {
    1
}

fn whole() -> f64 {
    1.0
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<Value>,
}

/// Limit on the total bytes of stop strings: each choice has a copy.
const MOST_STOP_BYTES: usize = 4096;

fn stops<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let texts = match Value::deserialize(from)? {
        Value::Array(list) => list,
        one => vec![one],
    };
    if texts.len() > 16 {
        return Err(D::Error::custom(format_args!("has {} strings; give at most 16", texts.len())));
    }
    let bytes: usize = texts.iter().filter_map(Value::as_str).map(str::len).sum();
    if bytes > MOST_STOP_BYTES {
        return Err(D::Error::custom(format_args!(
            "has {bytes} bytes; give at most {MOST_STOP_BYTES} in all"
        )));
    }
    let text = |text| match text {
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::String(_) => {
            Err(D::Error::custom("holds an empty string, which every text ends with; leave it out"))
        }
        other => {
            let found = found(&other);
            Err(D::Error::custom(format_args!("holds {found}; give a string, or an array of strings")))
        }
    };
    // Some clients send null strings.
    texts.into_iter().filter(|text| !text.is_null()).map(text).collect()
}

fn seed<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let seed = Value::deserialize(from)?;
    let seed = seed.as_i64().map(i64::cast_unsigned).or(seed.as_u64());
    seed.ok_or_else(|| wrong("a whole number of 64 bits"))
}

/// 0 and (as in vLLM) -1 disable it.
fn top_k<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    let k = Value::deserialize(from)?;
    match (k.as_u64(), k.as_i64()) {
        (_, Some(-1)) => Ok(None),
        (Some(k), _) => Ok(usize::try_from(k).ok().filter(|&k| k > 0)),
        _ => Err(wrong("a whole number of at least 0, or -1")),
    }
}

impl Common {
    /// Extracts the common fields and the attention request; refuses other models.
    pub fn read(app: &App, body: &mut Value) -> Result<(Self, Option<AttentionRequest>), ApiError> {
        let mut fields: Common = read_part(body)?;
        app.check_model(&fields.model)?;
        if fields.stream_options.is_some() && !fields.stream {
            let reason = "is for streams; set stream, or leave it out";
            return Err(ApiError::at("stream_options", reason));
        }
        if fields.top_p == 0.0 {
            return Err(ApiError::at("top_p", "is 0; give a number above 0 and at most 1"));
        }
        fields.rules = TokenRules {
            frequency_penalty: fields.frequency_penalty as f32,
            presence_penalty: fields.presence_penalty as f32,
            repetition_penalty: fields.repetition_penalty as f32,
            bias: bias(&fields.logit_bias, app.model.spec.vocab)?,
            top_k: fields.top_k,
            min_p: fields.min_p,
            ..TokenRules::default()
        };
        let asked = fields.palimpsest.take();
        fields.progress = asked.as_ref().is_some_and(|asked| asked.progress == Some(true));
        let asked = asked.map(|asked| asked.checked(&app.model)).transpose()?;
        Ok((fields, asked.flatten()))
    }

    pub fn usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage)
    }

    /// Each choice has its own seed.
    pub fn sampling(&self, choice: usize, max_new_tokens: usize) -> Sampling {
        let seed = self.seed.wrapping_add(choice as u64);
        Sampling { temperature: self.temperature, top_p: self.top_p, seed, max_new_tokens }
    }
}

fn bias(biases: &BTreeMap<String, Value>, vocab: usize) -> Result<Arc<[(u32, f32)]>, ApiError> {
    let one = |(key, value): (&String, &Value)| {
        let field = format!("logit_bias.{}", key.chars().take(40).collect::<String>());
        let Some(token) = key.parse::<u32>().ok().filter(|&token| (token as usize) < vocab) else {
            let reason = format!("is no token of the model; its ids are 0 to {}", vocab - 1);
            return Err(ApiError::at(field, reason));
        };
        match value.as_f64() {
            Some(bias) if (-100.0..=100.0).contains(&bias) => Ok((token, bias as f32)),
            _ => Err(ApiError::at(field, format!("is {}; give a number from -100 to 100", found(value)))),
        }
    };
    biases.iter().map(one).collect()
}

/// Token limit: the request's field under one of these names, or `usual`, capped by the context.
pub fn room(
    app: &App,
    prompt: (&str, usize),
    asked: &[(&'static str, Option<usize>)],
    usual: usize,
) -> Result<usize, ApiError> {
    let (prompt_field, tokens) = prompt;
    let context = app.model.text.context;
    let asked: Vec<(&str, usize)> = asked.iter().filter_map(|&(name, most)| Some((name, most?))).collect();
    if let [(other, before), (name, most)] = asked[..]
        && before != most
    {
        return Err(ApiError::at(name, format!("is {most} and `{other}` is {before}; give one of them")));
    }
    let (asked, free) = (asked.last(), context.saturating_sub(tokens));
    match asked {
        // At least one token must be predictable.
        _ if tokens > context || (free == 0 && asked.is_none_or(|&(_, most)| most > 0)) => {
            let message =
                format!("the prompt has {tokens} tokens and the context holds {context}; shorten it");
            Err(ApiError::field(prompt_field, message).with_code("context_length_exceeded"))
        }
        Some(&(name, most)) if most > free => {
            let message = format!(
                "the prompt has {tokens} tokens, `{name}` asks for {most} more and the context holds {context}; ask for at \
                 most {free}, or shorten the prompt"
            );
            Err(ApiError::field(name, message).with_code("context_length_exceeded"))
        }
        Some(&(_, most)) => Ok(most),
        None => Ok(usual.min(free)),
    }
}
