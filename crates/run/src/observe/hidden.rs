//! Positions that the knock-outs of a [`TraceJob`] hide, for its printout and its file.

use std::fmt;
use std::ops::Range;

use palimpsest_core::attention::{Hole, Knockout, KnockoutError, LayerKind};
use palimpsest_core::engine::{Backend, Session};
use serde::Serialize;

use super::job::TraceJob;

/// One knock-out of a forward pass. Its `Display` says it in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hidden {
    /// As it was given: `question->new@8..16`.
    pub knockout: String,
    /// The hidden part, and its tokens.
    pub keys: String,
    pub key_tokens: usize,
    /// The part that it is hidden from.
    pub rows: String,
    /// If true, it is also hidden from every later position.
    pub and_later: bool,
    /// Prompt positions that it is hidden from, and the first of them.
    pub row_tokens: usize,
    pub first_row: usize,
    /// True if it is hidden from generated tokens, too; absent if none are generated.
    pub generated: Option<bool>,
    /// Half-open range of layers, and the model's number of layers and of heads. All heads are blocked.
    pub layers: [usize; 2],
    pub of_layers: usize,
    pub heads: usize,
}

impl TraceJob {
    /// The job's knock-outs as a session's model applies them.
    pub fn hidden(&self, session: &Session) -> Result<Vec<Hidden>, KnockoutError> {
        let layers = &session.engine().decoder().spec().layers;
        let heads = layers.iter().find_map(|layer| Some(layer.attention()?.heads)).unwrap_or(0);
        self.hidden_in(&session.layer_kinds(), heads)
    }

    fn hidden_in(&self, kinds: &[LayerKind], heads: usize) -> Result<Vec<Hidden>, KnockoutError> {
        let n = self.tokens.len();
        let of_knockout = |knockout: &Knockout| {
            let holes = self.holes_of(std::slice::from_ref(knockout), kinds)?;
            let layers = knockout.layers.clone().unwrap_or(0..kinds.len());
            // Every blocked layer has the same holes.
            let holes: Vec<Hole> = holes.of(layers.start).iter().cloned().collect();
            let row_tokens = covered(holes.iter().map(|hole| hole.rows.start..hole.rows.end.min(n)));
            Ok(Hidden {
                knockout: knockout.to_string(),
                keys: knockout.keys.clone(),
                key_tokens: covered(holes.iter().map(|hole| hole.keys.clone())),
                rows: knockout.rows.clone(),
                and_later: self.reaches_behind && !knockout.only,
                row_tokens,
                first_row: holes.iter().map(|hole| hole.rows.start).min().unwrap_or(n),
                generated: (self.generate > 0).then(|| holes.iter().any(|hole| hole.rows.end > n)),
                layers: [layers.start, layers.end],
                of_layers: kinds.len(),
                heads,
            })
        };
        self.request.knockouts.iter().map(of_knockout).collect()
    }
}

/// Number of positions in some of the ranges.
fn covered(ranges: impl Iterator<Item = Range<usize>>) -> usize {
    let mut ranges: Vec<Range<usize>> = ranges.collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut count, mut end) = (0, 0);
    for range in ranges {
        count += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    count
}

impl fmt::Display for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hidden { keys, rows, first_row, layers: [start, end], of_layers, heads, .. } = self;
        let key_tokens = format!("{} token{}", self.key_tokens, if self.key_tokens == 1 { "" } else { "s" });
        let later = if self.and_later { " and every later position" } else { "" };
        let row_tokens = match self.row_tokens {
            1 => format!("prompt position {first_row}"),
            n => format!("{n} prompt positions from {first_row} on"),
        };
        let generated = match self.generated {
            None => "",
            Some(true) => ", and generated tokens",
            Some(false) => ", not from generated tokens",
        };
        let layers = match end - start {
            all if all == *of_layers => format!("all {all} layers"),
            1 => format!("layer {start} of 0 to {}", of_layers - 1),
            _ => format!("layers {start} to {} of 0 to {}", end - 1, of_layers - 1),
        };
        write!(
            f,
            "`{keys}` ({key_tokens}) is hidden from `{rows}`{later} ({row_tokens}{generated}), in {layers} and all {heads} heads"
        )
    }
}
