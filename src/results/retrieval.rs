//! What share of the evidence a condition's context showed: masses and answers under retrieval are read beside it.

use crate::benchmarks::{Context, Table};
use crate::ground::numbers::percent;
use crate::ground::sheet::{Column, Sheet, cell};
use crate::memory::evidence_present;
use crate::run::store::RunFolder;

/// A row a condition with a context other than the whole history; absent where no run has one. `names` are what the runs are
/// called. Probes whose data names no evidence are not counted, and neither are those without an answer.
pub fn retrieval(runs: &[(&RunFolder, &str)]) -> Option<Table> {
    let mut rows = Vec::new();
    for (run, name) in runs {
        let identity = &run.header.identity;
        for condition in identity.conditions.iter().filter(|c| c.context != Context::Whole) {
            let (mut share, mut whole, mut questions, mut segments, mut clipped) = (0.0, 0, 0, 0, 0);
            for row in run.answers.iter().filter(|r| r.condition == condition.name && r.error.is_none()) {
                let of_case = run.plan.iter().find(|case| case.case == row.case);
                let probe = of_case.and_then(|case| case.probes.iter().find(|p| p.id == row.probe));
                let (Some(case), Some(probe), Some(context)) = (of_case, probe, &row.context) else {
                    continue;
                };
                let shown: Vec<usize> = context.iter().copied().filter(|&index| row.shows(index)).collect();
                segments += shown.len();
                clipped += usize::from(shown.len() < context.len());
                let (present, all) = evidence_present(case.evidence_of(probe).map(|e| e.segment), &shown);
                if all > 0 {
                    share += present as f64 / all as f64;
                    whole += usize::from(present == all);
                    questions += 1;
                }
            }
            let answered = run.answers.iter().filter(|r| r.condition == condition.name && r.error.is_none());
            let answered = answered.count();
            let of = |sum: f64, n: usize| if n == 0 { "-".to_owned() } else { percent(sum / n as f64) };
            rows.push(
                [
                    (*name).to_owned(),
                    condition.context.named(&condition.name),
                    format!("{:.1}", segments as f64 / answered.max(1) as f64),
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
        Column::number("questions with evidence"),
        Column::number("evidence shown %"),
        Column::number("all of it %"),
        Column::number("clipped"),
    ];
    let notes = vec![
        "evidence shown: mean over questions of the share of their pieces of evidence that the context held after truncation; clipped: \
         answers whose context was cut"
            .to_owned(),
    ];
    let sheet = Sheet { columns, rows, notes };
    (!sheet.rows.is_empty()).then(|| Table {
        key: "retrieval".to_owned(),
        title: "What the contexts held".to_owned(),
        sheet,
    })
}
