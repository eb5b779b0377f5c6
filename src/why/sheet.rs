//! Counts of labels: a row a type, probe and condition; and what the certificates of a run come to.

use std::collections::BTreeMap;

use super::has_no_evidence;
use crate::benchmarks::{Benchmark, Table};
use crate::ground::order::unique;
use crate::ground::sheet::{Column, Sheet, cell};
use crate::run::condition::label;
use crate::run::error::RunError;
use crate::run::plan::dimension_of;
use crate::run::rows::AnswerKey;
use crate::run::store::RunFolder;
use crate::run::why_rows::{Label, WhyRow, last_rows, read_why};
use crate::statistics::{LEVEL, wilson};

/// The labels of a run, a row an answer, with the names that they are counted by.
#[derive(Debug, Clone)]
pub struct Labels {
    /// The judge whose verdicts they explain; several where the run was labelled by several.
    pub judges: Vec<String>,
    /// In the order of the plan and of the conditions.
    pub answers: Vec<Labelled>,
}

/// A labelled answer.
#[derive(Debug, Clone)]
pub struct Labelled {
    /// The value of the label that the benchmark is split by.
    pub kind: String,
    /// The group of its probe.
    pub dimension: String,
    /// Its row.
    pub row: WhyRow,
    /// True if its history holds no evidence of either side.
    pub without_evidence: bool,
}

impl Labels {
    /// Of a run's folder; `None` where it was not labelled.
    ///
    /// # Errors
    /// Those of the folder's files.
    pub fn open(folder: &RunFolder) -> Result<Option<Self>, RunError> {
        let rows = last_rows(read_why(&folder.dir)?);
        if rows.is_empty() {
            return Ok(None);
        }
        Ok(Some(Labels::of(folder, folder.benchmark()?, &rows)))
    }

    fn of(folder: &RunFolder, benchmark: &Benchmark, rows: &BTreeMap<AnswerKey, WhyRow>) -> Self {
        let conditions = folder.header.identity.condition_names();
        let mut answers = Vec::new();
        for condition in conditions {
            for case in &folder.plan {
                for probe in &case.probes {
                    let Some(row) = rows.get(&AnswerKey::of(&case.case, &probe.id, condition).owned()) else {
                        continue;
                    };
                    answers.push(Labelled {
                        kind: case.labels.get(benchmark.split).cloned().unwrap_or_default(),
                        dimension: dimension_of(benchmark, probe),
                        row: row.clone(),
                        without_evidence: has_no_evidence(benchmark, case, probe),
                    });
                }
            }
        }
        Labels { judges: unique(answers.iter().map(|answer| answer.row.judge.clone())), answers }
    }

    /// The certificates of the answers whose histories hold evidence, and of those that hold none.
    pub fn certificates(&self) -> [Certificates; 2] {
        [false, true].map(|without| {
            let of = self.answers.iter().filter(|answer| answer.without_evidence == without);
            Certificates::of(of.map(|answer| &answer.row))
        })
    }
}

/// Certificates of some answers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Certificates {
    /// Answers that one was searched for.
    pub searched: usize,
    /// Those with one.
    pub found: usize,
    /// Of these, those of one session.
    pub single: usize,
    /// Readings over sets of sessions, of all searches.
    pub readings: usize,
    /// The same of the searches that found one.
    pub readings_of_found: usize,
    /// Sessions that might be blocked, of all searches.
    pub candidates: usize,
    /// Searches whose readings were spent.
    pub spent: usize,
    /// Control sets of the certificates found.
    pub control_sets: usize,
    /// Those that turned the answer.
    pub control_flips: usize,
}

impl Certificates {
    fn of<'a>(rows: impl Iterator<Item = &'a WhyRow>) -> Self {
        let mut all = Certificates::default();
        for row in rows {
            let Some(search) = row.search else { continue };
            all.searched += 1;
            all.readings += search.sessions;
            all.candidates += search.candidates;
            all.spent += usize::from(search.spent);
            let Some(certificate) = &row.certificate else { continue };
            all.found += 1;
            all.single += usize::from(certificate.sessions.len() == 1);
            all.readings_of_found += search.sessions;
            all.control_sets += certificate.controls.sets;
            all.control_flips += certificate.controls.flips;
        }
        all
    }
}

/// A count of labels.
type Counts = [usize; Label::ALL.len()];

/// A row a type, probe and condition, all types and probes last.
pub fn table(labels: &Labels, run: &str) -> Table {
    let mut groups: Vec<([String; 3], Counts)> = Vec::new();
    let mut all: Vec<(String, Counts)> = Vec::new();
    for answer in &labels.answers {
        let condition = label(&answer.row.condition).to_owned();
        let names = [condition.clone(), answer.kind.clone(), answer.dimension.clone()];
        add(&mut groups, names, answer.row.label);
        add(&mut all, condition, answer.row.label);
    }
    let conditions = all.len();
    let mut rows: Vec<Vec<Vec<String>>> = groups.iter().map(|(names, counts)| row(names, counts)).collect();
    rows.extend(
        all.iter()
            .map(|(condition, counts)| row(&[condition.clone(), "all".to_owned(), "all".to_owned()], counts)),
    );
    if conditions == 1 {
        rows.iter_mut().for_each(|row| drop(row.remove(0)));
    }
    let mut columns: Vec<Column> = ["condition", "type", "probe"].map(Column::text).to_vec();
    if conditions == 1 {
        columns.remove(0);
    }
    columns.push(Column::number("answers"));
    columns.extend(Label::ALL.map(|label| Column::number(label.key())));
    let mut notes = super::words::of_certificates(labels);
    notes.push(
        "an answer's row of why.jsonl has the reason for its label and the readings that it rests on (docs/why.md)".to_owned(),
    );
    Table {
        key: format!("why {run}").trim().replace(' ', "_"),
        title: format!("why answers are as they are, by verdicts of {}: {run}", labels.judges.join(", ")),
        sheet: Sheet { columns, rows, notes },
    }
}

fn add<K: PartialEq>(groups: &mut Vec<(K, Counts)>, names: K, label: Label) {
    let at = Label::ALL.iter().position(|known| *known == label).unwrap_or_default();
    match groups.iter_mut().find(|(known, _)| *known == names) {
        Some((_, counts)) => counts[at] += 1,
        None => {
            let mut counts = Counts::default();
            counts[at] = 1;
            groups.push((names, counts));
        }
    }
}

fn row(names: &[String; 3], counts: &Counts) -> Vec<Vec<String>> {
    let numbers = std::iter::once(counts.iter().sum::<usize>()).chain(counts.iter().copied());
    names.iter().map(cell).chain(numbers.map(|count| cell(count.to_string()))).collect()
}

/// A share of a count with its 95% interval, in percent.
pub(super) fn share(count: usize, of: usize) -> String {
    let percent = |x: f64| format!("{:.0}", 100.0 * x);
    match wilson(count, of, LEVEL) {
        Some(interval) => format!(
            "{count} of {of} ({}%, {} to {})",
            percent(count as f64 / of as f64),
            percent(interval.low),
            percent(interval.high)
        ),
        None => format!("{count} of {of}"),
    }
}
