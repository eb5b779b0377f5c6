//! Texts compared by their words, letter case, punctuation and white space aside, or by all but letter case and white space.

/// The words in lower case, each between two spaces; of nothing two spaces.
pub fn words(text: &str) -> String {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
    format!(" {} ", words.join(" "))
}

/// The text in lower case with single spaces for white space, and none around it.
pub fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_leave_punctuation_out_and_folding_keeps_it() {
        assert_eq!(words("The Bridge, in 1931."), words("the bridge in 1931"));
        assert_eq!((words("Ärger — 3x"), words("")), (" ärger 3x ".to_owned(), "  ".to_owned()));
        assert_eq!(
            (folded(" The\tC#\n bridge. "), folded(" \n")),
            ("the c# bridge.".to_owned(), String::new())
        );
        assert_ne!(folded("-5 °C"), folded("5 °C"));
    }
}
