//! Counts of a run's labels as a table and as sentences.

use super::decide::NO_VERDICT;
use super::evidence::{has_no_evidence, roles};
use crate::records::{Record, labelled};
use palimpsest_data::benchmarks::{Benchmark, Side, Table};
use palimpsest_data::ground::order::{entry, unique};
use palimpsest_data::ground::sheet::Columns;
use palimpsest_data::ground::words::{capitalised, counted, of_counted};
use palimpsest_data::statistics::{LEVEL, wilson};
use palimpsest_run::runs::condition::label as condition_label;
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::judged::no_result;
use palimpsest_run::runs::plan::dimension_of;
use palimpsest_run::runs::store::RunFolder;
use palimpsest_run::runs::why_rows::{Certificate, Label, SearchRow, WhyRow};

/// Reasons that a sentence on undecided answers names.
const REASONS: usize = 5;

#[derive(Debug, Clone)]
pub struct Labels<'a> {
    benchmark: &'static Benchmark,
    judges: Vec<String>,
    /// By condition, then in plan order; only of judges whose verdicts count.
    pub answers: Vec<(Record<'a>, WhyRow)>,
    /// Why the verdicts of a judge do not count, and with them the labels that explain them.
    pub withheld: Option<String>,
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
        let withheld = answers.iter().find_map(|(_, row)| no_result(&row.judge));
        answers.retain(|(_, row)| no_result(&row.judge).is_none());
        answers.sort_by_key(|(_, row)| conditions.iter().position(|name| *name == row.condition));
        let judges = unique(answers.iter().map(|(_, row)| row.judge.clone()));
        Ok(Some(Labels { benchmark: folder.benchmark()?, judges, answers, withheld }))
    }

    /// One row per type, probe and condition, then totals; `None` if all labels are withheld.
    pub fn table(&self, run: &str) -> Option<Table> {
        if self.answers.is_empty() {
            return None;
        }
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
        let has_kinds = own.iter().any(|([_, kind, _], _)| !kind.is_empty());
        let rows = [own, whole].concat();
        let mut table = Columns::of(&rows)
            .text_if(several, "condition", |([condition, ..], _)| &**condition)
            .text_if(has_kinds, "type", |([_, kind, _], _)| &**kind)
            .text("probe", |([.., dimension], _)| &**dimension)
            .number("answers", |(_, labels)| labels.len());
        for label in Label::ALL {
            table =
                table.number(label.key(), |(_, labels)| labels.iter().filter(|one| **one == label).count());
        }
        let mut notes = self.certificates_in_words();
        notes.push(
            "why.jsonl has the reason for each label and the measurements behind it (docs/why.md)".to_owned(),
        );
        Some(Table {
            key: format!("why {run}").trim().replace(' ', "_"),
            title: format!(
                "why answers are right or wrong, by verdicts of {}: {run}",
                self.judges.join(", ")
            ),
            sheet: table.sheet(notes),
        })
    }

    /// Sentences on labels and certificates.
    pub fn in_words(&self) -> Vec<String> {
        let mut words = self.counts_in_words();
        words.extend(self.certificates_in_words().into_iter().map(|text| format!("{}.", capitalised(&text))));
        words
    }

    /// One sentence per label.
    pub fn counts_in_words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if !self.answers.is_empty() {
            let right = self.with(Label::Right).len();
            let unjudged = self.with(Label::Undecided).iter().filter(|row| row.why == NO_VERDICT).count();
            let judged = self.answers.len() - unjudged;
            let none = match unjudged {
                0 => String::new(),
                1 => "; 1 has none".to_owned(),
                n => format!("; {n} have none"),
            };
            words.push(format!(
                "{} right by the verdicts of {}{none}.",
                of_counted(right, judged, "answer", ["is", "are"]),
                self.judges.join(", ")
            ));
        }
        let others = Label::ALL.into_iter().filter(|label| *label != Label::Right);
        words.extend(others.filter_map(|label| {
            let rows = self.with(label);
            let kind = if label == Label::Undecided { "undecided answer" } else { "wrong answer" };
            (!rows.is_empty())
                .then(|| format!("{}: {}.", counted(rows.len(), kind), self.meaning(label, &rows)))
        }));
        words.extend(self.withheld.iter().map(|why| format!("Labels are withheld: {why}.")));
        words
    }

    fn with(&self, label: Label) -> Vec<&WhyRow> {
        self.answers.iter().map(|(_, row)| row).filter(|row| row.label == label).collect()
    }

    /// Of undecided answers, their reasons.
    fn meaning(&self, label: Label, rows: &[&WhyRow]) -> String {
        let [newer, older] = [Side::Newer, Side::Older].map(|side| {
            let role =
                roles(self.benchmark, side).first().map_or(String::new(), |role| role.replace('_', " "));
            format!("the {role} {}", self.benchmark.segment)
        });
        match label {
            Label::Right => "the verdict is correct".to_owned(),
            Label::Misjudged => "the answer names the current value".to_owned(),
            Label::NotShown => format!("{newer} was not in the prompt"),
            Label::NoEffect => format!("hiding {newer} changed nothing (no more than hiding random text)"),
            Label::Overridden => format!("hiding or removing {older} turned the answer"),
            Label::Carried => {
                format!("hiding {older} changed nothing, removing it turned the answer")
            }
            Label::Undecided => {
                let reasons = unique(rows.iter().map(|row| row.why.as_str())).into_iter();
                let mut reasons: Vec<(&str, usize)> =
                    reasons.map(|why| (why, rows.iter().filter(|row| row.why == why).count())).collect();
                reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
                let others: usize = reasons.iter().skip(REASONS).map(|(_, count)| count).sum();
                let named = reasons.iter().take(REASONS).map(|(why, count)| format!("{why} ({count})"));
                let others = (others > 0).then(|| format!("other reasons ({others})"));
                named.chain(others).collect::<Vec<_>>().join(", ")
            }
        }
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
                "certificates: hiding a set of sessions turns {found}, one session alone turns {single}; the search took {:.1} candidate \
                 sessions and {:.1} forward passes in the mean ({:.1} where it found one)",
                mean(&mut with.iter().map(|(search, _)| search.candidates)),
                mean(&mut with.iter().map(|(search, _)| search.sessions)),
                mean(&mut successful.map(|(search, _)| search.sessions)),
            ));
        }
        let controls = with.iter().filter_map(|(_, certificate)| Some(certificate.as_ref()?.controls));
        let sets: usize = controls.clone().map(|controls| controls.sets).sum();
        if sets > 0 {
            let flips = share(controls.map(|controls| controls.flips).sum(), sets);
            said.push(format!("hiding random text of a certificate's size turns the answer in {flips}"));
        }
        let spent = with.iter().filter(|(search, _)| search.spent).count();
        if spent > 0 {
            said.push(format!(
                "{} ended at the limit of forward passes (--readings)",
                if spent == 1 { "1 search".to_owned() } else { format!("{spent} searches") }
            ));
        }
        if !without.is_empty() {
            let (found, single) = found(&without);
            said.push(format!(
                "false certificates: {found} of the histories without evidence have one, {single} of one session"
            ));
        }
        said
    }
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
