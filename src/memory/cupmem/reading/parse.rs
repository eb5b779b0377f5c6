//! R1: a probe taken apart: its intent, its premises, the basis that an answer needs.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::shapes::{array, object, one_of, text};
use crate::ground::order::unique;

/// A probe.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    pub text: &'a str,
    /// When it is asked. The code's prompts never say.
    pub as_of: Option<&'a str>,
}

/// A probe taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
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

/// The intent of the code that is grounded in actions.
const PLANNING: &str = "task_planning";

impl Parsed {
    /// Is it planning, so that R6 grounds the action?
    pub fn is_planning(&self) -> bool {
        self.intent == PLANNING
    }

    /// Does it name choices?
    pub fn has_choices(&self) -> bool {
        !self.options.is_empty()
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
    #[must_use]
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

/// The shape of replies.
pub fn reply_shape(is_code: bool) -> Value {
    let presuppositions = ("presuppositions", array(text(), 6));
    if !is_code {
        let intent = ("intent", text());
        return object([intent, presuppositions, ("basis", text()), ("action", text())]);
    }
    object([
        ("intent", one_of(&["validity_check", "premise_laden", PLANNING])),
        ("slots", array(text(), 4)),
        ("proposition", text()),
        ("old_premise", text()),
        ("basis", text()),
        ("action", text()),
        ("goal", text()),
        ("options", array(text(), 6)),
        ("hidden_setup", text()),
        presuppositions,
    ])
}

/// Takes a probe apart.
pub fn parse(asker: &mut Asker<'_>, query: Query<'_>) -> Result<Result<Parsed, Fault>, Unreachable> {
    let is_code = asker.settings.is_code();
    let as_of = query.as_of.filter(|_| !is_code);
    let data = json!({ "query": query.text, "as_of": as_of });
    asker.ask(Step::Parse, &data, &reply_shape(is_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_searched_by_premises_first_and_nothing_twice() {
        let parsed = Parsed {
            old_premise: "Lives in Oslo".to_owned(),
            proposition: "Lives in Oslo".to_owned(),
            hidden_setup: " ".to_owned(),
            presuppositions: vec!["Has a car".to_owned()],
            ..Parsed::default()
        };
        assert_eq!(parsed.search_text("Where to?", false), "Lives in Oslo\nHas a car\nWhere to?");
        let parsed = Parsed { slots: vec!["current_base_location".to_owned()], ..parsed };
        let code = "Lives in Oslo\nWhere to?\ncurrent_base_location\nHas a car";
        assert_eq!(parsed.search_text("Where to?", true), code);
    }

    #[test]
    fn what_a_plan_leaves_open_is_filled_in() {
        let plan =
            Parsed { intent: PLANNING.to_owned(), old_premise: "Has a car".to_owned(), ..Parsed::default() };
        let plan = plan.completed("Plan it");
        let filled = [&plan.action, &plan.goal, &plan.basis, &plan.hidden_setup].map(String::as_str);
        assert_eq!(filled, ["Plan it", "Plan it", "Plan it", "Has a car"]);
        let other = Parsed { proposition: "Drives".to_owned(), ..Parsed::default() }.completed("Still?");
        assert_eq!((other.action.as_str(), other.basis.as_str()), ("", "Drives"));
    }
}
