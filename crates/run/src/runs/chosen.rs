//! Conditions selected on the command line.
//!
//! `plain` is an ordinary name: it is an error if the run has no plain condition.

use super::condition::{label, stored};
use super::error::RunError;
use super::rows::{AnswerKey, AnswerRow};
use super::store::RunFolder;

impl RunFolder {
    /// Stored names of the typed conditions, without duplicates, in run order; all if none is typed.
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

    pub fn has_conditions(&self) -> bool {
        self.header.identity.condition_names() != [""]
    }

    /// Unanswered questions as `case/probe`, with the condition if the run has several.
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
