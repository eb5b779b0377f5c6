//! Token counts for truncation: exact with a [`Tokenizer`], or bounded by [`CharsPerToken`] for models without a local tokeniser.

use std::ops::Range;

use super::{Borders, SpecialTokens, TextError, Tokenizer};

/// Counts tokens.
pub trait CountTokens: Send + Sync {
    /// Token count of `text` without added special tokens, or an upper bound.
    fn count(&self, text: &str) -> Result<usize, TextError>;

    /// Tokens each of `texts` adds when they are concatenated. Special-token handling matters only to tokenisers that have them.
    fn count_each(&self, texts: &[&str], _: SpecialTokens) -> Result<Vec<usize>, TextError> {
        texts.iter().map(|text| self.count(text)).collect()
    }

    /// Byte range between the first `first` and the last `last` tokens, on character borders: the part to cut from the middle. Empty if
    /// nothing is left between. Without token offsets, searches for the longest prefix and suffix by count.
    fn between(&self, text: &str, first: usize, last: usize) -> Result<Range<usize>, TextError> {
        let before = |at: usize| (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let after = |at: usize| border_from(text, at);
        let counted = |part: Option<&str>| self.count(part.unwrap_or_default());
        let start = before(most(text.len(), |at| Ok(counted(text.get(..before(at)))? <= first))?);
        let end = text.len()
            - most(text.len(), |taken| Ok(counted(text.get(after(text.len() - taken)..))? <= last))?;
        Ok(start..after(end).max(start))
    }
}

/// First character border at or after `at`.
fn border_from(text: &str, at: usize) -> usize {
    (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

/// Largest n up to `limit` with `fits(n)`, by bisection; 0 if none.
fn most(limit: usize, fits: impl Fn(usize) -> Result<bool, TextError>) -> Result<usize, TextError> {
    let (mut fit, mut too_many) = (0, limit + 1);
    while too_many - fit > 1 {
        let middle = fit.midpoint(too_many);
        if fits(middle)? { fit = middle } else { too_many = middle }
    }
    Ok(fit)
}

impl CountTokens for Tokenizer {
    fn count(&self, text: &str) -> Result<usize, TextError> {
        Tokenizer::count(self, text)
    }

    fn between(&self, text: &str, first: usize, last: usize) -> Result<Range<usize>, TextError> {
        let offsets = self.encode_with_offsets(text)?.offsets;
        let begins = |token: usize| offsets.get(token).map_or(text.len(), |&(start, _)| start);
        let start = begins(first);
        let end = begins(offsets.len().saturating_sub(last));
        // A character of several tokens is cut as a whole.
        Ok(border_from(text, start)..border_from(text, end.max(start)))
    }

    /// Tokenises the texts together, as in a prompt.
    fn count_each(&self, texts: &[&str], special_tokens: SpecialTokens) -> Result<Vec<usize>, TextError> {
        let mut joined = texts.concat();
        // Trailing white space can tokenise differently, so text follows the last one too.
        joined.push('.');
        let encoded = match special_tokens {
            SpecialTokens::Control => self.encode_with_offsets(&joined)?,
            SpecialTokens::Text => self.encode_content(&joined, std::slice::from_ref(&(0..joined.len())))?,
        };
        let borders = Borders::new(&encoded, &joined);
        let mut end = 0;
        let counts = texts.iter().map(|text| {
            let start = end;
            end += text.len();
            borders.tokens(&(start..end)).len()
        });
        Ok(counts.collect())
    }
}

/// A bound: a text of n characters has at most n / x tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CharsPerToken(f64);

impl CharsPerToken {
    /// `chars`: minimum characters per token; `None` unless finite and above 0.
    pub fn new(chars: f64) -> Option<Self> {
        (chars.is_finite() && chars > 0.0).then_some(CharsPerToken(chars))
    }
}

impl CountTokens for CharsPerToken {
    fn count(&self, text: &str) -> Result<usize, TextError> {
        Ok((text.chars().count() as f64 / self.0).ceil() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_counted_not_bytes_and_rounded_up() {
        let bound = CharsPerToken::new(2.5).unwrap();
        // 6 characters / 2.5 = 2.4; bytes would give 4.
        assert_eq!(bound.count("äöüäöü").unwrap(), 3);
        assert_eq!((bound.count("").unwrap(), bound.count("abcde").unwrap()), (0, 2));
        assert_eq!(bound.count_each(&["ab", "abcdef"], SpecialTokens::Control).unwrap(), [1, 3]);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(CharsPerToken::new(wrong), None);
        }
    }
}
