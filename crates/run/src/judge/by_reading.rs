//! Judging without a model: each reading, a benchmark's rule for parsing answers, acts as a judge of its own.
//!
//! Readings are deterministic, so existing verdicts are not rewritten. An unreadable answer is an error row, which counts as wrong. Probes
//! without a right answer under a reading get no row.

use std::collections::{BTreeMap, HashMap};

use crate::runs::condition::Condition;
use crate::runs::error::RunError;
use crate::runs::plan::{PlannedCase, PlannedProbe};
use crate::runs::rows::{AnswerRow, VerdictRow};
use crate::runs::store::RunStore;
use palimpsest_core::digest::sha256;
use palimpsest_data::benchmarks::{Benchmark, Given, Reading, Said, Told};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadSummary {
    pub reading: &'static str,
    pub about: &'static str,
    pub planned: usize,
    pub read: usize,
    pub unread: usize,
    pub unanswered: usize,
}

/// SHA-256 (lower-case hex) of what determines a reading's verdicts, including a code version.
pub fn reading_digest(benchmark: &Benchmark, reading: &Reading) -> String {
    sha256(format!("palimpsest reading 1\n{}\n{}\n{}", benchmark.name, reading.name, reading.about))
}

pub fn read_answers(store: &mut RunStore, benchmark: &Benchmark) -> Result<Vec<ReadSummary>, RunError> {
    let plan = store.plan().to_vec();
    let identity = store.header().identity.clone();
    let conditions = identity.conditions_or_plain();
    let answers = store.answers();
    let answers: HashMap<_, &AnswerRow> = answers.iter().map(|row| (row.key(), row)).collect();
    let mut summaries = Vec::new();
    for reading in benchmark.readings {
        let rubric = reading_digest(benchmark, reading);
        let before: HashMap<_, _> = (store.verdicts().into_iter())
            .filter(|row| row.judge == reading.name && row.rubric.as_deref() == Some(&*rubric))
            .map(|row| (row.key().owned(), row))
            .collect();
        let mut rows = Vec::new();
        for case in &plan {
            for condition in conditions {
                let asked = |probe: &&PlannedProbe| {
                    probe.is_asked_under(&condition.name) && (reading.asks)(&probe.judge)
                };
                for probe in case.probes.iter().filter(asked) {
                    let row = VerdictRow {
                        case: case.case.clone(),
                        probe: probe.id.clone(),
                        condition: condition.name.clone(),
                        judge: reading.name.to_owned(),
                        rubric: Some(rubric.clone()),
                        ..VerdictRow::default()
                    };
                    let answer = answers.get(&row.key()).copied();
                    rows.push((
                        verdict(row, reading, (case, probe, condition), identity.seed, answer),
                        answer,
                    ));
                }
            }
        }
        // Endpoints give no scores; avoid a judge with only errors.
        let scored = |(_, answer): &(_, Option<&AnswerRow>)| {
            answer.is_some_and(|row| !row.scores.is_empty() || row.contrast.is_some())
        };
        if reading.of_scores && !rows.iter().any(scored) {
            continue;
        }
        let (reading, about, planned) = (reading.name, reading.about, rows.len());
        let mut summary = ReadSummary { reading, about, planned, ..ReadSummary::default() };
        for (row, answer) in rows {
            let is_answered = answer.is_some_and(|row| row.answer.is_some());
            let count = match (row.is_clean(), is_answered) {
                (true, _) => &mut summary.read,
                (false, true) => &mut summary.unread,
                (false, false) => &mut summary.unanswered,
            };
            *count += 1;
            let same = |old: &VerdictRow| {
                (&old.choice, old.score, old.correct, &old.error)
                    == (&row.choice, row.score, row.correct, &row.error)
            };
            if !before.get(&row.key().owned()).is_some_and(same) {
                store.append_verdict(row)?;
            }
        }
        summaries.push(summary);
    }
    store.finish()?;
    Ok(summaries)
}

fn verdict(
    row: VerdictRow,
    reading: &Reading,
    (case, probe, condition): (&PlannedCase, &PlannedProbe, &Condition),
    seed: u64,
    answer: Option<&AnswerRow>,
) -> VerdictRow {
    let scores = answer.map(scores).filter(|scores| !scores.is_empty());
    let given = Given {
        case: &case.case,
        setting: condition.setting.as_deref().unwrap_or_default(),
        seed,
        answer: answer.and_then(|row| row.answer.as_deref()),
        thought: answer.and_then(|row| row.thought.as_deref()),
        scores: scores.as_ref(),
        notes: &probe.judge,
    };
    match (reading.read)(&given) {
        Err(error) => VerdictRow { error: Some(error.to_string()), ..row },
        Ok(Told { said, correct, probability }) => {
            VerdictRow { probability, ..with_said(row, said, correct, probe) }
        }
    }
}

/// Adds the parsed answer. A choice is right if the probe's note says so, unless `correct` overrides it.
pub(super) fn with_said(
    row: VerdictRow,
    said: Said,
    correct: Option<bool>,
    probe: &PlannedProbe,
) -> VerdictRow {
    match said {
        Said::Correct(correct) => VerdictRow { correct: Some(correct), ..row },
        Said::Score(score) => VerdictRow { score: Some(score), correct, ..row },
        Said::Choice(choice) => {
            let expected = probe.judge.get(EXPECTED).and_then(serde_json::Value::as_str);
            let correct = correct.or_else(|| expected.map(|expected| expected == choice));
            VerdictRow { choice: Some(choice), correct, ..row }
        }
    }
}

fn scores(row: &AnswerRow) -> BTreeMap<String, f64> {
    match &row.contrast {
        Some(contrast) if row.scores.is_empty() => {
            contrast.values().map(|value| (value.text.clone(), value.log_p)).collect()
        }
        _ => row.scores.clone(),
    }
}

const EXPECTED: &str = "expected";
