//! Probabilities of tokens in the shapes of the two completions endpoints.

use serde_json::{Map, Value, json};

use super::model::ServedModel;
use palimpsest_core::engine::Likelihood;

/// An entry of a chat's `logprobs.content`.
pub fn of_chat(model: &ServedModel, likelihood: &Likelihood) -> Value {
    let entry = |token: u32, log_p: f64| {
        let text = model.token_text(token);
        let whole = !text.contains(char::REPLACEMENT_CHARACTER);
        json!({"token": text, "logprob": log_p, "bytes": whole.then(|| text.as_bytes().to_vec())})
    };
    let mut one = entry(likelihood.token, likelihood.log_p);
    let likeliest: Vec<Value> =
        likelihood.likeliest.iter().map(|&(token, log_p)| entry(token, log_p)).collect();
    one["top_logprobs"] = likeliest.into();
    one
}

/// The `logprobs` of a completion under way: lists with an entry a token.
#[derive(Debug, Default)]
pub struct CompletionLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl CompletionLogprobs {
    /// Adds the first token of a prompt, before which there is nothing; `offset` is the number of characters before the token.
    pub fn push_first(&mut self, model: &ServedModel, token: u32, offset: &mut usize) {
        let text = model.token_text(token);
        self.text_offset.push((*offset).into());
        *offset += text.chars().count();
        self.tokens.push(text.into());
        self.token_logprobs.push(Value::Null);
        self.top_logprobs.push(Value::Null);
    }

    /// Adds a token.
    pub fn push(&mut self, model: &ServedModel, likelihood: &Likelihood, offset: &mut usize) {
        self.push_first(model, likelihood.token, offset);
        let mut likeliest = Map::new();
        for &(token, log_p) in &likelihood.likeliest {
            // Of several tokens with one text the likeliest comes first.
            likeliest.entry(model.token_text(token)).or_insert_with(|| log_p.into());
        }
        if let (Some(log_p), Some(top)) = (self.token_logprobs.last_mut(), self.top_logprobs.last_mut()) {
            (*log_p, *top) = (likelihood.log_p.into(), likeliest.into());
        }
    }

    /// As JSON.
    pub fn json(self) -> Value {
        let CompletionLogprobs { tokens, token_logprobs, top_logprobs, text_offset } = self;
        json!({
            "tokens": tokens, "token_logprobs": token_logprobs, "top_logprobs": top_logprobs, "text_offset": text_offset
        })
    }
}
