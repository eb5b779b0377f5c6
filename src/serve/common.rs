//! What both completions endpoints read.

use std::sync::Arc;

use serde_json::Value;

use super::app::App;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use crate::engine::{Sampling, TokenRules};

/// Most answers to one prompt, as at OpenAI.
const MOST_CHOICES: usize = 128;

/// Most strings that end an answer, and most bytes of all of them: each choice has a copy.
const MOST_STOPS: usize = 16;
const MOST_STOP_BYTES: usize = 4096;

/// Fields that change no answer: they tell a server about its client.
pub const IGNORED: [&str; 4] = ["user", "metadata", "safety_identifier", "prompt_cache_key"];

/// Fields that both endpoints have.
pub const SHARED: [&str; 15] = [
    "model",
    "n",
    "stop",
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "stream",
    "stream_options",
    "palimpsest",
];

/// Fields of `stream_options`.
pub const STREAM_FIELDS: [&str; 2] = ["include_usage", "include_obfuscation"];

/// How an answer is generated and sent.
#[derive(Debug, Clone)]
pub struct Common {
    /// Answers a prompt.
    pub n: usize,
    /// Strings that end an answer.
    pub stops: Vec<String>,
    temperature: f64,
    top_p: f64,
    seed: u64,
    /// Penalties and biases.
    pub rules: TokenRules,
    /// Whether it is sent as it is generated.
    pub stream: bool,
    /// Whether a stream ends with what was used.
    pub usage: bool,
    /// Whether a stream tells how far the reading of its prompt is.
    pub progress: bool,
}

impl Common {
    /// Reads them, and refuses another model.
    ///
    /// # Errors
    /// What cannot be served, with its field.
    pub fn read(app: &App, fields: &Fields<'_>) -> Result<Self, ApiError> {
        fields.required("model")?;
        app.check_model(fields.text("model")?.unwrap_or_default())?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let usage = match fields.get("stream_options") {
            None => false,
            Some(_) if !stream => {
                let message = "`stream_options` is for streams; set stream, or leave it out";
                return Err(ApiError::field("stream_options", message));
            }
            Some(options) => {
                let options = Fields::of(options, "stream_options")?;
                options.only(&STREAM_FIELDS)?;
                options.flag("include_usage")?.unwrap_or(false)
            }
        };
        Ok(Common {
            n: fields.count("n", 1..=MOST_CHOICES)?.unwrap_or(1),
            stops: stops(fields)?,
            temperature: fields.number("temperature", 0.0..=2.0, false)?.unwrap_or(1.0),
            top_p: fields.number("top_p", 0.0..=1.0, true)?.unwrap_or(1.0),
            seed: seed(fields)?.unwrap_or_else(rand::random),
            rules: rules(app, fields)?,
            stream,
            usage,
            progress: progress(fields)?,
        })
    }

    /// How the tokens of an answer are chosen: each of several answers has a seed of its own.
    pub fn sampling(&self, choice: usize, max_new_tokens: usize) -> Sampling {
        let seed = self.seed.wrapping_add(choice as u64);
        Sampling { temperature: self.temperature, top_p: self.top_p, seed, max_new_tokens }
    }
}

/// Penalties and biases; what the answer may be is another matter.
fn rules(app: &App, fields: &Fields<'_>) -> Result<TokenRules, ApiError> {
    let penalty = |name: &str| -> Result<f32, ApiError> {
        Ok(fields.number(name, -2.0..=2.0, false)?.unwrap_or(0.0) as f32)
    };
    Ok(TokenRules {
        frequency_penalty: penalty("frequency_penalty")?,
        presence_penalty: penalty("presence_penalty")?,
        repetition_penalty: fields.number("repetition_penalty", 0.01..=100.0, false)?.unwrap_or(1.0) as f32,
        bias: bias(fields, app.model.spec.vocab)?,
        top_k: top_k(fields)?,
        min_p: fields.number("min_p", 0.0..=1.0, false)?.unwrap_or(0.0),
        ..TokenRules::default()
    })
}

/// `top_k`: 0 and, as in vLLM, -1 leave every token.
fn top_k(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    match fields.get("top_k") {
        Some(value) if value.as_i64() == Some(-1) => Ok(None),
        _ => Ok(fields.count("top_k", 0..=usize::MAX)?.filter(|&k| k > 0)),
    }
}

/// `palimpsest.progress`; what else is in it is read where it is known what it asks about.
fn progress(fields: &Fields<'_>) -> Result<bool, ApiError> {
    match fields.get("palimpsest") {
        None => Ok(false),
        Some(value) => Ok(Fields::of(value, "palimpsest")?.flag("progress")?.unwrap_or(false)),
    }
}

/// `logit_bias`: numbers by token ids.
fn bias(fields: &Fields<'_>, vocab: usize) -> Result<Arc<[(u32, f32)]>, ApiError> {
    let map = match fields.get("logit_bias") {
        None => return Ok(Arc::default()),
        Some(Value::Object(map)) => map,
        Some(value) => return Err(wrong("logit_bias", value, "an object of token ids and numbers")),
    };
    let one = |(key, value): (&String, &Value)| {
        let field = || format!("logit_bias.{}", key.chars().take(40).collect::<String>());
        let Some(token) = key.parse::<u32>().ok().filter(|&token| (token as usize) < vocab) else {
            let message = format!("`{}` is no token of the model; its ids are 0 to {}", field(), vocab - 1);
            return Err(ApiError::field(field(), message));
        };
        match value.as_f64() {
            Some(bias) if (-100.0..=100.0).contains(&bias) => Ok((token, bias as f32)),
            Some(bias) => {
                let message = format!("`{}` is {bias}; give a number from -100 to 100", field());
                Err(ApiError::field(field(), message))
            }
            None => Err(wrong(&field(), value, "a number from -100 to 100")),
        }
    };
    map.iter().map(one).collect()
}

fn seed(fields: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.get("seed") else { return Ok(None) };
    match value.as_i64().map(i64::cast_unsigned).or(value.as_u64()) {
        Some(seed) => Ok(Some(seed)),
        None => Err(ApiError::field("seed", "`seed` is not a whole number of 64 bits; give one")),
    }
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let wanted = "a string, or an array of strings";
    let list = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(value @ Value::String(_)) => std::slice::from_ref(value),
        Some(Value::Array(list)) => list,
        Some(value) => return Err(wrong("stop", value, wanted)),
    };
    if list.len() > MOST_STOPS {
        let message = format!("`stop` has {} strings; give at most {MOST_STOPS}", list.len());
        return Err(ApiError::field("stop", message));
    }
    let bytes: usize = list.iter().filter_map(Value::as_str).map(str::len).sum();
    if bytes > MOST_STOP_BYTES {
        let message = format!("`stop` has {bytes} bytes; give at most {MOST_STOP_BYTES} in all");
        return Err(ApiError::field("stop", message));
    }
    let mut stops = Vec::with_capacity(list.len());
    for value in list {
        match value {
            // Of clients that have no string to give.
            Value::Null => {}
            Value::String(text) if text.is_empty() => {
                return Err(ApiError::field(
                    "stop",
                    "`stop` holds an empty string, which every text ends with; leave it out",
                ));
            }
            Value::String(text) => stops.push(text.clone()),
            value => return Err(wrong("stop", value, wanted)),
        }
    }
    Ok(stops)
}

/// How many tokens are generated at most: what a request says under one of these names, or else `usual`, within the context.
///
/// # Errors
/// What does not fit the context, with the field to change.
pub fn room(
    app: &App,
    fields: &Fields<'_>,
    prompt: (&str, usize),
    least: usize,
    names: &[&str],
    usual: usize,
) -> Result<usize, ApiError> {
    let (prompt_field, tokens) = prompt;
    let context = app.model.text.context;
    let too_long = |field: &str, message: String| {
        let error = ApiError::field(field, message);
        Err(ApiError { code: Some("context_length_exceeded"), ..error })
    };
    let mut asked: Option<(&str, usize)> = None;
    for &name in names {
        let Some(most) = fields.count(name, least..=usize::MAX)? else { continue };
        match asked {
            Some((other, before)) if before != most => {
                let message = format!("`{name}` is {most} and `{other}` is {before}; give one of them");
                return Err(ApiError::field(name, message));
            }
            _ => asked = Some((name, most)),
        }
    }
    let free = context.saturating_sub(tokens);
    match asked {
        // One token to predict, at least.
        _ if tokens > context || (free == 0 && asked.is_none_or(|(_, most)| most > 0)) => {
            let message =
                format!("the prompt has {tokens} tokens and the context holds {context}; shorten it");
            too_long(prompt_field, message)
        }
        Some((name, most)) if most > free => {
            let message = format!(
                "the prompt has {tokens} tokens, `{name}` asks for {most} more and the context holds {context}; ask for at \
                 most {free}, or shorten the prompt"
            );
            too_long(name, message)
        }
        Some((_, most)) => Ok(most),
        None => Ok(usual.min(free)),
    }
}

/// An identifier: `chatcmpl-` and 24 hexadecimal digits.
pub fn identifier(kind: &str) -> String {
    let number: u128 = rand::random();
    format!("{kind}-{:024x}", number >> 32)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
