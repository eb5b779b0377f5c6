//! The columns of tables 1, 3, 11 and 13: all questions, the relations, and their subtypes.

use super::super::terms::{COMPLEMENTARY, CONTRADICTORY, NUANCED, RELATIONS};
use super::systems::{Outcome, System};

/// Some of the questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// All: the micro average, not the mean of the relations.
    All,
    /// Those of a relation.
    Relation(&'static str),
    /// Those of a subtype.
    Subtype(&'static str),
}

/// In the paper's order.
pub(super) const COLUMNS: [Column; 8] = [
    Column::All,
    Column::Relation(COMPLEMENTARY),
    Column::Subtype("multi_evidence"),
    Column::Subtype("any_one"),
    Column::Relation(NUANCED),
    Column::Subtype("temporal"),
    Column::Subtype("contextual"),
    Column::Relation(CONTRADICTORY),
];

impl Column {
    /// Its head.
    pub(super) fn name(self) -> &'static str {
        match self {
            Column::All => "all",
            Column::Relation(name) | Column::Subtype(name) => name,
        }
    }

    /// Whether it has a question.
    pub(super) fn holds(self, outcome: &Outcome<'_>) -> bool {
        match self {
            Column::All => true,
            Column::Relation(name) => outcome.relation == Some(name),
            Column::Subtype(name) => outcome.subtype == Some(name),
        }
    }

    /// How many questions it has, and how many of them are right.
    pub(super) fn counts(self, system: &System<'_>) -> (usize, usize) {
        let own = system.outcomes.values().filter(|outcome| self.holds(outcome));
        own.fold((0, 0), |(right, of), outcome| (right + usize::from(outcome.right), of + 1))
    }

    /// What a bootstrap draws within: of all questions the relations, and what a broken row does not tell; else the column itself.
    pub(super) fn stratum(self, outcome: &Outcome<'_>) -> usize {
        match self {
            Column::All => {
                let place = RELATIONS.iter().position(|relation| outcome.relation == Some(*relation));
                place.unwrap_or(RELATIONS.len())
            }
            _ => 0,
        }
    }
}
