//! Neutral text in the place of a session: as many tokens as the session has, so that everything after it keeps its positions.
//!
//! Called for [`super::case`]. The text is ours: turns of a conversation about how paper is made, with no
//! fact about a user. It is read by the run's tokenizer, and repeated and cut to the session's length. The session's last token stays: it is
//! the blank line before the next session, whose tokens thus follow what they followed.

use std::ops::Range;
use std::sync::Arc;

use palimpsest_core::engine::ModelText;

use super::CauseError;

/// The text's name, which rows keep.
pub const NEUTRAL: &str = "paper-1";

const TEXT: &str = include_str!("neutral.txt");

/// The tokens of the neutral text.
pub fn neutral(text: &ModelText) -> Result<Arc<[u32]>, CauseError> {
    Ok(text.tokenizer.encode(TEXT).map_err(CauseError::Neutral)?.into())
}

/// Puts `neutral` in the place of the tokens of `range`, but of the last.
pub fn put(neutral: &[u32], range: &Range<usize>, tokens: &mut [u32]) {
    let inside = tokens.get_mut(range.start..range.end.saturating_sub(1)).unwrap_or_default();
    inside.iter_mut().zip(neutral.iter().cycle()).for_each(|(token, neutral)| *token = *neutral);
}
