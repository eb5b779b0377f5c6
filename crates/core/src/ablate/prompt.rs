//! A prompt, and what ablations make of it.

use std::ops::Range;
use std::sync::Arc;

use crate::attention::{Hole, LayerHoles, LayerKind};
use crate::engine::ModelText;
use crate::text::TextError;

/// The name of the neutral text, which rows keep.
pub const NEUTRAL: &str = "paper-1";

/// Turns of a conversation about how paper is made, with no fact about a user.
const TEXT: &str = include_str!("neutral.txt");

/// A prompt that is read again and again.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// All of its tokens.
    pub tokens: &'a [u32],
    /// Number of tokens that are the history: they are computed once and stay in the cache. The rest is read anew each time.
    pub cut: usize,
    /// The first row that hidden keys are hidden from: the question's first token. All rows behind it do not see them either.
    pub question: usize,
    /// The model's layers.
    pub kinds: &'a [LayerKind],
}

/// A history, which the cache keeps, and the rest of its prompt.
#[derive(Debug, Clone)]
pub struct History<'a> {
    /// Tokens of the history.
    pub tokens: Arc<[u32]>,
    /// Tokens between it and what is generated.
    pub rest: &'a [u32],
}

impl<'a> Prompt<'a> {
    /// The history as it is.
    pub fn history(&self) -> History<'a> {
        self.with(self.tokens[..self.cut].into())
    }

    /// The history without these ranges. What is behind them moves up.
    pub fn without(&self, removed: &[Range<usize>]) -> History<'a> {
        self.with(without(&self.tokens[..self.cut], removed).into())
    }

    /// The history with `neutral` in the place of these ranges ([`put`]). Nothing moves.
    pub fn replaced(&self, replaced: &[Range<usize>], neutral: &[u32]) -> History<'a> {
        let mut tokens = self.tokens[..self.cut].to_vec();
        replaced.iter().for_each(|range| put(neutral, range, &mut tokens));
        self.with(tokens.into())
    }

    /// Keys hidden from the question on, at some layers or all.
    pub fn hidden(&self, keys: &[Range<usize>], layers: Option<&Range<usize>>) -> LayerHoles {
        hide(self.question..usize::MAX, keys, layers, self.kinds)
    }

    fn with(&self, tokens: Arc<[u32]>) -> History<'a> {
        History { tokens, rest: &self.tokens[self.cut..] }
    }
}

/// Keys hidden from some rows at the softmax layers among `layers`, or at all softmax layers.
pub fn hide(
    rows: Range<usize>,
    keys: &[Range<usize>],
    layers: Option<&Range<usize>>,
    kinds: &[LayerKind],
) -> LayerHoles {
    let holes = keys.iter().map(|keys| Hole { rows: rows.clone(), keys: keys.clone() }).collect();
    LayerHoles::at_softmax(layers.unwrap_or(&(0..kinds.len())), kinds, holes)
}

/// Tokens without those in these ranges.
pub fn without(tokens: &[u32], removed: &[Range<usize>]) -> Vec<u32> {
    let kept = |at: &usize| !removed.iter().any(|range| range.contains(at));
    (0..tokens.len()).filter(kept).map(|at| tokens[at]).collect()
}

/// Puts neutral tokens, repeated and cut to its length, in the place of a range's tokens but the last, which stays: of a session it is the
/// blank line before the next one, whose tokens thus follow what they followed.
pub fn put(neutral: &[u32], range: &Range<usize>, tokens: &mut [u32]) {
    let inside = tokens.get_mut(range.start..range.end.saturating_sub(1)).unwrap_or_default();
    inside.iter_mut().zip(neutral.iter().cycle()).for_each(|(token, neutral)| *token = *neutral);
}

/// The tokens of the neutral text [`NEUTRAL`].
///
/// # Errors
/// [`TextError`] where the model's tokenizer cannot read it.
pub fn neutral(text: &ModelText) -> Result<Arc<[u32]>, TextError> {
    Ok(text.tokenizer.encode(TEXT)?.into())
}

/// The layers at which keys are hidden, window by window of `width` layers; a window without softmax layers is left out. Without a width all
/// layers at once: `None`.
pub fn windows(kinds: &[LayerKind], width: Option<usize>) -> Vec<Option<Range<usize>>> {
    let Some(width) = width else { return vec![None] };
    let all = (0..kinds.len()).step_by(width.max(1)).map(|start| start..(start + width).min(kinds.len()));
    let softmax = |layers: &Range<usize>| kinds[layers.clone()].iter().any(|kind| *kind != LayerKind::Linear);
    all.filter(softmax).map(Some).collect()
}

/// The first linear-attention layer, which has no keys to hide.
pub fn first_linear(kinds: &[LayerKind]) -> Option<usize> {
    kinds.iter().position(|kind| *kind == LayerKind::Linear)
}
