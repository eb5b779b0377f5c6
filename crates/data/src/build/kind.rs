//! The parts of a kind of build: presets, makers, checks, and the files that it publishes.

use std::path::{Component, Path};

use serde_json::{Map, Value};

use palimpsest_core::digest::sha256;

use super::error::{BuildError, RowError};
use super::row::{Row, object};
use super::setting::Setting;
use crate::ground::folder;

/// Maximum characters of a name that a spec or row gives to a file.
const NAME_CHARS: usize = 100;

/// Data of a benchmark that can be built.
pub struct Kind {
    /// The benchmark's name on the command line.
    pub name: &'static str,
    /// Specs by name; the first is the default.
    pub presets: &'static [(&'static str, &'static str)],
    /// Of this kind alone; [`makers`](super::makers) and [`checks`](super::checks) have those of all kinds.
    pub makers: &'static [(&'static str, Maker)],
    pub checks: &'static [(&'static str, Check)],
    /// Names, with spaces between, of settings that the kind's makers, checks and files read; [`makers`](super::makers) has those of all
    /// kinds.
    pub settings: &'static str,
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

impl Published {
    /// `written`: the row as written; `details`: an object.
    pub fn new(uid: impl Into<String>, row: &Row, written: impl AsRef<[u8]>, details: Value) -> Self {
        Published { uid: uid.into(), row: row.id.clone(), digest: sha256(written), details: object(details) }
    }
}

/// Files by their paths in the folder, and what is in them.
pub type Data = (Vec<(String, Vec<u8>)>, Vec<Published>);

/// The name, if it can be the name of a file or folder: a part of no path, of at most 100 characters. A fault names what gives it (`of`).
pub fn file_name<'n>(of: &str, name: &'n str) -> Result<&'n str, RowError> {
    let mut parts = Path::new(name).components();
    let is_one =
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    let is_plain = !name.contains(|c: char| c.is_control() || matches!(c, '/' | '\\'));
    if is_one && is_plain && name.chars().count() <= NAME_CHARS {
        return Ok(name);
    }
    let shown: String = name.chars().take(NAME_CHARS).collect();
    Err(RowError::Fault(format!(
        "{of}: {shown:?} cannot name a file; give at most {NAME_CHARS} characters without a slash, backslash or control character, not . or .."
    )))
}

/// Writes files of a kind into a folder. A path that leads out of it is an error.
pub fn write(
    setting: &Setting<'_>,
    folder: &Path,
    data: Result<Data, RowError>,
) -> Result<Vec<Published>, BuildError> {
    let (files, published) = data.map_err(|error| setting.broken(error))?;
    for (name, bytes) in files {
        folder::write(folder, &name, &bytes).map_err(BuildError::io("write", &folder.join(&name)))?;
    }
    Ok(published)
}

/// Makes rows without a model.
#[derive(Clone, Copy)]
pub enum Maker {
    /// Of one row. The ids of what it makes begin with the row's.
    Each(fn(&Setting<'_>, &Row) -> Rows),
    /// Of all rows at once, each with its row or the reason why there is none. For what depends on other rows: quotas, duplicates, order.
    All(fn(&Setting<'_>, &[Row]) -> Result<Vec<Made>, RowError>),
}

/// Rows that were made of one.
pub type Rows = Result<Vec<Row>, RowError>;

/// A row that was made, or the id of one that was rejected, with the reason.
pub type Made = Result<Row, (String, String)>;

/// `None` if the row passes, else what was found. `with` holds the parameters; a wrong one is a fault.
pub type Check = fn(&Setting<'_>, &With, &Row) -> Found;

/// Parameters of a check.
pub type With = Map<String, Value>;

/// The fault that a check found, if any.
pub type Found = Result<Option<String>, RowError>;
