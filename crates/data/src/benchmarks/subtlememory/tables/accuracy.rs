//! Accuracy by relation and subtype: tables 1 and 13; intervals: table 11.

use super::super::settings::{FULL, PERFECT};
use super::super::terms::RELATION;
use super::columns::{Column, shares};
use super::systems::{Group, System};
use crate::benchmarks::{Graded, Share, Table};
use crate::ground::order::unique;
use crate::ground::sheet::Sheet;
use crate::ground::words::{counted, of_counted};
use crate::statistics::Interval;
use crate::statistics::bounded::{Intervals, of_units};

pub(super) fn table_1(systems: &[System<'_>]) -> Option<Table> {
    let rows: Vec<&System<'_>> = systems.iter().filter(|s| s.setting != PERFECT).collect();
    let mut sheet = accuracies(&rows)?;
    sheet.notes.extend(contextual_above_temporal(&rows));
    if rows.iter().any(|row| row.setting == FULL) {
        sheet.notes.push("the paper has no setting that shows the full history: it is ours".to_owned());
    }
    let title = "accuracy by relation and subtype (table 1)".to_owned();
    Some(Table { key: "accuracy".to_owned(), title, sheet })
}

/// Systems per answer model, judge and wording that score higher on contextual than on temporal questions. Repetitions are pooled.
fn contextual_above_temporal(rows: &[&System<'_>]) -> Vec<String> {
    let systems = || rows.iter().filter(|row| row.is_memory() && row.repetition == 0);
    let share = |system: &System<'_>, name: &'static str| {
        let repetitions = rows.iter().filter(|row| row.repeats(system));
        let own = repetitions.flat_map(|row| row.outcomes.values());
        let own = own.filter(|outcome| Column::Subtype(name).holds(outcome));
        Share::of(own.map(Graded::is_right)).share()
    };
    let groups = unique(systems().map(|system| system.group));
    let note = |group: &Group<'_>| {
        let own: Vec<&&System<'_>> = systems().filter(|system| system.group == *group).collect();
        let count = own.iter().filter(|s| share(s, "contextual") > share(s, "temporal")).count();
        let Group { model, judge, soft, .. } = *group;
        let wording = if soft { ", soft" } else { "" };
        let of = format!("{model}, {}{wording}: ", judge.unwrap_or("no judge"));
        let of = if groups.len() > 1 { of } else { String::new() };
        let said = format!("{of}contextual is above temporal in {count} of {} systems", own.len());
        (own.len() > 1).then_some(said)
    };
    groups.iter().filter_map(note).collect()
}

pub(super) fn table_13(systems: &[System<'_>]) -> Option<Table> {
    let rows: Vec<&System<'_>> = systems.iter().filter(|s| s.setting == PERFECT).collect();
    let mut sheet = accuracies(&rows)?;
    if rows.iter().any(|row| row.memory.is_none()) {
        sheet.notes.push(
            "BM25 stores the sessions themselves, so `perfect` shows the same sessions as `oracle`: the two settings differ only for \
             memory systems that rewrite sessions"
                .to_owned(),
        );
    }
    let title = "accuracy under perfect retrieval (table 13)".to_owned();
    Some(Table { key: "perfect".to_owned(), title, sheet })
}

fn accuracies(rows: &[&System<'_>]) -> Option<Sheet> {
    let mut sheet = shares(rows, |_, _, share| format!("{}/{}", share.count, share.of))?;
    sheet.notes.push("all: over questions, not the mean of the relations".to_owned());
    sheet.notes.extend(rows.iter().flat_map(|row| remarks(row)));
    Some(sheet)
}

/// Notes on unjudged questions, which count as wrong, and on those without a relation.
fn remarks(row: &System<'_>) -> Vec<String> {
    let count = |holds: fn(&Graded<'_>) -> bool| row.outcomes.values().filter(|o| holds(o)).count();
    let (unjudged, unknown) = (count(|o| o.correct.is_none()), count(|o| o.facet(RELATION).is_none()));
    let name = format!("{} {}", row.run, row.setting());
    let mut notes = Vec::new();
    if unjudged > 0 {
        let of = row.outcomes.len();
        let verb = ["has no verdict and counts", "have no verdict and count"];
        notes.push(format!("{name}: {} as wrong", of_counted(unjudged, of, "question", verb)));
    }
    if unknown > 0 {
        let verbs = if unknown == 1 { "has no relation and stands" } else { "have no relation and stand" };
        notes.push(format!(
            "{name}: {} of broken rows {verbs} under `all` alone",
            counted(unknown, "question")
        ));
    }
    notes
}

pub(super) fn table_11(systems: &[System<'_>], intervals: Intervals) -> Option<Table> {
    let rows: Vec<&System<'_>> = systems.iter().collect();
    let mut sheet = shares(&rows, |row, column, _| {
        let ends = interval(row, column, intervals);
        let ends = ends.map(|Interval { low, high }| format!("[{:.2}, {:.2}]", 100.0 * low, 100.0 * high));
        ends.unwrap_or_else(|| "-".to_owned())
    })?;
    let note = match intervals {
        Intervals::Adjusted => {
            "95% intervals: Wilson's, of `all` Student's t within the relations with one question added at either end; --intervals paper \
             has the paper's percentile bootstraps, which have no width where all are right"
        }
        Intervals::Paper => {
            "95% intervals: the paper's percentile bootstrap over questions, of `all` within the relations, as it comes out with ever more \
             resamples (the paper draws 10,000)"
        }
    };
    sheet.notes.push(note.to_owned());
    let title = "95% intervals of the accuracies (table 11)".to_owned();
    Some(Table { key: "intervals".to_owned(), title, sheet })
}

fn interval(system: &System<'_>, column: Column, intervals: Intervals) -> Option<Interval> {
    let own = system.outcomes.values().filter(|outcome| column.holds(outcome));
    let strata = column.strata(own.map(|outcome| (outcome, f64::from(u8::from(outcome.is_right())))));
    of_units(&strata, (0.0, 1.0), intervals)
}
