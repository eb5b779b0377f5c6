//! Parts of OpenAI's API beside plain chat: JSON schemas, embeddings, and requests of others passed on.

use serde::Deserialize;
use serde_json::{Value, json};
use ureq::http::header::CONTENT_TYPE;

use super::{Endpoint, Failure};
use crate::chat::ChatError;
use crate::chat::loose_json::parsed;

#[derive(Deserialize)]
struct Embeddings {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: usize,
    embedding: Vec<f32>,
}

const LONGEST_PASSED: u64 = 256 << 20;

/// A server's reply, whatever its status, without the key.
pub struct Passed {
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
}

impl Endpoint {
    /// Sends another program's request to `path` below the base address, once: POST with a body, else GET.
    pub fn pass(&self, path: &str, body: Option<&[u8]>) -> Result<Passed, ChatError> {
        let received = self.call(&format!("{}/{path}", self.base), body).and_then(|mut response| {
            let status = response.status().as_u16();
            let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let content_type = content_type.unwrap_or("application/json").to_owned();
            let body = response.body_mut().with_config().limit(LONGEST_PASSED).read_to_vec()?;
            Ok((status, content_type, body))
        });
        let failed = |error| ChatError::from(format!("the model at {} does not answer: {error}", self.base));
        let (status, content_type, body) = received.map_err(failed)?;
        Ok(Passed { status, content_type: self.redacted_text(content_type), body: self.redacted(body) })
    }

    /// Constrains further replies to a named JSON schema, as a strict `response_format`; `None` lifts it.
    pub fn hold_to(&mut self, schema: Option<(&str, &Value)>) {
        self.response_format = schema.map(|(name, schema)| {
            let schema = json!({ "name": name, "strict": true, "schema": schema });
            json!({ "type": "json_schema", "json_schema": schema })
        });
    }

    /// Embeddings of texts in order. A batch the server rejects as too large is halved.
    pub fn embeddings(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ChatError> {
        self.embedded(texts).map_err(|failure| self.failed(&failure))
    }

    fn embedded(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Failure> {
        match self.embedded_at_once(texts) {
            Err(Failure::Status { status, body, .. }) if texts.len() > 1 && refuses_batch(status, &body) => {
                let (first, second) = texts.split_at(texts.len() / 2);
                Ok([self.embedded(first)?, self.embedded(second)?].concat())
            }
            done => done,
        }
    }

    fn embedded_at_once(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Failure> {
        let url = format!("{}/embeddings", self.base);
        let body = json!({ "model": self.model, "input": texts }).to_string();
        self.retrying(|| {
            let bytes = self.exchange(&url, Some(body.as_bytes()))?;
            let lenient = |_| parsed(&String::from_utf8_lossy(&bytes)).and_then(serde_json::from_value);
            let found: Embeddings =
                serde_json::from_slice(&bytes).or_else(lenient).map_err(|error| Failure::Unreadable {
                    reason: error.to_string(),
                    body: String::from_utf8_lossy(&bytes).into_owned(),
                })?;
            let mut data = found.data;
            data.sort_by_key(|embedding| embedding.index);
            if !data.iter().map(|embedding| embedding.index).eq(0..texts.len()) {
                let reason = format!("{} vectors for {} texts", data.len(), texts.len());
                return Err(Failure::Unreadable { reason, body: String::new() });
            }
            Ok(data.into_iter().map(|embedding| embedding.embedding).collect())
        })
    }
}

/// Phrases that reject a batch for size; keep in sync with adapters/palimpsest_memory.py.
const OF_BATCH: [&str; 9] = [
    "batch",
    "instance",
    "too many",
    "too large",
    "too long",
    "at most",
    "per request",
    "number of texts",
    "number of inputs",
];

fn refuses_batch(status: u16, body: &str) -> bool {
    let body = body.to_lowercase();
    status == 413 || (matches!(status, 400 | 422) && OF_BATCH.iter().any(|words| body.contains(words)))
}
