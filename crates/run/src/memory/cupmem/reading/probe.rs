//! A probe, taken apart, while it is read.

use serde::Deserialize;

use crate::memory::cupmem::asking::Asker;
use crate::memory::cupmem::store::Store;
use palimpsest_data::ground::order::unique;

#[derive(Clone, Copy)]
pub struct Query<'a> {
    pub text: &'a str,
    /// When it is asked. The code's prompts never say.
    pub as_of: Option<&'a str>,
}

/// A probe taken apart (R1).
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Parsed {
    /// In the code `validity_check`, `premise_laden` or `task_planning`; in the paper free.
    pub intent: String,
    pub slots: Vec<String>,
    pub proposition: String,
    /// A former state that it takes to hold.
    pub old_premise: String,
    /// The current states that an answer must rest on.
    pub basis: String,
    pub action: String,
    pub goal: String,
    pub options: Vec<String>,
    /// A situation that it takes for granted without a word.
    pub hidden_setup: String,
    pub presuppositions: Vec<String>,
}

impl Parsed {
    /// Is it planning, so that R6 grounds the action?
    pub fn is_planning(&self) -> bool {
        self.intent == "task_planning"
    }

    /// The text that memory is searched by: what the probe takes to hold, then what it says. The code puts the slots and presuppositions last.
    pub fn search_text(&self, query: &str, is_code: bool) -> String {
        let premise = [&self.old_premise, &self.hidden_setup, &self.proposition].map(String::as_str);
        let presupposed = self.presuppositions.iter().map(String::as_str);
        match is_code {
            true => {
                let slots = self.slots.iter().map(String::as_str);
                lines(premise.into_iter().chain([query]).chain(slots).chain(presupposed))
            }
            false => lines(premise.into_iter().chain(presupposed).chain([query])),
        }
    }

    /// The same with what is left empty filled in as the public code does.
    pub fn completed(mut self, query: &str) -> Self {
        let first =
            |parts: [&str; 3]| parts.into_iter().find(|part| !part.is_empty()).unwrap_or_default().to_owned();
        if self.is_planning() {
            self.action = first([&self.action, &self.proposition, query]);
            self.goal = first([&self.goal, &self.action, ""]);
        }
        self.hidden_setup = first([&self.hidden_setup, &self.old_premise, ""]);
        self.basis = first([&self.basis, &self.action, &first([&self.proposition, query, ""])]);
        self
    }
}

/// Texts one below the other, each once, empty ones left out.
pub fn lines<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    unique(parts.into_iter().map(str::trim).filter(|part| !part.is_empty())).join("\n")
}

pub struct Reading<'a, 'm> {
    pub asker: &'a mut Asker<'m>,
    pub store: &'a Store,
    pub query: Query<'a>,
    pub parsed: Parsed,
}
