//! Planted sentences of the checks, and their sessions.

use crate::memory::system::protocol::{Memory, SessionInput, TurnInput};

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

pub(super) fn turn(role: &str, content: &str) -> (String, String) {
    (role.to_owned(), content.to_owned())
}

pub(super) fn session(number: usize, turns: Vec<(String, String)>) -> SessionInput {
    let turn = |(id, (role, content))| TurnInput { id, role, content };
    SessionInput {
        id: format!("session[{number}]"),
        time: Some(format!("2019-03-{:02}T10:00:00", number + 7)),
        turns: turns.into_iter().enumerate().map(turn).collect(),
    }
}

pub(super) fn said(number: usize, sentence: &str) -> SessionInput {
    session(number, vec![turn("user", sentence), turn("assistant", "Thank you for telling me.")])
}

/// Four sessions, the second with a plant.
pub(super) fn with(plant: &Plant) -> Vec<SessionInput> {
    [FILLER[0], plant.sentence, FILLER[1], FILLER[2]]
        .iter()
        .enumerate()
        .map(|(number, sentence)| said(number, sentence))
        .collect()
}
