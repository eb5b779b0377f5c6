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
//! draft, as is all that stands before the end of a thought (`</think>`). A last group that says something else and stands inside a
//! sentence may be an example (`{"score": 5} would need more`), and then nothing is read. Within a group verdicts are merged by id. In a reply that was cut, an
//! unfinished object at its end is the last group even if it holds no verdict, because what it was about to say is not known.
//!
//! **Verdicts.** The verdict of an object stands under the key that was asked for, and where there is none, under the first of other
//! usual keys that holds one. What the key that was asked for holds and is no verdict (a score of another scale, `"partly"`) is told as
//! such and not looked past. An object's own verdict outweighs those inside it, which are of its parts.

use super::loose_json::{self, Node};
use super::verdict::Verdict;
use palimpsest_data::benchmarks::Said;
use palimpsest_data::benchmarks::VerdictKind;

/// Most bytes of a reply, and most brackets in it that begin no value: far more than verdicts take, and little enough that no
/// reply keeps the reader busy. Beyond them nothing is read, since what decides may stand there.
const LONGEST: usize = 1 << 18;
const MOST_UNREADABLE: usize = 256;

const LABEL_WORDS: usize = 4;

const QUOTED: usize = 60;

/// The tags that models put their thoughts between.
const THOUGHTS: [&str; 4] = ["think", "thinking", "thought", "reasoning"];

/// Verdict of a reply on one id.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    Verdict(Verdict),
    Differing(Said, Said),
    /// Something that is no verdict of the kind stands where the verdict should.
    Unread(String),
    Missing,
}

#[derive(Debug, Clone, Copy)]
pub struct ReplyText<'a> {
    pub text: &'a str,
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
    let none = || vec![Found::Missing; ids.len()];
    let says = |found: &Vec<Found>| found.iter().any(|found| *found != Found::Missing);
    let mut said = groups.iter().rev().map(|group| (group, of(group))).filter(|(_, found)| says(found));
    let Some((group, last)) = said.next() else { return none() };
    let after = group.last().and_then(|object| reply.text.get(object.end..)?.lines().next());
    let goes_on = after.is_some_and(|line| !words(line).is_empty());
    if goes_on && said.any(|(_, earlier)| !agree(&earlier, &last)) { none() } else { last }
}

/// True if two groups say the same of every id that both say something of.
fn agree(one: &[Found], other: &[Found]) -> bool {
    one.iter().zip(other).all(|pair| match pair {
        (Found::Missing, _) | (_, Found::Missing) => true,
        (Found::Verdict(one), Found::Verdict(other)) => one.said == other.said,
        (one, other) => one == other,
    })
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

/// Where the last thought of a reply ends; `None` where it does not end.
fn after_thoughts(text: &str) -> Option<usize> {
    let closed = THOUGHTS.iter().filter_map(|name| {
        let tag = format!("</{name}>");
        Some(text.rfind(&tag)? + tag.len())
    });
    let opened = || THOUGHTS.iter().any(|name| text.trim_start().starts_with(&format!("<{name}>")));
    closed.max().or_else(|| (!opened()).then_some(0))
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

/// A verdict, or what stands in its place and is none.
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

    /// Adds every verdict that names the id: under it as a key, beside it as a name, in flat keys, and only where there is none of
    /// these, further down.
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

    /// Adds the verdict of what is on the id without naming it: its own, and only where it has none, those of its parts. A score of one
    /// part of several is not that of the whole.
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

/// Keys that models use in the place of the one that was asked for, the likeliest first; scores have others.
const WORDS: &str =
    "correct iscorrect choice label verdict decision result pass passed judgement judgment grade";
const SCORES: &str = "rating grade total overall final verdict decision result judgement judgment";
/// Keys of a score of the whole, as good as the one that was asked for.
const TOTALS: [&str; 3] = ["finalscore", "totalscore", "overallscore"];
/// Keys of the best score of a scale.
const BEST: [&str; 7] = ["outof", "max", "maxscore", "maximum", "maximumscore", "scoremax", "scale"];
const REASONS: [&str; 5] = ["reason", "reasoning", "explanation", "rationale", "why"];

/// The verdicts under the keys that `is` takes for those of verdicts: several where a key occurs again.
fn decided(
    entries: &[(String, Node)],
    kind: VerdictKind,
    is: impl Fn(&str, &str) -> bool,
) -> Vec<Stated<Said>> {
    let values = |word: &str| -> Vec<&Node> {
        entries.iter().filter(|(key, _)| is(key, word)).map(|(_, value)| value).collect()
    };
    let under = |word: &str| values(word).into_iter().filter_map(|value| scalar(value, kind));
    // Under a key that was not asked for, 1 is as likely a grade as a yes.
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
            // `4/5`, `4 out of 5`; of another scale it is no score of this one
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

/// A text without the marks that set it in bold or in code.
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

/// The best score of a scale: 10 of `10` and of `0-10`.
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
