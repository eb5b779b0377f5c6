//! What a server of palimpsest's own has beside OpenAI's API: what its model is, and a text's continuation with its attention.

use serde::Deserialize;
use serde_json::Value;

use super::{Endpoint, Failure};
use crate::chat::ChatError;
use palimpsest_core::text::BorderRule;

/// What a server of palimpsest says of its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnServer {
    /// In what it runs.
    pub dtype: String,
    /// By layer of softmax attention, how many keys a row sees; `None` where it sees all before it.
    pub windows: Vec<Option<usize>>,
    /// To which span it gives a token across a border; earlier servers do not say.
    pub borders: BorderRule,
    /// Whether it has layers of linear attention.
    pub has_delta: bool,
    /// Its chat template.
    pub chat_template: String,
    /// The token that texts begin with, as the template writes it.
    pub bos: Option<String>,
    /// The token that ends them.
    pub eos: Option<String>,
}

/// Why a text was not continued.
#[derive(Debug)]
pub struct NotContinued {
    /// The field that the server refuses, where it names one.
    pub field: Option<String>,
    /// Whether the same request would be refused again: the server is there.
    pub refused: bool,
    /// The error.
    pub error: ChatError,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Card>,
}

#[derive(Deserialize)]
struct Card {
    id: String,
    palimpsest: Option<Own>,
}

#[derive(Deserialize)]
struct Own {
    dtype: String,
    attention: Option<OwnAttention>,
    #[serde(default)]
    delta_layers: Vec<usize>,
}

#[derive(Deserialize)]
struct OwnAttention {
    windows: Vec<Option<usize>>,
    #[serde(default)]
    borders: BorderRule,
}

#[derive(Deserialize)]
struct TokenizerInfo {
    chat_template: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl Endpoint {
    /// The model's name at the endpoint.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// What the endpoint says of its model where it is a server of palimpsest; `None` of others, and of one that cannot be asked,
    /// which the first request will tell.
    ///
    /// # Errors
    /// Of a server of palimpsest that does not say how it reads texts.
    pub fn own_server(&self) -> Result<Option<OwnServer>, ChatError> {
        let models = self.exchange(&format!("{}/models", self.base), None);
        let models = models.ok().and_then(|bytes| serde_json::from_slice::<Models>(&bytes).ok());
        let card = models.and_then(|models| models.data.into_iter().find(|card| card.id == self.model));
        let Some(Own { dtype, attention: Some(OwnAttention { windows, borders }), delta_layers }) =
            card.and_then(|card| card.palimpsest)
        else {
            return Ok(None);
        };
        let root = self.base.strip_suffix("/v1").unwrap_or(&self.base);
        let info = self.retrying(|| {
            let bytes = self.exchange(&format!("{root}/tokenizer_info"), None)?;
            serde_json::from_slice::<TokenizerInfo>(&bytes).map_err(|error| unreadable(&error.to_string()))
        });
        let info = info.map_err(|failure| self.failed(&failure))?;
        Ok(Some(OwnServer {
            dtype,
            windows,
            borders,
            has_delta: !delta_layers.is_empty(),
            chat_template: info.chat_template,
            bos: info.bos_token,
            eos: info.eos_token,
        }))
    }

    /// What `/completions` replies to `body`.
    ///
    /// # Errors
    /// [`NotContinued`].
    pub fn continued(&self, body: &Value) -> Result<Value, NotContinued> {
        let body = body.to_string();
        let reply = self.retrying(|| {
            let bytes = self.exchange(&format!("{}/completions", self.base), Some(body.as_bytes()))?;
            serde_json::from_slice(&bytes).map_err(|error| unreadable(&error.to_string()))
        });
        reply.map_err(|failure| {
            let said: Option<Value> = match &failure {
                Failure::Status { status: 400, body, .. } => serde_json::from_str(body).ok(),
                _ => None,
            };
            let field = said.and_then(|said| Some(said["error"]["param"].as_str()?.to_owned()));
            let refused = matches!(&failure, Failure::Status { status: 400 | 413 | 422, .. });
            NotContinued { field, refused, error: self.failed(&failure) }
        })
    }
}

fn unreadable(reason: &str) -> Failure {
    Failure::Unreadable { reason: reason.to_owned(), body: String::new() }
}
