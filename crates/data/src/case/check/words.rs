//! Content words and the word lists of the checks, documented in `docs/data.md`.

use std::collections::{BTreeSet, HashSet};
use std::sync::LazyLock;

use crate::ground::words::words;

/// Function words and fragments of contractions.
pub const STOP_WORDS: &str = "a about after again ain all also always am an and any are aren as at be because been before being \
                              both but by can cannot could couldn d did didn do does doesn doing don down during each either else \
                              ever every few for from further get gets getting go goes going got had hadn has hasn have haven \
                              having he her here hers herself him himself his how i if in into is isn it its itself just let like \
                              ll m made make makes making many may me might mine more most much must my myself need needs neither \
                              no nor not now of off on once one only or other our ours ourselves out over own please quite re \
                              really s same she should shouldn since so some still such t than that the their theirs them \
                              themselves then there these they this those though through to too under until up upon us ve very \
                              want wants was wasn way we were weren what when where which while who whom whose why will with \
                              within without won would wouldn yet you your yours yourself";

/// Time words, which unrelated texts share.
pub const TIME_WORDS: &str = "afternoon april august daily date day december early evening february friday hour january july june \
                              late march minute monday month monthly morning night november october saturday second september \
                              sunday thursday time today tomorrow tonight tuesday wednesday week weekday weekend weekly year \
                              yearly yesterday";

/// Whole texts left by a failed generator, lower case, without punctuation.
pub const STRAY_TEXTS: [&str; 3] = ["stop", "error", "continue"];

static STOPS: LazyLock<HashSet<&str>> = LazyLock::new(|| STOP_WORDS.split_ascii_whitespace().collect());
static TIMES: LazyLock<HashSet<String>> =
    LazyLock::new(|| TIME_WORDS.split_ascii_whitespace().map(stem).collect());

pub fn is_of_time(stem: &str) -> bool {
    TIMES.contains(stem)
}

/// Words of negation and change for `marked-update`, documented in `docs/data.md`.
pub const CHANGE_WORDS: &str =
    "anymore changed instead longer never no not nothing now quit replaced stopped switched t used";

/// Words of [`CHANGE_WORDS`] in a text.
pub fn change_words(text: &str) -> Vec<String> {
    let change: Vec<&str> = CHANGE_WORDS.split_ascii_whitespace().collect();
    words(text).into_iter().filter(|word| change.contains(&word.as_str())).collect()
}

pub fn content_words(text: &str) -> BTreeSet<String> {
    let said = words(text).into_iter().filter(|word| !STOPS.contains(word.as_str()));
    said.map(|word| stem(&word)).collect()
}

/// Heuristic English stemmer for plurals and verb forms (`hikes`, `hiked`, `hiking`); over- and understems some words.
pub fn stem(word: &str) -> String {
    let long = |text: &str, least: usize| text.chars().count() >= least;
    let mut stem = word.to_owned();
    let cut = |stem: &str, end: &str| stem.strip_suffix(end).map(str::to_owned);
    if let Some(rest) = cut(&stem, "ies").filter(|rest| long(rest, 2)) {
        stem = rest + "y";
    } else if ["ses", "xes", "zes", "ches", "shes"].iter().any(|end| stem.ends_with(end)) && long(&stem, 5) {
        stem.truncate(stem.len() - 2);
    } else if stem.ends_with('s')
        && long(&stem, 4)
        && !["ss", "us", "is"].iter().any(|end| stem.ends_with(end))
    {
        stem.pop();
    }
    if let Some(rest) = cut(&stem, "ing").filter(|rest| long(rest, 3)) {
        stem = undoubled(rest);
    } else if let Some(rest) = cut(&stem, "ed").filter(|rest| long(rest, 3)) {
        stem = undoubled(rest);
    }
    if stem.ends_with('e') && long(&stem, 4) {
        stem.pop();
    }
    stem
}

/// Undoubles a final consonant.
fn undoubled(mut stem: String) -> String {
    let mut back = stem.chars().rev();
    if let (Some(last), Some(before)) = (back.next(), back.next())
        && last == before
        && !"lsz".contains(last)
    {
        stem.pop();
    }
    stem
}

/// Share of `of` found in `in_text`, in [0, 1]; 1 if `of` is empty.
pub fn part_said(of: &BTreeSet<String>, in_text: &BTreeSet<String>) -> f64 {
    if of.is_empty() { 1.0 } else { of.intersection(in_text).count() as f64 / of.len() as f64 }
}

pub fn listed_words<'a>(words: impl IntoIterator<Item = &'a String>) -> String {
    words.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_word_have_one_stem() {
        for forms in [
            ["hike", "hikes", "hiked", "hiking"].as_slice(),
            &["stop", "stopped", "stopping", "stops"],
            &["city", "cities"],
            &["box", "boxes"],
            &["tell", "tells", "telling"],
        ] {
            let stems: BTreeSet<String> = forms.iter().map(|word| stem(word)).collect();
            assert_eq!(stems.len(), 1, "{forms:?}: {stems:?}");
        }
        for word in ["bus", "glass", "this", "red", "sing", "king"] {
            assert_eq!(stem(word), word);
        }
    }

    #[test]
    fn function_words_are_no_content_and_numbers_are() {
        let words: Vec<String> =
            content_words("Don't you still have the 2 dogs' leashes?").into_iter().collect();
        assert_eq!(words, ["2", "dog", "leash"]);
        assert!((part_said(&content_words("red boats"), &content_words("a red house")) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn lists_are_sorted_and_have_no_doubles() {
        for list in [STOP_WORDS, TIME_WORDS] {
            let words: Vec<&str> = list.split_ascii_whitespace().collect();
            assert!(words.windows(2).all(|pair| pair[0] < pair[1]), "{words:?}");
        }
        assert!(is_of_time(&stem("weeks")) && is_of_time(&stem("evenings")) && !is_of_time(&stem("works")));
    }
}
