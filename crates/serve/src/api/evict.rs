//! Cache eviction for one answer: what `palimpsest.evict` asks of a prompt, and what the reply tells of it.

use std::collections::BTreeSet;

use ndarray::Axis;
use serde_json::{Value, json};

use super::error::{ApiError, ensure};
use super::prompt::TokenPrompt;
use palimpsest_core::attention::KeptShares;
use palimpsest_core::evict::{Evict, Eviction, PolicyName};
use palimpsest_core::model::DecoderSpec;
use palimpsest_core::span::Span;

const FIELD: &str = "palimpsest.evict";

/// The span that asks, whatever its place; otherwise the last part of the user's last message.
const QUESTION: &str = "question";

/// The eviction of keys before the prompt's question. Its spans are those of the prompt, in order, and the whole history.
pub fn eviction(evict: &Evict, prompt: &TokenPrompt, spec: &DecoderSpec) -> Result<Eviction, ApiError> {
    let reason = "keeps the sessions that a benchmark marks as evidence, and a request marks none; give another policy";
    ensure(evict.policy != PolicyName::Oracle, FIELD, reason)?;
    let mut attention = spec.layers.iter().filter_map(|layer| layer.attention());
    let evicts = attention.any(|spec| spec.window.is_none());
    let reason =
        "evicts keys of layers that attend to the whole prompt, and the model has none; leave it out";
    ensure(evicts, FIELD, reason)?;
    let find = |label: &str| prompt.spans().find(|span| span.label == label);
    let question = find(QUESTION).or_else(|| find(prompt.question.as_deref()?));
    let Some(at) = question.filter(|span| !span.is_empty()).map(|span| span.start) else {
        let reason = "evicts keys before a question, and finds none; end with a message of the user's, or name a span `question` (for \
                      /v1/completions in palimpsest.spans)";
        return Err(ApiError::at(FIELD, reason));
    };
    let reason = "finds no token before the question; send documents or messages before it";
    ensure(at > 0, FIELD, reason)?;
    // Policies know whole sessions by these labels.
    let sessions: BTreeSet<&str> = prompt.sessions.iter().map(String::as_str).collect();
    let named = |(i, span): (usize, &Span)| match sessions.contains(&*span.label) && span.end <= at {
        true => Span::new(format!("session[{i}]"), span.range()),
        false => span.clone(),
    };
    let mut spans: Vec<Span> = prompt.spans().enumerate().map(named).collect();
    spans.push(Span::new("history", 0..at).as_overlay());
    Ok(Eviction { evict: evict.clone(), at, spans, seed: 0 })
}

/// Share of keys that were kept of each span and of the whole history, as means over layers and key/value heads. `kept` is absent if all
/// were.
pub fn json(eviction: &Eviction, prompt: &TokenPrompt, kept: Option<&KeptShares>) -> Value {
    let Eviction { evict, at, spans, .. } = eviction;
    let share = |i: usize| {
        let shares = kept.map(|kept| kept.shares.index_axis(Axis(2), i).mapv(f64::from));
        shares.and_then(|shares| shares.mean()).unwrap_or(1.0)
    };
    let before = prompt.spans().enumerate().filter(|(_, span)| span.start < span.end.min(*at));
    let kept: Vec<Value> = before.map(|(i, span)| json!({"label": span.label, "share": share(i)})).collect();
    json!({"policy": evict.to_string(), "from": at, "kept": kept, "all": share(spans.len() - 1)})
}
