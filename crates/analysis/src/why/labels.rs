//! Counts of a run's labels as a table and as sentences.

use super::evidence::has_no_evidence;
use palimpsest_data::benchmarks::Table;
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::sheet::{Column, Sheet, cell};
use palimpsest_data::statistics::{LEVEL, wilson};
use palimpsest_run::runs::condition::label as condition_label;
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::plan::dimension_of;
use palimpsest_run::runs::rows::AnswerKey;
use palimpsest_run::runs::store::RunFolder;
use palimpsest_run::runs::why_rows::{Label, WhyRow, last_rows, read_why};

#[derive(Debug, Clone)]
pub struct Labels {
    judges: Vec<String>,
    /// In plan order, then by condition.
    pub answers: Vec<Labelled>,
}

#[derive(Debug, Clone)]
pub struct Labelled {
    kind: String,
    dimension: String,
    pub row: WhyRow,
    /// True if its history has no evidence on either side.
    without_evidence: bool,
}

impl Labels {
    /// Returns `None` for an unlabelled run.
    pub fn open(folder: &RunFolder) -> Result<Option<Self>, RunError> {
        let mut rows = last_rows(read_why(&folder.dir)?);
        if rows.is_empty() {
            return Ok(None);
        }
        let benchmark = folder.benchmark()?;
        let mut answers = Vec::new();
        for condition in folder.header.identity.condition_names() {
            for case in &folder.plan {
                for probe in &case.probes {
                    let row = rows.remove(&AnswerKey::of(&case.case, &probe.id, condition).owned());
                    answers.extend(row.map(|row| Labelled {
                        kind: case.labels.get(benchmark.split).cloned().unwrap_or_default(),
                        dimension: dimension_of(benchmark, probe),
                        row,
                        without_evidence: has_no_evidence(benchmark, case, probe),
                    }));
                }
            }
        }
        Ok(Some(Labels {
            judges: unique(answers.iter().map(|one: &Labelled| one.row.judge.clone())),
            answers,
        }))
    }

    /// One row per type, probe and condition, then totals.
    pub fn table(&self, run: &str) -> Table {
        let name = |answer: &Labelled| condition_label(&answer.row.condition).to_owned();
        let own = |answer: &Labelled| [name(answer), answer.kind.clone(), answer.dimension.clone()];
        let whole = |answer: &Labelled| [name(answer), "all".to_owned(), "all".to_owned()];
        let conditions = unique(self.answers.iter().map(name)).len();
        let mut rows = self.counted(&own);
        rows.extend(self.counted(&whole));
        let mut columns: Vec<Column> = ["condition", "type", "probe"].map(Column::text).to_vec();
        if conditions == 1 {
            rows.iter_mut().for_each(|row| drop(row.remove(0)));
            columns.remove(0);
        }
        columns.push(Column::number("answers"));
        columns.extend(Label::ALL.map(|label| Column::number(label.key())));
        let mut notes = self.certificates_in_words();
        notes.push(
            "an answer's row of why.jsonl has the reason for its label and the readings that it rests on (docs/why.md)".to_owned(),
        );
        Table {
            key: format!("why {run}").trim().replace(' ', "_"),
            title: format!("why answers are as they are, by verdicts of {}: {run}", self.judges.join(", ")),
            sheet: Sheet { columns, rows, notes },
        }
    }

    fn counted(&self, named: &dyn Fn(&Labelled) -> [String; 3]) -> Vec<Vec<Vec<String>>> {
        let row = |names: [String; 3]| {
            let own: Vec<Label> =
                self.answers.iter().filter(|one| named(one) == names).map(|one| one.row.label).collect();
            let of_label = Label::ALL.map(|label| own.iter().filter(|one| **one == label).count());
            let counts = std::iter::once(own.len()).chain(of_label);
            names.iter().map(cell).chain(counts.map(|count| cell(count.to_string()))).collect()
        };
        unique(self.answers.iter().map(named)).into_iter().map(row).collect()
    }

    pub fn in_words(&self) -> Vec<String> {
        let wrong: Vec<&WhyRow> =
            self.answers.iter().map(|answer| &answer.row).filter(|row| row.label != Label::Right).collect();
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
        let [with, without] = [false, true].map(|without| {
            let rows = self.answers.iter().filter(|answer| answer.without_evidence == without);
            Certificates::of(rows.map(|answer| &answer.row))
        });
        let mut said = Vec::new();
        if with.searched > 0 {
            let Certificates { searched, found, single, candidates, .. } = with;
            said.push(format!(
                "certificates: blocking a set of sessions turns {}, one session alone {single}; searched among {:.1} sessions in {:.1} readings \
                 in the mean ({:.1} where one was found)",
                share(found, searched),
                candidates as f64 / searched as f64,
                with.readings as f64 / searched as f64,
                with.readings_of_found as f64 / found.max(1) as f64,
            ));
        }
        if with.control_sets > 0 {
            said.push(format!(
                "random sets of a certificate's size turn the answer in {}",
                share(with.control_flips, with.control_sets)
            ));
        }
        if with.spent > 0 {
            said.push(format!("{} searches spent their readings (--readings)", with.spent));
        }
        if without.searched > 0 {
            said.push(format!(
                "false certificates: of histories without evidence, {} have one, {} of one session",
                share(without.found, without.searched),
                without.single
            ));
        }
        said
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Certificates {
    searched: usize,
    found: usize,
    single: usize,
    readings: usize,
    /// The same, of successful searches.
    readings_of_found: usize,
    candidates: usize,
    spent: usize,
    control_sets: usize,
    control_flips: usize,
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
