//! Eviction of keys from a cache that has been read, before later rows see it: which keys a policy keeps, per layer and key/value head.
//!
//! The history before position `at` is read whole; then a [`Policy`] scores its keys, the best stay, and all rows from `at` on see those
//! and their own. Positions and rotations stay as they were. Sliding-window and linear-attention layers keep what they have: they are
//! bounded already.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::attention::{Event, KeptShares, LayerHoles, Observer, Point, Wanted};
use crate::model::{Cache, Decoder};
use crate::span::Span;

/// A policy and its budget: `POLICY:KEEP`, with `@question` behind it if the policy may see the question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Evict {
    /// Name of the policy.
    pub policy: PolicyName,
    /// The budget.
    pub keep: Keep,
    /// The policy reads the question's rows too. The question is then read again, over what was kept.
    pub question: bool,
}

/// A known policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // said by docs/evict.md and the policies' files
pub enum PolicyName {
    Streaming,
    Knorm,
    SnapKv,
    H2o,
    Tova,
    ExpectedAttention,
    Kvzap,
    Random,
    LeastAttended,
    Oldest,
    Oracle,
}

const POLICIES: [(PolicyName, &str); 11] = [
    (PolicyName::Streaming, "streaming"),
    (PolicyName::Knorm, "knorm"),
    (PolicyName::SnapKv, "snapkv"),
    (PolicyName::H2o, "h2o"),
    (PolicyName::Tova, "tova"),
    (PolicyName::ExpectedAttention, "expected-attention"),
    (PolicyName::Kvzap, "kvzap"),
    (PolicyName::Random, "random"),
    (PolicyName::LeastAttended, "least-attended"),
    (PolicyName::Oldest, "oldest"),
    (PolicyName::Oracle, "oracle"),
];

/// How much of the history is kept, by each key/value head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// A share of the keys, above 0 and at most 1; rounded down to whole keys.
    Share(f64),
    /// Keys.
    Tokens(usize),
}

/// No share is NaN.
impl Eq for Keep {}

/// An eviction from one prompt.
#[derive(Debug, Clone)]
pub struct Eviction {
    /// Policy and budget.
    pub evict: Evict,
    /// The first row after the eviction: the question's first token.
    pub at: usize,
    /// The prompt's spans, for policies that keep or evict whole sessions and for [`Eviction::shares`].
    pub spans: Vec<Span>,
    /// For policies that draw.
    pub seed: u64,
}

/// An invalid policy or budget.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EvictError(String);

/// Reads the rows of a history (or question) that a policy scores keys by.
#[derive(Debug, Clone)]
pub struct Collector {}

impl Eviction {
    /// The first row that must be read for the policy's scores; `None` if it looks at keys and values alone.
    pub fn first_row(&self) -> Option<usize> {
        None
    }

    /// An observer of the rows that the policy scores by: of the history's, or with [`Evict::question`] of all up to `end`.
    pub fn collector(&self, _end: usize, _decoder: &Decoder) -> Collector {
        Collector {}
    }

    /// The keys that stay, by layer. `cache` holds at least the first [`Eviction::at`] of the prompt's `tokens`.
    pub fn choose(
        &self,
        _cache: &Cache,
        _collector: &Collector,
        _decoder: &Decoder,
        _tokens: &[u32],
    ) -> candle_core::Result<LayerHoles> {
        Ok(LayerHoles::default())
    }

    /// Shares of the prompt's spans that `holes` keep; `None` if nothing was evicted.
    pub fn shares(&self, _holes: &LayerHoles) -> Option<KeptShares> {
        None
    }
}

impl Evict {
    /// Identifier of letters, digits and single hyphens: `evict-snapkv-0-25`, `evict-knorm-1024-tokens-question`.
    pub fn name(&self) -> String {
        let tokens = if matches!(self.keep, Keep::Tokens(_)) { "-tokens" } else { "" };
        let question = if self.question { "-question" } else { "" };
        let text = format!("evict-{}-{}{tokens}{question}", self.policy, self.keep);
        let parts = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("-")
    }
}

impl Observer for Collector {
    fn wants(&self, _point: Point<'_>) -> Wanted<'_> {
        Wanted::default()
    }

    fn observe(&mut self, _event: Event<'_>) -> candle_core::Result<()> {
        Ok(())
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = POLICIES.iter().find(|(policy, _)| policy == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A share always has a point: `1.0` is a share, `1` a key.
            Keep::Share(share) => write!(f, "{share:?}"),
            Keep::Tokens(tokens) => tokens.fmt(f),
        }
    }
}

impl fmt::Display for Evict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let question = if self.question { "@question" } else { "" };
        write!(f, "{}:{}{question}", self.policy, self.keep)
    }
}

impl FromStr for Evict {
    type Err = EvictError;

    fn from_str(given: &str) -> Result<Self, EvictError> {
        let known = || POLICIES.map(|(_, name)| name).join(", ");
        let wrong = |why: String| {
            EvictError(format!(
                "eviction `{given}`: {why}; write POLICY:KEEP, such as snapkv:0.25 for a share of the keys or streaming:1024 for a number \
                 of them, with @question behind it to let the policy see the question"
            ))
        };
        let text = given.trim();
        let (text, question) = match text.split_once('@') {
            None => (text, false),
            Some((text, "question")) => (text, true),
            Some((_, other)) => return Err(wrong(format!("`@{other}` is not `@question`"))),
        };
        let (name, keep) = text.split_once(':').ok_or_else(|| wrong("it has no `:`".to_owned()))?;
        let policy = POLICIES.iter().find(|(_, known)| *known == name).map(|(policy, _)| *policy);
        let policy = policy.ok_or_else(|| wrong(format!("`{name}` is no policy; there are {}", known())))?;
        let keep = match (keep.contains('.'), keep.parse::<usize>(), keep.parse::<f64>()) {
            (false, Ok(tokens), _) if tokens > 0 => Keep::Tokens(tokens),
            (true, _, Ok(share)) if share > 0.0 && share <= 1.0 => Keep::Share(share),
            _ => {
                return Err(wrong(format!(
                    "`{keep}` is neither a share (with a point, above 0 and up to 1.0) nor a number of keys above 0"
                )));
            }
        };
        Ok(Evict { policy, keep, question })
    }
}

impl TryFrom<String> for Evict {
    type Error = EvictError;

    fn try_from(text: String) -> Result<Self, EvictError> {
        text.parse()
    }
}

impl From<Evict> for String {
    fn from(evict: Evict) -> Self {
        evict.to_string()
    }
}
