//! Filler sessions: our own, drawn from patterns by topic, or those of a file that the user gives.
//!
//! Also cuts the last one of a stretch at a border of sentences. Knows no item but the words that a filler must not hold.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use palimpsest_core::digest::sha256;
use serde_json::{Map, Value};

use super::error::BuildError;
use super::session::{ASSISTANT, USER};
use super::texts::{LICENCE, Topic, fill};
use crate::benchmarks::dose::implied::holds;
use crate::data::Turn;
use crate::data::draw::Draws;
use crate::ground::text_file;

/// Draws before a repeated session of our own is taken.
const TRIES: usize = 40;

#[derive(Debug, Clone, PartialEq)]
pub struct Filler {
    pub id: String,
    pub licence: String,
    pub turns: Vec<Turn>,
}

#[derive(Debug, Clone, Default)]
pub struct GivenFillers {
    pub path: PathBuf,
    pub digest: String,
    pub fillers: Vec<Filler>,
}

impl GivenFillers {
    /// Reads JSONL: `{"id", "licence", "turns": [{"role", "content"}]}` a line.
    pub fn read(path: &Path) -> Result<Self, BuildError> {
        let text = text_file::read(path).map_err(BuildError::io("read", path))?;
        let mut fillers: Vec<Filler> = Vec::new();
        let mut ids = BTreeSet::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |field: &str, found: String, remedy| BuildError::Filler {
                path: path.to_owned(),
                line: at + 1,
                field: field.to_owned(),
                found,
                remedy,
            };
            let filler = filler_of(line, &wrong)?;
            if !ids.insert(filler.id.clone()) {
                return Err(wrong(
                    "id",
                    format!("{:?} for the second time", filler.id),
                    "give every session its own id",
                ));
            }
            fillers.push(filler);
        }
        if fillers.is_empty() {
            let remedy = "write {\"id\", \"licence\", \"turns\": [{\"role\", \"content\"}]} in each line";
            let (path, found) = (path.to_owned(), "the file has no session".to_owned());
            return Err(BuildError::Filler { path, line: 1, field: "whole line".to_owned(), found, remedy });
        }
        Ok(GivenFillers { path: path.to_owned(), digest: sha256(text), fillers })
    }
}

fn filler_of(
    line: &str,
    wrong: &dyn Fn(&str, String, &'static str) -> BuildError,
) -> Result<Filler, BuildError> {
    let shape = "write an object with id, licence and turns";
    let value: Value = serde_json::from_str(line)
        .map_err(|error| wrong("whole line", format!("no JSON: {error}"), shape))?;
    let Value::Object(fields) = value else {
        return Err(wrong("whole line", "no object".to_owned(), shape));
    };
    if let Some(name) = fields.keys().find(|name| !["id", "licence", "turns"].contains(&name.as_str())) {
        return Err(wrong(name, "no such field".to_owned(), "leave it out: there are id, licence and turns"));
    }
    let text = |fields: &Map<String, Value>, name: &str, path: &str| match fields.get(name) {
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
        other => {
            let found = other.map_or("no such field".to_owned(), Value::to_string);
            Err(wrong(path, found, "write a text that is not blank"))
        }
    };
    let (id, licence) = (text(&fields, "id", "id")?, text(&fields, "licence", "licence")?);
    let turns = match fields.get("turns") {
        Some(Value::Array(turns)) if !turns.is_empty() => turns,
        other => {
            let found = other.map_or("no such field".to_owned(), Value::to_string);
            return Err(wrong("turns", found, "write a list of at least one turn"));
        }
    };
    let mut read = Vec::new();
    for (at, turn) in turns.iter().enumerate() {
        let path = |name: &str| format!("turns[{at}].{name}");
        let Value::Object(fields) = turn else {
            return Err(wrong(
                &format!("turns[{at}]"),
                turn.to_string(),
                "write an object with role and content",
            ));
        };
        let role = text(fields, "role", &path("role"))?;
        if role != USER && role != ASSISTANT {
            return Err(wrong(&path("role"), format!("{role:?}"), "write \"user\" or \"assistant\""));
        }
        read.push(Turn::new(role, text(fields, "content", &path("content"))?.trim()));
    }
    Ok(Filler { id, licence, turns: read })
}

#[derive(Clone)]
pub enum Source<'a> {
    Own(Vec<&'a Topic>),
    Given(&'a [Filler]),
}

/// Fillers of one stretch of one item, in an order of its own.
pub struct Stream<'a> {
    source: Source<'a>,
    draws: Draws,
    /// The order of given ones, and how many are used.
    order: Vec<usize>,
    next: usize,
    used: BTreeSet<String>,
    forbidden: Vec<String>,
}

impl<'a> Stream<'a> {
    /// A stream; `parts` streams of an item share its given fillers, of which this is the `part`th.
    pub fn new(
        source: Source<'a>,
        mut of_item: Draws,
        draws: Draws,
        (part, parts): (usize, usize),
        forbidden: Vec<String>,
    ) -> Self {
        let mut order = Vec::new();
        if let Source::Given(given) = &source {
            order = (0..given.len()).collect();
            of_item.shuffle(&mut order);
            order = order.into_iter().skip(part).step_by(parts).collect();
        }
        Stream { source, draws, order, next: 0, used: BTreeSet::new(), forbidden }
    }

    fn allows(&self, filler: &Filler) -> bool {
        let held = |word: &String| filler.turns.iter().any(|turn| holds(&turn.content, word));
        !self.forbidden.iter().any(held)
    }
}

impl Iterator for Stream<'_> {
    type Item = Filler;

    /// `None` where the user's are used up.
    fn next(&mut self) -> Option<Filler> {
        match &self.source {
            Source::Given(given) => loop {
                let filler = &given[*self.order.get(self.next)?];
                self.next += 1;
                if self.allows(filler) {
                    return Some(filler.clone());
                }
            },
            Source::Own(topics) => {
                let mut filler = own(&mut self.draws, topics);
                for _ in 0..TRIES {
                    if self.allows(&filler) && !self.used.contains(&filler.id) {
                        break;
                    }
                    filler = own(&mut self.draws, topics);
                }
                self.used.insert(filler.id.clone());
                Some(filler)
            }
        }
    }
}

/// A session of one to three exchanges about one thing.
fn own(draws: &mut Draws, topics: &[&Topic]) -> Filler {
    let topic = topics[draws.index(topics.len())];
    let thing_at = draws.index(topic.things.len());
    let thing = &topic.things[thing_at];
    let exchanges = 1 + draws.index(3);
    let mut asks: Vec<usize> = (0..topic.asks.len()).collect();
    let mut tells: Vec<usize> = (0..topic.tells.len()).collect();
    draws.shuffle(&mut asks);
    draws.shuffle(&mut tells);
    let mut id = format!("{}.{thing_at}", topic.name);
    let mut turns = Vec::new();
    for exchange in 0..exchanges {
        let (ask, first, second) = (asks[exchange], tells[2 * exchange], tells[2 * exchange + 1]);
        id.push_str(&format!(".{ask}-{first}-{second}"));
        let said = |pattern: &str| capitalised(&fill(pattern, &[("x", thing)]));
        turns.push(Turn::new(USER, said(&topic.asks[ask])));
        let answer = format!("{} {}", said(&topic.tells[first]), said(&topic.tells[second]));
        turns.push(Turn::new(ASSISTANT, answer));
    }
    Filler { id, licence: LICENCE.to_owned(), turns }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// The beginnings of a session that end with a sentence, shortest first; the whole one is the last.
pub fn beginnings(turns: &[Turn]) -> Vec<Vec<Turn>> {
    let mut all = Vec::new();
    let mut before: Vec<Turn> = Vec::new();
    for turn in turns {
        for end in sentence_ends(&turn.content) {
            let mut cut = before.clone();
            cut.push(Turn::new(turn.role.clone(), turn.content[..end].trim_end()));
            all.push(cut);
        }
        before.push(turn.clone());
    }
    all
}

/// Bytes at which sentences end; the end of the text is one.
fn sentence_ends(text: &str) -> Vec<usize> {
    let ends = text.match_indices(['.', '?', '!']).map(|(at, mark)| at + mark.len());
    let mut ends: Vec<usize> = ends.filter(|end| text[*end..].starts_with([' ', '\n'])).collect();
    ends.push(text.len());
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_cut_at_sentences() {
        let turns = [Turn::new(USER, "Is it so? I ask."), Turn::new(ASSISTANT, "Yes.")];
        let texts =
            |cut: &Vec<Turn>| cut.iter().map(|turn| turn.content.clone()).collect::<Vec<_>>().join("|");
        let all: Vec<String> = beginnings(&turns).iter().map(texts).collect();
        assert_eq!(all, ["Is it so?", "Is it so? I ask.", "Is it so? I ask.|Yes."]);
    }
}
