//! A probe being read, and its parsed form (R1).

use serde::Deserialize;

use crate::memory::cupmem::asking::Asker;
use crate::memory::cupmem::store::Store;
use palimpsest_data::ground::order::unique;

#[derive(Clone, Copy)]
pub struct Query<'a> {
    pub text: &'a str,
    /// Time of the question. The code's prompts omit it.
    pub as_of: Option<&'a str>,
}

pub struct Reading<'a, 'm> {
    pub asker: &'a mut Asker<'m>,
    pub store: &'a Store,
    pub query: Query<'a>,
    pub parsed: Parsed,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Parsed {
    /// `validity_check`, `premise_laden` or `task_planning` in the code's variant; free text in the paper's.
    pub intent: String,
    pub slots: Vec<String>,
    pub proposition: String,
    /// A former state the probe presupposes.
    pub old_premise: String,
    /// Current states the answer depends on.
    pub basis: String,
    pub action: String,
    pub goal: String,
    pub options: Vec<String>,
    /// A situation the probe presupposes without saying so.
    pub hidden_setup: String,
    pub presuppositions: Vec<String>,
}

impl Parsed {
    /// Fills empty fields as the public code does.
    pub fn complete(&mut self, query: &str) {
        let first = |parts: &[&String]| {
            let mut parts = parts.iter().filter(|part| !part.is_empty());
            parts.next().map(|part| (*part).clone()).unwrap_or_default()
        };
        let query = &query.to_owned();
        if self.is_planning() {
            self.action = first(&[&self.action, &self.proposition, query]);
            self.goal = first(&[&self.goal, &self.action]);
        }
        self.hidden_setup = first(&[&self.hidden_setup, &self.old_premise]);
        self.basis = first(&[&self.basis, &self.action, &self.proposition, query]);
    }

    pub fn is_planning(&self) -> bool {
        self.intent == "task_planning"
    }

    /// Search text: the premise, then the probe. The code's variant appends slots and presuppositions.
    pub fn search_text(&self, query: &str, is_code: bool) -> String {
        let premise = [&self.old_premise, &self.hidden_setup, &self.proposition].map(String::as_str);
        let slots = self.slots.iter().map(String::as_str);
        let presupposed = self.presuppositions.iter().map(String::as_str);
        match is_code {
            true => lines(premise.into_iter().chain([query]).chain(slots).chain(presupposed)),
            false => lines(premise.into_iter().chain(presupposed).chain([query])),
        }
    }
}

/// Joins distinct non-empty texts by newlines.
pub fn lines<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    unique(parts.into_iter().map(str::trim).filter(|part| !part.is_empty())).join("\n")
}
