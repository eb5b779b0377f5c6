//! FlashTrace: how far each session flows into an answer, directly and by what was generated before (Pan et al. 2026, arXiv 2602.01914).
//!
//! Hop 0 follows routes ([`RouteObserver`](palimpsest_core::attention::RouteObserver)) from the rows of the answer's tokens, hop 1 from those
//! of thought and answer, weighted by what they got in hop 0. A session's score is the sum over its tokens of hop 0 plus r times hop 1, r
//! the part of hop 0 that went to thought and answer. As in `calculate_ifr_multi_hop_both` with one hop, the rows are those of the tokens
//! themselves, the end token is none, and commas, full stops and white space neither weigh nor get anything. Each hop is a forward pass from
//! the question on.

use std::collections::{BTreeMap, HashMap};

use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::{AttentionStore, LayerKind, RowWeights};
use palimpsest_core::engine::{
    Branch, Event, ModelText, Observe, Request, RequestError, Reuse, Session, Task as Asked,
};

use super::Task;
use super::session_measures::sessions;
use super::two_hop::{ScoreRow, Scores};
use crate::runs::rows::AnswerKey;

pub const FLASH_TRACE: &str = "flashtrace";
/// Forward passes over question, thought and answer.
pub const PASSES: usize = 2;

/// True if the answer's scores can be and are not measured: through linear layers and gated heads no routes are followed, and contrasts
/// have no rows of their own.
pub(super) fn is_missing(task: &Task<'_>, store: &AttentionStore, scores: &Scores) -> bool {
    let followed = !task.kinds.contains(&LayerKind::Linear) && task.of == Measure::LogP;
    followed && !scores.has(store, FLASH_TRACE)
}

/// Tokens that the passes read beyond those of other passes, which do not read an answer's last token.
pub(super) fn more_tokens(store: &AttentionStore, text: &ModelText) -> usize {
    PASSES * (said(store, text).len() + 1).saturating_sub(store.generated.len())
}

/// The generated tokens without the end token.
fn said<'a>(store: &'a AttentionStore, text: &ModelText) -> &'a [u32] {
    match store.generated.split_last() {
        Some((last, before)) if text.stop.contains(last) => before,
        _ => &store.generated,
    }
}

/// The score of every session, from passes after the first `cut` tokens; none if the answer is an end token alone.
pub(super) fn read(
    session: &mut Session,
    (store, cut): (&AttentionStore, usize),
    text: &ModelText,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<ScoreRow, RequestError> {
    let prompt = store.tokens.len();
    let tokens = [&store.tokens[..], said(store, text)].concat();
    let mut known = HashMap::new();
    let counts = tokens.iter().map(|&token| *known.entry(token).or_insert_with(|| counted(token, text)));
    let counts: Vec<f64> = counts.collect();
    // Each token's share of the routes from `rows`.
    let mut hop = |rows: RowWeights| {
        let observe = Observe { routes: Some(rows), softmax_only: true, ..Observe::default() };
        let branch =
            Branch { tokens: tokens[cut..].to_vec(), observe, tasks: vec![Asked::Read], ..Branch::default() };
        let request = Request { prefix: tokens[..cut].into(), reuse: Reuse::Prefix, branches: vec![branch] };
        let measured = session.answer(request, &mut |event| match event {
            Event::Prefilled(tokens) => go_on(*tokens),
            _ => true,
        })?;
        let shares = measured.routes.unwrap_or_default();
        Ok::<Vec<f64>, RequestError>(
            shares.iter().zip(&counts).map(|(share, counts)| share * counts).collect(),
        )
    };
    let mut row = ScoreRow {
        answer: AnswerKey::of_store(store).owned(),
        method: FLASH_TRACE.to_owned(),
        scores: BTreeMap::new(),
    };
    let answer = prompt + store.thought();
    if answer >= tokens.len() {
        return Ok(row);
    }
    let direct = hop(RowWeights { first: answer, weights: counts[answer..].to_vec() })?;
    let own = &direct[prompt..];
    let (generated, all) = (own.iter().sum::<f64>(), direct.iter().sum::<f64>());
    let (passed, through) = match generated > 0.0 {
        true => (generated / all, hop(RowWeights { first: prompt, weights: own.to_vec() })?),
        false => (0.0, vec![0.0; direct.len()]),
    };
    for span in sessions(store) {
        let score = span.range().map(|at| direct[at] + passed * through[at]).sum();
        row.scores.insert(span.label.clone(), score);
    }
    Ok(row)
}

/// 0 for tokens that are left out, else 1.
fn counted(token: u32, text: &ModelText) -> f64 {
    // A token that cannot be decoded by itself is no punctuation.
    let left_out =
        text.tokenizer.decode(&[token], false).is_ok_and(|text| matches!(text.trim(), "" | "," | "."));
    if left_out { 0.0 } else { 1.0 }
}
