//! Words that imply values by world knowledge, used by the generator and the replay.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::ground::words::joins_words;

#[derive(Deserialize, Default)]
struct Implied {
    step1: BTreeMap<String, String>,
    step2: BTreeMap<String, String>,
}

fn table() -> &'static Implied {
    static TABLE: OnceLock<Implied> = OnceLock::new();
    // Embedded file; a unit test of the texts needs it.
    TABLE.get_or_init(|| toml::from_str(include_str!("implied.toml")).unwrap_or_default())
}

pub fn step1(value: &str) -> Option<String> {
    table().step1.get(value).cloned()
}

pub fn step2(value: &str) -> Option<String> {
    table().step2.get(value).cloned()
}

/// Whole-word match, case-sensitive.
pub fn holds(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(joins_words);
        let after = text[at + phrase.len()..].chars().next().is_some_and(joins_words);
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stands_by_itself() {
        assert!(holds("It is red, no longer blue.", "red") && holds("near the Louvre.", "the Louvre"));
        assert!(!holds("It has cleared up.", "red") && !holds("Red.", "red"));
        assert!(holds("我住在北京市。", "北京") && !holds("हिन्दीभाषा", "हिन्दी"));
    }
}
