//! Stop strings, matched across token borders; text ends before the first match. Used on tokens and on streamed text.

use std::ops::Range;
use std::sync::Arc;

use super::phases::Phases;
use crate::text::{StreamDecoder, TextError, TextPiece, Tokenizer};

/// Truncates streamed text before the first stop string. Special tokens take part in matching.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    /// Byte ranges of special tokens within `held`; not returned.
    special: Vec<Range<usize>>,
    found: bool,
}

impl StopStrings {
    /// Stop strings must not be empty.
    pub fn new(stops: Vec<String>) -> Self {
        StopStrings { stops, ..StopStrings::default() }
    }

    /// Appends a piece; returns the text that cannot be part of a stop string.
    pub fn push(&mut self, piece: &TextPiece) -> String {
        if self.found {
            return String::new();
        }
        self.held.push_str(&piece.text);
        if !piece.special.is_empty() {
            let start = self.held.len();
            self.held.push_str(&piece.special);
            self.special.push(start..self.held.len());
        }
        if let Some(at) = first(&self.held, &self.stops) {
            self.found = true;
            let text = self.take(at);
            self.take(self.held.len());
            return text;
        }
        let clear = self.stops.iter().map(|stop| without_partial(&self.held, stop).len()).min();
        self.take(clear.unwrap_or(self.held.len()))
    }

    /// True after a match.
    pub fn found(&self) -> bool {
        self.found
    }

    /// Text held back for a possible match.
    pub fn take_held(&mut self) -> String {
        self.take(self.held.len())
    }

    /// The first bytes of `held`, without special tokens.
    fn take(&mut self, bytes: usize) -> String {
        let rest = self.held.split_off(bytes);
        let mut text = std::mem::replace(&mut self.held, rest);
        for range in self.special.iter().rev().filter(|range| range.start < bytes) {
            text.replace_range(range.start..range.end.min(bytes), "");
        }
        self.special.retain_mut(|range| {
            *range = range.start.saturating_sub(bytes)..range.end.saturating_sub(bytes);
            range.start < range.end
        });
        text
    }
}

fn first(text: &str, stops: &[String]) -> Option<usize> {
    stops.iter().filter_map(|stop| text.find(stop.as_str())).min()
}

/// Text before the first stop string.
pub fn before_stop<'t>(text: &'t str, stops: &[String]) -> &'t str {
    first(text, stops).and_then(|at| text.get(..at)).unwrap_or(text)
}

/// `text` without a partial `marker` at its end.
pub fn without_partial<'t>(text: &'t str, marker: &str) -> &'t str {
    let partial = (1..marker.len()).rev().find(|&n| marker.get(..n).is_some_and(|part| text.ends_with(part)));
    text.get(..text.len() - partial.unwrap_or(0)).unwrap_or(text)
}

/// Finds the token that completes a stop string in an answer. Thoughts are not searched.
#[derive(Debug)]
pub struct StopWatch {
    decoder: StreamDecoder<Arc<Tokenizer>>,
    strings: StopStrings,
    begun: bool,
}

impl StopWatch {
    /// For one generation; `None` without stop strings.
    pub fn new(tokenizer: &Arc<Tokenizer>, stops: &[String]) -> Option<Self> {
        let decoder = || StreamDecoder::new(Arc::clone(tokenizer));
        (!stops.is_empty()).then(|| StopWatch {
            decoder: decoder(),
            strings: StopStrings::new(stops.to_vec()),
            begun: false,
        })
    }

    /// The stop strings.
    pub fn strings(&self) -> &[String] {
        &self.strings.stops
    }

    /// True if the latest token completes a stop string.
    pub(super) fn ends(&mut self, phases: &Phases) -> Result<bool, TextError> {
        if !phases.in_answer() {
            return Ok(false);
        }
        let tokens = phases.tokens();
        // An answer may start inside the token that ends a thought, or with tokens that might have started one.
        let new = if self.begun { tokens.len().saturating_sub(1) } else { 0 };
        let inside = if self.begun { None } else { phases.answer_begun() };
        match inside {
            Some(text) => drop(self.strings.push(&text.into())),
            None => {
                for &token in tokens.get(new..).unwrap_or_default() {
                    self.strings.push(&self.decoder.push(token)?);
                }
            }
        }
        self.begun = true;
        Ok(self.strings.found())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_before_the_first_stop_string_however_it_is_cut() {
        let text = "one two three\n\nfour";
        let stops = ["\n\n", "three", "ee\n", "zzz"].map(str::to_owned).to_vec();
        for cut in 1..text.len() {
            let mut strings = StopStrings::new(stops.clone());
            let mut out = String::new();
            for piece in text.as_bytes().chunks(cut).map(String::from_utf8_lossy) {
                out.push_str(&strings.push(&piece.into_owned().into()));
            }
            assert!(strings.found() && out == "one two ", "{cut}: {out:?}");
        }
        assert_eq!(before_stop(text, &stops), "one two ");
        assert_eq!(before_stop("three", &stops), "");
        let mut none = StopStrings::new(stops);
        let out = none.push(&"a thre".to_owned().into()) + &none.push(&"w\n".to_owned().into());
        assert_eq!((out.as_str(), none.take_held().as_str(), none.found()), ("a threw", "\n", false));
    }
}
