//! Parses verdicts from a judge's JSON reply.
//!
//! Models wrap JSON in prose and code fences, use apostrophes, trailing commas or Python words, flatten keys, write one object per probe,
//! and draft verdicts before deciding. Unambiguous replies are parsed; anything else is a missing verdict, never a guess.
//!
//! **Groups.** Objects are top-level JSON objects and lists that hold objects. Two neighbours are in one group if every line between them is
//! a separator:
//!
//! - no letters or digits: white space, commas, bullets, rules;
//! - a code fence with at most one word after it (```` ```json ````);
//! - a number of at most three digits: `2.`, `(3)`;
//! - a label: an id alone, or at most four words with an id among them that start with `#` or end with `:`, `-` or `=` (`Verdict on PR:`).
//!
//! Anything else is prose and separates groups. Only the last group with a verdict counts: earlier ones are drafts, as is everything before
//! the end of a thought (`</think>`). If the last group disagrees and stands inside a sentence, it may be an example
//! (`{"score": 5} would need more`), and nothing is read. Verdicts in a group are merged by id. In a truncated reply an unfinished final
//! object is the last group even without a verdict.
//!
//! **Verdicts.** A verdict stands under the requested key, or under the first of the usual alternatives that holds one. An invalid value of
//! the requested key (a score of another scale, `"partly"`) is reported as such. An object's own verdict outranks those of its parts.

use super::Verdict;
use crate::chat::loose_json::{self, Node};
use palimpsest_data::benchmarks::{Said, VerdictKind};

/// Maximum bytes of a reply, and of brackets that start no value. Longer replies are not parsed, since the verdict may stand beyond.
const LONGEST: usize = 1 << 18;
const MOST_UNREADABLE: usize = 256;

const LABEL_WORDS: usize = 4;

const QUOTED: usize = 60;

const THOUGHTS: [&str; 4] = ["think", "thinking", "thought", "reasoning"];

#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    Verdict(Verdict),
    Differing(Said, Said),
    Unread(String),
    Missing,
}

#[derive(Debug, Clone, Copy)]
pub struct ReplyText<'a> {
    pub text: &'a str,
    pub cut: bool,
    /// Index of the only requested id, for verdicts without an id.
    pub sole: Option<usize>,
}

/// The verdict on each of `ids`, in order, from the last group that holds one.
pub fn read_verdicts(reply: ReplyText<'_>, ids: &[&str], kind: VerdictKind) -> Vec<Found> {
    let objects = objects(reply.text);
    let mut groups: Vec<Vec<Object>> = Vec::new();
    for object in objects {
        let before = groups.last().and_then(|group| group.last()).map_or(0, |last| last.end);
        let between = reply.text.get(before..object.start).unwrap_or_default();
        // `PR: {"correct": true}`
        let object = Object { label: label(between, ids), ..object };
        match groups.last_mut() {
            Some(group) if between.lines().all(|line| separates(line, ids)) => group.push(object),
            _ => groups.push(vec![object]),
        }
    }
    let of = |group: &Vec<Object>| -> Vec<Found> {
        (0..ids.len()).map(|at| of_group(group, ids, at, reply.sole, kind)).collect()
    };
    let ends_open = groups.last().and_then(|group| group.last()).is_some_and(|last| !last.finished);
    if let Some(last) = groups.last().filter(|_| reply.cut && ends_open) {
        return of(last);
    }
    let none = || vec![Found::Missing; ids.len()];
    let says = |found: &Vec<Found>| found.iter().any(|found| *found != Found::Missing);
    let mut said = groups.iter().rev().map(|group| (group, of(group))).filter(|(_, found)| says(found));
    let Some((group, last)) = said.next() else { return none() };
    let after = group.last().and_then(|object| reply.text.get(object.end..)?.lines().next());
    let goes_on = after.is_some_and(|line| !words(line).is_empty());
    if goes_on && said.any(|(_, earlier)| !agree(&earlier, &last)) { none() } else { last }
}

/// True if the groups agree on every id they share.
fn agree(one: &[Found], other: &[Found]) -> bool {
    one.iter().zip(other).all(|pair| match pair {
        (Found::Missing, _) | (_, Found::Missing) => true,
        (Found::Verdict(one), Found::Verdict(other)) => one.said == other.said,
        (one, other) => one == other,
    })
}

struct Object {
    start: usize,
    end: usize,
    value: Node,
    finished: bool,
    /// Index of the id on the label line before it.
    label: Option<usize>,
}

fn objects(text: &str) -> Vec<Object> {
    let mut found = Vec::new();
    let mut unreadable = 0;
    let Some(mut from) = after_thoughts(text).filter(|_| text.len() <= LONGEST) else { return found };
    while let Some(rest) = text.get(from..)
        && let Some(at) = rest.find(['{', '['])
    {
        let start = from + at;
        let read = text.get(start..).and_then(loose_json::read).filter(|read| holds_object(&read.value));
        match read {
            Some(loose_json::Read { value, length, finished }) => {
                let end = start + length;
                found.push(Object { start, end, value, finished, label: None });
                from = end;
            }
            None => {
                unreadable += 1;
                if unreadable > MOST_UNREADABLE {
                    return Vec::new();
                }
                from = start + 1;
            }
        }
    }
    found
}

fn after_thoughts(text: &str) -> Option<usize> {
    let closed = THOUGHTS.iter().filter_map(|name| {
        let tag = format!("</{name}>");
        Some(text.rfind(&tag)? + tag.len())
    });
    let opened = || THOUGHTS.iter().any(|name| text.trim_start().starts_with(&format!("<{name}>")));
    closed.max().or_else(|| (!opened()).then_some(0))
}

/// Excludes brackets in prose, `[1]`.
fn holds_object(value: &Node) -> bool {
    match value {
        Node::Object(_) => true,
        Node::Array(items) => items.iter().any(holds_object),
        _ => false,
    }
}

fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (nth, part) in line.split("```").enumerate() {
        let of_part = part.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let of_part: Vec<&str> = of_part.collect();
        if nth == 0 || of_part.len() > 1 {
            words.extend(of_part);
        }
    }
    words
}

fn id_among(words: &[&str], ids: &[&str]) -> Option<usize> {
    let is = |id: &&str| {
        (1..=words.len()).any(|length| words.windows(length).any(|words| same(&words.concat(), id)))
    };
    ids.iter().position(is)
}

/// Index of the id if the line is a label.
fn labelled(line: &str, words: &[&str], ids: &[&str]) -> Option<usize> {
    if let Some(alone) = ids.iter().position(|id| same(&words.concat(), id)) {
        return Some(alone);
    }
    let line = line.trim_matches(|c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`'));
    let marked = line.starts_with('#') || line.ends_with([':', '-', '=']);
    (marked && words.len() <= LABEL_WORDS).then(|| id_among(words, ids))?
}

/// True if a line between objects keeps them in one group.
fn separates(line: &str, ids: &[&str]) -> bool {
    let words = words(line);
    let number = |word: &&str| word.len() <= 3 && word.bytes().all(|b| b.is_ascii_digit());
    match words.as_slice() {
        [] => true,
        [word] if number(word) => true,
        words => labelled(line, words, ids).is_some(),
    }
}

/// The id on the last non-blank line, if that is a label.
fn label(before: &str, ids: &[&str]) -> Option<usize> {
    let line = before.lines().rev().find(|line| !words(line).is_empty())?;
    labelled(line, &words(line), ids)
}

fn of_group(group: &[Object], ids: &[&str], at: usize, sole: Option<usize>, kind: VerdictKind) -> Found {
    let search = Search { ids, at, kind };
    let mut all = Vec::new();
    for object in group {
        let before = all.len();
        search.named(&object.value, &mut all);
        if all.len() == before && object.label.or(sole) == Some(at) {
            search.unnamed(&object.value, &mut all);
        }
    }
    let last = match all.pop() {
        None => return Found::Missing,
        Some(Err(other)) => return Found::Unread(other),
        Some(Ok(last)) => last,
    };
    match all.into_iter().flatten().find(|verdict| verdict.said != last.said) {
        Some(other) => Found::Differing(other.said, last.said),
        None => Found::Verdict(last),
    }
}

type Stated<T> = Result<T, String>;

struct Search<'a> {
    ids: &'a [&'a str],
    at: usize,
    kind: VerdictKind,
}

impl Search<'_> {
    fn id(&self) -> &str {
        self.ids.get(self.at).copied().unwrap_or_default()
    }

    fn is_other(&self, name: &str) -> bool {
        self.ids.iter().enumerate().any(|(at, id)| at != self.at && same(name, id))
    }

    /// Adds verdicts that name the id: as a key, as a sibling field, in flat keys; only without these, nested ones.
    fn named(&self, value: &Node, out: &mut Vec<Stated<Verdict>>) {
        let entries = match value {
            Node::Object(entries) => entries,
            Node::Array(items) => return items.iter().for_each(|item| self.named(item, out)),
            _ => return,
        };
        let id = self.id();
        let mut keyed = false;
        for (_, inner) in entries.iter().filter(|(key, _)| same(key, id)) {
            keyed = true;
            match scalar(inner, self.kind) {
                Some(said) => out.push(verdict(said, flat_text(entries, id))),
                None => self.unnamed(inner, out),
            }
        }
        if keyed {
            return;
        }
        // {"id": "SR", "correct": true}
        for name in names(entries) {
            if same(name, id) {
                return self.unnamed(value, out);
            }
            if self.is_other(name) {
                return;
            }
        }
        // {"SR_correct": true, "SR_reason": "..."}
        let flat =
            |key: &str, word: &str| same(key, &format!("{id}{word}")) || same(key, &format!("{word}{id}"));
        let flat = decided(entries, self.kind, flat);
        if !flat.is_empty() {
            return out.extend(flat.into_iter().map(|said| verdict(said, flat_text(entries, id))));
        }
        entries.iter().filter(|(key, _)| !self.is_other(key)).for_each(|(_, value)| self.named(value, out));
    }

    /// Adds the verdict of a value that does not name the id: its own, otherwise those of its parts. A score of one part among several does
    /// not count for the whole.
    fn unnamed(&self, value: &Node, out: &mut Vec<Stated<Verdict>>) {
        let entries = match value {
            Node::Object(entries) => entries,
            Node::Array(items) => return items.iter().for_each(|item| self.unnamed(item, out)),
            _ => return,
        };
        if names(entries).any(|name| self.is_other(name)) {
            return;
        }
        let under =
            |name: &&str| entries.iter().filter(|(key, _)| same(key, name)).find_map(|(_, v)| text(v));
        let reason = REASONS.iter().find_map(under).map(tidy).filter(|reason| !reason.is_empty());
        let own = decided(entries, self.kind, same);
        if !own.is_empty() {
            return out.extend(own.into_iter().map(|said| verdict(said, reason.clone())));
        }
        let (before, mut parts) = (out.len(), 0);
        for (_, part) in entries.iter().filter(|(key, _)| !self.is_other(key)) {
            let so_far = out.len();
            self.unnamed(part, out);
            parts += usize::from(out.len() > so_far);
        }
        if parts > 1 && self.kind.most().is_some() {
            out.truncate(before);
        }
    }
}

fn verdict(said: Stated<Said>, reason: Option<String>) -> Stated<Verdict> {
    said.map(|said| Verdict { said, probability: None, reason })
}

const NAMES: [&str; 5] = ["id", "probe", "dimension", "name", "exchange"];

fn names(entries: &[(String, Node)]) -> impl Iterator<Item = &str> {
    let is_name = |key: &str| NAMES.iter().any(|name| same(key, name));
    entries.iter().filter(move |(key, _)| is_name(key)).filter_map(|(_, value)| text(value))
}

/// Usual alternatives to the requested key, likeliest first; scores have others.
const WORDS: &str =
    "correct iscorrect choice label verdict decision result pass passed judgement judgment grade";
const SCORES: &str = "rating grade total overall final verdict decision result judgement judgment";
/// Keys of a total score, equivalent to the requested one.
const TOTALS: [&str; 3] = ["finalscore", "totalscore", "overallscore"];
const BEST: [&str; 7] = ["outof", "max", "maxscore", "maximum", "maximumscore", "scoremax", "scale"];
const REASONS: [&str; 5] = ["reason", "reasoning", "explanation", "rationale", "why"];

/// The values of verdict keys according to `is`; several if a key repeats.
fn decided(
    entries: &[(String, Node)],
    kind: VerdictKind,
    is: impl Fn(&str, &str) -> bool,
) -> Vec<Stated<Said>> {
    let values = |word: &str| -> Vec<&Node> {
        entries.iter().filter(|(key, _)| is(key, word)).map(|(_, value)| value).collect()
    };
    let under = |word: &str| values(word).into_iter().filter_map(|value| scalar(value, kind));
    // Under another key, 1 may be a grade rather than a yes.
    let is_said = |value: &&Node| kind.most().is_some() || number(value).is_none();
    let first = |words: &str| {
        let said = |word: &str| -> Vec<Stated<Said>> {
            let said = values(word).into_iter().filter(is_said).filter_map(|value| scalar(value, kind));
            said.filter(Result::is_ok).collect()
        };
        words.split(' ').map(said).find(|said| !said.is_empty()).unwrap_or_default()
    };
    let mut asked: Vec<Stated<Said>> = under(kind.key()).collect();
    let Some(most) = kind.most() else { return if asked.is_empty() { first(WORDS) } else { asked } };
    asked.extend(TOTALS.iter().flat_map(|word| under(word)));
    let scores = if asked.is_empty() { first(SCORES) } else { asked };
    let bests = entries.iter().filter(|(key, _)| BEST.iter().any(|word| is(key, word)));
    let best = bests.filter_map(|(_, value)| last_number(value)).find(|best| *best != f64::from(most));
    let on_scale = |score: Stated<Said>| match (score, best) {
        (Ok(score), Some(best)) => Err(format!("{score} of {best}")),
        (score, _) => score,
    };
    scores.into_iter().map(on_scale).collect()
}

fn flat_text(entries: &[(String, Node)], id: &str) -> Option<String> {
    REASONS.iter().find_map(|word| {
        let key = format!("{id}{word}");
        let value = entries.iter().find(|(k, _)| same(k, &key)).and_then(|(_, v)| text(v));
        value.map(tidy).filter(|reason| !reason.is_empty())
    })
}

fn text(value: &Node) -> Option<&str> {
    match value {
        Node::Text(text) => Some(text),
        _ => None,
    }
}

/// On one line, with single spaces.
pub(super) fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Ignores case and punctuation.
fn same(a: &str, b: &str) -> bool {
    let letters = |s: &str| -> String {
        s.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    letters(a) == letters(b)
}

fn scalar(value: &Node, kind: VerdictKind) -> Option<Stated<Said>> {
    let shown = match value {
        Node::Object(_) | Node::Array(_) => return None,
        Node::Null => "null".to_owned(),
        Node::Bool(word) => word.to_string(),
        Node::Number(number) => number.to_string(),
        Node::Text(text) => {
            let short: String = tidy(text).chars().take(QUOTED).collect();
            format!("{short:?}")
        }
    };
    Some(said(value, kind).ok_or(shown))
}

fn said(value: &Node, kind: VerdictKind) -> Option<Said> {
    let word = text(value).map(unmarked);
    match kind {
        VerdictKind::Correct => truth(value).map(Said::Correct),
        VerdictKind::Label { right, wrong } => match word {
            Some(word) if same(word, right) => Some(Said::Correct(true)),
            Some(word) if same(word, wrong) => Some(Said::Correct(false)),
            _ => truth(value).map(Said::Correct),
        },
        VerdictKind::Score { most, .. } => {
            let best = f64::from(most);
            // `4/5`, `4 out of 5`; invalid on another scale.
            let parts = word.and_then(|word| {
                let of = ["/", " out of ", " of "].iter().find_map(|of| word.split_once(of));
                of.filter(|(_, of)| of.trim().parse() == Ok(best)).map(|(score, _)| score)
            });
            let score = parts.or(word).map_or_else(|| number(value), |score| score.trim().parse().ok())?;
            (0.0..=best).contains(&score).then_some(Said::Score(score + 0.0))
        }
        VerdictKind::Choice { of } => of
            .iter()
            .find(|choice| same(choice, word.unwrap_or_default()))
            .map(|c| Said::Choice((*c).to_owned())),
    }
}

fn unmarked(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`' | '"' | '\''))
}

fn number(value: &Node) -> Option<f64> {
    match value {
        Node::Number(number) => Some(*number),
        Node::Text(text) => unmarked(text).parse().ok(),
        _ => None,
    }
}

/// The maximum of a scale: 10 for `10` and `0-10`.
fn last_number(value: &Node) -> Option<f64> {
    let in_words = |text: &str| {
        let mut words = text.rsplit(|c: char| !(c.is_ascii_digit() || c == '.'));
        words.find_map(|word| word.parse().ok())
    };
    number(value).or_else(|| in_words(text(value)?))
}

fn truth(value: &Node) -> Option<bool> {
    match value {
        Node::Bool(b) => Some(*b),
        Node::Number(n) if *n == 1.0 => Some(true),
        Node::Number(n) if *n == 0.0 => Some(false),
        Node::Text(s) => match unmarked(s).trim_end_matches(['.', '!']).to_lowercase().as_str() {
            "true" | "yes" | "correct" | "pass" | "passed" | "1" => Some(true),
            "false" | "no" | "incorrect" | "not correct" | "fail" | "failed" | "wrong" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    }
}
