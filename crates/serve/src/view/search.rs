//! Case-insensitive full-text search over rows. Scans the histories' files; keeps none of their texts in memory.

use std::collections::HashSet;

use super::case::note_text;
use super::folder::Folder;
use super::state::Runs;
use palimpsest_data::case::Notes;
use palimpsest_run::runs::rows::AnswerKey;

/// Page rows that hold the words in a question, answer, thought, judge's note or reason, or in the history.
pub fn search(runs: &Runs, words: &str) -> Vec<usize> {
    let words = words.to_lowercase();
    if words.is_empty() {
        return Vec::new();
    }
    let rows = |(_, from, folder)| in_run(folder, &words).into_iter().map(move |row| from + row);
    runs.readable().flat_map(rows).collect()
}

fn in_run(folder: &Folder, words: &str) -> Vec<usize> {
    let holds = |text: &str| text.to_lowercase().contains(words);
    let maybe = |text: &Option<String>| text.as_ref().is_some_and(|text| holds(text));
    let notes = |notes: &Notes| notes.values().any(|note| holds(&note_text(note)));
    let in_history = |case: &str| {
        // Unreadable cases report their error when opened.
        let shown = folder.run.shown(case).ok().flatten();
        let mut turns = shown.iter().flat_map(|shown| &shown.segments).flat_map(|segment| &segment.turns);
        turns.any(|turn| holds(&turn.content))
    };
    let by_reason = folder.run.verdicts.iter().filter(|row| maybe(&row.reason));
    let by_reason: HashSet<AnswerKey<&str>> = by_reason.map(|row| row.key()).collect();
    let cases = folder.run.plan.iter().map(|case| notes(&case.judge) || in_history(&case.case));
    let cases: Vec<bool> = cases.collect();
    let is_found = |row: &usize| {
        let (_, probe, _) = folder.named(*row);
        let in_answer = folder
            .answer(*row)
            .is_some_and(|row| maybe(&row.answer) || maybe(&row.error) || maybe(&row.thought));
        cases[folder.rows[*row].case]
            || in_answer
            || holds(&probe.query)
            || notes(&probe.judge)
            || by_reason.contains(&folder.key(*row))
    };
    (0..folder.rows.len()).filter(is_found).collect()
}
