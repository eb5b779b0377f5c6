//! Texts compared by their words: letter case, punctuation and white space aside.

/// The words in lower case, each between two spaces; of nothing two spaces.
pub fn words(text: &str) -> String {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
    format!(" {} ", words.join(" "))
}

/// True if both have the same words in the same order, and some.
pub fn same_words(a: &str, b: &str) -> bool {
    let (a, b) = (words(a), words(b));
    a == b && !a.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_compared_and_nothing_else() {
        assert!(same_words("The Bridge, in 1931.", "the bridge in 1931"));
        assert!(!same_words("the bridge in 1931", "the bridge of 1931"));
        assert!(!same_words("bridge the", "the bridge"));
        assert!(!same_words("...", "!"), "no words are no answer");
        assert_eq!((words("Ärger — 3x"), words("")), (" ärger 3x ".to_owned(), "  ".to_owned()));
    }
}
