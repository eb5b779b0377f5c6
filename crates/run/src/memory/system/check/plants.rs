//! Planted sentences of the checks and their sessions, and the findings.

use serde::Serialize;

use crate::memory::system::protocol::{Memory, SystemResult};
use crate::memory::system::wire::beginning;
use palimpsest_data::case::{Segment, Turn};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Yes,
    No,
    NotOffered,
}

impl Outcome {
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Yes => "yes",
            Outcome::No => "no",
            Outcome::NotOffered => "not offered",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub outcome: Outcome,
    /// True if a failure violates the protocol.
    pub required: bool,
    pub detail: String,
}

pub(super) type Seen = (Outcome, String);

pub(super) fn finding(check: &'static str, required: bool, seen: SystemResult<Seen>) -> Finding {
    let (outcome, detail) = match seen {
        Ok(seen) => seen,
        Err(error) => (Outcome::No, format!("{}: {}", error.op, error.message)),
    };
    Finding { check, outcome, required, detail }
}

pub(super) fn yes(detail: impl Into<String>) -> SystemResult<Seen> {
    Ok((Outcome::Yes, detail.into()))
}

pub(super) fn no(detail: impl Into<String>) -> SystemResult<Seen> {
    Ok((Outcome::No, detail.into()))
}

pub(super) fn seen(holds: bool, yes: impl Into<String>, no: impl Into<String>) -> SystemResult<Seen> {
    Ok(if holds { (Outcome::Yes, yes.into()) } else { (Outcome::No, no.into()) })
}

pub(super) fn not_offered(detail: impl Into<String>) -> SystemResult<Seen> {
    Ok((Outcome::NotOffered, detail.into()))
}

pub(super) fn quoted(text: &str) -> String {
    format!("`{}`", beginning(text, 80))
}

/// A sentence, its question, and the word that answers it.
pub(super) struct Plant {
    pub(super) sentence: &'static str,
    pub(super) query: &'static str,
    pub(super) word: &'static str,
}

pub(super) const LOCKER: Plant = Plant {
    sentence: "The code of my locker at the pool is quillfern.",
    query: "What is the code of my locker at the pool?",
    word: "quillfern",
};
pub(super) const LOCKER_DAY: &str = "2019-03-08";
pub(super) const BOAT: Plant = Plant {
    sentence: "My grandfather's boat was named Marbleoak.",
    query: "What was the name of my grandfather's boat?",
    word: "marbleoak",
};
pub(super) const BAKERY: Plant = Plant {
    sentence: "I buy bread at the bakery called Tindrabee.",
    query: "At which bakery do I buy bread?",
    word: "tindrabee",
};
pub(super) const UNICODE: Plant = Plant {
    sentence: "My cat is called Ζέφυρος猫 🙂, “the \\ \"quick\" one” — naïve, שלום.",
    query: "My cat is called what?",
    word: "ζέφυρος猫 🙂, “the \\ \"quick\" one” — naïve, שלום",
};
pub(super) const FILLER: [&str; 4] = [
    "I watered the tomatoes on the balcony this evening.",
    "The train to the office was late again by ten minutes.",
    "I am reading a long novel about lighthouse keepers.",
    "My neighbour plays the cello on Sunday afternoons.",
];

pub(super) fn holds(memory: &Memory, plant: &Plant) -> bool {
    memory.text.to_lowercase().contains(plant.word)
}

pub(super) fn session(index: usize, turns: Vec<Turn>) -> Segment {
    let time = format!("2019-03-{:02}T10:00:00", index + 7).parse().ok();
    Segment { kind: "session".to_owned(), index, time, turns }
}

pub(super) fn said(index: usize, sentence: &str) -> Segment {
    session(index, vec![Turn::new("user", sentence), Turn::new("assistant", "Thank you for telling me.")])
}

/// Four sessions, the second with a plant.
pub(super) fn with(plant: &Plant) -> Vec<Segment> {
    let sentences = [FILLER[0], plant.sentence, FILLER[1], FILLER[2]];
    sentences.iter().enumerate().map(|(index, sentence)| said(index, sentence)).collect()
}
