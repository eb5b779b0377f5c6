use serde::Serialize;

use crate::memory::system::protocol::SystemResult;
use crate::memory::system::wire::beginning;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Yes,
    No,
    NotOffered,
}

impl Outcome {
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Yes => "yes",
            Outcome::No => "no",
            Outcome::NotOffered => "not offered",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub outcome: Outcome,
    /// True if a failure violates the protocol.
    pub required: bool,
    pub detail: String,
}

pub(super) type Seen = (Outcome, String);

pub(super) fn finding(check: &'static str, required: bool, seen: SystemResult<Seen>) -> Finding {
    let (outcome, detail) = match seen {
        Ok(seen) => seen,
        Err(error) => (Outcome::No, format!("{}: {}", error.op, error.message)),
    };
    Finding { check, outcome, required, detail }
}

pub(super) fn yes(detail: impl Into<String>) -> SystemResult<Seen> {
    Ok((Outcome::Yes, detail.into()))
}

pub(super) fn no(detail: impl Into<String>) -> SystemResult<Seen> {
    Ok((Outcome::No, detail.into()))
}

pub(super) fn seen(holds: bool, yes: impl Into<String>, no: impl Into<String>) -> SystemResult<Seen> {
    Ok(if holds { (Outcome::Yes, yes.into()) } else { (Outcome::No, no.into()) })
}

pub(super) fn not_offered(detail: impl Into<String>) -> SystemResult<Seen> {
    Ok((Outcome::NotOffered, detail.into()))
}

pub(super) fn quoted(text: &str) -> String {
    format!("`{}`", beginning(text, 80))
}
