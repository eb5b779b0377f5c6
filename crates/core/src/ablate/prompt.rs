//! A prompt and its ablated variants.

use std::ops::Range;
use std::sync::Arc;

use crate::attention::{Hole, LayerHoles, LayerKind};
use crate::engine::ModelText;
use crate::text::TextError;

/// Name of the neutral text, stored in rows.
pub const NEUTRAL: &str = "paper-1";

/// A conversation about paper making, without facts about a user.
const TEXT: &str = include_str!("neutral.txt");

/// A prompt to ablate.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// All tokens.
    pub tokens: &'a [u32],
    /// Length of the history, which is prefilled once and cached; the rest is read anew each time.
    pub cut: usize,
    /// First row that keys are hidden from: the question's first token. Later rows do not see them either.
    pub question: usize,
    /// Layer kinds of the model.
    pub kinds: &'a [LayerKind],
}

/// A cached history and the rest of the prompt.
#[derive(Debug, Clone)]
pub struct History<'a> {
    /// Tokens of the history.
    pub tokens: Arc<[u32]>,
    /// Tokens after the history and before the answer.
    pub rest: &'a [u32],
}

impl<'a> Prompt<'a> {
    /// The unchanged history.
    pub fn history(&self) -> History<'a> {
        self.with(self.tokens[..self.cut].into())
    }

    /// The history without these ranges; later tokens move up.
    pub fn without(&self, removed: &[Range<usize>]) -> History<'a> {
        self.with(without(&self.tokens[..self.cut], removed).into())
    }

    /// The history with these ranges replaced by `neutral` ([`put`]); positions are unchanged.
    pub fn replaced(&self, replaced: &[Range<usize>], neutral: &[u32]) -> History<'a> {
        let mut tokens = self.tokens[..self.cut].to_vec();
        replaced.iter().for_each(|range| put(neutral, range, &mut tokens));
        self.with(tokens.into())
    }

    /// Hides keys from the question on, at some layers or all.
    pub fn hidden(&self, keys: &[Range<usize>], layers: Option<&Range<usize>>) -> LayerHoles {
        hide(self.question..usize::MAX, keys, layers, self.kinds)
    }

    /// Shows layers that choose keys these in addition to their choice, from the question on.
    pub fn forced(&self, keys: &[Range<usize>]) -> LayerHoles {
        let shown = |keys: &Range<usize>| Hole { rows: self.question..usize::MAX, keys: keys.clone() };
        LayerHoles::at_choices(self.kinds, keys.iter().map(shown).collect())
    }

    fn with(&self, tokens: Arc<[u32]>) -> History<'a> {
        History { tokens, rest: &self.tokens[self.cut..] }
    }
}

/// Hides keys from rows at the softmax layers among `layers`; `None`: all softmax layers.
pub fn hide(
    rows: Range<usize>,
    keys: &[Range<usize>],
    layers: Option<&Range<usize>>,
    kinds: &[LayerKind],
) -> LayerHoles {
    let holes = keys.iter().map(|keys| Hole { rows: rows.clone(), keys: keys.clone() }).collect();
    LayerHoles::at_softmax(layers.unwrap_or(&(0..kinds.len())), kinds, holes)
}

/// Tokens outside these ranges.
pub fn without(tokens: &[u32], removed: &[Range<usize>]) -> Vec<u32> {
    let kept = |at: &usize| !removed.iter().any(|range| range.contains(at));
    (0..tokens.len()).filter(kept).map(|at| tokens[at]).collect()
}

/// Overwrites a range with neutral tokens, repeated and cut to length. Keeps the last token: a session's trailing blank line.
pub fn put(neutral: &[u32], range: &Range<usize>, tokens: &mut [u32]) {
    let inside = tokens.get_mut(range.start..range.end.saturating_sub(1)).unwrap_or_default();
    inside.iter_mut().zip(neutral.iter().cycle()).for_each(|(token, neutral)| *token = *neutral);
}

/// Tokens of the neutral text [`NEUTRAL`]. Fails if the tokeniser does.
pub fn neutral(text: &ModelText) -> Result<Arc<[u32]>, TextError> {
    Ok(text.tokenizer.encode(TEXT)?.into())
}

/// Layer windows of `width`, without windows that have no softmax layer; without a width a single `None`: all layers.
pub fn windows(kinds: &[LayerKind], width: Option<usize>) -> Vec<Option<Range<usize>>> {
    let Some(width) = width else { return vec![None] };
    let all = (0..kinds.len()).step_by(width.max(1)).map(|start| start..(start + width).min(kinds.len()));
    let softmax = |layers: &Range<usize>| kinds[layers.clone()].iter().any(|kind| *kind != LayerKind::Linear);
    all.filter(softmax).map(Some).collect()
}

/// The first linear-attention layer; it has no keys to hide.
pub fn first_linear(kinds: &[LayerKind]) -> Option<usize> {
    kinds.iter().position(|kind| *kind == LayerKind::Linear)
}
