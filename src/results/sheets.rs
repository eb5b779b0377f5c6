//! The rows of a table of runs (STALE's tables 2 and 6), and their layout.
//!
//! Filled by `palimpsest table`; [`Sheet`] writes what is laid out here.

use std::collections::BTreeMap;

use serde::Serialize;

use super::compare::{Comparison, Difference};
use super::metrics::AccuracyTable;
use super::outcomes::Counts;
use super::repeats::{Repeated, RepeatedCell};
use crate::ground::numbers::{p_value, percent};
use crate::ground::order::unique;
use crate::ground::sheet::{Column, Sheet, cell};
use crate::run::condition::label;
use crate::run::header::NameAndDigest;
use crate::run::judge_name::short_judges;
use crate::statistics::bounded::Intervals;
use crate::statistics::spread::Spread;
use crate::statistics::{Interval, LEVEL};

/// One run under one condition, or over its repetitions, by one judge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResultRow {
    pub name: String,
    /// The same without its condition, which has a column of its own.
    #[serde(skip)]
    pub system: String,
    pub dir: String,
    pub model: String,
    pub data: NameAndDigest,
    /// The condition, `plain` where that is it; over repetitions the one that is repeated.
    pub condition: String,
    /// The condition as tables for people write it: with what of the history it shows.
    #[serde(skip)]
    pub shown: String,
    /// The judge; absent where nobody has judged.
    pub judge: Option<String>,
    /// The rubric that the judge went by, as tables have it behind the judge's name: its name, and where one name stands for several
    /// ways of asking what tells them apart. Empty where a rule read the answers, and in runs of version 0.1.0.
    pub rubric: String,
    /// SHA-256 of all that the judge was told; absent also in runs of version 0.1.0.
    pub rubric_sha256: Option<String>,
    pub truncated: usize,
    /// Answers that the limit of new tokens cut off.
    pub cut: usize,
    /// Generations that ended inside a thought; they are among those without an answer.
    pub cut_thoughts: usize,
    /// Probes that were not asked yet, in a run that is not finished: they count as wrong.
    pub missing: usize,
    /// Probes that were asked and have no answer: they count as wrong.
    pub no_answer: usize,
    /// Probes with an answer and without a verdict: they count as wrong.
    pub no_verdict: usize,
    /// Verdicts on answers that equal a reference answer, of which the judge was not asked.
    pub settled: usize,
    /// Probes of the plan, under all conditions of the row.
    pub expected: usize,
    /// Broken rows of the data of no known kind ([`Outcomes::unreadable`](super::outcomes::Outcomes::unreadable)).
    pub unreadable: usize,
    /// Probes without a right answer ([`Outcomes::unscored`](super::outcomes::Outcomes::unscored)).
    pub unscored: usize,
    #[serde(skip)]
    pub apart: Vec<String>,
    /// Why the verdicts are no result, where they are none.
    pub no_result: Option<String>,
    pub warning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<AccuracyTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Vec<Repeated>>,
}

/// Marks numbers whose verdicts come with a warning.
pub(super) const WARNED: &str = "!";

impl ResultRow {
    /// The model, with a star where histories were truncated.
    fn label(&self) -> String {
        let star = if self.truncated > 0 { "*" } else { "" };
        format!("{}{star}", self.system)
    }

    /// The judge with its rubric in brackets, by its whole name.
    pub fn judged_by(&self) -> Option<String> {
        self.judge.as_ref().map(|judge| self.with_rubric(judge))
    }

    /// The same as tables for people have it: without the judge's address, unless another of `judges` would be called the same.
    pub(super) fn judged_by_among(&self, judges: &BTreeMap<&str, &str>) -> Option<String> {
        let judge = self.judge.as_deref()?;
        Some(self.with_rubric(judges.get(judge).copied().unwrap_or(judge)))
    }

    fn with_rubric(&self, judge: &str) -> String {
        if self.rubric.is_empty() { judge.to_owned() } else { format!("{judge} ({})", self.rubric) }
    }

    fn answered(&self) -> usize {
        self.expected - self.no_answer - self.missing
    }

    /// Behind the overall number where the verdicts come with a warning.
    pub(super) fn mark(&self) -> &'static str {
        if self.warning.is_some() { WARNED } else { "" }
    }

    /// Caveat of answers that were cut; `None` where none was.
    pub(super) fn about_cut(&self) -> Option<String> {
        let answers = self.answered();
        let mut parts = Vec::new();
        if self.cut > 0 {
            parts.push(format!("{} of {answers} answers were cut at the limit of new tokens", self.cut));
        }
        if self.cut_thoughts > 0 {
            parts.push(format!("{} without an answer ended inside a thought", self.cut_thoughts));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// In place of numbers.
    pub(super) fn nothing(&self) -> &'static str {
        if self.no_result.is_some() { "no result" } else { "no verdicts" }
    }

    /// The probes that were asked and count as wrong because nothing is known of them, where there are numbers.
    fn errors(&self) -> String {
        if self.judge.is_some() && self.no_result.is_none() {
            (self.no_answer + self.no_verdict).to_string()
        } else {
            self.no_answer.to_string()
        }
    }
}

/// Table 2: a row a run, a column a cell, with counts and intervals.
pub fn accuracies(rows: &[ResultRow]) -> Sheet {
    let mut cells: Vec<(&str, &str)> = Vec::new();
    let tables = || rows.iter().filter_map(|row| row.table.as_ref());
    for kind in unique(tables().flat_map(|table| &table.kinds)) {
        for dimension in unique(tables().flat_map(|table| &table.dimensions)) {
            let is = |cell: &super::metrics::Cell| &cell.kind == kind && &cell.dimension == dimension;
            if tables().flat_map(|table| &table.cells).any(is) {
                cells.push((kind, dimension));
            }
        }
    }
    let mut columns = heads(rows);
    let of_cell =
        |(group, name): &(&str, &str)| Column { group: (*group).to_owned(), ..Column::number(*name) };
    columns.extend(cells.iter().map(of_cell));
    columns.push(Column::number("overall"));
    columns.extend(count_heads(rows));
    let row = |row: &ResultRow| {
        let mut line = starts(row, rows);
        line.extend(cells.iter().map(|(kind, dimension)| {
            let of_cell = row.table.as_ref().and_then(|table| {
                table.cells.iter().find(|cell| cell.kind == *kind && cell.dimension == *dimension)
            });
            of_cell.map_or(cell("-"), |c| {
                let most = row.table.as_ref().and_then(|table| table.most);
                number(c.accuracy, counted(c.counts.correct, c.counts.expected, most), c.interval)
            })
        }));
        line.push(match &row.table {
            Some(table) => table.overall.accuracy.map_or(cell("-"), |accuracy| {
                let count = counted(table.overall.correct, table.overall.expected, table.most);
                let mut lines = number(accuracy, count, table.overall.interval);
                lines.iter_mut().take(1).for_each(|line| line.push_str(row.mark()));
                lines
            }),
            None => cell(row.nothing()),
        });
        line.extend(counts_of(row, rows));
        line
    };
    let mut notes = Vec::new();
    if let Some(table) = tables().next() {
        let count = if table.most.is_none() { "correct/asked" } else { "answers" };
        let overall = if table.overall.of_cells { "mean of the cells" } else { "mean over all probes" };
        let single =
            if table.intervals == Intervals::Paper { "" } else { "Wilson's of single questions, else " };
        notes.push(format!(
            "accuracy in %; below it {count} and the {:.0}% interval ({single}{}). overall: {overall}",
            100.0 * LEVEL,
            method(table.intervals, table.units, table.strata)
        ));
    }
    notes.extend(remarks(rows));
    Sheet { columns, rows: rows.iter().map(row).collect(), notes }
}

/// Table 6: a row a run and kind, a column a dimension, each mean ± standard deviation over repetitions.
pub fn spreads(rows: &[ResultRow], split: &str) -> Sheet {
    let all = || rows.iter().filter_map(|row| row.repeats.as_ref());
    let cells = all().flatten().flat_map(|kind| &kind.cells);
    let dimensions = unique(cells.map(|cell| &cell.dimension));
    let mut columns = heads(rows);
    columns.push(Column::text(split));
    columns.extend(dimensions.iter().map(|name| Column::number(*name)));
    columns.extend(["overall", "calls"].map(Column::number));
    columns.extend(count_heads(rows));
    let spread = |spread: &Spread| match spread.sd {
        Some(sd) => format!("{}±{}", percent(spread.mean), percent(sd)),
        None => percent(spread.mean),
    };
    let mut lines = Vec::new();
    for row in rows {
        let Some(kinds) = &row.repeats else {
            let mut line = starts(row, rows);
            line.push(cell("-"));
            line.extend(dimensions.iter().map(|_| cell("-")));
            line.extend([row.nothing(), "-"].map(cell));
            line.extend(counts_of(row, rows));
            lines.push(line);
            continue;
        };
        for kind in kinds {
            let mut line = starts(row, rows);
            line.push(cell(kind.kind.as_deref().unwrap_or("all")));
            line.extend(dimensions.iter().map(|dimension| {
                let own = kind.cells.iter().find(|cell| &cell.dimension == *dimension);
                cell(own.map_or_else(|| "-".to_owned(), |own| spread(&own.accuracy)))
            }));
            let overall = format!("{}{}", spread(&kind.overall), row.mark());
            line.extend([overall, kind.overall.n.to_string()].map(cell));
            line.extend(counts_of(row, rows));
            lines.push(line);
        }
    }
    let mut notes = vec![
        "accuracy in %: mean ± standard deviation (n - 1) over repeated calls on the same cases".to_owned(),
    ];
    notes.extend(remarks(rows));
    Sheet { columns, rows: lines, notes }
}

/// The difference of two runs, cell by cell.
pub fn differences(comparison: &Comparison) -> Sheet {
    let numbers = ["n", "first", "second", "difference", "95% interval", "b", "c", "p", "p (Holm)"];
    let columns =
        std::iter::once(Column::text("first - second")).chain(numbers.map(Column::number)).collect();
    let row = |difference: &Difference| {
        let Difference { pairs, interval, test, .. } = difference;
        let name = match (&difference.kind, &difference.dimension) {
            (Some(kind), Some(dimension)) => format!("{kind} {dimension}"),
            _ => "overall".to_owned(),
        };
        let tested =
            |of: fn(&super::compare::Discordance) -> String| test.as_ref().map_or("-".to_owned(), of);
        [
            name,
            pairs.to_string(),
            percent(difference.first),
            percent(difference.second),
            percent(difference.difference),
            interval.map_or("-".to_owned(), range),
            tested(|test| test.b.to_string()),
            tested(|test| test.c.to_string()),
            tested(|test| p_value(test.p)),
            tested(|test| test.p_holm.map_or("-".to_owned(), p_value)),
        ]
        .map(cell)
        .to_vec()
    };
    let Comparison { first, second, only_first, only_second, .. } = comparison;
    let mut notes = vec![
        format!("first: {first}; second: {second}; the same {} questions", comparison.overall.pairs),
        format!(
            "difference in percentage points, its interval {}",
            method(comparison.intervals, comparison.units, comparison.strata)
        ),
    ];
    notes.push(match comparison.overall.test {
        Some(_) => "b: right in the first alone; c: in the second alone; p: exact McNemar, two-sided; Holm over the cells".to_owned(),
        None => "answers are scored, so there is no McNemar test".to_owned(),
    });
    if only_first + only_second > 0 {
        notes.push(format!(
            "left out: {only_first} questions of the first alone, {only_second} of the second alone"
        ));
    }
    let rows = comparison.cells.iter().chain(std::iter::once(&comparison.overall)).map(row).collect();
    Sheet { columns, rows, notes }
}

/// How intervals are made, in words.
fn method(intervals: Intervals, units: &str, strata: Option<&str>) -> String {
    let within = strata.map_or_else(String::new, |facet| format!(" within each {facet}"));
    match intervals {
        Intervals::Adjusted => format!("Student's t over {units}{within} with one added at either end"),
        Intervals::Paper => format!("the paper's percentile bootstrap over {units}{within}"),
    }
}

/// Every number of [`accuracies`] on a line of its own, unrounded: for CSV.
pub fn accuracy_records(rows: &[ResultRow]) -> Sheet {
    let numbers = [
        "correct",
        "worth",
        "judged",
        "answered",
        "missing",
        "expected",
        "accuracy",
        "low",
        "high",
        "truncated",
    ];
    let columns = OF_ROW.iter().chain(&["kind", "dimension"]).chain(&numbers).chain(&OF_VERDICTS);
    let mut lines = Vec::new();
    for row in rows {
        let mut line = |place: [&str; 2], numbers: [String; 9]| {
            let mut cells = of_row(row);
            cells.extend(place.map(str::to_owned));
            cells.extend(numbers);
            cells.push(row.truncated.to_string());
            cells.extend(of_verdicts(row));
            lines.push(cells.into_iter().map(cell).collect());
        };
        let Some(table) = &row.table else {
            line(["overall", ""], std::array::from_fn(|_| String::new()));
            continue;
        };
        let numbers = |counts: &Counts, accuracy: Option<f64>, interval| {
            let Counts { correct, worth, judged, answered, missing, expected } = counts;
            let counts = [correct, judged, answered, missing, expected].map(ToString::to_string);
            let [correct, judged, answered, missing, expected] = counts;
            let accuracy = accuracy.map_or(String::new(), |accuracy| accuracy.to_string());
            let [low, high] = ends(interval);
            [correct, worth.to_string(), judged, answered, missing, expected, accuracy, low, high]
        };
        let o = &table.overall;
        let mut all =
            Counts { correct: o.correct, judged: o.judged, expected: o.expected, ..Counts::default() };
        for c in &table.cells {
            all.worth += c.counts.worth;
            all.answered += c.counts.answered;
            all.missing += c.counts.missing;
            line([&c.kind, &c.dimension], numbers(&c.counts, Some(c.accuracy), c.interval));
        }
        line(["overall", ""], numbers(&all, o.accuracy, o.interval));
    }
    Sheet { columns: columns.map(|name| Column::text(*name)).collect(), rows: lines, notes: Vec::new() }
}

/// Every number of [`spreads`] on a line of its own, unrounded: for CSV.
pub fn spread_records(rows: &[ResultRow]) -> Sheet {
    let columns = OF_ROW.iter().chain(&["kind", "dimension", "calls", "mean", "sd"]).chain(&OF_VERDICTS);
    let mut lines = Vec::new();
    for row in rows {
        let mut line = |kind: &str, dimension: &str, spread: Option<&Spread>| {
            let text = |of: Option<f64>| of.map_or(String::new(), |number| number.to_string());
            let mut cells = of_row(row);
            cells.extend([
                kind.to_owned(),
                dimension.to_owned(),
                spread.map_or(String::new(), |spread| spread.n.to_string()),
                text(spread.map(|spread| spread.mean)),
                text(spread.and_then(|spread| spread.sd)),
            ]);
            cells.extend(of_verdicts(row));
            lines.push(cells.into_iter().map(cell).collect());
        };
        let Some(kinds) = &row.repeats else {
            line("all", "overall", None);
            continue;
        };
        for kind in kinds {
            let name = kind.kind.as_deref().unwrap_or("all");
            for RepeatedCell { dimension, accuracy } in &kind.cells {
                line(name, dimension, Some(accuracy));
            }
            line(name, "overall", Some(&kind.overall));
        }
    }
    Sheet { columns: columns.map(|name| Column::text(*name)).collect(), rows: lines, notes: Vec::new() }
}

/// Every number of [`differences`], unrounded: for CSV.
pub fn difference_records(comparison: &Comparison) -> Sheet {
    let columns = [
        "first",
        "second",
        "kind",
        "dimension",
        "pairs",
        "first_accuracy",
        "second_accuracy",
        "difference",
        "low",
        "high",
        "b",
        "c",
        "p",
        "p_holm",
    ];
    let row = |d: &Difference| {
        let text = |number: Option<String>| number.unwrap_or_default();
        let [low, high] = ends(d.interval);
        [
            comparison.first.clone(),
            comparison.second.clone(),
            d.kind.clone().unwrap_or_else(|| "overall".to_owned()),
            text(d.dimension.clone()),
            d.pairs.to_string(),
            d.first.to_string(),
            d.second.to_string(),
            d.difference.to_string(),
            low,
            high,
            text(d.test.map(|test| test.b.to_string())),
            text(d.test.map(|test| test.c.to_string())),
            text(d.test.map(|test| test.p.to_string())),
            text(d.test.and_then(|test| test.p_holm).map(|p| p.to_string())),
        ]
        .map(cell)
        .to_vec()
    };
    let rows = comparison.cells.iter().chain(std::iter::once(&comparison.overall)).map(row).collect();
    Sheet { columns: columns.map(Column::text).to_vec(), rows, notes: Vec::new() }
}

/// The first columns of a table for people. The condition has one unless all rows are plain, the judge one where rows differ in it.
fn heads(rows: &[ResultRow]) -> Vec<Column> {
    let mut columns = vec![Column::text("model")];
    columns.extend(has_conditions(rows).then(|| Column::text("condition")));
    columns.extend(has_judges(rows).then(|| Column::text("judge")));
    columns
}

fn starts(row: &ResultRow, rows: &[ResultRow]) -> Vec<Vec<String>> {
    let judge = || cell(row.judged_by_among(&short_names(rows)).unwrap_or_else(|| "-".to_owned()));
    let mut cells = vec![cell(row.label())];
    cells.extend(has_conditions(rows).then(|| cell(row.shown.as_str())));
    cells.extend(has_judges(rows).then(judge));
    cells
}

fn has_conditions(rows: &[ResultRow]) -> bool {
    rows.iter().any(|row| row.condition != label(""))
}

fn has_judges(rows: &[ResultRow]) -> bool {
    judges(rows).len() > 1
}

fn judges(rows: &[ResultRow]) -> Vec<String> {
    let names = short_names(rows);
    unique(rows.iter().filter_map(|row| row.judged_by_among(&names)))
}

fn short_names(rows: &[ResultRow]) -> BTreeMap<&str, &str> {
    short_judges(rows.iter().filter_map(|row| row.judge.as_deref()))
}

/// The last columns: what was not asked yet has one where there is any.
fn count_heads(rows: &[ResultRow]) -> Vec<Column> {
    let missing = has_missing(rows).then_some("missing");
    missing.into_iter().chain(["errors", "cut"]).map(Column::number).collect()
}

fn counts_of(row: &ResultRow, rows: &[ResultRow]) -> Vec<Vec<String>> {
    let missing = has_missing(rows).then(|| row.missing.to_string());
    missing.into_iter().chain([row.errors(), row.cut.to_string()]).map(cell).collect()
}

fn has_missing(rows: &[ResultRow]) -> bool {
    rows.iter().any(|row| row.missing > 0)
}

/// Notes on all rows, and caveats of single ones.
fn remarks(rows: &[ResultRow]) -> Vec<String> {
    let mut notes = Vec::new();
    if let [judge] = &judges(rows)[..] {
        notes.push(format!("judge: {judge}"));
    }
    // One name may stand for two texts, in runs of two versions.
    let judged: Vec<(Option<String>, &Option<String>)> =
        rows.iter().map(|row| (row.judged_by(), &row.rubric_sha256)).filter(|(by, _)| by.is_some()).collect();
    if judged.iter().any(|(by, rubric)| judged.iter().any(|(other, its)| by == other && rubric != its)) {
        notes.push(
            "rows that name one judge and rubric differ in what it was told; judge again to have one for all"
                .to_owned(),
        );
    }
    let named = |row: &ResultRow| format!("{} of {} ({})", row.data.name, row.name, short(&row.data.digest));
    if unique(rows.iter().map(|row| &row.data.digest)).len() > 1 {
        notes.push(format!(
            "rows are of different data: {}",
            rows.iter().map(named).collect::<Vec<_>>().join("; ")
        ));
    }
    let truncated = |row: &&ResultRow| row.truncated > 0;
    let part = |row: &ResultRow| format!("{} in {} of {} answers", row.name, row.truncated, row.answered());
    let parts = unique(rows.iter().filter(truncated).map(part));
    if !parts.is_empty() {
        notes.push(format!("* histories were truncated: {}", parts.join("; ")));
    }
    let names = short_names(rows);
    for row in rows {
        // What is of the answers is said once, however many judged them.
        let mut say = |note: String| {
            if !notes.contains(&note) {
                notes.push(note);
            }
        };
        let ResultRow { name, missing, no_answer, no_verdict, settled, expected, .. } = row;
        if let Some(about) = row.about_cut() {
            say(format!("{name}: {about}"));
        }
        if *missing > 0 {
            say(format!(
                "{name}: {missing} of {expected} probes are missing, which were not asked yet: the run is not finished, and they count as \
                 wrong; the same `palimpsest run` command goes on with it"
            ));
        }
        if *settled > 0 {
            say(format!(
                "{name}: {settled} of {expected} verdicts come of an exact match with a reference answer, without the judge"
            ));
        }
        if let Some(warning) = &row.warning {
            say(format!("{WARNED} {name}: {warning}"));
        }
        row.apart.iter().for_each(|note| say(format!("{name}: {note}")));
        if let Some(why) = &row.no_result {
            say(format!("{name}: no result: {why}"));
        } else if row.judge.is_none() {
            say(format!("{name}: no verdicts; judge it with `palimpsest judge {}`", row.dir));
        } else {
            if *no_answer > 0 {
                say(format!(
                    "{name}: {no_answer} of {expected} probes ended in an error instead of an answer; they count as wrong"
                ));
            }
            if *no_verdict > 0 {
                let alone = rows.iter().filter(|other| other.name == *name).count() == 1;
                let judge = row.judged_by_among(&names).filter(|_| !alone);
                let by = judge.map_or_else(String::new, |judge| format!(" by {judge}"));
                say(format!(
                    "{name}: {no_verdict} of {expected} probes have an answer and no verdict{by}; they count as wrong"
                ));
            }
        }
    }
    notes
}

/// A number, its count and its interval, a line each.
pub(super) fn number(share: f64, count: String, interval: Option<Interval>) -> Vec<String> {
    let mut lines = vec![percent(share), count];
    lines.extend(interval.map(|interval| range(interval).trim().to_owned()));
    lines
}

pub(super) fn counted(correct: usize, expected: usize, most: Option<u32>) -> String {
    if most.is_some() { format!("n = {expected}") } else { format!("{correct}/{expected}") }
}

fn range(Interval { low, high }: Interval) -> String {
    format!("{} to {}", percent(low), percent(high))
}

fn ends(interval: Option<Interval>) -> [String; 2] {
    interval.map_or_else(Default::default, |i| [i.low.to_string(), i.high.to_string()])
}

const OF_ROW: [&str; 6] = ["name", "dir", "model", "condition", "judge", "rubric"];

fn of_row(row: &ResultRow) -> Vec<String> {
    let texts = [&row.name, &row.dir, &row.model, &row.condition].map(Clone::clone);
    texts.into_iter().chain([row.judge.clone().unwrap_or_default(), row.rubric.clone()]).collect()
}

/// Columns with the caveats of a row in CSV.
const OF_VERDICTS: [&str; 3] = ["cut", "no_result", "warning"];

fn of_verdicts(row: &ResultRow) -> [String; 3] {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    [row.cut.to_string(), text(&row.no_result), text(&row.warning)]
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}
