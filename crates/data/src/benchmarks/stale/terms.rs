//! Names of roles, notes and forms.

use crate::case::{JudgeOnly, Notes, Probe};

pub(super) const TITLE: &str = "STALE";
/// Role and judge note of the overwritten session.
pub(super) const OLD: &str = "old";
/// Role and judge note of the overwriting session.
pub(super) const NEW: &str = "new";
pub(super) const EXPLANATION: &str = "explanation";
pub(super) const SESSION: &str = "session";
pub(super) const SPLIT: &str = "type";
pub(super) const TYPES: [&str; 2] = ["T1", "T2"];
/// Label: the construction's wording of the distance between statements.
pub(super) const TIME_GAP: &str = "time_gap";
/// Form of explicit questions (appendix E.1).
pub(super) const QUESTION: &str = "question";
/// Form of user requests (appendix E.1).
pub(super) const REQUEST: &str = "request";

pub(super) fn judge_only(old: String, new: String, explanation: String) -> JudgeOnly {
    let notes = [(OLD, old), (NEW, new), (EXPLANATION, explanation)];
    let notes: Notes = notes.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
    JudgeOnly { notes, ..JudgeOnly::default() }
}

pub(super) fn probe(id: &str, form: &str, query: String) -> Probe {
    Probe { id: id.to_owned(), form: form.to_owned(), query, ..Probe::default() }
}
