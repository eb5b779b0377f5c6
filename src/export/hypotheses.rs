//! LongMemEval's hypotheses: JSON lines `{"question_id", "hypothesis"}`, in the plan's order.
//!
//! `question_id` is `CASE_PROBE`. The evaluation script of that benchmark reads these two fields and nothing else, and averages
//! over the lines that it finds: a missing answer must be a line with an empty hypothesis, or it would raise the accuracy.

use super::{ExportError, check_distinct, id};
use crate::run::exchange::export;
use crate::run::store::RunFolder;

/// The lines of a run of one condition: the format holds one answer a question. Missing ones are refused, or with `partial` written as empty.
pub fn lines(folder: &RunFolder, partial: bool) -> Result<String, ExportError> {
    let answers = export(folder, partial)?;
    let mut ids = Vec::new();
    let mut text = String::new();
    for (case, exchanged) in folder.plan.iter().zip(&answers) {
        for probe in &case.probes {
            let id = id(&case.case, &probe.id);
            let hypothesis = exchanged.answers.get(&probe.id).map_or("", String::as_str);
            text += &serde_json::json!({ "question_id": id, "hypothesis": hypothesis }).to_string();
            text.push('\n');
            ids.push(id);
        }
    }
    check_distinct(ids.into_iter())?;
    Ok(text)
}
