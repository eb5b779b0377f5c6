//! Replies held to a JSON schema, and embeddings: parts of OpenAI's API beside plain chat.

use serde::Deserialize;
use serde_json::{Value, json};

use super::json::parsed;
use super::{Endpoint, Failure};
use crate::chat::ChatError;

#[derive(Deserialize)]
struct Embeddings {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: usize,
    embedding: Vec<f32>,
}

impl Endpoint {
    /// Holds the replies from here on to a JSON schema with a name, sent as a strict `response_format`; `None` lets them go free.
    pub fn hold_to(&mut self, schema: Option<(&str, &Value)>) {
        self.response_format = schema.map(|(name, schema)| {
            let schema = json!({ "name": name, "strict": true, "schema": schema });
            json!({ "type": "json_schema", "json_schema": schema })
        });
    }

    /// The vectors of texts, in order, from `/embeddings`.
    ///
    /// # Errors
    /// Where the server refuses, cannot be reached, or sends other vectors than asked for.
    pub fn embeddings(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ChatError> {
        let url = format!("{}/embeddings", self.base);
        let body = json!({ "model": self.model, "input": texts }).to_string();
        let reply = self.retrying(|| {
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
        });
        reply.map_err(|failure| self.failed(&failure))
    }
}
