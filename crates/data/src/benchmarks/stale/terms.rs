//! The names of the roles, notes and forms of this benchmark, and the parts of a case that are made of them.

use crate::case::{JudgeOnly, Notes, Probe};

/// The role of the session that is overwritten, and the judge's note of what it says.
pub(super) const OLD: &str = "old";
/// The role of the session that overwrites it, and the judge's note of what it says.
pub(super) const NEW: &str = "new";
/// The judge's note of why the new observation invalidates the old one.
pub(super) const EXPLANATION: &str = "explanation";
pub(super) const SESSION: &str = "session";
pub(super) const SPLIT: &str = "type";
pub(super) const TYPES: [&str; 2] = ["T1", "T2"];
/// The label of how far apart the two statements are, in the construction's own words.
pub(super) const TIME_GAP: &str = "time_gap";
/// The form of an explicit question about the history (appendix E.1).
pub(super) const QUESTION: &str = "question";
/// The form of the user's latest request (appendix E.1).
pub(super) const REQUEST: &str = "request";

pub(super) fn judge_only(
    old: impl Into<String>,
    new: impl Into<String>,
    explanation: impl Into<String>,
) -> JudgeOnly {
    let notes = [(OLD, old.into()), (NEW, new.into()), (EXPLANATION, explanation.into())];
    let notes: Notes = notes.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
    JudgeOnly { notes, ..JudgeOnly::default() }
}

pub(super) fn probe(id: &str, form: &str, query: impl Into<String>) -> Probe {
    Probe { id: id.to_owned(), form: form.to_owned(), query: query.into(), ..Probe::default() }
}
