//! Names of fields, and the settings that several makers read.

use std::sync::LazyLock;

use super::super::error::RowError;
use super::super::pool::{Pool, PoolSession};
use super::super::setting::Setting;
use crate::benchmarks::stale::haystack::{Distractor, MAX_SESSIONS};
use crate::benchmarks::stale::sample::distractors;
use crate::construct::texts::LICENCE;

/// Fields of evidence sessions.
pub const SIDES: [&str; 2] = ["old_session", "new_session"];
/// Fields of statements.
pub const FACTS: [&str; 2] = ["M_old", "M_new"];
/// Of STALE's histories.
pub const SESSIONS: usize = 50;

/// How long a history is.
#[derive(Clone, Copy)]
pub enum Size {
    Sessions(usize),
    Tokens(usize),
}

impl Size {
    /// The setting `tokens` or `sessions`, else STALE's 50 sessions.
    pub fn of(setting: &Setting<'_>) -> Result<Self, RowError> {
        let (tokens, sessions) = (setting.given("tokens")?, setting.given("sessions")?);
        if let Some(tokens) = tokens {
            let both = || {
                RowError::Fault("the settings `tokens` and `sessions` are both given; keep one".to_owned())
            };
            return if sessions.is_none() { Ok(Size::Tokens(tokens)) } else { Err(both()) };
        }
        let sessions = sessions.unwrap_or(SESSIONS);
        match (2..=MAX_SESSIONS).contains(&sessions) {
            true => Ok(Size::Sessions(sessions)),
            false => Err(RowError::Fault(format!(
                "the setting `sessions` is {sessions}; write 2 to {MAX_SESSIONS}"
            ))),
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
