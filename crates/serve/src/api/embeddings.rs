//! `/v1/embeddings`: unit vectors from the embedder, or the mean of the decoder's hidden states.
//!
//! Computed off the connection thread in groups of inputs, so that abandoned requests stop early.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::app::App;
use super::body::texts_fit;
use super::error::ApiError;
use super::json::{OF_CLIENTS, count, drop_neutral, read};
use super::log::Record;
use super::memory::Held;
use super::prompts::{self, Prompt, Prompts};
use palimpsest_core::engine::EngineError;
use palimpsest_core::engine::RequestError;
use palimpsest_run::embedder::{EmbedError, Embedder};

/// Inputs per cancellation check.
const GROUP: usize = 64;

pub struct PreparedEmbedding {
    /// `None` if the decoder makes the embeddings.
    embedder: Option<Arc<Embedder>>,
    tokens: Vec<Vec<u32>>,
    dimensions: Option<usize>,
    base64: bool,
    model: String,
    /// Memory of tokens, vectors and reply, and of the decoder's KV cache if used.
    pub held: Held,
}

/// Bytes per vector element: computed, scaled, and as digits.
const NUMBER: u64 = 4 + 4 + 16;

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Vector {
    Base64(String),
    Floats(Vec<f32>),
}

#[derive(Debug, Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Serialize)]
pub struct Embeddings {
    object: &'static str,
    data: Vec<Entry>,
    model: String,
    usage: Value,
}

/// Refuses oversized texts, except for the embedder, which truncates. Opens the embedder if requested.
pub fn fits(app: &Arc<App>, body: &Value) -> Result<(), ApiError> {
    match body["model"] == app.embedder.name() {
        true => Ok(app.embedder.open().map(drop)?),
        false => texts_fit(app, body, "input"),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingRequest {
    model: String,
    input: Prompts,
    #[serde(default)]
    encoding_format: Encoding,
    #[serde(default, deserialize_with = "count::<1, { usize::MAX }, _, _>")]
    dimensions: Option<usize>,
    #[serde(default)]
    palimpsest: Extension,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Extension {
    token_ids: bool,
}

pub fn prepare(app: &Arc<App>, mut body: Value) -> Result<PreparedEmbedding, ApiError> {
    drop_neutral(&mut body, "", &[OF_CLIENTS])?;
    let EmbeddingRequest { model, input, encoding_format, dimensions, palimpsest } = read(&body)?;
    let is_embedder = model == app.embedder.name();
    if !is_embedder {
        app.check_embedding_model(&model)?;
    }
    // OpenAI clients send OpenAI token ids (LangChain's OpenAIEmbeddings), which would silently be another text here.
    if prompts::has_tokens(&input) && !palimpsest.token_ids {
        let reason = format!(
            "holds token ids, which must be those of {model:?}, and clients of OpenAI's send OpenAI's; have yours send texts \
             (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False), or say that they are the model's own: \
             \"palimpsest\": {{\"token_ids\": true}}"
        );
        return Err(ApiError::at("input", reason).with_code("token_ids_not_allowed"));
    }
    let width = if is_embedder { app.embedder.dimensions() } else { app.model.spec.hidden };
    if let Some(dimensions) = dimensions.filter(|&dimensions| dimensions > width) {
        let reason = format!("is {dimensions}; give a whole number from 1 to {width}");
        return Err(ApiError::at("dimensions", reason));
    }
    let (embedder, tokens) = match is_embedder {
        true => {
            let embedder = app.embedder.open()?;
            let failed = |error: EmbedError| ApiError::field("input", error.to_string());
            let texts = |texts: Vec<&str>| embedder.tokens(&texts).map_err(failed);
            let tokens = tokens_of(input, embedder.vocab(), embedder.limit(), texts)?;
            (Some(embedder), tokens)
        }
        false => {
            let tokenizer = &app.model.text.tokenizer;
            let encode = |text: &str| tokenizer.encode(text).map_err(|e| ApiError::from(e).of("input"));
            let texts = |texts: Vec<&str>| texts.into_iter().map(encode).collect();
            (None, tokens_of(input, app.model.spec.vocab, app.model.text.context, texts)?)
        }
    };
    let count: usize = tokens.iter().map(Vec::len).sum();
    let longest = tokens.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let plan = app.memory.plan();
    let cache = if is_embedder { 0 } else { longest * plan.token + plan.activations };
    let takes =
        (count * size_of::<u32>() + tokens.len() * 256) as u64 + (tokens.len() * width) as u64 * NUMBER;
    let held = app.memory.take(takes + cache).map_err(|full| {
        let remedy = match is_embedder {
            true => "send fewer texts".to_owned(),
            false => {
                let left = full.most.saturating_sub(takes + plan.activations);
                format!("send texts of at most {} tokens", left / plan.token.max(1))
            }
        };
        full.error("embedding these texts", Some("input"), &remedy)
    })?;
    Ok(PreparedEmbedding {
        embedder,
        tokens,
        dimensions,
        base64: encoding_format == Encoding::Base64,
        model,
        held,
    })
}

/// Inputs (all texts or all token ids) as 1..=`limit` tokens each.
fn tokens_of(
    input: Prompts,
    vocab: usize,
    limit: usize,
    encode: impl Fn(Vec<&str>) -> Result<Vec<Vec<u32>>, ApiError>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let (names, sent): (Vec<String>, Vec<Prompt>) = prompts::all(input, "input", vocab)?.into_iter().unzip();
    let first_is_text = matches!(sent.first(), Some(Prompt::Text(_)));
    let (mut texts, mut tokens) = (Vec::new(), Vec::new());
    for (prompt, name) in sent.iter().zip(&names) {
        match prompt {
            Prompt::Text(text) if first_is_text => texts.push(text.as_str()),
            Prompt::Tokens(ids) if !first_is_text => tokens.push(ids.clone()),
            _ => {
                let reason = "is of another kind than the first entry; send texts or token ids";
                return Err(ApiError::at(name, reason));
            }
        }
    }
    if first_is_text {
        tokens = encode(texts)?;
    }
    match tokens.iter().zip(&names).find(|(tokens, _)| !(1..=limit).contains(&tokens.len())) {
        None => Ok(tokens),
        Some((tokens, name)) => {
            let count = tokens.len();
            let error = ApiError::at(name, format!("has {count} tokens; give 1 to {limit}"));
            Err(ApiError { code: (count > limit).then_some("context_length_exceeded"), ..error })
        }
    }
}

impl PreparedEmbedding {
    pub fn note(&self, record: &Record) {
        record.model(&self.model);
        record.prompt(self.input_tokens());
    }

    pub fn input_tokens(&self) -> usize {
        self.tokens.iter().map(Vec::len).sum()
    }

    /// Stops early once the target of `waits` is dropped.
    pub fn vectors(&self, app: &App, waits: &Weak<()>) -> Result<Vec<Vec<f32>>, ApiError> {
        let cancelled = app.cancelled();
        let go_on = || waits.strong_count() > 0 && !cancelled.load(Ordering::Relaxed);
        let mut vectors = Vec::with_capacity(self.tokens.len());
        for group in self.tokens.chunks(GROUP) {
            if !go_on() {
                return Err(ApiError::closing());
            }
            let of_group = app.embedder.work(|| match &self.embedder {
                Some(embedder) => {
                    let vectors = embedder.embed_tokens(group, |_| {});
                    vectors.map_err(|error| ApiError::internal(error.to_string()))
                }
                None => {
                    let state = |tokens: &Vec<u32>| app.weights.mean_state(tokens, &mut |_| go_on());
                    let states: Result<Vec<_>, EngineError> = group.iter().map(state).collect();
                    states.map_err(|error| RequestError::from(error).into())
                }
            })?;
            vectors.extend(of_group);
        }
        Ok(vectors)
    }

    pub fn reply(&self, vectors: Vec<Vec<f32>>) -> Result<Embeddings, ApiError> {
        let entry = |(index, vector): (usize, Vec<f32>)| {
            let vector = unit(&vector, self.dimensions.unwrap_or(vector.len()))?;
            let embedding = match self.base64 {
                true => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                    Vector::Base64(STANDARD.encode(bytes))
                }
                false => Vector::Floats(vector),
            };
            Ok(Entry { object: "embedding", index, embedding })
        };
        let data = vectors.into_iter().enumerate().map(entry).collect::<Result<Vec<_>, ApiError>>()?;
        let tokens = self.input_tokens();
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        Ok(Embeddings { object: "list", data, model: self.model.clone(), usage })
    }
}

/// Truncates a vector and normalises it.
fn unit(vector: &[f32], dimensions: usize) -> Result<Vec<f32>, ApiError> {
    let kept = vector.get(..dimensions).unwrap_or(vector);
    let length = kept.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    if !(length.is_finite() && length > 0.0) {
        let message = "an embedding is not finite, or zero throughout; the model's weights may be damaged";
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, Some("model_not_finite"), message));
    }
    Ok(kept.iter().map(|&x| (f64::from(x) / length) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_vector_is_as_long_as_a_whole_one() {
        let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        let vector = [3.0, 4.0, 12.0];
        for dimensions in 1..=3 {
            let Ok(short) = unit(&vector, dimensions) else { panic!("it has a direction") };
            assert_eq!(short.len(), dimensions);
            assert!((length(&short) - 1.0).abs() < 1e-6);
        }
        assert_eq!(unit(&vector, 2), Ok(vec![0.6, 0.8]));
        assert!(unit(&[0.0, 1.0], 1).is_err() && unit(&[f32::NAN], 1).is_err());
    }
}
