//! Token counts for truncation, also of prompts for models behind an endpoint.
//!
//! [`Tokenizer`] counts exactly; [`CharsPerToken`] is a stated bound for models whose tokeniser is not at hand.

use std::ops::Range;

use super::{Borders, SpecialTokens, TextError, Tokenizer};

/// Counts tokens.
pub trait CountTokens: Send + Sync {
    /// Tokens of `text`, without added special tokens, or an upper bound of them.
    fn count(&self, text: &str) -> Result<usize, TextError>;

    /// Tokens that each of `texts` adds to a text in which they stand one after the other. How text that spells a special token is
    /// read matters to tokenisers that have such tokens.
    fn count_each(&self, texts: &[&str], _: SpecialTokens) -> Result<Vec<usize>, TextError> {
        texts.iter().map(|text| self.count(text)).collect()
    }

    /// The bytes of `text` between its first `first` and its last `last` tokens, on borders of characters: what goes where a middle is
    /// cut out. Empty where these are all of them.
    ///
    /// A counter that knows no places of tokens takes the longest beginning and the longest end that it counts as so many.
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

/// The first border of characters at a byte or behind it.
fn border_from(text: &str, at: usize) -> usize {
    (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

/// The greatest number up to `limit` that `fits` takes, where it takes all smaller ones; 0 where it takes none.
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
        // A character of several tokens goes whole.
        Ok(border_from(text, start)..border_from(text, end.max(start)))
    }

    /// Tokenised together, each followed by another one, as they will be in a prompt.
    fn count_each(&self, texts: &[&str], special_tokens: SpecialTokens) -> Result<Vec<usize>, TextError> {
        let mut joined = texts.concat();
        // Text follows the last one too; white space at the end of a text can be tokenised differently.
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

/// A stated bound: a text of n characters has at most n / x tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CharsPerToken(f64);

impl CharsPerToken {
    /// At least `chars` characters a token, above 0; `None` for what is no such number.
    pub fn new(chars: f64) -> Option<Self> {
        (chars.is_finite() && chars > 0.0).then_some(CharsPerToken(chars))
    }
}

impl CountTokens for CharsPerToken {
    /// Rounded up.
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
        // 6 / 2.5 = 2.4; the bytes would give 4.
        assert_eq!(bound.count("äöüäöü").unwrap(), 3);
        assert_eq!((bound.count("").unwrap(), bound.count("abcde").unwrap()), (0, 2));
        assert_eq!(bound.count_each(&["ab", "abcdef"], SpecialTokens::Control).unwrap(), [1, 3]);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(CharsPerToken::new(wrong), None);
        }
    }
}
