//! The request for an observed pass, as given by flags, a job file, a tokens file or Python. The server's requests have the same fields.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::bail;
use palimpsest_core::attention::{Knockout, Target};
use palimpsest_core::text::{TextError, Tokenizer};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::text::TextTools;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObserveRequest {
    pub id: Option<String>,
    pub text: Option<String>,
    pub messages: Option<Value>,
    /// By label: a text or a character range.
    pub spans: Map<String, Value>,
    /// Spans, `last`, `answer` or `each`; default: `last`, and `answer` with generation.
    pub rows: Option<Vec<String>>,
    pub knockouts: Vec<Knockout>,
    /// Default: mass and share.
    pub measures: Option<Vec<Measure>>,
    /// Top keys per row position and head; 0 for none.
    pub top_keys: usize,
    /// Also what the layers' choices of keys left to the rows.
    pub selected: bool,
    /// Number of final positions with logits.
    pub logits: usize,
    pub targets: Vec<TokenTarget>,
    pub generate: Option<usize>,
    pub out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Measure {
    Mass,
    /// Mass under uniform attention.
    Share,
    /// Attention weighted by value norms.
    ValueNorm,
    OutputNorm,
    Density,
}

impl Measure {
    const NAMES: [(&str, Measure); 5] = [
        ("mass", Measure::Mass),
        ("share", Measure::Share),
        ("value_norm", Measure::ValueNorm),
        ("output_norm", Measure::OutputNorm),
        ("density", Measure::Density),
    ];

    pub const USUAL: [Measure; 2] = [Measure::Mass, Measure::Share];

    pub fn is_length(self) -> bool {
        matches!(self, Measure::ValueNorm | Measure::OutputNorm)
    }
}

impl FromStr for Measure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Measure::NAMES.into_iter().find(|(name, _)| *name == text);
        known.map(|(_, measure)| measure).ok_or_else(|| {
            let names: Vec<&str> = Measure::NAMES.iter().map(|(name, _)| *name).collect();
            format!("`measures` names `{text}`, and knows {}", names.join(", "))
        })
    }
}

impl TryFrom<String> for Measure {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenTarget {
    pub position: Option<usize>,
    pub token: TokenName,
    /// Token whose logit is subtracted.
    pub against: Option<TokenName>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged, expecting = "is no token; give a number (a token id) or a string (the text of one token)")]
pub enum TokenName {
    Id(u32),
    Text(String),
}

impl TokenName {
    /// One token, or several if the text is not in the vocabulary.
    pub fn ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TextError> {
        match self {
            TokenName::Id(id) => Ok(vec![*id]),
            TokenName::Text(text) => tokenizer.encode(text),
        }
    }

    fn id(&self, side: Option<TextTools<'_>>, place: &str) -> anyhow::Result<u32> {
        match (self, side) {
            (TokenName::Id(id), _) => Ok(*id),
            (TokenName::Text(text), None) => bail!("{place}: a target names {text:?}; give a token's id"),
            (TokenName::Text(text), Some(side)) => match self.ids(side.tokenizer)?.as_slice() {
                &[id] => Ok(id),
                tokens => bail!(
                    "{place}: {text:?} is {} tokens of this model, and a target is one; give its first token, often with the space before it",
                    tokens.len()
                ),
            },
        }
    }
}

impl TokenTarget {
    pub fn resolved(
        &self,
        tokens: usize,
        side: Option<TextTools<'_>>,
        place: &str,
    ) -> anyhow::Result<Target> {
        Ok(Target {
            position: self.position.unwrap_or(tokens.saturating_sub(1)),
            token: self.token.id(side, place)?,
            against: self.against.as_ref().map(|token| token.id(side, place)).transpose()?,
        })
    }
}

impl ObserveRequest {
    pub fn wants(&self, measure: Measure) -> bool {
        self.measures.as_deref().unwrap_or(&Measure::USUAL).contains(&measure)
    }
}
