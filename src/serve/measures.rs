//! Measures of a prompt's rows beside their masses, under the names of `palimpsest trace`: lengths of what is read and written,
//! densities, and the terms of logits.

use serde::Deserialize;

use super::error::ApiError;
use super::model::ServedModel;
use palimpsest_core::attention::Target;

/// An entry of `palimpsest.measures`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Mass,
    /// The share that uniform attention would pay.
    Share,
    Density,
    /// Attention weighed by the lengths of the values.
    ValueNorm,
    OutputNorm,
}

impl Measure {
    /// Unless a request says otherwise.
    pub const USUAL: [Measure; 2] = [Measure::Mass, Measure::Share];

    /// True if it is of rows of the prompt alone.
    pub fn is_length(self) -> bool {
        matches!(self, Measure::ValueNorm | Measure::OutputNorm)
    }
}

/// An entry of `palimpsest.targets`.
#[derive(Debug, Deserialize)]
pub struct TargetField {
    position: Option<usize>,
    token: TokenField,
    against: Option<TokenField>,
}

/// A token of the vocabulary.
#[derive(Debug, Deserialize)]
enum TokenField {
    #[serde(rename = "a number (a token id)")]
    Id(u32),
    #[serde(rename = "a string (the text of one token)")]
    Text(String),
}

/// A logit that is to be taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedTarget {
    /// The position; the prompt's last one where there is none.
    position: Option<usize>,
    token: u32,
    against: Option<u32>,
}

impl TargetField {
    /// The `nth` target of a request.
    pub fn target(&self, nth: usize, model: &ServedModel) -> Result<AskedTarget, ApiError> {
        let id =
            |name: &str, field: &TokenField| field.id(&format!("palimpsest.targets[{nth}].{name}"), model);
        let against = self.against.as_ref().map(|field| id("against", field)).transpose()?;
        Ok(AskedTarget { position: self.position, token: id("token", &self.token)?, against })
    }
}

impl TokenField {
    fn id(&self, field: &str, model: &ServedModel) -> Result<u32, ApiError> {
        let most = model.spec.vocab.saturating_sub(1);
        match self {
            TokenField::Id(id) if *id as usize <= most => Ok(*id),
            TokenField::Id(id) => {
                Err(ApiError::at(field, format!("is {id}; the model's token ids are 0 to {most}")))
            }
            TokenField::Text(text) => {
                let tokens = model.text.tokenizer.encode(text)?;
                match tokens.as_slice() {
                    [one] => Ok(*one),
                    several => {
                        let reason = format!(
                            "is {text:?}, which is {} tokens of the model; give the text of one, with the space before it where there is \
                             one, or its id",
                            several.len()
                        );
                        Err(ApiError::at(field, reason))
                    }
                }
            }
        }
    }
}

impl AskedTarget {
    /// In a prompt of so many tokens.
    pub fn of(&self, nth: usize, tokens: usize) -> Result<Target, ApiError> {
        let position = self.position.unwrap_or(tokens.saturating_sub(1));
        if position >= tokens {
            let reason = format!(
                "is {position}; the prompt has {tokens} tokens, and positions count from 0; leave it out for the last one"
            );
            return Err(ApiError::at(format!("palimpsest.targets[{nth}].position"), reason));
        }
        Ok(Target { position, token: self.token, against: self.against })
    }
}
