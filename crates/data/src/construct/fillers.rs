//! Filler sessions: generated from topic patterns or read from a user's file, and cut at sentence ends.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use palimpsest_core::digest::sha256;
use palimpsest_core::text::{CountTokens, TextError};
use serde::Deserialize;

use super::error::BuildError;
use super::session::{ASSISTANT, USER, tokens};
use super::texts::{LICENCE, Topic, fill};
use crate::benchmarks::dose::implied::holds;
use crate::benchmarks::reading::Problem;
use crate::benchmarks::shape::{Checker, Node, Others, Places, Shape, TURN, WHOLE_ROW, needed};
use crate::case::Turn;
use crate::case::draw::Draws;
use crate::ground::text_file;
use crate::ground::words::capitalised;

const TRIES: usize = 40;
const ROW: Shape = Shape::Fields(
    &[
        needed("id", Shape::Text),
        needed("licence", Shape::Text),
        needed("turns", Shape::List("turn", 1, &TURN)),
    ],
    Others::Refused,
);

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
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
    /// JSONL, one `{"id", "licence", "turns": [{"role", "content"}]}` per line.
    pub fn read(path: &Path) -> Result<Self, BuildError> {
        let text = text_file::read(path).map_err(BuildError::io("read", path))?;
        let (mut fillers, mut ids) = (Vec::<Filler>::new(), Places::new());
        let mut faults: Vec<String> = Vec::new();
        let fault = |at: usize, problem: Problem| {
            let Problem { field, found, remedy, .. } = problem;
            let field = if field == WHOLE_ROW { "whole line".to_owned() } else { field };
            format!("line {}, {field}: {found}; {remedy}", at + 1)
        };
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let mut row = Checker::new(None, at, None);
            match serde_json::from_str::<Node>(line) {
                Ok(node) => {
                    row.unique("id", node.text("id"), "give every session its own id", &mut ids);
                    fillers.extend(row.read::<Filler>(node, &ROW));
                }
                Err(error) => {
                    let remedy = "write an object with id, licence and turns";
                    row.problem(WHOLE_ROW, format!("no JSON: {error}"), remedy);
                }
            }
            faults.extend(row.problems.into_iter().next().map(|problem| fault(at, problem)));
        }
        if fillers.is_empty() && faults.is_empty() {
            let mut row = Checker::new(None, 0, None);
            let remedy = "write {\"id\", \"licence\", \"turns\": [{\"role\", \"content\"}]} in each line";
            row.problem(WHOLE_ROW, "the file has no session", remedy);
            faults.extend(row.problems.into_iter().map(|problem| fault(0, problem)));
        }
        if !faults.is_empty() {
            return Err(BuildError::Fillers { path: path.to_owned(), faults });
        }
        for turn in fillers.iter_mut().flat_map(|filler| &mut filler.turns) {
            turn.content = turn.content.trim().to_owned();
        }
        Ok(GivenFillers { path: path.to_owned(), digest: sha256(text), fillers })
    }
}

#[derive(Clone)]
pub enum Source<'a> {
    Own(Vec<&'a Topic>),
    Given(&'a [Filler]),
}

/// Fillers of one stretch of an item, in their own random order.
pub struct Stream<'a> {
    source: Source<'a>,
    draws: Draws,
    order: Vec<usize>,
    next: usize,
    used: BTreeSet<String>,
    forbidden: Vec<String>,
    /// With their tokens.
    taken: Vec<(Filler, usize)>,
}

impl<'a> Stream<'a> {
    /// Stream number `part` of `parts`, which share the item's given fillers.
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
        Stream { source, draws, order, next: 0, used: BTreeSet::new(), forbidden, taken: Vec::new() }
    }

    fn allows(&self, filler: &Filler) -> bool {
        let held = |word: &String| filler.turns.iter().any(|turn| holds(&turn.content, word));
        !self.forbidden.iter().any(held)
    }

    /// Number `nth` of the stream, and its tokens; `None` once the user's fillers are exhausted.
    pub fn get(&mut self, nth: usize, count: &dyn CountTokens) -> Result<Option<(Filler, usize)>, TextError> {
        while self.taken.len() <= nth {
            let Some(filler) = self.drawn() else { return Ok(None) };
            let cost = tokens(count, &filler.turns)?;
            self.taken.push((filler, cost));
        }
        Ok(self.taken.get(nth).cloned())
    }

    fn drawn(&mut self) -> Option<Filler> {
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

/// One to three exchanges on one topic.
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

/// Prefixes of a session that end at a sentence, shortest first; the last is the whole session.
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

/// Byte offsets, including the end of the text.
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
