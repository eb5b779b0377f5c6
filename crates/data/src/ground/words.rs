//! Word segmentation for any language, used by retrieval, data checks and the matching of answers.
//!
//! A word is a run of letters, digits and marks, NFKC-normalised and case-folded, bounded as in [UAX
//! 29](https://www.unicode.org/reports/tr29/) and by punctuation (`don't` is two words). Format characters are dropped; a zero-width space
//! is a boundary. Scripts without spaces (`SPACELESS`) are split into characters; retrieval uses bigrams.
//!
//! `adapters/plain.py` implements the same rule; `tests/fixtures/words.json` tests both. Bump [`VERSION`] on any change.

use std::ops::RangeInclusive;

use icu_normalizer::ComposingNormalizerBorrowed;
use icu_properties::CodePointMapData;
use icu_properties::props::{GeneralCategory, GeneralCategoryGroup};
use unicase::UniCase;

/// Part of the identity hash of results that depend on segmentation. Version 1 was lower-case runs of letters and digits.
pub const VERSION: u32 = 2;

/// Scripts without spaces between words; Hangul is included because endings attach to words.
const SPACELESS: [RangeInclusive<char>; 15] = [
    '\u{0E00}'..='\u{0EFF}',   // Thai, Lao
    '\u{1000}'..='\u{109F}',   // Myanmar
    '\u{1100}'..='\u{11FF}',   // Hangul
    '\u{1780}'..='\u{17FF}',   // Khmer
    '\u{1950}'..='\u{19DF}',   // Tai Le, New Tai Lue
    '\u{1A20}'..='\u{1AAF}',   // Tai Tham
    '\u{1B00}'..='\u{1B7F}',   // Balinese
    '\u{2E80}'..='\u{A4CF}',   // Han, Hiragana, Katakana, Bopomofo, Yi
    '\u{A960}'..='\u{A9FF}',   // Hangul, Javanese, Myanmar
    '\u{AA60}'..='\u{AADF}',   // Myanmar, Tai Viet
    '\u{AC00}'..='\u{D7FF}',   // Hangul
    '\u{F900}'..='\u{FAFF}',   // Han
    '\u{11700}'..='\u{1174F}', // Ahom
    '\u{16FE0}'..='\u{1B2FF}', // Tangut, Khitan, Kana, Nushu
    '\u{20000}'..='\u{3FFFF}', // Han
];

/// Variation selectors.
const SELECTORS: [RangeInclusive<char>; 2] = ['\u{FE00}'..='\u{FE0F}', '\u{E0100}'..='\u{E01EF}'];

const ZERO_WIDTH_SPACE: char = '\u{200B}';

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Letter,
    Spaceless,
    Mark,
    Ignored,
    Other,
}

impl Kind {
    fn of(c: char) -> Self {
        if c.is_ascii() {
            return if c.is_ascii_alphanumeric() { Kind::Letter } else { Kind::Other };
        }
        let within = |blocks: &[RangeInclusive<char>]| blocks.iter().any(|block| block.contains(&c));
        match CodePointMapData::<GeneralCategory>::new().get(c) {
            GeneralCategory::Format if c != ZERO_WIDTH_SPACE => Kind::Ignored,
            GeneralCategory::EnclosingMark => Kind::Ignored,
            GeneralCategory::NonspacingMark if within(&SELECTORS) => Kind::Ignored,
            GeneralCategory::NonspacingMark | GeneralCategory::SpacingMark => Kind::Mark,
            // Digits of spaceless scripts are not split.
            GeneralCategory::DecimalNumber | GeneralCategory::OtherNumber => Kind::Letter,
            category
                if category == GeneralCategory::LetterNumber
                    || GeneralCategoryGroup::Letter.contains(category) =>
            {
                if within(&SPACELESS) {
                    Kind::Spaceless
                } else {
                    Kind::Letter
                }
            }
            _ => Kind::Other,
        }
    }
}

/// Words in order. Runs of spaceless scripts give character bigrams; a single character is a word.
pub fn words(text: &str) -> Vec<String> {
    split(text, |characters, words| match characters {
        [one] => words.push((*one).to_owned()),
        several => words.extend(several.windows(2).map(<[&str]>::concat)),
    })
}

/// Words in order; spaceless scripts give single characters. A text contains a phrase if it contains its units consecutively.
pub fn units(text: &str) -> Vec<String> {
    split(text, |characters, words| words.extend(characters.iter().map(|&one| one.to_owned())))
}

/// [`units`] joined by spaces, with a space at both ends, for substring search.
pub fn phrase(text: &str) -> String {
    format!(" {} ", units(text).join(" "))
}

pub fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// `1 session`, `2 sessions`.
pub fn counted(n: usize, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {}", plural(word)) }
}

/// `1 of 5 answers has`, `2 of 5 answers have`.
pub fn of_counted(n: usize, all: usize, word: &str, verb: [&str; 2]) -> String {
    format!("{n} of {} {}", counted(all, word), verb[usize::from(n != 1)])
}

/// Plural of an English noun: `sessions`, `memories`.
pub fn plural(word: &str) -> String {
    match word.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ => format!("{word}s"),
    }
}

/// Byte offsets of `sought`, overlapping ones too.
pub fn occurrences(text: &str, sought: &str) -> Vec<usize> {
    let step = sought.chars().next().map_or(1, char::len_utf8);
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(at) = text.get(from..).and_then(|rest| rest.find(sought)).filter(|_| !sought.is_empty()) {
        found.push(from + at);
        from += at + step;
    }
    found
}

/// True for characters that extend an adjacent word.
pub fn joins_words(c: char) -> bool {
    matches!(Kind::of(c), Kind::Letter | Kind::Mark)
}

fn split(text: &str, of_spaceless: impl Fn(&[&str], &mut Vec<String>)) -> Vec<String> {
    let mut words = Vec::new();
    let mut run = String::new();
    for c in text.chars().chain([' ']) {
        match Kind::of(c) {
            Kind::Letter | Kind::Spaceless => run.push(c),
            Kind::Mark if !run.is_empty() => run.push(c),
            Kind::Ignored => {}
            _ if run.is_ascii() => {
                run.make_ascii_lowercase();
                words.extend(Some(std::mem::take(&mut run)).filter(|run| !run.is_empty()));
            }
            _ => of_run(&std::mem::take(&mut run), &of_spaceless, &mut words),
        }
    }
    words
}

/// Splits a run at script boundaries and within compatibility forms (`½` is `1⁄2`).
fn of_run(run: &str, of_spaceless: &impl Fn(&[&str], &mut Vec<String>), words: &mut Vec<String>) {
    let nfkc = |text: &str| ComposingNormalizerBorrowed::new_nfkc().normalize(text).into_owned();
    let folded = nfkc(&UniCase::new(nfkc(run)).to_folded_case());
    let mut characters: Vec<(Kind, &str)> = Vec::new();
    let mut start = (0, Kind::Other);
    for (at, c) in folded.char_indices().chain([(folded.len(), ' ')]) {
        let kind = Kind::of(c);
        if kind != Kind::Mark {
            characters.push((start.1, &folded[start.0..at]));
            start = (at, kind);
        }
    }
    for group in characters.chunk_by(|one, other| one.0 == other.0) {
        let texts: Vec<&str> = group.iter().map(|(_, text)| *text).collect();
        match group[0].0 {
            Kind::Letter => words.push(texts.concat()),
            Kind::Spaceless => of_spaceless(&texts, words),
            Kind::Mark | Kind::Ignored | Kind::Other => {}
        }
    }
}

/// Lower case, white space collapsed.
pub fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// The name nearest to one that is not there, if it is near enough for a slip.
pub fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let near = known.into_iter().map(|known| (strsim::levenshtein(name, known), known)).min();
    near.filter(|(distance, _)| *distance <= 2 + name.len() / 4).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_shared_list() {
        #[derive(serde::Deserialize)]
        struct Vector {
            text: String,
            words: Vec<String>,
        }
        let list = include_str!("../../../../tests/fixtures/words.json");
        let vectors: Vec<Vector> = serde_json::from_str(list).unwrap();
        assert!(vectors.len() > 50);
        for Vector { text, words: expected } in vectors {
            assert_eq!(words(&text), expected, "{text}");
        }
    }

    #[test]
    fn plain_english_is_split_as_by_version_1() {
        let text = "Don't e-mail snake_case v1.2 at 10:30, O\u{2019}Neil's caf\u{e9} \u{2014} 3x 5\u{a0}km!";
        let runs = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        assert_eq!(words(text), runs.map(str::to_lowercase).collect::<Vec<_>>());
    }

    #[test]
    fn a_phrase_is_found_within_a_clause_without_spaces() {
        for (text, said, holds) in [
            ("我的猫叫小黑。", "猫", true),
            ("我住在北京市", "北京", true),
            ("我住在北京市", "京北", false),
            ("The Bridge, in 1931.", "the bridge in", true),
            ("Newyork", "york", false),
            ("เธออยู่เชียงใหม่", "เชียงใหม่", true),
        ] {
            assert_eq!(phrase(text).contains(&phrase(said)), holds, "{said} in {text}");
        }
        assert_eq!((phrase("Ärger — 3x"), phrase("")), (" ärger 3x ".to_owned(), "  ".to_owned()));
    }

    #[test]
    fn folding_keeps_punctuation() {
        assert_eq!(
            (folded(" The\tC#\n bridge. "), folded(" \n")),
            ("the c# bridge.".to_owned(), String::new())
        );
        assert_ne!(folded("-5 °C"), folded("5 °C"));
    }
}
