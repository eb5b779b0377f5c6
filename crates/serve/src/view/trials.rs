//! Trials: answers asked again with changes, appended to the run's `trials.jsonl`. The model may differ from the run's.

use serde_json::Value;

use super::folder::Folder;
use super::state::Runs;
use palimpsest_data::ground::csv::write;
use palimpsest_run::runs::store::TRIALS;

/// Trials of one row or of all, with page row numbers.
pub fn of_run(folder: &Folder, first: usize, only: Option<usize>) -> Vec<Value> {
    let rows = folder.facts.iter().enumerate().filter(|(row, _)| only.is_none_or(|only| only == *row));
    let of_row = rows.flat_map(|(row, facts)| {
        let trials: Vec<Value> = folder.read_all(TRIALS, facts.trials.iter().copied());
        trials.into_iter().map(move |mut trial| {
            trial["row"] = serde_json::json!(first + row);
            trial
        })
    });
    of_row.collect()
}

pub fn of_all(runs: &Runs) -> Vec<Value> {
    runs.readable().flat_map(|(_, first, folder)| of_run(folder, first, None)).collect()
}

/// Columns of the trials table: heading, JSON pointer into a trial.
const COLUMNS: [(&str, &str); 18] = [
    ("id", "/id"),
    ("case", "/case"),
    ("probe", "/probe"),
    ("condition", "/condition"),
    ("time", "/time"),
    ("model", "/model/name"),
    ("model_digest", "/model/digest"),
    ("same_model", "/model/same"),
    ("asked", "/asked"),
    ("answer_before", "/before/answer"),
    ("answer_after", "/after/answer"),
    ("log_p_before", "/before/log_p"),
    ("log_p_after", "/after/log_p"),
    ("drop", "/after/drop"),
    ("contrast_before", "/before/contrast"),
    ("contrast_after", "/after/contrast"),
    ("seconds", "/seconds"),
    ("note", "/note"),
];

pub fn csv(trials: &[Value]) -> Vec<u8> {
    let cell = |trial: &Value, pointer: &str| match trial.pointer(pointer) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let head: Vec<String> = COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let rows = trials.iter().map(|trial| COLUMNS.iter().map(|(_, pointer)| cell(trial, pointer)).collect());
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    write(all.into_iter().map(csv::ByteRecord::from))
}
