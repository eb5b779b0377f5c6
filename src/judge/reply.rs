//! Reads verdicts out of what a judge wrote when it was asked for JSON.
//!
//! Models wrap JSON in prose and code fences, quote it with apostrophes, leave trailing commas, write Python's words or
//! flatten the keys. Whatever can be read in one way only is read; what cannot is a missing verdict, never a guess.

use serde_json::{Map, Value};

use super::verdict::{Said, Verdict};
use crate::benchmarks::VerdictKind;

/// Most places of a reply at which JSON is looked for, and most bytes of it: far more than verdicts take, and little
/// enough that no reply keeps the reader busy.
const MOST_STARTS: usize = 256;
const LONGEST: usize = 1 << 16;

/// The verdict on each of `ids`, in order, as far as `text` holds it.
///
/// Of several JSON objects in the text the last that names any of the ids counts: models that think aloud end with
/// their decision.
pub fn parse_verdicts(text: &str, ids: &[&str], kind: VerdictKind) -> Vec<Option<Verdict>> {
    let mut found = vec![None; ids.len()];
    let starts: Vec<usize> = text.match_indices(['{', '[']).map(|(start, _)| start).collect();
    // The last ones: a reply may be long, and what decides stands at its end.
    for &start in starts.iter().skip(starts.len().saturating_sub(MOST_STARTS)) {
        let Some(rest) = text.get(start..text.floor_char_boundary(start.saturating_add(LONGEST))) else {
            continue;
        };
        let Some(value) = strict(rest).or_else(|| Lenient::new(rest).value(0)) else { continue };
        let verdicts: Vec<Option<Verdict>> =
            ids.iter().map(|id| find(&value, id, ids.len() == 1, kind)).collect();
        let count = |v: &[Option<Verdict>]| v.iter().filter(|v| v.is_some()).count();
        // An object inside one that was read already names fewer ids, or the same: only a later, complete one counts.
        if count(&verdicts) > 0 && count(&verdicts) >= count(&found) {
            found = verdicts;
        }
    }
    found
}

/// The JSON value at the beginning of `text`, whatever follows it.
fn strict(text: &str) -> Option<Value> {
    serde_json::Deserializer::from_str(text).into_iter::<Value>().next()?.ok()
}

/// Looks for the verdict on `id` in an object, a list of objects, or one level further down. A verdict on the `only` one need
/// not name it.
fn find(value: &Value, id: &str, only: bool, kind: VerdictKind) -> Option<Verdict> {
    match value {
        Value::Object(map) => {
            if let Some((_, inner)) = map.iter().find(|(key, _)| same(key, id)) {
                return verdict(inner, kind).or_else(|| {
                    let said = said(inner, kind)?;
                    Some(Verdict { said, probability: None, reason: flat_text(map, id) })
                });
            }
            // {"id": "SR", "correct": true}
            let named = ["id", "probe", "dimension", "name", "exchange"];
            if map
                .iter()
                .any(|(key, v)| named.iter().any(|n| same(key, n)) && v.as_str().is_some_and(|v| same(v, id)))
            {
                return verdict(value, kind);
            }
            // {"SR_correct": true, "SR_reason": "..."}
            let flat = DECISIONS.iter().find_map(|word| {
                let key = format!("{id}{word}");
                let swapped = format!("{word}{id}");
                map.iter().find(|(k, _)| same(k, &key) || same(k, &swapped)).and_then(|(_, v)| said(v, kind))
            });
            if let Some(said) = flat {
                return Some(Verdict { said, probability: None, reason: flat_text(map, id) });
            }
            let deeper = map.values().filter(|v| v.is_object() || v.is_array());
            let deeper = deeper.into_iter().find_map(|v| find(v, id, only, kind));
            deeper.or_else(|| verdict(value, kind).filter(|_| only))
        }
        Value::Array(items) => items.iter().find_map(|item| find(item, id, only, kind)),
        _ => None,
    }
}

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

/// `{"correct": true, "reason": "..."}`
fn verdict(value: &Value, kind: VerdictKind) -> Option<Verdict> {
    let map = value.as_object()?;
    let pick = |names: &[&str]| {
        names.iter().find_map(|name| map.iter().find(|(key, _)| same(key, name)).map(|(_, v)| v))
    };
    let said = said(pick(&DECISIONS)?, kind)?;
    let reason = pick(&REASONS).and_then(Value::as_str).map(tidy).filter(|r| !r.is_empty());
    Some(Verdict { said, probability: None, reason })
}

fn flat_text(map: &Map<String, Value>, id: &str) -> Option<String> {
    REASONS.iter().find_map(|word| {
        let key = format!("{id}{word}");
        map.iter()
            .find(|(k, _)| same(k, &key))
            .and_then(|(_, v)| v.as_str())
            .map(tidy)
            .filter(|r| !r.is_empty())
    })
}

fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether two keys are the same but for case and punctuation.
fn same(a: &str, b: &str) -> bool {
    let letters = |s: &str| -> String {
        s.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    letters(a) == letters(b)
}

/// What a value says, by the kind of verdict that was asked for.
fn said(value: &Value, kind: VerdictKind) -> Option<Said> {
    match kind {
        VerdictKind::Correct => truth(value).map(Said::Correct),
        VerdictKind::Score { most } => {
            let number = match value {
                Value::Number(number) => number.as_f64()?,
                // `4`, `4/5`
                Value::String(text) => text.split('/').next()?.trim().parse().ok()?,
                _ => return None,
            };
            let whole = number.fract() == 0.0 && (0.0..=f64::from(most)).contains(&number);
            whole.then_some(Said::Score(number as u32))
        }
        VerdictKind::Choice { of } => {
            let text = value.as_str()?;
            of.iter().find(|word| same(word, text)).map(|word| Said::Choice((*word).to_owned()))
        }
    }
}

fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(b) => Some(*b),
        Value::Number(n) if n.as_f64() == Some(1.0) => Some(true),
        Value::Number(n) if n.as_f64() == Some(0.0) => Some(false),
        Value::String(s) => match s.trim().trim_end_matches('.').to_lowercase().as_str() {
            "true" | "yes" | "correct" | "pass" | "passed" | "1" => Some(true),
            "false" | "no" | "incorrect" | "not correct" | "fail" | "failed" | "wrong" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// Deeper nesting than any verdict has; more is refused rather than recursed into.
const DEEPEST: usize = 16;

/// A reader of almost-JSON: either quote, quotes inside strings, bare words and keys, trailing commas, raw newlines, and
/// an end that was cut off.
struct Lenient {
    text: Vec<char>,
    at: usize,
}

impl Lenient {
    fn new(text: &str) -> Self {
        Lenient { text: text.chars().collect(), at: 0 }
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn skip(&mut self, wanted: char) -> bool {
        self.skip_space();
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.skip_space();
        match self.peek()? {
            _ if depth > DEEPEST => None,
            '{' => self.object(depth),
            '[' => self.array(depth),
            quote @ ('"' | '\'') => self.string(quote).map(Value::String),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.at += 1;
        let mut map = Map::new();
        loop {
            while self.skip(',') {}
            // A reply that was cut off keeps what was whole.
            if self.skip('}') || self.peek().is_none() {
                return Some(Value::Object(map));
            }
            let key = match self.peek()? {
                quote @ ('"' | '\'') => self.string(quote),
                _ => self.word().and_then(|w| w.as_str().map(str::to_owned)),
            };
            let pair = key.filter(|_| self.skip(':')).and_then(|key| Some((key, self.value(depth + 1)?)));
            match pair {
                Some((key, value)) => map.insert(key, value),
                None if self.peek().is_none() => return Some(Value::Object(map)),
                None => return None,
            };
        }
    }

    fn array(&mut self, depth: usize) -> Option<Value> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            while self.skip(',') {}
            if self.skip(']') || self.peek().is_none() {
                return Some(Value::Array(items));
            }
            items.push(self.value(depth + 1)?);
        }
    }

    /// A quoted string. A quote closes it only before `, : } ]` or the end, so that `'doesn't'` and `"so-called "old" one"`
    /// are read whole.
    fn string(&mut self, quote: char) -> Option<String> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let c = self.peek()?;
            self.at += 1;
            match c {
                '\\' => {
                    let escaped = self.peek()?;
                    self.at += 1;
                    out.push(match escaped {
                        'n' | 't' | 'r' => ' ',
                        other => other,
                    });
                }
                c if c == quote => {
                    let next = self.text.get(self.at..)?.iter().find(|c| !c.is_whitespace());
                    if next.is_none_or(|c| matches!(c, ',' | ':' | '}' | ']')) {
                        return Some(out);
                    }
                    out.push(c);
                }
                c => out.push(c),
            }
        }
    }

    /// A bare word or number; `True`, `None` and their like included.
    fn word(&mut self) -> Option<Value> {
        let mut out = String::new();
        while let Some(c) =
            self.peek().filter(|c| !matches!(c, ',' | ':' | '}' | ']' | '{' | '[' | '"' | '\n'))
        {
            out.push(c);
            self.at += 1;
        }
        let out = out.trim();
        (!out.is_empty()).then(|| match out.to_lowercase().as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" | "none" => Value::Null,
            _ => serde_json::from_str(out).unwrap_or_else(|_| Value::from(out)),
        })
    }
}
