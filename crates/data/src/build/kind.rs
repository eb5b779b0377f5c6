//! What a kind of build has of its own: presets, makers, checks, and the files that it publishes.

use std::path::Path;

use serde_json::{Map, Value};

use super::error::{BuildError, RowError};
use super::row::Row;
use super::setting::Setting;

/// Data of a benchmark that can be built.
pub struct Kind {
    /// The benchmark's name on the command line.
    pub name: &'static str,
    /// Specs by name; the first is the default.
    pub presets: &'static [(&'static str, &'static str)],
    /// Of this kind alone; [`makers`](super::makers) and [`checks`](super::checks) have those of all kinds.
    pub makers: &'static [(&'static str, Maker)],
    pub checks: &'static [(&'static str, Check)],
    /// Writes rows of the last stage into a new folder, in the released format.
    pub write: WriteData,
}

/// Writes data; see [`Kind::write`].
pub type WriteData = fn(&Setting<'_>, &[Row], &Path) -> Result<Vec<Published>, BuildError>;

/// A row of the data, for `provenance.jsonl`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Published {
    /// Its id in the data.
    pub uid: String,
    /// The row of the last stage.
    pub row: String,
    /// SHA-256 of the row as written.
    pub digest: String,
    /// Sources of its parts with their licences (`sources`: a list of objects with `slot`, `source`, `licence`), depths and distances in
    /// sessions and tokens, and what else the kind tells.
    pub details: Map<String, Value>,
}

/// Makes rows without a model.
#[derive(Clone, Copy)]
pub enum Maker {
    /// Of one row. The ids of what it makes begin with the row's.
    Each(fn(&Setting<'_>, &Row) -> Result<Vec<Row>, RowError>),
    /// Of all rows at once, each with its row or the reason why there is none. For what depends on other rows: quotas, duplicates, order.
    All(fn(&Setting<'_>, &[Row]) -> Result<Vec<Made>, RowError>),
}

/// A row that was made, or the id of one that was rejected, with the reason.
pub type Made = Result<Row, (String, String)>;

/// `None` if the row passes, else what was found. `with` holds the parameters; a wrong one is a fault.
pub type Check = fn(&Setting<'_>, &Map<String, Value>, &Row) -> Result<Option<String>, RowError>;
