//! Checks of turns without a text: the words of a generator that stopped or failed, or nothing.

use super::words::STRAY_TEXTS;
use crate::data::Case;
use crate::data::finding::{Check, Finding, quote};

pub(super) static STRAY_TEXT: Check =
    Check::error("stray-text", "turns that are no text but a generator's word, an error message or nothing");

/// Prefix of an error message that a generator wrote in the place of a text.
const FAILURE: &str = "ERROR:";

/// The turns of a case that are no text.
pub(super) fn stray(case: &Case) -> Vec<Finding> {
    let turns = case.history.segments.iter().flat_map(|segment| {
        segment.turns.iter().enumerate().map(move |(at, turn)| (segment.index, at, turn.content.as_str()))
    });
    let stray = turns.filter(|(.., text)| is_stray(text));
    let finding = |(segment, at, text): (usize, usize, &str)| {
        Finding::new(&STRAY_TEXT, &case.id, format!("turn {at} is {}", quote(text.trim()))).at([segment])
    };
    stray.map(finding).collect()
}

fn is_stray(text: &str) -> bool {
    let bare = text.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    // Signs alone can be an answer (`?`, an emoji), nothing at all cannot.
    text.trim().is_empty() || STRAY_TEXTS.contains(&bare.as_str()) || text.trim_start().starts_with(FAILURE)
}

#[cfg(test)]
mod tests {
    use super::is_stray;

    #[test]
    fn only_whole_texts_are_stray() {
        for text in [
            "STOP",
            "[STOP]",
            " stop.\n",
            "ERROR",
            "continue",
            "",
            " \n",
            "ERROR: Failed after multiple retries.",
        ] {
            assert!(is_stray(text), "{text:?}");
        }
        for text in ["Stop it.", "Please continue", "An error: what now?", "?", "👍", "the bus stop"] {
            assert!(!is_stray(text), "{text:?}");
        }
    }
}
