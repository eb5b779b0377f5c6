//! Import and export of answers in a benchmark's exchange format.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::ensure;

use super::header::{ContextPolicy, Identity, Machine, NameAndDigest, RunHeader};
use super::plan::Selection;
use super::rows::AnswerRow;
use super::store::{RunFolder, RunStore};
use palimpsest_core::digest::sha256;
use palimpsest_core::text::Split;
use palimpsest_data::benchmarks::{Benchmark, Exchanged};
use palimpsest_data::case::Case;

const LISTED: usize = 10;

pub fn unanswered(missing: usize, failed: usize) -> String {
    let parts = [(missing, "were not asked yet"), (failed, "ended in an error")];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    format!("{} questions have no answer: {}", missing + failed, parts.collect::<Vec<_>>().join(", "))
}

/// Answers in dataset order. Fails if some are missing, unless `partial`.
pub fn export(folder: &RunFolder, partial: bool) -> anyhow::Result<Vec<Exchanged>> {
    let rows: HashMap<(&str, &str), &AnswerRow> =
        folder.answers.iter().map(|row| ((row.case.as_str(), row.probe.as_str()), row)).collect();
    let (mut lacking, mut missing) = (Vec::new(), 0);
    let mut out = Vec::with_capacity(folder.plan.len());
    for case in &folder.plan {
        let mut exchanged = Exchanged { case: case.case.clone(), ..Exchanged::default() };
        for probe in &case.probes {
            let row = rows.get(&(case.case.as_str(), probe.id.as_str()));
            let answer = row.filter(|row| row.error.is_none()).and_then(|row| row.answer.clone());
            if answer.is_none() && case.broken.is_none() {
                missing += usize::from(row.is_none());
                lacking.push(format!("{}/{}", case.case, probe.id));
            }
            exchanged.answers.extend(answer.map(|answer| (probe.id.clone(), answer)));
        }
        out.push(exchanged);
    }
    ensure!(
        lacking.is_empty() || partial,
        "{} ({}); finish the run with the same `palimpsest run` command, or write them as empty strings with --partial",
        unanswered(missing, lacking.len() - missing),
        shorten(&lacking)
    );
    Ok(out)
}

#[derive(Debug, Clone)]
pub struct Import<'a> {
    pub benchmark: &'static Benchmark,
    pub dataset: NameAndDigest,
    pub cases: &'a [Case],
    pub model: String,
    /// Missing answers become error rows instead of failing the import.
    pub partial: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    pub answers: usize,
    /// Answers with a thought, which is stored separately.
    pub thoughts: usize,
    /// Answers that end inside a thought or are empty after it; errors.
    pub cut: usize,
}

/// Makes `dir` a run folder of a file's answers; the file's digest stands for the model. Writes nothing on error.
pub fn import(
    dir: &Path,
    text: &[u8],
    entries: &[Exchanged],
    import: &Import<'_>,
) -> anyhow::Result<Imported> {
    let mut by_case: BTreeMap<&str, &Exchanged> = BTreeMap::new();
    for entry in entries {
        let double = by_case.insert(&entry.case, entry);
        ensure!(double.is_none(), "uid `{}` occurs twice; keep one of its entries", entry.case);
    }
    let is_known = |id: &&String| import.cases.iter().any(|case| case.id == **id);
    let unknown: Vec<String> =
        entries.iter().map(|entry| &entry.case).filter(|id| !is_known(id)).cloned().collect();
    ensure!(
        unknown.is_empty(),
        "{} uids are not in the dataset ({}); give the dataset that the answers were made from",
        unknown.len(),
        shorten(&unknown)
    );
    let plan = Selection::of_all(import.benchmark).plan(import.cases)?;
    let mut rows = Vec::new();
    let mut missing = Vec::new();
    for case in &plan {
        let entry = by_case.get(case.case.as_str());
        for probe in &case.probes {
            let answer = entry.and_then(|entry| entry.answers.get(&probe.id));
            let said = entry.and_then(|entry| entry.errors.get(&probe.id));
            if answer.is_none() && said.is_none() {
                missing.push(format!("{}/{}", case.case, probe.id));
            }
            rows.push(AnswerRow {
                case: case.case.clone(),
                probe: probe.id.clone(),
                labels: case.labels.clone(),
                query: probe.query.clone(),
                ..match said {
                    // A failed call: the text in place of the answer is the reason.
                    Some(said) if answer.is_none() => {
                        failed(format!("the imported file has no answer but {said:?}"))
                    }
                    _ => imported_row(answer.map(String::as_str)),
                }
            });
        }
    }
    ensure!(
        missing.is_empty() || import.partial,
        "{} answers are missing ({}); complete the file, or import them as errors with --partial",
        missing.len(),
        shorten(&missing)
    );
    let is_run = dir.join(super::store::HEADER).exists();
    ensure!(!is_run, "{} holds a run already; import into a new folder", dir.display());
    let identity = Identity {
        benchmark: import.benchmark.name.to_owned(),
        dataset: import.dataset.clone(),
        model: NameAndDigest { name: import.model.clone(), digest: sha256(text) },
        context: ContextPolicy { policy: "imported".to_owned(), ..ContextPolicy::default() },
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Identity::default()
    };
    let header = RunHeader::new(identity, None, Machine::here("imported", 0));
    let mut store = RunStore::open_or_create(dir, &header, plan)?;
    let imported = Imported {
        answers: rows.iter().filter(|row| row.answer.is_some()).count(),
        thoughts: rows.iter().filter(|row| row.answer.is_some() && row.thought.is_some()).count(),
        cut: rows.iter().filter(|row| row.cut).count(),
    };
    store.replace_answers(rows)?;
    Ok(imported)
}

fn failed(error: String) -> AnswerRow {
    AnswerRow { error: Some(error), ..AnswerRow::default() }
}

fn imported_row(text: Option<&str>) -> AnswerRow {
    let Some(text) = text else { return failed("the imported file has no answer".to_owned()) };
    let Split { thought, answer } = Split::of_foreign(text);
    let has_answer = answer.as_ref().is_some_and(|answer| !answer.is_empty());
    // Empty text is an empty answer; text that is only a thought is no answer.
    if has_answer || thought.is_none() && answer.is_some() {
        return AnswerRow { thought, answer, ..AnswerRow::default() };
    }
    let error = match answer {
        None => "the imported answer ends inside its thought",
        Some(_) => "the imported answer is a thought without an answer after it",
    };
    AnswerRow { thought, cut: true, ..failed(error.to_owned()) }
}

pub fn shorten(items: &[String]) -> String {
    let first = items.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    if items.len() > LISTED { format!("{first}, ...") } else { first }
}
