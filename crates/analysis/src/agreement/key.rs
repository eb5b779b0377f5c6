//! `key.json`: maps sheet items to answers. Hidden from raters.
//!
//! It holds no verdicts; scoring looks them up, so raters and judge can work in either order.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure};
use serde::{Deserialize, Serialize};

pub const FORMAT: &str = "palimpsest agreement 2";
/// Previous format, still readable: `rubric` is the digest of the judge's full prompt, without a name.
pub const FORMAT_1: &str = "palimpsest agreement 1";
pub const FILE: &str = "key.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub format: String,
    /// Sheet name and prefix of its item ids: a digest of the sample.
    pub sheet: String,
    pub benchmark: String,
    pub condition: String,
    pub seed: u64,
    /// Cases per run and split value.
    pub per_cell: usize,
    /// SHA-256 of the raters' rubric: text and verdict kind, independent of where reasons stand.
    pub rubric: String,
    /// Absent in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rubric_name: Option<String>,
    /// Maximum score; absent for right/wrong answers.
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
    /// Values of the dimension, in the order of the first run's cases.
    pub dimensions: Vec<String>,
    pub split: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRun {
    pub dir: PathBuf,
    /// Model name; the folder is added if two runs share it.
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
