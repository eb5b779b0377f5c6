//! Counts of a run's labels as a table and as sentences.

use super::evidence::has_no_evidence;
use crate::records::{Record, labelled};
use palimpsest_data::benchmarks::{Benchmark, Table};
use palimpsest_data::ground::order::{entry, unique};
use palimpsest_data::ground::sheet::Columns;
use palimpsest_data::statistics::{LEVEL, wilson};
use palimpsest_run::runs::condition::label as condition_label;
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::plan::dimension_of;
use palimpsest_run::runs::store::RunFolder;
use palimpsest_run::runs::why_rows::{Certificate, Label, SearchRow, WhyRow};

#[derive(Debug, Clone)]
pub struct Labels<'a> {
    benchmark: &'static Benchmark,
    judges: Vec<String>,
    /// By condition, then in plan order.
    pub answers: Vec<(Record<'a>, WhyRow)>,
}

impl<'a> Labels<'a> {
    /// Returns `None` for an unlabelled run.
    pub fn open(folder: &'a RunFolder) -> Result<Option<Self>, RunError> {
        let conditions = folder.header.identity.condition_names();
        let all = labelled(folder, &conditions)?.into_iter();
        let mut answers: Vec<_> = all.filter_map(|one| Some((one.record, one.label?))).collect();
        if answers.is_empty() {
            return Ok(None);
        }
        answers.sort_by_key(|(_, row)| conditions.iter().position(|name| *name == row.condition));
        let judges = unique(answers.iter().map(|(_, row)| row.judge.clone()));
        Ok(Some(Labels { benchmark: folder.benchmark()?, judges, answers }))
    }

    /// One row per type, probe and condition, then totals.
    pub fn table(&self, run: &str) -> Table {
        type Names = [String; 3];
        let grouped = |names: &dyn Fn(&Record<'_>) -> [String; 2]| {
            let mut groups: Vec<(Names, Vec<Label>)> = Vec::new();
            for (record, row) in &self.answers {
                let [kind, dimension] = names(record);
                let own = [condition_label(&row.condition).to_owned(), kind, dimension];
                entry(&mut groups, |(known, _)| *known == own, || (own.clone(), Vec::new()))
                    .1
                    .push(row.label);
            }
            groups
        };
        let own = grouped(&|record| {
            let kind = record.case.labels.get(self.benchmark.split).cloned().unwrap_or_default();
            [kind, dimension_of(self.benchmark, record.probe)]
        });
        let whole = grouped(&|_| ["all", "all"].map(str::to_owned));
        let several = whole.len() > 1;
        let rows = [own, whole].concat();
        let mut table = Columns::of(&rows)
            .text_if(several, "condition", |([condition, ..], _)| &**condition)
            .text("type", |([_, kind, _], _)| &**kind)
            .text("probe", |([.., dimension], _)| &**dimension)
            .number("answers", |(_, labels)| labels.len());
        for label in Label::ALL {
            table =
                table.number(label.key(), |(_, labels)| labels.iter().filter(|one| **one == label).count());
        }
        let mut notes = self.certificates_in_words();
        notes.push(
            "an answer's row of why.jsonl has the reason for its label and the readings that it rests on (docs/why.md)".to_owned(),
        );
        Table {
            key: format!("why {run}").trim().replace(' ', "_"),
            title: format!("why answers are as they are, by verdicts of {}: {run}", self.judges.join(", ")),
            sheet: table.sheet(notes),
        }
    }

    pub fn in_words(&self) -> Vec<String> {
        let rows = self.answers.iter().map(|(_, row)| row);
        let wrong: Vec<&WhyRow> = rows.filter(|row| row.label != Label::Right).collect();
        let counted = Label::ALL.into_iter().filter_map(|label| {
            let count = wrong.iter().filter(|row| row.label == label).count();
            (count > 0).then(|| format!("{} {count}", label.key()))
        });
        let counted: Vec<String> = counted.collect();
        let mut words = vec![format!(
            "Of {} answers {} are right by the verdicts of {}. The others: {}.",
            self.answers.len(),
            self.answers.len() - wrong.len(),
            self.judges.join(", "),
            if counted.is_empty() { "none".to_owned() } else { counted.join(", ") }
        )];
        let undecided = || wrong.iter().filter(|row| row.label == Label::Undecided).map(|row| &row.why);
        let reasons = unique(undecided()).into_iter();
        let mut reasons: Vec<(&String, usize)> =
            reasons.map(|why| (why, undecided().filter(|other| *other == why).count())).collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        if !reasons.is_empty() {
            let reasons: Vec<String> =
                reasons.iter().map(|(why, count)| format!("{why} ({count})")).collect();
            words.push(format!("Undecided: {}.", reasons.join(", ")));
        }
        words.extend(self.certificates_in_words().into_iter().map(|text| format!("{}.", capital(&text))));
        words
    }

    /// Sentences on certificates, without full stops.
    fn certificates_in_words(&self) -> Vec<String> {
        let [with, without] = [false, true].map(|without| -> Vec<(SearchRow, Option<&Certificate>)> {
            let rows = self
                .answers
                .iter()
                .filter(|(record, _)| has_no_evidence(self.benchmark, record.case, record.probe) == without);
            rows.filter_map(|(_, row)| Some((row.search?, row.certificate.as_ref()))).collect()
        });
        let found = |searches: &[(SearchRow, Option<&Certificate>)]| {
            let found = searches.iter().filter_map(|(_, certificate)| *certificate);
            let single = found.clone().filter(|certificate| certificate.sessions.len() == 1).count();
            (share(found.count(), searches.len()), single)
        };
        let mut said = Vec::new();
        if !with.is_empty() {
            let mean = |all: &mut dyn Iterator<Item = usize>| {
                let all: Vec<usize> = all.collect();
                all.iter().sum::<usize>() as f64 / all.len().max(1) as f64
            };
            let (found, single) = found(&with);
            let successful = with.iter().filter(|(_, certificate)| certificate.is_some());
            said.push(format!(
                "certificates: blocking a set of sessions turns {found}, one session alone {single}; searched among {:.1} sessions in {:.1} \
                 readings in the mean ({:.1} where one was found)",
                mean(&mut with.iter().map(|(search, _)| search.candidates)),
                mean(&mut with.iter().map(|(search, _)| search.sessions)),
                mean(&mut successful.map(|(search, _)| search.sessions)),
            ));
        }
        let controls = with.iter().filter_map(|(_, certificate)| Some(certificate.as_ref()?.controls));
        let sets: usize = controls.clone().map(|controls| controls.sets).sum();
        if sets > 0 {
            let flips = share(controls.map(|controls| controls.flips).sum(), sets);
            said.push(format!("random sets of a certificate's size turn the answer in {flips}"));
        }
        let spent = with.iter().filter(|(search, _)| search.spent).count();
        if spent > 0 {
            said.push(format!("{spent} searches spent their readings (--readings)"));
        }
        if !without.is_empty() {
            let (found, single) = found(&without);
            said.push(format!(
                "false certificates: of histories without evidence, {found} have one, {single} of one session"
            ));
        }
        said
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().collect::<String>() + chars.as_str()).unwrap_or_default()
}

fn share(count: usize, of: usize) -> String {
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
