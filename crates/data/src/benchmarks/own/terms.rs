//! Names of columns, roles and notes.

pub(super) const TITLE: &str = "Own history";

pub(super) const SESSION: &str = "session";
pub(super) const ROLE: &str = "role";
pub(super) const TEXT: &str = "text";
pub(super) const TIME: &str = "time";
pub(super) const CASE: &str = "case";

pub(super) const QUESTION: &str = "question";
pub(super) const ANSWER: &str = "answer";
/// Judge note: the column [`ANSWER`].
pub(super) const EXPECTED: &str = "expected";
pub(super) const ID: &str = "id";
/// Column and facet.
pub(super) const KIND: &str = "kind";
/// Column, judge note and role of the outdated session.
pub(super) const OLD: &str = "old";
/// Column, judge note and role of the session that updates it.
pub(super) const NEW: &str = "new";
