//! Fields common to both completions endpoints.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::app::App;
use super::attention_request::{AttentionRequest, drop_flags};
use super::error::{ApiError, ensure};
use super::json::{count, found, read_part, real, text, wrong};
use palimpsest_core::engine::{Generate, Sampling, TokenRules};

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
    /// Prompts with another salt, or none, are not reused.
    #[serde(default, deserialize_with = "salt")]
    pub cache_salt: Option<String>,
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
    let bytes: usize = texts.iter().filter_map(Value::as_str).map(str::len).sum();
    // Some clients send null strings.
    let wrong = |text: &&Value| !text.is_null() && text.as_str().is_none_or(str::is_empty);
    let reason = match texts.iter().find(wrong) {
        _ if texts.len() > 16 => format!("has {} strings; give at most 16", texts.len()),
        _ if bytes > MOST_STOP_BYTES => format!("has {bytes} bytes; give at most {MOST_STOP_BYTES} in all"),
        Some(Value::String(_)) => {
            "holds an empty string, which every text ends with; leave it out".to_owned()
        }
        Some(other) => format!("holds {}; give a string, or an array of strings", found(other)),
        None => return Ok(texts.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
    };
    Err(D::Error::custom(reason))
}

fn salt<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    text(from, "a string of 1 to 256 bytes", |salt| (1..=256).contains(&salt.len()))
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
        body.get_mut("palimpsest").into_iter().for_each(drop_flags);
        let mut fields: Common = read_part(body)?;
        app.check_model(&fields.model)?;
        let streams = fields.stream || fields.stream_options.is_none();
        ensure(streams, "stream_options", "is for streams; set stream, or leave it out")?;
        ensure(fields.top_p > 0.0, "top_p", "is 0; give a number above 0 and at most 1")?;
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

    /// Generates up to `most` tokens. A forced answer follows no rules, and ends only with its last token.
    pub fn generate(&self, app: &App, forced: Option<Arc<[u32]>>, most: usize) -> Generate {
        let Common { temperature, top_p, seed, .. } = *self;
        let (rules, stop) = match forced {
            None => (self.rules.clone(), app.model.text.stop.clone()),
            Some(_) => (TokenRules { forced, ..TokenRules::default() }, Vec::new()),
        };
        let sampling = Sampling { temperature, top_p, seed, max_new_tokens: most };
        Generate { rules, most: Some(most), ..Generate::new(sampling, stop) }
    }
}

fn bias(biases: &BTreeMap<String, Value>, vocab: usize) -> Result<Arc<[(u32, f32)]>, ApiError> {
    let one = |(key, value): (&String, &Value)| {
        let field = format!("logit_bias.{}", key.chars().take(40).collect::<String>());
        match (key.parse::<u32>().ok().filter(|&token| (token as usize) < vocab), value.as_f64()) {
            (Some(token), Some(bias)) if (-100.0..=100.0).contains(&bias) => Ok((token, bias as f32)),
            (Some(_), _) => Err(ApiError::wrong(field, found(value), "a number from -100 to 100")),
            (None, _) => {
                let reason = format!("is no token of the model; its ids are 0 to {}", vocab - 1);
                Err(ApiError::at(field, reason))
            }
        }
    };
    biases.iter().map(one).collect()
}
