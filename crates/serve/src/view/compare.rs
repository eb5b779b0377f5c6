//! Compares two runs or conditions on their common questions: flipped answers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::folder::Folder;
use super::state::Runs;
use palimpsest_data::statistics::mcnemar::mcnemar;
use palimpsest_run::runs::condition::Condition;

/// Addressed as `RUN:CONDITION`.
#[derive(Debug)]
struct Side<'a> {
    folder: &'a Folder,
    condition: &'a Condition,
    /// Page rows by case and probe.
    rows: BTreeMap<(&'a str, &'a str), usize>,
    first: usize,
}

impl<'a> Side<'a> {
    fn of(runs: &'a Runs, name: &str) -> Result<Self, String> {
        let wrong = || {
            let known: Vec<String> =
                runs.readable().map(|(at, _, folder)| format!("{at} ({})", folder.id)).collect();
            format!(
                "`{name}` names no condition of a run; give RUN:CONDITION, of the runs {}",
                known.join(", ")
            )
        };
        let (run, condition) = name.split_once(':').unwrap_or((name, ""));
        let run: usize = run.parse().map_err(|_| wrong())?;
        let (_, first, folder) = runs.readable().find(|(at, ..)| *at == run).ok_or_else(wrong)?;
        let conditions = folder.run.header.identity.conditions_or_plain();
        let at = conditions.iter().position(|one| one.name == condition || one.label() == condition);
        let at = at.ok_or_else(wrong)?;
        let own = folder.rows.iter().enumerate().filter(|(_, row)| row.condition == at);
        let rows = own.map(|(row, _)| {
            let (case, probe, _) = folder.named(row);
            ((case.case.as_str(), probe.id.as_str()), row)
        });
        Ok(Side { folder, condition: &conditions[at], rows: rows.collect(), first })
    }

    fn label(&self) -> String {
        format!("{} {}", self.folder.id, self.condition.label())
    }

    fn judge(&self) -> Option<&str> {
        self.folder.judge.as_ref().map(|judge| judge.label.as_str())
    }
}

/// `/api/compare`.
pub fn compare(runs: &Runs, a: &str, b: &str) -> Result<Value, String> {
    let (a, b) = (Side::of(runs, a)?, Side::of(runs, b)?);
    let verdicts = [&a, &b].map(|side| side.folder.shown_verdicts());
    let right = |nth: usize, side: &Side<'_>, row: usize| side.folder.is_right(verdicts[nth].get(&row)?);
    let (mut pairs, mut flips) = (Vec::new(), Vec::new());
    let (mut both, mut only_a, mut only_b, mut neither, mut unjudged, mut different) = (0, 0, 0, 0, 0, 0);
    for (question, &row_a) in &a.rows {
        let Some(&row_b) = b.rows.get(question) else { continue };
        let pair = [a.first + row_a, b.first + row_b];
        pairs.push(pair);
        let answers = (a.folder.answer(row_a), b.folder.answer(row_b));
        if let (Some(one), Some(other)) = answers {
            different += usize::from(one.answer != other.answer);
        }
        match (right(0, &a, row_a), right(1, &b, row_b)) {
            (Some(true), Some(true)) => both += 1,
            (Some(false), Some(false)) => neither += 1,
            (Some(one), Some(_)) => {
                *(if one { &mut only_a } else { &mut only_b }) += 1;
                flips.push(json!({"a": pair[0], "b": pair[1], "to": if one { "wrong" } else { "right" }}));
            }
            _ => unjudged += 1,
        }
    }
    let mut notes = Vec::new();
    if a.judge() != b.judge() {
        let name = |judge: Option<&str>| judge.unwrap_or("nobody").to_owned();
        notes.push(format!(
            "judged by {} and by {}: a flip may be the judge's",
            name(a.judge()),
            name(b.judge())
        ));
    }
    let models = [&a, &b].map(|side| &side.folder.run.header.identity.model);
    if models[0].digest != models[1].digest {
        notes.push(format!("answered by {} and by {}", models[0].name, models[1].name));
    }
    let alone = [a.rows.len() - pairs.len(), b.rows.len() - pairs.len()];
    if alone != [0, 0] {
        notes.push(format!(
            "{} questions of the first and {} of the second alone are left out",
            alone[0], alone[1]
        ));
    }
    Ok(json!({
        "a": a.label(), "b": b.label(), "both": both, "only_a": only_a, "only_b": only_b, "neither": neither,
        "unjudged": unjudged, "p": mcnemar(only_a, only_b), "pairs": pairs, "flips": flips,
        "different_answers": different, "notes": notes,
    }))
}
