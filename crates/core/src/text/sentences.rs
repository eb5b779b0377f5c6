//! Sentences of generated text, with their tokens.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

/// A sentence: its bytes, and its tokens as indices.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // said by the names
pub struct Sentence {
    pub bytes: Range<usize>,
    pub tokens: Range<usize>,
}

impl Sentence {
    /// Sentences of `text` that have tokens. `starts`: bytes of text before each token. A token belongs to the sentence of the first
    /// character that begins at or after its start; tokens from index `end` on belong to none.
    pub fn of(text: &str, starts: &[usize], end: usize) -> Vec<Self> {
        let cut = sentences(text);
        let mut found: Vec<Sentence> = Vec::new();
        let mut begin = 0;
        for (nth, bytes) in cut.iter().enumerate() {
            let last = nth + 1 == cut.len();
            let until = if last { end } else { starts.partition_point(|start| *start < bytes.end).min(end) };
            if until > begin {
                found.push(Sentence { bytes: bytes.clone(), tokens: begin..until });
            }
            begin = begin.max(until);
        }
        found
    }
}

/// Byte ranges of sentences (UAX 29), trimmed. Segments without letters, such as list numbers, join the next sentence, or the previous one
/// at the end.
fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    // Start of pending segments without letters.
    let mut begun: Option<usize> = None;
    for (at, piece) in text.split_sentence_bound_indices() {
        let start = at + piece.len() - piece.trim_start().len();
        let end = at + piece.trim_end().len();
        if start >= end {
            continue;
        }
        let start = begun.take().unwrap_or(start);
        if piece.contains(char::is_alphabetic) {
            found.push(start..end);
        } else {
            begun = Some(start);
        }
    }
    if let Some(start) = begun {
        let end = text.trim_end().len();
        match found.last_mut() {
            Some(last) => last.end = end,
            None => found.push(start..end),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_hold_their_numbers_and_no_space_around_them() {
        let of = |text: &'static str| sentences(text).into_iter().map(|at| &text[at]).collect::<Vec<_>>();
        assert_eq!(
            of(" The tram leaves. It is late!\n\nIs it? 3.5 km. "),
            ["The tram leaves.", "It is late!", "Is it?", "3.5 km."]
        );
        assert_eq!(of("1. Bread.\n2. Salt"), ["1. Bread.", "2. Salt"]);
        assert_eq!(of("Yes. 42."), ["Yes. 42."]);
        assert_eq!(of("42"), ["42"]);
        assert_eq!(of("市场在周日。图书馆八点关门。"), ["市场在周日。", "图书馆八点关门。"]);
        assert!(of(" \n").is_empty());
    }
}
