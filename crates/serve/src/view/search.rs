//! Case-insensitive full-text search over rows. Scans the files; keeps no texts in memory.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::folder::Folder;
use super::follow::{Followed, Step};
use super::state::Runs;
use palimpsest_run::runs::plan::PlannedCase;
use palimpsest_run::runs::rows::{AnswerRow, VerdictRow};
use palimpsest_run::runs::store::{ANSWERS, PLAN, VERDICTS};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Query,
    Answer,
    Thought,
    /// Notes shown to judges only.
    Gold,
    Reason,
    History,
}

impl Field {
    pub const ALL: [Field; 6] =
        [Field::Query, Field::Answer, Field::Thought, Field::Gold, Field::Reason, Field::History];
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "query" => Ok(Field::Query),
            "answer" => Ok(Field::Answer),
            "thought" => Ok(Field::Thought),
            "gold" => Ok(Field::Gold),
            "reason" => Ok(Field::Reason),
            "history" => Ok(Field::History),
            other => Err(format!(
                "`{other}` is no kind of text; give query, answer, thought, gold, reason or history, with commas between"
            )),
        }
    }
}

pub fn search(runs: &Runs, words: &str, fields: &[Field]) -> std::io::Result<Vec<usize>> {
    let words = words.to_lowercase();
    let mut found = Vec::new();
    if words.is_empty() {
        return Ok(found);
    }
    for (_, from, folder) in runs.readable() {
        let rows = in_run(folder, &words, fields)?;
        found.extend(rows.into_iter().map(|row| from + row));
    }
    Ok(found)
}

fn in_run(folder: &Folder, words: &str, fields: &[Field]) -> std::io::Result<BTreeSet<usize>> {
    let wants = |field: Field| fields.contains(&field);
    let holds = |text: &str| text.to_lowercase().contains(words);
    let maybe = |text: &Option<String>| text.as_ref().is_some_and(|text| holds(text));
    let mut found = BTreeSet::new();
    let mut cases = BTreeSet::new();
    let mut probes = BTreeSet::new();
    if wants(Field::Query) || wants(Field::Gold) {
        let mut at = 0;
        each(folder, PLAN, |line| {
            // Parse only cases that contain the words.
            if let Ok(case) = serde_json::from_slice::<PlannedCase>(line) {
                let note = |note: &serde_json::Value| holds(&text_of(note));
                if wants(Field::Gold) && case.judge.values().any(note) {
                    cases.insert(at);
                }
                for (nth, probe) in case.probes.iter().enumerate() {
                    let query = wants(Field::Query) && holds(&probe.query);
                    if query || wants(Field::Gold) && probe.judge.values().any(note) {
                        probes.insert((at, nth));
                    }
                }
            }
            at += 1;
        })?;
    }
    if wants(Field::Answer) || wants(Field::Thought) {
        // The last row of a key counts.
        each(folder, ANSWERS, |line| {
            let Ok(row) = serde_json::from_slice::<AnswerRow>(line) else { return };
            let Some(at) = folder.row_of(&row.key().owned()) else { return };
            let is_there = wants(Field::Answer) && (maybe(&row.answer) || maybe(&row.error))
                || wants(Field::Thought) && maybe(&row.thought);
            match is_there {
                true => _ = found.insert(at),
                false => _ = found.remove(&at),
            }
        })?;
    }
    if wants(Field::Reason) {
        let mut by_reason = BTreeSet::new();
        each(folder, VERDICTS, |line| {
            let Ok(row) = serde_json::from_slice::<VerdictRow>(line) else { return };
            if maybe(&row.reason) {
                by_reason.extend(folder.row_of(&row.key().owned()));
            }
        })?;
        found.extend(by_reason);
    }
    if wants(Field::History) {
        for (at, case) in folder.thin.plan.iter().enumerate() {
            // Unreadable cases report their error when opened.
            let Ok(Some(shown)) = folder.thin.shown(&case.case) else { continue };
            let mut turns = shown.segments.iter().flat_map(|segment| &segment.turns);
            if turns.any(|turn| holds(&turn.content)) {
                cases.insert(at);
            }
        }
    }
    for (at, name) in folder.rows.iter().enumerate() {
        if cases.contains(&name.case) || probes.contains(&(name.case, name.probe)) {
            found.insert(at);
        }
    }
    Ok(found)
}

fn text_of(note: &serde_json::Value) -> String {
    match note {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(all) => all.iter().map(text_of).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    }
}

fn each(folder: &Folder, file: &str, mut take: impl FnMut(&[u8])) -> std::io::Result<()> {
    Followed::new(folder.dir().join(file)).read(&mut |step| {
        if let Step::Line(line, ..) = step {
            take(line);
        }
    })
}
