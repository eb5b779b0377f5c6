//! Two-hop attention: how much an answer attends to each session, directly and by way of the sentences of its thought.
//!
//! With A the attention weights, summed over a span's keys and averaged over its rows, heads and the layers that see everything: A(answer,
//! s) + sum over sentences t of A(answer, t) A(t, s). Held against exact effects through thoughts, beside [`super::flash_trace`].

use std::collections::BTreeMap;
use std::path::Path;

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::{Branch, Event, Observe, Request, RequestError, Reuse, Rows, Session, Task};
use palimpsest_core::span::Span;
use palimpsest_core::text::Sentence;
use palimpsest_data::ground::jsonl::{JsonlError, RowLog};
use serde::{Deserialize, Serialize};

use super::session_measures::sessions;
use crate::runs::rows::AnswerKey;

pub const THOUGHT_SCORES: &str = "thought-scores.jsonl";
pub const TWO_HOPS: &str = "two-hop attention";
/// The direct part of [`TWO_HOPS`].
pub const ONE_HOP: &str = "one-hop attention";

/// Scores of an answer's sessions by a method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoreRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    pub method: String,
    pub scores: BTreeMap<String, f64>,
}

/// The folder's scores.
pub(super) struct Scores(RowLog<ScoreRow>);

impl Scores {
    pub fn open(dir: &Path) -> Result<Self, JsonlError> {
        RowLog::open(dir, THOUGHT_SCORES).map(Scores)
    }

    pub fn has(&self, store: &AttentionStore, method: &str) -> bool {
        let key = AnswerKey::of_store(store).owned();
        self.0.rows.iter().any(|row| row.answer == key && row.method == method)
    }

    pub fn append(&mut self, rows: impl Into<Vec<ScoreRow>>) -> Result<(), JsonlError> {
        self.0.append_all(rows.into())
    }
}

/// Both scores of every session, from one forward pass after the first `cut` tokens. `first`: the first of the answer's rows; `sentences`:
/// rows of the thought's.
pub(super) fn read(
    session: &mut Session,
    (store, cut): (&AttentionStore, usize),
    (first, sentences): (usize, &[Sentence]),
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<[ScoreRow; 2], RequestError> {
    let spans: Vec<&Span> = sessions(store).collect();
    let before = store.generated.split_last().map_or(&[][..], |(_, before)| before);
    let end = store.tokens.len() + before.len();
    let of_sentences = sentences.iter().enumerate();
    let of_sentences =
        of_sentences.map(|(nth, one)| Span::new(format!("sentence[{nth}]"), one.tokens.clone()));
    let of_sentences: Vec<Span> = of_sentences.collect();
    let answer = Span::new("answer", first..end);
    let observe = Observe {
        rows: Rows {
            spans: std::iter::once(answer).chain(of_sentences.iter().cloned()).collect(),
            ..Rows::default()
        },
        keys: spans.iter().copied().chain(&of_sentences).cloned().collect(),
        softmax_only: true,
        ..Observe::default()
    };
    let tokens = [&store.tokens[cut..], before].concat();
    let branch = Branch { tokens, observe, tasks: vec![Task::Read], ..Branch::default() };
    let prefix = store.tokens[..cut].into();
    let request = Request { prefix, reuse: Reuse::Prefix, branches: vec![branch] };
    let measured = session.answer(request, &mut |event| match event {
        Event::Prefilled(tokens) => go_on(*tokens),
        _ => true,
    })?;
    let masses = measured.masses;
    let windows = &masses.uniform.windows;
    let all = 0..windows.len();
    let sees_all = |layer: &usize| windows[*layer].is_none_or(|window| window >= end);
    let whole: Vec<usize> = all.clone().filter(sees_all).collect();
    let layers = if whole.is_empty() { all.collect() } else { whole };
    let heads = masses.mass.dim().1;
    let attention = |row: usize, key: usize| {
        let of_layer = |layer: &usize| {
            (0..heads).map(|head| f64::from(masses.mass[[*layer, head, row, key]])).sum::<f64>()
        };
        layers.iter().map(of_layer).sum::<f64>() / (layers.len() * heads).max(1) as f64
    };
    let mut rows = [ONE_HOP, TWO_HOPS].map(|method| ScoreRow {
        answer: AnswerKey::of_store(store).owned(),
        method: method.to_owned(),
        scores: BTreeMap::new(),
    });
    for (key, span) in spans.iter().enumerate() {
        let one = attention(0, key);
        let through = |nth: usize| attention(0, spans.len() + nth) * attention(1 + nth, key);
        let two = one + (0..of_sentences.len()).map(through).sum::<f64>();
        for (row, score) in rows.iter_mut().zip([one, two]) {
            row.scores.insert(span.label.clone(), score);
        }
    }
    Ok(rows)
}
