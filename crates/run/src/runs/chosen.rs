//! Which of a run's conditions are meant, as people type them.
//!
//! `plain` is a name like any other here: a run without a plain condition has none of that name, and nothing stands in for it.

use super::condition::{label, stored};
use super::error::RunError;
use super::rows::{AnswerKey, AnswerRow};
use super::store::RunFolder;

impl RunFolder {
    /// The stored names of the conditions that are typed, each once and in the run's order; all where none is typed.
    pub fn chosen_conditions(&self, typed: &[String]) -> Result<Vec<String>, RunError> {
        let known = self.header.identity.condition_names();
        if let Some(name) = typed.iter().find(|name| !known.contains(&stored(name))) {
            return Err(RunError::UnknownCondition {
                dir: self.dir.clone(),
                name: label(name).to_owned(),
                known: known.iter().map(|name| label(name)).collect::<Vec<_>>().join(", "),
            });
        }
        let is_typed = |name: &&&str| typed.is_empty() || typed.iter().any(|typed| stored(typed) == **name);
        Ok(known.iter().filter(is_typed).map(|name| (*name).to_owned()).collect())
    }

    /// True if the run has any condition beside the plain one, so that its files and headings name conditions.
    pub fn has_conditions(&self) -> bool {
        self.header.identity.condition_names() != [""]
    }

    /// The questions that have no row yet, as `case/probe`, with the condition where the run has several.
    pub fn missing(&self, conditions: &[String]) -> Vec<String> {
        let asked: std::collections::HashSet<_> = self.answers.iter().map(AnswerRow::key).collect();
        let named = |case: &str, probe: &str, condition: &str| {
            let under =
                if self.has_conditions() { format!(" ({})", label(condition)) } else { String::new() };
            format!("{case}/{probe}{under}")
        };
        let mut missing = Vec::new();
        for case in &self.plan {
            for probe in &case.probes {
                let lacks = |name: &&String| !asked.contains(&AnswerKey::of(&case.case, &probe.id, name));
                missing
                    .extend(conditions.iter().filter(lacks).map(|name| named(&case.case, &probe.id, name)));
            }
        }
        missing
    }
}
