//! The columns of tables 1, 3, 11 and 13: all questions, the relations, and their subtypes.

use std::collections::BTreeMap;

use super::super::terms::{COMPLEMENTARY, CONTRADICTORY, NUANCED, RELATIONS, SINGLE_EVIDENCE};
use super::systems::{Outcome, System};
use crate::statistics::bounded::Stratum;

/// Some of the questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// All: the micro average, not the mean of the relations.
    All,
    Relation(&'static str),
    Subtype(&'static str),
}

/// In the paper's order. Sets of single evidence, which the paper has not, have their column where there are any.
const COLUMNS: [Column; 9] = [
    Column::All,
    Column::Relation(COMPLEMENTARY),
    Column::Subtype("multi_evidence"),
    Column::Subtype("any_one"),
    Column::Subtype(SINGLE_EVIDENCE),
    Column::Relation(NUANCED),
    Column::Subtype("temporal"),
    Column::Subtype("contextual"),
    Column::Relation(CONTRADICTORY),
];

/// The columns of some systems.
pub(super) fn columns_of(systems: &[&System<'_>]) -> Vec<Column> {
    let is_asked = |column: &Column| systems.iter().any(|system| column.counts(system).1 > 0);
    let single = Column::Subtype(SINGLE_EVIDENCE);
    COLUMNS.into_iter().filter(|column| *column != single || is_asked(column)).collect()
}

impl Column {
    /// Its head.
    pub(super) fn name(self) -> &'static str {
        match self {
            Column::All => "all",
            Column::Relation(name) | Column::Subtype(name) => name,
        }
    }

    /// True if it has a question.
    pub(super) fn holds(self, outcome: &Outcome<'_>) -> bool {
        match self {
            Column::All => true,
            Column::Relation(name) => outcome.relation == Some(name),
            Column::Subtype(name) => outcome.subtype == Some(name),
        }
    }

    /// Its right questions, and all of them.
    pub(super) fn counts(self, system: &System<'_>) -> (usize, usize) {
        let own = system.outcomes.values().filter(|outcome| self.holds(outcome));
        own.fold((0, 0), |(right, of), outcome| (right + usize::from(outcome.right), of + 1))
    }

    /// The numbers of some of its questions by what an interval holds fixed: of all questions the relations, and what a broken row does
    /// not tell; else the column itself.
    pub(super) fn strata<'s, 'a: 's>(
        self,
        questions: impl Iterator<Item = (&'s Outcome<'a>, f64)>,
    ) -> Vec<Stratum> {
        let mut strata: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut count = 0.0;
        for (outcome, number) in questions {
            let relation = RELATIONS.iter().position(|relation| outcome.relation == Some(*relation));
            let at = if self == Column::All { relation.unwrap_or(RELATIONS.len()) } else { 0 };
            strata.entry(at).or_default().push(number);
            count += 1.0;
        }
        strata.into_values().map(|units| Stratum { weight: units.len() as f64 / count, units }).collect()
    }
}
