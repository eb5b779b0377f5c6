//! Table columns: run, model and setting, then all questions, relations and subtypes.

use std::collections::BTreeMap;

use super::super::terms::{
    COMPLEMENTARY, CONTRADICTORY, NUANCED, RELATION, RELATIONS, SINGLE_EVIDENCE, SUBTYPE,
};
use super::systems::{Group, System};
use crate::benchmarks::{Graded, Share};
use crate::ground::sheet::{Columns, Sheet};
use crate::statistics::bounded::Stratum;

pub(super) const DECIMALS: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// Micro average.
    All,
    Relation(&'static str),
    Subtype(&'static str),
}

/// In the paper's order. Single evidence, absent from the paper, is shown only if present.
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

pub(super) fn columns_of(systems: &[&System<'_>]) -> Vec<Column> {
    let is_asked = |column: &Column| systems.iter().any(|system| column.share(system).of > 0);
    let single = Column::Subtype(SINGLE_EVIDENCE);
    COLUMNS.into_iter().filter(|column| *column != single || is_asked(column)).collect()
}

impl Column {
    pub(super) fn name(self) -> &'static str {
        match self {
            Column::All => "all",
            Column::Relation(name) | Column::Subtype(name) => name,
        }
    }

    pub(super) fn holds(self, outcome: &Graded<'_>) -> bool {
        match self {
            Column::All => true,
            Column::Relation(name) => outcome.facet(RELATION) == Some(name),
            Column::Subtype(name) => outcome.facet(SUBTYPE) == Some(name),
        }
    }

    pub(super) fn share(self, system: &System<'_>) -> Share {
        let own = system.outcomes.values().filter(|outcome| self.holds(outcome));
        Share::of(own.map(Graded::is_right))
    }

    /// Strata for intervals: relations (or unknown) for all questions, else the column itself.
    pub(super) fn strata<'s, 'a: 's>(
        self,
        questions: impl Iterator<Item = (&'s Graded<'a>, f64)>,
    ) -> Vec<Stratum> {
        let mut strata: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut count = 0.0;
        for (outcome, number) in questions {
            let relation = RELATIONS.iter().position(|relation| outcome.facet(RELATION) == Some(*relation));
            let at = if self == Column::All { relation.unwrap_or(RELATIONS.len()) } else { 0 };
            strata.entry(at).or_default().push(number);
            count += 1.0;
        }
        strata.into_values().map(|units| Stratum { weight: units.len() as f64 / count, units }).collect()
    }
}

/// Leading columns: the `system` of each row.
pub(super) fn headed<'s, 'a: 's, R: Copy>(
    rows: Vec<R>,
    system: impl Fn(R) -> &'s System<'a> + Copy,
) -> Option<Columns<R>> {
    let systems: Vec<&System<'_>> = rows.iter().map(|row| system(*row)).collect();
    let setting = |system: &System<'_>| format!("{}{}", system.setting(), system.cuts(|_| true).mark());
    let table = Columns::of(rows)
        .text("run", |row| system(row).run)
        .text("model", |row| system(row).group.model)
        .text("setting", |row| setting(system(row)));
    (!systems.is_empty()).then(|| grouped(table, &systems, system))
}

/// Adds data and judge where they differ.
pub(super) fn grouped<'s, 'a: 's, R: Copy>(
    table: Columns<R>,
    systems: &[&System<'_>],
    system: impl Fn(R) -> &'s System<'a> + Copy,
) -> Columns<R> {
    let differ = |same: fn(&Group<'_>, &Group<'_>) -> bool| {
        systems.windows(2).any(|pair| !same(&pair[0].group, &pair[1].group))
    };
    table.text_if(differ(|a, b| a.dataset == b.dataset), "data", |row| system(row).group.dataset).text_if(
        differ(|a, b| a.judge == b.judge),
        "judge",
        |row| system(row).group.judge.unwrap_or("none"),
    )
}

/// One row per system: percent per column, marked if histories were truncated, and a second line.
pub(super) fn shares(
    rows: &[&System<'_>],
    below: impl Fn(&System<'_>, Column, Share) -> String,
) -> Option<Sheet> {
    let mut table = headed(rows.to_vec(), |row| row)?;
    for column in columns_of(rows) {
        table = table.number(column.name(), |row| {
            let share = column.share(row);
            let cuts = row.cuts(|outcome| column.holds(outcome));
            vec![format!("{}{}", share.percent(DECIMALS), cuts.mark()), below(row, column, share)]
        });
    }
    Some(table.sheet(Vec::new()))
}
