//! `key.json`: which answer each item of a sheet is. Kept from the raters.
//!
//! It holds no verdict: those are looked up when ratings are scored, so that raters and judge can work in either order.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure};
use serde::{Deserialize, Serialize};

pub const FORMAT: &str = "palimpsest agreement 2";
/// The one before it, which is read, too: its `rubric` is the digest of all that a judge is told, and has no name.
pub const FORMAT_1: &str = "palimpsest agreement 1";
pub const FILE: &str = "key.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// [`FORMAT`] or [`FORMAT_1`].
    pub format: String,
    /// The sheet's name, which the ids of its items begin with: a digest of what was drawn.
    pub sheet: String,
    pub benchmark: String,
    pub condition: String,
    pub seed: u64,
    /// Cases a run and value of the split.
    pub per_cell: usize,
    /// SHA-256 of the rubric that the raters read: of its text and the kind of verdict, wherever reasons stand.
    pub rubric: String,
    /// Its name; absent in sheets of version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rubric_name: Option<String>,
    /// The best score, where answers are scored from 0 to it; absent where they are right or wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
    pub groups: Groups,
    pub runs: Vec<KeyRun>,
    pub items: Vec<KeyItem>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    /// Dimension of probes, for example `probe`.
    pub dimension: String,
    /// Their values, in the order of the first run's cases.
    pub dimensions: Vec<String>,
    /// The label that cases are split by, for example `type`.
    pub split: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRun {
    pub dir: PathBuf,
    /// Its model, told apart from the others by its folder where two have one name.
    pub model: String,
    pub identity_sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyItem {
    pub item: String,
    pub run: usize,
    pub case: String,
    pub probe: String,
    pub dimension: String,
    /// The value of the label that the case is split by.
    pub split: String,
    pub answer_sha256: String,
}

impl Key {
    pub fn read(folder: &Path) -> anyhow::Result<Key> {
        let path = folder.join(FILE);
        let shown = path.display();
        let text = std::fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                anyhow!("{shown}: there is none; give the folder that `palimpsest agree draw` wrote")
            }
            _ => anyhow!("{shown}: {error}"),
        })?;
        let key: Key = serde_json::from_slice(&text)
            .map_err(|e| anyhow!("{shown}: it does not parse: {e}; restore it as it was drawn"))?;
        ensure!(
            [FORMAT, FORMAT_1].contains(&key.format.as_str()),
            "{shown}: its format is \"{}\", and this version reads \"{FORMAT}\" and \"{FORMAT_1}\"",
            key.format
        );
        if let Some(KeyItem { item, run, .. }) = key.items.iter().find(|item| item.run >= key.runs.len()) {
            return Err(anyhow!("{shown}: item {item} names run {run}, and there are {}", key.runs.len()));
        }
        Ok(key)
    }
}
