//! Share of the evidence that a condition's context showed, beside masses and answers under retrieval and of cut histories.

use crate::benchmarks::{Context, Table};
use crate::ground::numbers::percent;
use crate::ground::sheet::{Column, Sheet, cell};
use crate::memory::evidence_present;
use crate::run::rows::AnswerRow;
use crate::run::store::RunFolder;
use crate::statistics::spread::mean;

/// A row a condition whose context is not the whole history, because it was not meant to be or because the history was cut to fit;
/// absent where no run has one. Of each run what it is called and the stored names of the conditions that are meant. Probes whose data
/// names no evidence are not counted, and neither are those without an answer.
pub fn retrieval(runs: &[(&RunFolder, &str, &[String])]) -> Option<Table> {
    let mut rows = Vec::new();
    for (run, name, conditions) in runs {
        let meant = run.header.identity.conditions_or_plain().iter();
        // What memories hold of the evidence is counted by provenance (`crate::losses`).
        let of_history = meant.filter(|condition| condition.memory.is_none());
        for condition in of_history.filter(|condition| conditions.contains(&condition.name)) {
            let answered: Vec<&AnswerRow> = (run.answers.iter())
                .filter(|row| row.condition == condition.name && row.error.is_none())
                .collect();
            let whole_history = condition.context == Context::Whole;
            if whole_history && !answered.iter().any(|row| row.was_cut_to_fit()) {
                continue;
            }
            let (mut share, mut whole, mut questions, mut segments, mut clipped) = (0.0, 0, 0, 0, 0);
            for row in &answered {
                let of_case = run.plan.iter().find(|case| case.case == row.case);
                let probe = of_case.and_then(|case| case.probes.iter().find(|p| p.id == row.probe));
                let (Some(case), Some(probe)) = (of_case, probe) else { continue };
                if row.context.is_none() && !whole_history {
                    continue;
                }
                let evidence: Vec<usize> = case.evidence_of(probe).map(|e| e.segment).collect();
                // Of a whole history the evidence is what can be looked up: the plan does not hold its other segments.
                let context = row.context.as_ref().unwrap_or(&evidence);
                let shown: Vec<usize> = context.iter().copied().filter(|&index| row.shows(index)).collect();
                segments += if whole_history { row.dropped_sessions.len() } else { shown.len() };
                clipped += usize::from(row.was_cut_to_fit());
                let (present, all) = evidence_present(evidence.into_iter(), &shown);
                if all > 0 {
                    share += present as f64 / all as f64;
                    whole += usize::from(present == all);
                    questions += 1;
                }
            }
            let of = |sum: f64, n: usize| if n == 0 { "-".to_owned() } else { percent(sum / n as f64) };
            let tokens: Option<Vec<f64>> = answered.iter().map(|row| row.history_shown()).collect();
            let segments = format!("{:.1}", segments as f64 / answered.len().max(1) as f64);
            rows.push(
                [
                    (*name).to_owned(),
                    condition.context.named(condition.label()),
                    if whole_history { format!("all but {segments}") } else { segments },
                    tokens.as_deref().and_then(mean).map_or("-".to_owned(), percent),
                    questions.to_string(),
                    of(share, questions),
                    of(whole as f64, questions),
                    clipped.to_string(),
                ]
                .map(cell)
                .to_vec(),
            );
        }
    }
    let columns = vec![
        Column::text("run"),
        Column::text("condition"),
        Column::number("segments"),
        Column::number("tokens kept %"),
        Column::number("questions with evidence"),
        Column::number("evidence shown %"),
        Column::number("all of it %"),
        Column::number("clipped"),
    ];
    let notes = vec![
        "segments: mean over answers of those in the context after truncation, of whole histories of those that truncation dropped; tokens \
         kept: mean share of the context's tokens that truncation left; evidence shown: mean over questions of the share of their pieces \
         of evidence that the context held after truncation; clipped: answers whose context was cut"
            .to_owned(),
    ];
    let sheet = Sheet { columns, rows, notes };
    (!sheet.rows.is_empty()).then(|| Table {
        key: "retrieval".to_owned(),
        title: "What the contexts held".to_owned(),
        sheet,
    })
}
