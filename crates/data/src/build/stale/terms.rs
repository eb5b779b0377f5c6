//! Names of fields, and the settings that several makers read.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::benchmarks::stale::haystack::{Distractor, MAX_SESSIONS};
use crate::benchmarks::stale::sample::distractors;
use crate::build::pool::{Pool, PoolSession};
use crate::build::{Row, RowError, Setting};
use crate::case::Turn;
use crate::construct::texts::LICENCE;

/// Fields of evidence sessions.
pub const SIDES: [&str; 2] = ["old_session", "new_session"];
/// Fields of statements.
pub const FACTS: [&str; 2] = ["M_old", "M_new"];
/// Of STALE's histories.
pub const SESSIONS: usize = 50;

/// The length of a history.
#[derive(Clone, Copy)]
pub enum Size {
    Sessions(usize),
    Tokens(usize),
}

impl Size {
    /// The setting `tokens` or `sessions`, else STALE's 50 sessions.
    pub fn of(setting: &Setting<'_>) -> Result<Self, RowError> {
        let (tokens, sessions) = (setting.given("tokens")?, setting.given("sessions")?);
        match (tokens, sessions.unwrap_or(SESSIONS)) {
            (Some(_), _) if sessions.is_some() => {
                Err(RowError::fault("the settings `tokens` and `sessions` are both given; keep one"))
            }
            (Some(tokens), _) => Ok(Size::Tokens(tokens)),
            (None, sessions) if (2..=MAX_SESSIONS).contains(&sessions) => Ok(Size::Sessions(sessions)),
            (None, sessions) => {
                let fault = format!("the setting `sessions` is {sessions}; write 2 to {MAX_SESSIONS}");
                Err(RowError::Fault(fault))
            }
        }
    }
}

/// The built-in sample's sessions, for builds without a pool.
static OWN: LazyLock<Pool> = LazyLock::new(|| {
    let session = |distractor: &Distractor| {
        PoolSession::new(format!("sample-{}", distractor.topic), "sample", LICENCE, distractor.turns.clone())
    };
    Pool { sessions: distractors().iter().map(session).collect() }
});

pub fn pool<'a>(setting: &Setting<'a>) -> &'a Pool {
    if setting.pool.sessions.is_empty() { &OWN } else { setting.pool }
}

/// The evidence sessions of a row.
pub fn evidence(row: &Row) -> Result<[Vec<Turn>; 2], RowError> {
    Ok([row.read(SIDES[0])?, row.read(SIDES[1])?])
}

/// Sessions of the pool by id.
pub fn by_id<'a>(setting: &Setting<'a>) -> BTreeMap<&'a str, &'a PoolSession> {
    pool(setting).sessions.iter().map(|session| (session.id.as_str(), session)).collect()
}
