//! `/v1/embeddings`: unit vectors from the embedder, or the mean of the decoder's hidden states.
//!
//! Computed off the connection thread in groups of inputs, so that abandoned requests stop early.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use axum::body::Body;
use axum::http::{Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::app::App;
use super::error::{ApiError, ensure};
use super::json::{OF_CLIENTS, count, drop_neutral, read};
use super::log::Record;
use super::memory::Held;
use super::pieces;
use super::prompts::{self, Prompt};
use palimpsest_core::engine::{EngineError, RequestError};
use palimpsest_run::embedder::Embedder;

/// Inputs per cancellation check.
const GROUP: usize = 64;

pub struct PreparedEmbedding {
    /// `None` if the decoder makes the embeddings.
    embedder: Option<Arc<Embedder>>,
    tokens: Vec<Vec<u32>>,
    /// Number of tokens in all texts.
    count: usize,
    dimensions: usize,
    base64: bool,
    model: String,
    /// Memory of tokens, vectors and reply, and of the decoder's KV cache if used.
    held: Held,
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
struct Embeddings {
    object: &'static str,
    data: Vec<Entry>,
    model: String,
    usage: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingRequest {
    model: String,
    input: Value,
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
    let has_tokens = input.as_array().is_some_and(|list| !list.iter().all(Value::is_string));
    if has_tokens && !palimpsest.token_ids {
        let reason = format!(
            "holds token ids, which must be those of {model:?}, and clients of OpenAI's send OpenAI's; have yours send texts \
             (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False), or say that they are the model's own: \
             \"palimpsest\": {{\"token_ids\": true}}"
        );
        return Err(ApiError::at("input", reason).with_code("token_ids_not_allowed"));
    }
    let width = if is_embedder { app.embedder.dimensions() } else { app.model.spec.hidden };
    let wanted = dimensions.unwrap_or(width);
    let reason = format_args!("is {wanted}; give a whole number from 1 to {width}");
    ensure(wanted <= width, "dimensions", reason)?;
    let embedder = is_embedder.then(|| app.embedder.open()).transpose()?;
    let tokens = tokens_of(app, embedder.as_deref(), &input)?;
    let count: usize = tokens.iter().map(Vec::len).sum();
    let longest = tokens.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let plan = app.memory.plan();
    let cache = if is_embedder { 0 } else { longest * plan.token + plan.activations };
    let takes =
        (count * size_of::<u32>() + tokens.len() * 256) as u64 + (tokens.len() * width) as u64 * NUMBER;
    let held = app.memory.take(takes + cache).map_err(|full| {
        let left = full.most.saturating_sub(takes + plan.activations) / plan.token.max(1);
        let remedy = match is_embedder {
            true => "send fewer texts".to_owned(),
            false => format!("send texts of at most {left} tokens"),
        };
        full.error("embedding these texts", Some("input"), &remedy)
    })?;
    let base64 = encoding_format == Encoding::Base64;
    Ok(PreparedEmbedding { embedder, tokens, count, dimensions: wanted, base64, model, held })
}

/// Inputs (all texts or all token ids) as tokens, within the model's limit. Texts of the embedder are cut to it.
fn tokens_of(app: &App, embedder: Option<&Embedder>, input: &Value) -> Result<Vec<Vec<u32>>, ApiError> {
    let (vocab, limit) = match embedder {
        Some(embedder) => (embedder.vocab(), embedder.limit()),
        None => (app.model.spec.vocab, app.model.text.context),
    };
    let bytes = Some(&app.model.limit).filter(|_| embedder.is_none());
    let sent = prompts::all(input, "input", vocab, bytes)?;
    let is_text = |prompt: &Prompt| matches!(prompt, Prompt::Text(_));
    let texts = sent.first().is_some_and(|(_, prompt)| is_text(prompt));
    for (name, prompt) in &sent {
        let reason = "is of another kind than the first entry; send texts or token ids";
        ensure(is_text(prompt) == texts, name, reason)?;
    }
    let encode = |prompt: &Prompt| match (prompt, embedder) {
        (Prompt::Tokens(ids), _) => Ok(ids.clone()),
        (Prompt::Text(text), None) => {
            app.model.text.tokenizer.encode(text).map_err(|error| ApiError::from(error).of("input"))
        }
        (Prompt::Text(text), Some(embedder)) => {
            let tokens = embedder.tokens(&[text]).map(|mut tokens| tokens.pop().unwrap_or_default());
            tokens.map_err(|error| ApiError::field("input", error.to_string()))
        }
    };
    let tokens = sent.par_iter().map(|(_, prompt)| encode(prompt)).collect::<Result<Vec<_>, _>>()?;
    match tokens.iter().zip(&sent).find(|(tokens, _)| !(1..=limit).contains(&tokens.len())) {
        None => Ok(tokens),
        Some((tokens, (name, _))) => {
            let count = tokens.len();
            let error = ApiError::at(name, format!("has {count} tokens; give 1 to {limit}"));
            Err(ApiError { code: (count > limit).then_some("context_length_exceeded"), ..error })
        }
    }
}

impl PreparedEmbedding {
    pub fn note(&self, record: &Record) {
        let mut noted = record.noted();
        (noted.model, noted.prompt) = (Some(self.model.clone()), self.count);
    }

    /// Stops early once the target of `waits` is dropped.
    pub fn response(self, app: &App, waits: &Weak<()>) -> Result<Response<Body>, ApiError> {
        let cancelled = app.engine.cancelled();
        let go_on = || waits.strong_count() > 0 && !cancelled.load(Ordering::Relaxed);
        let mut vectors = Vec::with_capacity(self.tokens.len());
        for group in self.tokens.chunks(GROUP) {
            if !go_on() {
                return Err(ApiError::closing());
            }
            vectors.extend(app.embedder.work(|| match &self.embedder {
                Some(embedder) => embedder.embed_tokens(group, |_| {}).map_err(ApiError::internal),
                None => {
                    let state = |tokens: &Vec<u32>| app.weights.mean_state(tokens, &mut |_| go_on());
                    let states: Result<Vec<_>, EngineError> = group.iter().map(state).collect();
                    states.map_err(|error| RequestError::from(error).into())
                }
            })?);
        }
        app.metrics.with(|counts| {
            counts.embeddings += vectors.len() as u64;
            counts.embedded += self.count as u64;
        });
        let entry = |(index, vector): (usize, Vec<f32>)| {
            let vector = unit(&vector, self.dimensions)?;
            let bytes = || vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            let embedding = match self.base64 {
                true => Vector::Base64(STANDARD.encode(bytes())),
                false => Vector::Floats(vector),
            };
            Ok(Entry { object: "embedding", index, embedding })
        };
        let data = vectors.into_iter().enumerate().map(entry).collect::<Result<Vec<_>, ApiError>>()?;
        let usage = json!({"prompt_tokens": self.count, "total_tokens": self.count});
        pieces::response(&Embeddings { object: "list", data, model: self.model, usage }, Some(self.held))
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
