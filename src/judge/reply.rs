//! Reads verdicts out of what a judge wrote when it was asked for JSON.
//!
//! Models wrap JSON in prose and code fences, quote it with apostrophes, leave trailing commas, write Python's words, flatten the
//! keys, write an object for each probe, and try out verdicts before they decide. Whatever can be read in one way only is read;
//! what cannot is a missing verdict, never a guess.
//!
//! **Groups.** The objects of a reply are its JSON objects, and lists that hold some, which stand in no other. Two neighbouring ones
//! belong to one group where every line of the text between them is a separator:
//!
//! - no letters and digits at all: white space, commas, bullets, rules;
//! - a code fence, with at most one word after it (```` ```json ````);
//! - a number of at most three digits: `2.`, `(3)`;
//! - a label: an id alone, or at most four words with an id among them that begin with `#` or end with `:`, `-` or `=` (`Verdict on PR:`).
//!
//! Anything else is prose, and separates groups. The last group that holds a verdict counts, and no other: what stands before is a
//! draft. Within it verdicts are merged by id. In a reply that was cut, an unfinished object at its end is the last group even if it
//! holds no verdict, because what it was about to say is not known.

use super::loose_json::{self, Node};
use super::verdict::Verdict;
use crate::benchmarks::Said;
use crate::benchmarks::VerdictKind;

/// Most bytes of a reply, and most brackets in it that begin no value: far more than verdicts take, and little enough that no
/// reply keeps the reader busy. Beyond them nothing is read, since what decides may stand there.
const LONGEST: usize = 1 << 18;
const MOST_UNREADABLE: usize = 256;

const LABEL_WORDS: usize = 4;

/// Verdict of a reply on one id.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// One verdict, perhaps several times.
    Verdict(Verdict),
    /// Two verdicts that differ.
    Differing(Said, Said),
    /// None that can be read.
    Missing,
}

/// A reply, and what is known about it.
#[derive(Debug, Clone, Copy)]
pub struct ReplyText<'a> {
    /// Text of the reply.
    pub text: &'a str,
    /// True if the limit of new tokens ended it.
    pub cut: bool,
    /// The place, in the ids, of the one that a verdict without an id is on, where only one was asked about.
    pub sole: Option<usize>,
}

/// The verdict on each of `ids`, in order, as far as the last group of the reply that holds one does.
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
    let says = |found: &Vec<Found>| found.iter().any(|found| *found != Found::Missing);
    groups.iter().rev().map(of).find(says).unwrap_or_else(|| vec![Found::Missing; ids.len()])
}

/// A JSON object of a reply, or a list of them.
struct Object {
    start: usize,
    end: usize,
    value: Node,
    finished: bool,
    /// The place, in the ids, of the one that the line before it names.
    label: Option<usize>,
}

fn objects(text: &str) -> Vec<Object> {
    let mut found = Vec::new();
    let (mut from, mut unreadable) = (0, 0);
    if text.len() > LONGEST {
        return found;
    }
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

/// A bracket in prose, `[1]`, is no list of verdicts.
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

/// The place of the id that `words` are, or hold next to others.
fn id_among(words: &[&str], ids: &[&str]) -> Option<usize> {
    let is = |id: &&str| {
        (1..=words.len()).any(|length| words.windows(length).any(|words| same(&words.concat(), id)))
    };
    ids.iter().position(is)
}

/// The id that a line labels what follows with.
fn labelled(line: &str, words: &[&str], ids: &[&str]) -> Option<usize> {
    if let Some(alone) = ids.iter().position(|id| same(&words.concat(), id)) {
        return Some(alone);
    }
    let line = line.trim_matches(|c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`'));
    let marked = line.starts_with('#') || line.ends_with([':', '-', '=']);
    (marked && words.len() <= LABEL_WORDS).then(|| id_among(words, ids))?
}

/// True if a line between two objects leaves them in one group.
fn separates(line: &str, ids: &[&str]) -> bool {
    let words = words(line);
    let number = |word: &&str| word.len() <= 3 && word.bytes().all(|b| b.is_ascii_digit());
    match words.as_slice() {
        [] => true,
        [word] if number(word) => true,
        words => labelled(line, words, ids).is_some(),
    }
}

/// The id that the last line with words names, where it is a label.
fn label(before: &str, ids: &[&str]) -> Option<usize> {
    let line = before.lines().rev().find(|line| !words(line).is_empty())?;
    labelled(line, &words(line), ids)
}

fn of_group(group: &[Object], ids: &[&str], at: usize, sole: Option<usize>, kind: VerdictKind) -> Found {
    let mut verdicts = Vec::new();
    for object in group {
        let unnamed = object.label.or(sole) == Some(at);
        Search { ids, at, unnamed, kind }.collect(&object.value, &mut verdicts);
    }
    let Some(last) = verdicts.pop() else { return Found::Missing };
    match verdicts.into_iter().find(|verdict| verdict.said != last.said) {
        Some(other) => Found::Differing(other.said, last.said),
        None => Found::Verdict(last),
    }
}

struct Search<'a> {
    ids: &'a [&'a str],
    at: usize,
    /// True if a verdict that names no id is on this one.
    unnamed: bool,
    kind: VerdictKind,
}

impl Search<'_> {
    fn id(&self) -> &str {
        self.ids.get(self.at).copied().unwrap_or_default()
    }

    fn is_other(&self, name: &str) -> bool {
        self.ids.iter().enumerate().any(|(at, id)| at != self.at && same(name, id))
    }

    /// Adds every verdict on the id in an object or a list: under the id as a key, beside it as a name, in flat keys, and only
    /// where there is none of these, further down.
    fn collect(&self, value: &Node, out: &mut Vec<Verdict>) {
        let entries = match value {
            Node::Object(entries) => entries,
            Node::Array(items) => return items.iter().for_each(|item| self.collect(item, out)),
            _ => return,
        };
        let id = self.id();
        let mut keyed = false;
        for (_, inner) in entries.iter().filter(|(key, _)| same(key, id)) {
            keyed = true;
            let within = verdicts(inner, self.kind);
            let bare = said(inner, self.kind).filter(|_| within.is_empty());
            out.extend(within);
            out.extend(bare.map(|said| Verdict { said, probability: None, reason: flat_text(entries, id) }));
        }
        if keyed {
            return;
        }
        // {"id": "SR", "correct": true}
        let names = entries.iter().filter(|(key, _)| NAMES.iter().any(|name| same(key, name)));
        for name in names.filter_map(|(_, value)| text(value)) {
            if same(name, id) {
                return out.extend(verdicts(value, self.kind));
            }
            if self.is_other(name) {
                return;
            }
        }
        // {"SR_correct": true, "SR_reason": "..."}
        let flat = |(key, value): &(String, Node)| {
            let is = |word: &&str| same(key, &format!("{id}{word}")) || same(key, &format!("{word}{id}"));
            DECISIONS.iter().any(is).then(|| said(value, self.kind)).flatten()
        };
        let before = out.len();
        let flat = entries.iter().filter_map(flat);
        out.extend(flat.map(|said| Verdict { said, probability: None, reason: flat_text(entries, id) }));
        if out.len() > before {
            return;
        }
        entries.iter().filter(|(key, _)| !self.is_other(key)).for_each(|(_, value)| self.collect(value, out));
        if self.unnamed && out.len() == before {
            out.extend(verdicts(value, self.kind));
        }
    }
}

const NAMES: [&str; 5] = ["id", "probe", "dimension", "name", "exchange"];
const DECISIONS: [&str; 13] = [
    "correct",
    "iscorrect",
    "score",
    "choice",
    "label",
    "verdict",
    "decision",
    "result",
    "pass",
    "passed",
    "judgement",
    "rating",
    "grade",
];
const REASONS: [&str; 5] = ["reason", "reasoning", "explanation", "rationale", "why"];

/// `{"correct": true, "reason": "..."}`; several where the key occurs again.
fn verdicts(value: &Node, kind: VerdictKind) -> Vec<Verdict> {
    let Node::Object(entries) = value else { return Vec::new() };
    let under = |name: &str| -> Vec<&Node> {
        entries.iter().filter(|(key, _)| same(key, name)).map(|(_, value)| value).collect()
    };
    let decided = DECISIONS.iter().map(|name| under(name)).find(|values| !values.is_empty());
    let reason = REASONS.iter().find_map(|name| under(name).into_iter().find_map(text)).map(tidy);
    let reason = reason.filter(|reason| !reason.is_empty());
    let said = decided.into_iter().flatten().filter_map(|value| said(value, kind));
    said.map(|said| Verdict { said, probability: None, reason: reason.clone() }).collect()
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

fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// True if two keys are the same but for case and punctuation.
fn same(a: &str, b: &str) -> bool {
    let letters = |s: &str| -> String {
        s.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    letters(a) == letters(b)
}

/// Verdict in a value, by the kind that was asked for.
fn said(value: &Node, kind: VerdictKind) -> Option<Said> {
    match kind {
        VerdictKind::Correct => truth(value).map(Said::Correct),
        VerdictKind::Label { right, wrong } => match text(value) {
            Some(word) if same(word, right) => Some(Said::Correct(true)),
            Some(word) if same(word, wrong) => Some(Said::Correct(false)),
            _ => truth(value).map(Said::Correct),
        },
        VerdictKind::Score { most } => {
            let number: f64 = match value {
                Node::Number(number) => *number,
                // `4`, `4/5`
                Node::Text(text) => text.split('/').next()?.trim().parse().ok()?,
                _ => return None,
            };
            let whole = number.fract() == 0.0 && (0.0..=f64::from(most)).contains(&number);
            whole.then_some(Said::Score(number as u32))
        }
        VerdictKind::Choice { of } => {
            let text = text(value)?;
            of.iter().find(|word| same(word, text)).map(|word| Said::Choice((*word).to_owned()))
        }
    }
}

fn truth(value: &Node) -> Option<bool> {
    match value {
        Node::Bool(b) => Some(*b),
        Node::Number(n) if *n == 1.0 => Some(true),
        Node::Number(n) if *n == 0.0 => Some(false),
        Node::Text(s) => match s.trim().trim_end_matches('.').to_lowercase().as_str() {
            "true" | "yes" | "correct" | "pass" | "passed" | "1" => Some(true),
            "false" | "no" | "incorrect" | "not correct" | "fail" | "failed" | "wrong" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    }
}
