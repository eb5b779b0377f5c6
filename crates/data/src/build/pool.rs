//! Filler sessions from users' files, with their licences.

use crate::case::Turn;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolSession {
    /// Unique in the pool: the file's digest (12 digits) and the row.
    pub id: String,
    pub topic: String,
    pub licence: String,
    pub turns: Vec<Turn>,
}

/// Sessions of all files, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    pub sessions: Vec<PoolSession>,
}
