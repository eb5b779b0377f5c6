//! Eviction of keys from a cache that has been read, before later rows see it: which keys a policy keeps, per layer and key/value head.
//!
//! The history before position `at` is read whole; then a policy scores its keys, the best stay, and all rows from `at` on see those
//! and their own. Positions and rotations stay as they were. Sliding-window and linear-attention layers keep what they have: they are
//! bounded already. Policies that KVPress 0.5.5 has keep the keys that it keeps.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use ndarray::Array3;
use serde::{Deserialize, Serialize};

use crate::attention::{Kept, KeptHead, KeptShares, LayerHoles};
use crate::model::{AttentionSpec, Cache, Decoder, KeyValues};
use crate::span::Span;
use crate::transfer;

mod collector;
mod policies;
mod policy;
mod rotation;
#[cfg(test)]
mod tests;

pub use collector::Collector;
use collector::{Reads, evicting};
use policies::expected_attention::{self, ExpectedAttention};
use policies::h2o::H2o;
use policies::knorm::Knorm;
use policies::kvzap::Kvzap;
use policies::random::Random;
use policies::sessions::{self, Sessions};
use policies::snapkv::{self, SnapKv};
use policies::streaming::Streaming;
use policies::tova::Tova;
use policy::{LayerKeys, Policy, largest};

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

/// Budget of the history's keys, for each key/value head.
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

impl Keep {
    /// Keys of `n` that each key/value head keeps; at least one.
    fn of(self, n: usize) -> usize {
        match self {
            Keep::Share(share) => ((n as f64 * share) as usize).max(1),
            Keep::Tokens(tokens) => tokens,
        }
    }
}

impl Eviction {
    /// Keys that each key/value head keeps.
    pub fn keys(&self) -> usize {
        self.evict.keep.of(self.at).min(self.at)
    }

    /// The first row that must be read for the policy's scores, with the question or without; `None` if it looks at keys and values alone.
    pub fn first_row(&self) -> Option<usize> {
        let reads = self.reads();
        (reads != Reads::Nothing).then(|| reads.rows(self.at).start)
    }

    /// An observer of the rows that the policy scores by: of the history's, or with [`Evict::question`] of all up to `end`.
    pub fn collector(&self, end: usize, decoder: &Decoder) -> Collector {
        let end = if self.evict.question { end } else { self.at };
        Collector::new(self.reads(), self.at, end, decoder.spec())
    }

    /// The keys that stay, by layer; none are named if the budget holds all. `cache` holds at least the first [`Eviction::at`] of the
    /// prompt's `tokens`, and the collector has read the rows from [`Eviction::first_row`] on. Returns an error if no layer of the model
    /// evicts or the prompt is too short for the policy.
    pub fn choose(
        &self,
        cache: &Cache,
        collector: &Collector,
        decoder: &Decoder,
        tokens: &[u32],
    ) -> candle_core::Result<LayerHoles> {
        let (spec, budget) = (decoder.spec(), self.evict.keep.of(self.at));
        if evicting(spec).next().is_none() {
            candle_core::bail!(
                "eviction `{}`: this model has no full-attention layer; sliding-window and linear layers keep what they have, and rows of \
                 sparse attention choose among all keys themselves; leave the eviction out",
                self.evict
            );
        }
        if budget >= self.at {
            return Ok(LayerHoles::default());
        }
        self.check(collector.rows.end).map_err(candle_core::Error::wrap)?;
        let policy = self.policy(budget, cache, collector, decoder, tokens)?;
        let kept = policy.kept(budget);
        let mut layers = vec![None; spec.layers.len()];
        for (layer, spec) in evicting(spec) {
            let Some((k, v)) = cache.before(layer, self.at)? else {
                candle_core::bail!("This is a bug: layer {layer} evicts and keeps a window");
            };
            let keys =
                LayerKeys { layer, spec, k, v, read: collector.of(layer)?, rows: collector.rows.clone() };
            let scores = transfer::fetch(&policy.scores(&keys)?.to_dtype(DType::F32)?)?;
            let heads = scores.chunks_exact(self.at).enumerate();
            let heads = heads.map(|(head, scores)| keys.gathered(head, largest(scores, kept)));
            let heads = heads.collect::<candle_core::Result<_>>()?;
            layers[layer] = Some(Arc::new(Kept { from: self.at, heads }));
        }
        // Layers that share keys see what their source kept.
        for (layer, spec) in spec.layers.iter().enumerate() {
            if let Some(KeyValues::Of(source)) = spec.attention().map(|attention| attention.key_values) {
                layers[layer] = layers[source].clone();
            }
        }
        Ok(LayerHoles::of_kept(layers))
    }

    /// Shares of the prompt's spans that `holes`, made by [`Eviction::choose`], keep.
    pub fn shares(&self, holes: &LayerHoles, decoder: &Decoder) -> KeptShares {
        let layers: Vec<(usize, &AttentionSpec)> = evicting(decoder.spec()).collect();
        let kv_heads = layers.iter().map(|(_, spec)| spec.kv_heads).max().unwrap_or(0);
        let mut shares = Array3::from_elem((layers.len(), kv_heads, self.spans.len()), f32::NAN);
        for (l, (layer, spec)) in layers.iter().enumerate() {
            let holes = holes.of(*layer);
            let mut of_layer = shares.index_axis_mut(ndarray::Axis(0), l);
            for ((head, s), share) in
                of_layer.indexed_iter_mut().filter(|((head, _), _)| *head < spec.kv_heads)
            {
                let span = &self.spans[s];
                let (start, end) = (span.start.min(self.at), span.end.min(self.at));
                let place = |at: usize| match holes.kept() {
                    None => at,
                    Some(kept) => {
                        let head = kept.heads.get(head).map_or(&[][..], |head| &head.positions);
                        head.partition_point(|&position| (position as usize) < at)
                    }
                };
                *share = (place(end) - place(start)) as f32 / (end - start) as f32;
            }
        }
        KeptShares { layers: layers.iter().map(|(layer, _)| *layer).collect(), shares }
    }

    /// True if both keep the same keys of equal prompts.
    pub(crate) fn keeps_as(&self, other: &Eviction) -> bool {
        let known = |eviction: &Eviction| -> Vec<Span> {
            match eviction.evict.policy {
                PolicyName::LeastAttended | PolicyName::Oldest | PolicyName::Oracle => eviction.spans.clone(),
                _ => Vec::new(),
            }
        };
        (&self.evict, self.at, self.seed) == (&other.evict, other.at, other.seed)
            && known(self) == known(other)
    }

    fn reads(&self) -> Reads {
        match self.evict.policy {
            PolicyName::SnapKv => Reads::LastRows(snapkv::WINDOW),
            PolicyName::Tova => Reads::LastRows(1),
            PolicyName::LeastAttended => Reads::LastRows(sessions::ROWS),
            PolicyName::H2o => Reads::AllRows,
            PolicyName::ExpectedAttention => Reads::Queries { but: expected_attention::SINKS },
            PolicyName::Streaming
            | PolicyName::Knorm
            | PolicyName::Kvzap
            | PolicyName::Random
            | PolicyName::Oldest
            | PolicyName::Oracle => Reads::Nothing,
        }
    }

    /// Returns an error if the policy needs a longer history, or with [`Evict::question`] a longer prompt, than this one of `prompt`
    /// tokens.
    pub fn check(&self, prompt: usize) -> Result<(), EvictError> {
        let rows = if self.evict.question { prompt } else { self.at };
        let (what, have, needs) = match self.evict.policy {
            PolicyName::SnapKv => ("rows to read", rows, snapkv::WINDOW),
            PolicyName::Tova => ("rows to read", rows, 1),
            PolicyName::ExpectedAttention => ("keys", self.at, expected_attention::SINKS),
            _ => return Ok(()),
        };
        if self.keys() >= self.at || have > needs {
            return Ok(());
        }
        Err(EvictError(format!(
            "eviction `{}`: {have} {what} are too few: {} needs more than {needs}; ask after a longer history, or evict by another \
             policy, such as streaming",
            self.evict, self.evict.policy
        )))
    }

    fn policy(
        &self,
        budget: usize,
        cache: &Cache,
        collector: &Collector,
        decoder: &Decoder,
        tokens: &[u32],
    ) -> candle_core::Result<Box<dyn Policy>> {
        let (spans, at) = (&self.spans, self.at);
        Ok(match self.evict.policy {
            PolicyName::Streaming => Box::new(Streaming { budget }),
            PolicyName::Knorm => Box::new(Knorm),
            PolicyName::SnapKv => Box::new(SnapKv),
            PolicyName::H2o => Box::new(H2o),
            PolicyName::Tova => Box::new(Tova),
            PolicyName::ExpectedAttention => Box::new(ExpectedAttention),
            PolicyName::Kvzap => Box::new(Kvzap::fitted(decoder, cache, tokens.get(..at).unwrap_or(tokens))?),
            PolicyName::Random => Box::new(Random { seed: self.seed }),
            PolicyName::LeastAttended => {
                Box::new(Sessions::least_attended(spans, at, budget, collector, decoder.spec())?)
            }
            PolicyName::Oldest => Box::new(Sessions::oldest(spans, at, budget)),
            PolicyName::Oracle => Box::new(Sessions::oracle(spans, at, budget)),
        })
    }
}

impl LayerKeys<'_> {
    /// A head's keys and values at `positions`.
    fn gathered(&self, head: usize, positions: Vec<u32>) -> candle_core::Result<KeptHead> {
        let places = transfer::upload(positions.clone(), positions.len(), self.k.device())?;
        let at = |of: &Tensor| of.get(head)?.index_select(&places, 0)?.unsqueeze(0);
        let k = at(&self.k)?;
        // Latent keys are the values.
        let v = if self.spec.latent.is_some() { k.clone() } else { at(&self.v)? };
        Ok(KeptHead { positions, k, v })
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
            Keep::Share(1.0) => f.write_str("1.0"),
            Keep::Share(share) => share.fmt(f),
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
