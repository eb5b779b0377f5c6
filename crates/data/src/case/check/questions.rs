//! Checks of question texts, single and in pairs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::near::{ALIKE, Shingles, pairs};
use crate::case::Case;
use crate::case::finding::{Check, Finding, Gold, quote};
use crate::ground::order::unique;
use crate::ground::words::{phrase, words};

static NO_OPTIONS: Check = Check::error(
    "no-options",
    "questions that name options, themselves or in their gold, without saying what they are",
);
static TWO_GOLDS: Check =
    Check::error("two-golds", "texts of questions on one history that have several golds");
static SAME_QUESTION: Check =
    Check::warning("same-question", "texts that several questions have, letter case and punctuation aside");
static LIKE_QUESTION: Check = Check::warning("like-question", "pairs of questions that are nearly the same");

/// Minimum words for near-duplicate checks; shorter questions match by chance.
const FEWEST_WORDS: usize = 5;
/// Minimum run of letters from A that counts as a list of options without an option word.
const LETTERS: usize = 3;
const OPTION_WORDS: [&str; 8] =
    ["options", "events", "statements", "choices", "items", "answers", "option", "between"];
const NAMED: usize = 6;

/// Questions that refer to lettered options which are not given.
pub(super) fn without_options(case: &Case, golds: &[Gold]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (probe, gold) in case.probes.iter().zip(golds) {
        let mut named = named_letters(&probe.query);
        named.extend(gold.texts.iter().flat_map(|text| ordered_letters(text)));
        if probe.options.len() >= named.len() {
            continue;
        }
        let missing = named.iter().filter(|letter| !is_defined(&probe.query, **letter));
        let missing: Vec<String> = missing.map(char::to_string).collect();
        if !missing.is_empty() {
            let what = format!("{} says nowhere what {} are", quote(&probe.query), missing.join(", "));
            found.push(Finding::new(&NO_OPTIONS, &case.id, what).of([&probe.id]));
        }
    }
    found
}

/// Standalone capital letters with byte offsets.
fn single_letters(text: &str) -> Vec<(usize, char)> {
    let mut found = Vec::new();
    let mut before = ' ';
    let mut letters = text.char_indices().peekable();
    while let Some((at, c)) = letters.next() {
        let next = letters.peek().map_or(' ', |(_, next)| *next);
        // An apostrophe joins it to a word.
        let alone = |c: char| !c.is_alphanumeric() && !"'’_".contains(c);
        if c.is_ascii_uppercase() && alone(before) && alone(next) {
            found.push((at, c));
        }
        before = c;
    }
    found
}

/// Letters of a list from A on, such as `A, B and C`.
fn named_letters(text: &str) -> BTreeSet<char> {
    let singles = single_letters(text);
    let mut found = BTreeSet::new();
    for (start, (at, first)) in singles.iter().enumerate() {
        if *first != 'A' {
            continue;
        }
        let (mut last, mut run) = ((*at, *first), BTreeSet::from(['A']));
        for (at, letter) in singles.iter().skip(start + 1) {
            let between = text.get(last.0 + 1..*at).unwrap_or_default();
            let is_list = matches!(
                between.trim(),
                "," | "and" | "or" | ", and" | ", or" | "/" | "->" | "→" | "&" | ";"
            );
            if u32::from(*letter) != u32::from(last.1) + 1 || !is_list {
                break;
            }
            run.insert(*letter);
            last = (*at, *letter);
        }
        let before = words(text.get(..*at).unwrap_or_default());
        let said = before.last().is_some_and(|word| OPTION_WORDS.contains(&word.as_str()));
        if run.len() >= LETTERS || (run.len() >= 2 && said) {
            found.extend(run);
        }
    }
    found
}

/// Letters of a leading order such as `B -> C -> A`; empty if there is none.
fn ordered_letters(text: &str) -> Vec<char> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    loop {
        let mut chars = rest.chars();
        let Some(letter) = chars.next().filter(char::is_ascii_uppercase) else { return Vec::new() };
        found.push(letter);
        let behind = chars.as_str();
        let arrow = ["->", "→", ">"].iter().find_map(|arrow| behind.trim_start().strip_prefix(arrow));
        match arrow {
            Some(behind) => rest = behind.trim_start(),
            None if found.len() > 1 && !behind.starts_with(|c: char| c.is_alphanumeric()) => return found,
            None => return Vec::new(),
        }
    }
}

/// Comparison key of a gold: its leading order, else its words.
fn essence(text: &str) -> String {
    let order = ordered_letters(text);
    if order.is_empty() { phrase(text) } else { order.into_iter().collect() }
}

/// True if the text defines the letter: `A. the fire`, `(A) the fire`, `A: the fire`, `**A** the fire`, `A = the fire`.
fn is_defined(text: &str, letter: char) -> bool {
    single_letters(text).iter().filter(|(_, other)| *other == letter).any(|(at, _)| {
        let behind = text.get(at + 1..).unwrap_or_default();
        let marks: &[char] = &['.', ')', ':', ']', '=', '*', '-', '–', '—'];
        let said = behind.trim_start_matches([' ', '*']).strip_prefix(marks);
        let said = said.or_else(|| behind.strip_prefix("**"));
        // `A -> B` is an order.
        let said = said.filter(|said| !said.starts_with('>'));
        said.is_some_and(|said| {
            said.trim_start_matches([' ', '*', '"', '“']).starts_with(char::is_alphanumeric)
        })
    })
}

/// Duplicate questions within a case, and those with different golds.
pub(super) fn repeated(case: &Case, golds: &[Gold]) -> Vec<Finding> {
    let mut by_text: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, probe) in case.probes.iter().enumerate() {
        by_text.entry(phrase(&probe.query)).or_default().push(at);
    }
    let mut groups: Vec<Vec<usize>> = by_text.into_values().filter(|places| places.len() > 1).collect();
    groups.sort_unstable();
    let mut found = Vec::new();
    for places in groups {
        let probes = || places.iter().filter_map(|at| case.probes.get(*at));
        let ids = || probes().map(|probe| probe.id.as_str());
        let Some(first) = probes().next() else { continue };
        let text = quote(&first.query);
        let answers = |at: &usize| golds[*at].texts.iter().map(|text| essence(text)).collect();
        let answers: BTreeSet<BTreeSet<String>> = places.iter().map(answers).collect();
        if answers.len() > 1 {
            let what = format!("{} golds for {text}: {}", answers.len(), some(ids()));
            found.push(Finding::new(&TWO_GOLDS, &case.id, what).of(ids()));
        }
        let what = format!("{} questions are {text}: {}", places.len(), some(ids()));
        found.push(Finding::new(&SAME_QUESTION, &case.id, what).of(ids()));
    }
    found
}

fn some<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    let ids: Vec<&str> = ids.collect();
    let shown = ids.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if ids.len() > NAMED { format!("{shown}, …") } else { shown }
}

#[derive(Debug, Default)]
pub(super) struct Asked {
    questions: Vec<Question>,
    texts: Vec<Vec<u64>>,
}

#[derive(Debug)]
struct Question {
    case: String,
    probe: String,
    digest: u64,
    beginning: String,
}

impl Asked {
    pub(super) fn add(&mut self, case: &Case) {
        let mut seen = BTreeSet::new();
        for probe in &case.probes {
            let Shingles { words, digest, pairs } = Shingles::of(&probe.query);
            if words >= FEWEST_WORDS && seen.insert(digest) {
                let (case, beginning) = (case.id.clone(), quote(&probe.query));
                self.questions.push(Question { case, probe: probe.id.clone(), digest, beginning });
                self.texts.push(pairs);
            }
        }
    }

    /// Duplicates across cases and near-duplicates anywhere.
    pub(super) fn alike(self) -> Vec<Finding> {
        let Asked { questions, texts } = self;
        let mut found = Vec::new();
        let mut by_text: HashMap<u64, Vec<&Question>> = HashMap::new();
        for question in &questions {
            by_text.entry(question.digest).or_default().push(question);
        }
        for digest in unique(questions.iter().map(|question| question.digest)) {
            let Some([first, others @ ..]) = by_text.get(&digest).map(Vec::as_slice) else { continue };
            if !others.is_empty() {
                let names = some(others.iter().map(|other| other.case.as_str()));
                let what = format!("{} is asked in {} more cases: {names}", first.beginning, others.len());
                found.push(Finding::new(&SAME_QUESTION, &first.case, what).of([&first.probe]));
            }
        }
        for pair in pairs(&texts, ALIKE) {
            let (a, b) = (&questions[pair.first], &questions[pair.second]);
            if a.digest == b.digest {
                continue;
            }
            let of_one = a.case == b.case;
            let other = if of_one { b.probe.clone() } else { format!("case `{}` {}", b.case, b.probe) };
            let percent = 100.0 * pair.similarity;
            let what =
                format!("{other} has {percent:.0}% of its word pairs: {} and {}", a.beginning, b.beginning);
            let probes = [Some(&a.probe), Some(&b.probe).filter(|_| of_one)].into_iter().flatten();
            found.push(Finding::new(&LIKE_QUESTION, &a.case, what).of(probes));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(text: &str) -> String {
        named_letters(text).into_iter().collect()
    }

    #[test]
    fn a_list_of_letters_from_a_on_names_options() {
        assert_eq!(letters("A, B, C"), "ABC");
        assert_eq!(letters("Which came first: A, B, or C?"), "ABC");
        assert_eq!(letters("Order the events A and B."), "AB");
        for text in
            ["A boy and B. King met C", "vitamins A and B", "A: red. B: blue. C: green.", "B, C", "Plan A, B"]
        {
            assert_eq!(letters(text), "", "{text}");
        }
        assert_eq!(ordered_letters("B -> C -> A. (Event B …)").into_iter().collect::<String>(), "BCA");
        assert_eq!(essence("B→C > A"), essence("B -> C -> A, as C is late"));
        for text in ["A boy -> B", "Because of A -> B", "B", "Anna -> Ben"] {
            assert_eq!(ordered_letters(text), [] as [char; 0], "{text}");
        }
    }

    #[test]
    fn an_option_is_what_stands_behind_its_letter() {
        for text in [
            "A. the fire",
            "(A) the fire",
            "A: the fire",
            "x\n**A** the fire",
            "A = the fire",
            "A - the fire",
            "A) \"Go\"",
        ] {
            assert!(is_defined(text, 'A'), "{text}");
        }
        for text in ["A, B, C", "A -> B", "the A", "A.", "A. ", "Ada: the fire", "A's: x"] {
            assert!(!is_defined(text, 'A'), "{text}");
        }
    }
}
