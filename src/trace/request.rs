//! The arguments of `trace` over a text or a conversation: by flags, or by a line of a file of jobs.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use palimpsest_core::attention::{Knockout, Target};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::job::{Asked, Reach, TraceJob};
use super::text::{NamedPrompt, NamedSpan, Source, TextTools, prompt};

/// A pass over a text or a conversation. The line of a job.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextRequest {
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub messages: Option<Value>,
    /// The spans: a text, or characters.
    #[serde(default)]
    pub spans: Map<String, Value>,
    /// The rows; `last`, and `answer` where something is generated, where absent.
    #[serde(default)]
    pub rows: Option<Vec<String>>,
    #[serde(default)]
    pub knockouts: Vec<String>,
    #[serde(default)]
    pub measures: Option<Vec<String>>,
    /// Largest keys of each row position and head.
    #[serde(default)]
    pub top_keys: usize,
    /// Positions at the end whose logits are wanted.
    #[serde(default)]
    pub logits: usize,
    /// Logits to take apart.
    #[serde(default)]
    pub targets: Vec<TokenTarget>,
    #[serde(default)]
    pub generate: Option<usize>,
    #[serde(default)]
    pub out: Option<PathBuf>,
}

/// A logit to take apart.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenTarget {
    /// That of the last position where absent.
    #[serde(default)]
    pub position: Option<usize>,
    pub token: TokenName,
    /// The token whose logit is taken off.
    #[serde(default)]
    pub against: Option<TokenName>,
}

/// A token by its id or its text.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum TokenName {
    Id(u32),
    Text(String),
}

impl TokenName {
    /// Its id.
    pub fn id(&self, side: TextTools<'_>, place: &str) -> anyhow::Result<u32> {
        match self {
            TokenName::Id(id) => Ok(*id),
            TokenName::Text(text) => match side.tokenizer.encode(text)?.as_slice() {
                &[id] => Ok(id),
                tokens => bail!(
                    "{place}: {text:?} is {} tokens of this model, and a target is one; give its first token, often with the space before it",
                    tokens.len()
                ),
            },
        }
    }
}

impl TextRequest {
    /// Its tokens and spans, checked. `more` are spans that are named beside those of `spans`; `place` is the file or the job, for
    /// errors.
    pub fn checked(
        &self,
        more: Vec<NamedSpan>,
        side: TextTools<'_>,
        place: &str,
    ) -> anyhow::Result<(TraceJob, NamedPrompt)> {
        let source = match (&self.text, &self.messages) {
            (Some(text), None) => Source::Text(text.clone()),
            (None, Some(messages)) => Source::messages(messages.clone()).with_context(|| place.to_owned())?,
            (text, _) => {
                let which = if text.is_some() {
                    "both `text` and `messages`"
                } else {
                    "neither `text` nor `messages`"
                };
                bail!("{place} has {which}; give one of them")
            }
        };
        let mut named = NamedSpan::from_json(self.spans.clone()).with_context(|| place.to_owned())?;
        named.extend(more);
        let prompt = prompt(&source, &named, side, place)?;
        ensure!(
            !prompt.keys.is_empty(),
            "{place}: no span is named; name parts of the text with --spans LABEL=TEXT"
        );
        let tokens = prompt.encoded.ids.clone();
        ensure!(!tokens.is_empty(), "{place}: the text is empty; give at least one token");
        let generate = self.generate.unwrap_or(0);
        let rows = self.rows.clone().unwrap_or_else(|| {
            let rows = if generate > 0 { &["last", "answer"][..] } else { &["last"] };
            rows.iter().map(|&row| row.to_owned()).collect()
        });
        let knockouts = self.knockouts.iter().map(|text| text.parse::<Knockout>());
        let knockouts = knockouts.collect::<Result<_, _>>().with_context(|| place.to_owned())?;
        let target = |target: &TokenTarget| -> anyhow::Result<Target> {
            Ok(Target {
                position: target.position.unwrap_or(tokens.len() - 1),
                token: target.token.id(side, place)?,
                against: target.against.as_ref().map(|token| token.id(side, place)).transpose()?,
            })
        };
        let job = TraceJob::new(Asked {
            place: place.to_owned(),
            keys: prompt.keys.clone(),
            names: prompt.names.clone(),
            rows,
            logits: self.logits,
            knockouts,
            reach: Reach::Behind,
            top_keys: self.top_keys,
            measures: self.measures.clone(),
            targets: self.targets.iter().map(target).collect::<Result<_, _>>()?,
            generate,
            stop: side.stop.to_vec(),
            tokens,
        })?;
        Ok((job, prompt))
    }
}
