//! Rows of a table of runs (STALE's tables 2 and 6) and their layout, for `palimpsest table`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::compare::{Comparison, Difference, Discordance};
use super::metrics::{AccuracyTable, Cell, Overall, Repeated};
use super::outcomes::Counts;
use palimpsest_data::ground::numbers::{p_value, percent};
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::sheet::{Column, Columns, Sheet, cell};
use palimpsest_data::ground::words::{self, of_counted};
use palimpsest_data::statistics::bounded::Intervals;
use palimpsest_data::statistics::spread::Spread;
use palimpsest_data::statistics::{Interval, LEVEL};
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::header::NameAndDigest;
use palimpsest_run::runs::judge_name::short_judges;

/// One run, judge, and condition or set of repetitions.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ResultRow {
    #[serde(skip)]
    pub benchmark: &'static str,
    pub name: String,
    #[serde(skip)]
    pub system: String,
    pub dir: String,
    pub model: String,
    pub data: NameAndDigest,
    /// `plain` by default; for repetitions, the repeated one.
    pub condition: String,
    /// Condition for display, with the part of the history it shows.
    #[serde(skip)]
    pub shown: String,
    pub judge: Option<String>,
    /// Rubric name as shown after the judge, with a suffix if the name is ambiguous. Empty for rule-based readings and version 0.1.0.
    pub rubric: String,
    /// SHA-256 of the judge's full prompt; `None` for version 0.1.0.
    pub rubric_sha256: Option<String>,
    pub truncated: usize,
    pub cut: usize,
    /// Generations that ended during reasoning; counted as no answer.
    pub cut_thoughts: usize,
    /// Not asked yet. These and the next two count as wrong.
    pub missing: usize,
    pub no_answer: usize,
    pub no_verdict: usize,
    /// Verdicts settled without the judge: the answer equals a reference.
    pub settled: usize,
    pub expected: usize,
    /// Broken rows of unknown kind ([`Outcomes::unreadable`](super::outcomes::Outcomes::unreadable)).
    pub unreadable: usize,
    /// Probes without a right answer ([`Outcomes::unscored`](super::outcomes::Outcomes::unscored)).
    pub unscored: usize,
    #[serde(skip)]
    pub apart: Vec<String>,
    pub no_result: Option<String>,
    pub warning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<AccuracyTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Vec<Repeated>>,
}

/// Marks numbers whose verdicts have a warning.
const WARNED: &str = "!";

impl ResultRow {
    fn label(&self) -> String {
        let star = if self.truncated > 0 { "*" } else { "" };
        format!("{}{star}", self.system)
    }

    /// Judge with its rubric in brackets, by full name.
    pub fn judged_by(&self) -> Option<String> {
        self.judge.as_ref().map(|judge| self.with_rubric(judge))
    }

    /// The same without the judge's address, unless that is ambiguous among `judges`.
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

    /// Mark after the overall number if the verdicts have a warning.
    pub(super) fn mark(&self) -> &'static str {
        if self.warning.is_some() { WARNED } else { "" }
    }

    /// Caveats for the reader of this row, named `whose`. `by` names the judge, if rows differ in it.
    pub(super) fn caveats(&self, whose: &str, by: &str) -> Vec<String> {
        let mut parts = Vec::new();
        if self.cut > 0 {
            let cut = of_counted(self.cut, self.answered(), "answer", ["was", "were"]);
            parts.push(format!("{cut} cut at the limit of new tokens"));
        }
        if self.cut_thoughts > 0 {
            parts.push(format!("{} without an answer ended inside a thought", self.cut_thoughts));
        }
        let mut said = Vec::from_iter((!parts.is_empty()).then(|| parts.join("; ")));
        let judged = self.judge.is_some() && self.no_result.is_none();
        let if_judged = |count: usize| if judged { count } else { 0 };
        let has = format!("has an answer and no verdict{by}; it counts");
        let have = format!("have an answer and no verdict{by}; they count");
        let parts: [(usize, &str, [&str; 2], &str); 4] = [
            (
                self.missing,
                "question",
                ["was not asked yet and counts", "were not asked yet and count"],
                "as wrong; the same `palimpsest run` command resumes the run",
            ),
            (
                self.settled,
                "verdict",
                ["is an exact match", "are exact matches"],
                "with a reference answer, without the judge",
            ),
            (
                if_judged(self.no_answer),
                "question",
                [
                    "ended in an error instead of an answer; it counts",
                    "ended in an error instead of an answer; they count",
                ],
                "as wrong",
            ),
            (if_judged(self.no_verdict), "question", [&has, &have], "as wrong"),
        ];
        for (count, noun, verb, rest) in parts.into_iter().filter(|(count, ..)| *count > 0) {
            said.push(format!("{} {rest}", of_counted(count, self.expected, noun, verb)));
        }
        said.extend(self.apart.iter().cloned());
        match (&self.no_result, &self.judge) {
            (Some(why), _) => said.push(format!("no result: {why}")),
            (None, None) => {
                said.push(format!(
                    "no verdicts; judge it with `palimpsest judge {} --judge JUDGE`",
                    self.dir
                ));
            }
            (None, Some(_)) => {}
        }
        let warning = self.warning.as_ref().map(|warning| format!("{WARNED} {whose}: {warning}"));
        said.iter().map(|caveat| format!("{whose}: {caveat}")).chain(warning).collect()
    }

    pub(super) fn nothing(&self) -> &'static str {
        if self.no_result.is_some() { "no result" } else { "no verdicts" }
    }

    /// Asked probes without a known outcome, counted as wrong.
    fn errors(&self) -> usize {
        let judged = self.judge.is_some() && self.no_result.is_none();
        self.no_answer + if judged { self.no_verdict } else { 0 }
    }

    pub(super) fn overall(&self) -> Option<Vec<String>> {
        let table = self.table.as_ref()?;
        let Overall { accuracy, correct, expected, interval, .. } = table.overall;
        Some(number(accuracy?, counted(correct, expected, table.most), interval))
    }
}

/// Table 2: one row per run, one column per cell, with counts and intervals.
pub fn accuracies(rows: &[ResultRow]) -> Sheet {
    let tables = || rows.iter().filter_map(|row| row.table.as_ref());
    let dimensions = unique(tables().flat_map(|table| &table.dimensions));
    let mut table = named(rows.iter(), rows, |row| row);
    for kind in unique(tables().flat_map(|table| &table.kinds)) {
        for &dimension in &dimensions {
            let is = |cell: &&Cell| &cell.kind == kind && &cell.dimension == dimension;
            if !tables().flat_map(|table| &table.cells).any(|cell| is(&cell)) {
                continue;
            }
            table = table.column(Column::number(dimension).under(kind), |row| {
                let found = row.table.as_ref().and_then(|table| Some((table, table.cells.iter().find(is)?)));
                found.map_or(cell("-"), |(table, Cell { counts, accuracy, interval, .. })| {
                    number(*accuracy, counted(counts.correct, counts.expected, table.most), *interval)
                })
            });
        }
    }
    table = table.number("overall", |row| match (&row.table, row.overall()) {
        (Some(_), Some(lines)) => marked(lines, row.mark()),
        (Some(_), None) => cell("-"),
        (None, _) => cell(row.nothing()),
    });
    let mut notes = Vec::new();
    if let Some(table) = tables().next() {
        let count = if table.most.is_none() { "correct/asked" } else { "answers" };
        let overall = if table.overall.of_cells { "mean of the cells" } else { "mean over all questions" };
        notes.push(format!("accuracy in %, with {count} below it; overall: {overall}"));
        let single = if table.intervals == Intervals::Paper { "" } else { "Wilson (questions), " };
        let (percent, how) = (100.0 * LEVEL, method(table.intervals, table.units, table.strata));
        notes.push(format!("{percent:.0}% interval: {single}{how}; details in docs/numbers.md"));
    }
    notes.extend(remarks(rows));
    with_counts(table, rows, |row| row).sheet(notes)
}

/// Table 6: one row per run and kind, one column per dimension; mean ± SD over repetitions.
pub fn spreads(rows: &[ResultRow], split: &str) -> Sheet {
    let kinds = rows.iter().flat_map(|row| {
        let some = row.repeats.iter().flatten().map(move |kind| (row, Some(kind)));
        some.chain(row.repeats.is_none().then_some((row, None)))
    });
    let cells = rows.iter().filter_map(|row| row.repeats.as_ref()).flatten().flat_map(|kind| &kind.cells);
    let spread = |spread: &Spread| match spread.sd {
        Some(sd) => format!("{}±{}", percent(spread.mean), percent(sd)),
        None => percent(spread.mean),
    };
    let mut table = named(kinds, rows, |(row, _)| row)
        .text(split, |(_, kind)| kind.map_or("-", |kind| kind.kind.as_deref().unwrap_or("all")));
    for dimension in unique(cells.map(|cell| &cell.dimension)) {
        table = table.number(dimension, |(_, kind)| {
            let own = kind.and_then(|kind| kind.cells.iter().find(|cell| cell.dimension == *dimension));
            own.map_or_else(|| "-".to_owned(), |own| spread(&own.accuracy))
        });
    }
    let table = table
        .number("overall", |(row, kind)| match kind {
            Some(kind) => format!("{}{}", spread(&kind.overall), row.mark()),
            None => row.nothing().to_owned(),
        })
        .number("calls", |(_, kind)| kind.map_or("-".to_owned(), |kind| kind.overall.n.to_string()));
    let mut notes = vec![
        "accuracy in %: mean ± standard deviation (n - 1) over repeated calls on the same cases".to_owned(),
    ];
    notes.extend(remarks(rows));
    with_counts(table, rows, |(row, _)| row).sheet(notes)
}

pub fn differences(comparison: &Comparison) -> Sheet {
    let Comparison { first, second, only_first, only_second, .. } = comparison;
    let tested = |of: fn(Discordance) -> Option<String>| {
        move |row: &Difference| row.test.and_then(of).unwrap_or_else(|| "-".to_owned())
    };
    let mut notes = vec![
        format!(
            "first: {first}; second: {second}; the same {}",
            words::counted(comparison.overall.pairs, "question")
        ),
        format!(
            "difference in percentage points; {:.0}% interval: {}; details in docs/numbers.md",
            100.0 * LEVEL,
            method(comparison.intervals, comparison.units, comparison.strata)
        ),
    ];
    notes.push(match comparison.overall.test {
        Some(_) => "b: only the first is right; c: only the second; p: exact two-sided McNemar test, Holm over the cells".to_owned(),
        None => "answers are scored, so there is no McNemar test".to_owned(),
    });
    if only_first + only_second > 0 {
        notes.push(format!(
            "left out: {} that only the first has, {only_second} that only the second has",
            words::counted(*only_first, "question")
        ));
    }
    Columns::of(comparison.rows())
        .text("first - second", |row| match (&row.kind, &row.dimension) {
            (Some(kind), Some(dimension)) => format!("{kind} {dimension}"),
            _ => "overall".to_owned(),
        })
        .number("n", |row| row.pairs)
        .number("first", |row| percent(row.first))
        .number("second", |row| percent(row.second))
        .number("difference", |row| percent(row.difference))
        .number("95% interval", |row| row.interval.map_or("-".to_owned(), range))
        .number("b", tested(|test| Some(test.b.to_string())))
        .number("c", tested(|test| Some(test.c.to_string())))
        .number("p", tested(|test| Some(p_value(test.p))))
        .number("p (Holm)", tested(|test| test.p_holm.map(p_value)))
        .sheet(notes)
}

fn method(intervals: Intervals, units: &str, strata: Option<&str>) -> String {
    let within = strata.map_or_else(String::new, |facet| format!(" within each {facet}"));
    match intervals {
        Intervals::Adjusted => format!("t ({units}{within})"),
        Intervals::Paper => format!("the paper's percentile bootstrap ({units}{within})"),
    }
}

/// One row per number, unrounded; with the benchmark if there are several.
pub fn accuracy_records(rows: &[ResultRow], with_benchmark: bool) -> Sheet {
    struct Line<'a> {
        row: &'a ResultRow,
        kind: &'a str,
        dimension: &'a str,
        counts: Option<Counts>,
        accuracy: Option<f64>,
        interval: Option<Interval>,
    }
    let lines = rows.iter().flat_map(|row| {
        let cells = row.table.iter().flat_map(|table| &table.cells).map(move |cell| Line {
            row,
            kind: &cell.kind,
            dimension: &cell.dimension,
            counts: Some(cell.counts),
            accuracy: Some(cell.accuracy),
            interval: cell.interval,
        });
        let all = row.table.as_ref().map(|table| &table.overall);
        cells.chain([Line {
            row,
            kind: "overall",
            dimension: "",
            counts: all.map(|all| all.counts),
            accuracy: all.and_then(|all| all.accuracy),
            interval: all.and_then(|all| all.interval),
        }])
    });
    let lines: Vec<Line<'_>> = lines.collect();
    let count = |of: fn(&Counts) -> usize| move |line: &Line<'_>| line.counts.as_ref().map(of);
    let table = Columns::of(&lines).text_if(with_benchmark, "benchmark", |line| line.row.benchmark);
    let table = identified(table, |line| line.row)
        .text("kind", |line| line.kind)
        .text("dimension", |line| line.dimension)
        .text("correct", count(|all| all.correct))
        .text("worth", |line| line.counts.map(|all| all.worth))
        .text("judged", count(|all| all.judged))
        .text("answered", count(|all| all.answered))
        .text("missing", count(|all| all.missing))
        .text("expected", count(|all| all.expected))
        .text("accuracy", |line| line.accuracy)
        .text("low", |line| line.interval.map(|interval| interval.low))
        .text("high", |line| line.interval.map(|interval| interval.high))
        .text("truncated", |line| line.row.truncated);
    with_caveats(table, |line| line.row)
}

pub fn spread_records(rows: &[ResultRow]) -> Sheet {
    type Line<'a> = (&'a ResultRow, &'a str, &'a str, Option<Spread>);
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows {
        for Repeated { kind, cells, overall } in row.repeats.iter().flatten() {
            let kind = kind.as_deref().unwrap_or("all");
            lines.extend(cells.iter().map(|cell| (row, kind, &*cell.dimension, Some(cell.accuracy))));
            lines.push((row, kind, "overall", Some(*overall)));
        }
        lines.extend(row.repeats.is_none().then_some((row, "all", "overall", None)));
    }
    let table = identified(Columns::of(lines), |(row, ..)| row)
        .text("kind", |(_, kind, ..)| kind)
        .text("dimension", |(_, _, dimension, _)| dimension)
        .text("calls", |(.., spread)| spread.map(|spread| spread.n))
        .text("mean", |(.., spread)| spread.map(|spread| spread.mean))
        .text("sd", |(.., spread)| spread.and_then(|spread| spread.sd));
    with_caveats(table, |(row, ..)| row)
}

pub fn difference_records(comparison: &Comparison) -> Sheet {
    Columns::of(comparison.rows())
        .text("first", |_| &*comparison.first)
        .text("second", |_| &*comparison.second)
        .text("kind", |row| row.kind.as_deref().unwrap_or("overall"))
        .text("dimension", |row| row.dimension.as_deref())
        .text("pairs", |row| row.pairs)
        .text("first_accuracy", |row| row.first)
        .text("second_accuracy", |row| row.second)
        .text("difference", |row| row.difference)
        .text("low", |row| row.interval.map(|interval| interval.low))
        .text("high", |row| row.interval.map(|interval| interval.high))
        .text("b", |row| row.test.map(|test| test.b))
        .text("c", |row| row.test.map(|test| test.c))
        .text("p", |row| row.test.map(|test| test.p))
        .text("p_holm", |row| row.test.and_then(|test| test.p_holm))
        .sheet(Vec::new())
}

/// Identifying columns: the condition unless all are plain, the judge if rows differ in it.
fn named<'a, R: Copy>(
    items: impl Iterator<Item = R>,
    rows: &'a [ResultRow],
    row: fn(R) -> &'a ResultRow,
) -> Columns<R> {
    let names = short_names(rows);
    Columns::of(items)
        .text("model", |item| row(item).label())
        .text_if(rows.iter().any(|row| row.condition != label("")), "condition", |item| &*row(item).shown)
        .text_if(judges(rows).len() > 1, "judge", |item| {
            row(item).judged_by_among(&names).unwrap_or_else(|| "-".to_owned())
        })
}

/// Count columns; unasked questions have one if there are any.
fn with_counts<'a, R: Copy>(
    table: Columns<R>,
    rows: &[ResultRow],
    row: fn(R) -> &'a ResultRow,
) -> Columns<R> {
    table
        .number_if(rows.iter().any(|row| row.missing > 0), "missing", |item| row(item).missing)
        .number("errors", |item| row(item).errors())
        .number("cut", |item| row(item).cut)
}

fn identified<'a, R: Copy>(table: Columns<R>, row: fn(R) -> &'a ResultRow) -> Columns<R> {
    table
        .text("name", |item| &*row(item).name)
        .text("dir", |item| &*row(item).dir)
        .text("model", |item| &*row(item).model)
        .text("condition", |item| &*row(item).condition)
        .text("judge", |item| row(item).judge.as_deref())
        .text("rubric", |item| &*row(item).rubric)
}

/// Appends caveat columns in CSV.
fn with_caveats<'a, R: Copy>(table: Columns<R>, row: fn(R) -> &'a ResultRow) -> Sheet {
    table
        .text("cut", |item| row(item).cut)
        .text("no_result", |item| row(item).no_result.as_deref())
        .text("warning", |item| row(item).warning.as_deref())
        .sheet(Vec::new())
}

fn judges(rows: &[ResultRow]) -> Vec<String> {
    let names = short_names(rows);
    unique(rows.iter().filter_map(|row| row.judged_by_among(&names)))
}

pub(super) fn short_names(rows: &[ResultRow]) -> BTreeMap<&str, &str> {
    short_judges(rows.iter().filter_map(|row| row.judge.as_deref()))
}

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
            "rows of one judge and rubric differ in the judge's prompt; judge again to have one for all"
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
    let part = |row: &ResultRow| {
        format!("{} in {} of {}", row.name, row.truncated, words::counted(row.answered(), "answer"))
    };
    let parts = unique(rows.iter().filter(truncated).map(part));
    if !parts.is_empty() {
        notes.push(format!("* histories were truncated: {}", parts.join("; ")));
    }
    let names = short_names(rows);
    for row in rows {
        let alone = rows.iter().filter(|other| other.name == row.name).count() == 1;
        let judge = row.judged_by_among(&names).filter(|_| !alone);
        let by = judge.map_or_else(String::new, |judge| format!(" by {judge}"));
        notes.extend(row.caveats(&row.name, &by));
    }
    // Notes on answers appear once, however many judges there are.
    unique(notes)
}

/// Number, count and interval, one line each.
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

pub(super) fn marked(mut lines: Vec<String>, mark: &str) -> Vec<String> {
    lines.iter_mut().take(1).for_each(|line| line.push_str(mark));
    lines
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}
