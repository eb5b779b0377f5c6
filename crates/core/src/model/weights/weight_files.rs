//! Chooses the weight files of a safetensors folder or repository, by names and index; [`SafetensorsFolder`](super::SafetensorsFolder)
//! opens them and rejects a second set with different weights.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::blocks::BlocksError;

/// An invalid safetensors folder, or a request for something that it does not hold.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum SafetensorsError {
    #[error("cannot read {file}")]
    Io { file: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Invalid(String),
    /// Bytes and scales of a block-scaled weight do not match.
    #[error("{file}: tensor {tensor:?}")]
    Blocks { file: PathBuf, tensor: String, source: BlocksError },
    #[error("{file}: tensor {tensor:?} ({stored:?}) could not be put on the device")]
    Candle { file: PathBuf, tensor: String, stored: safetensors::Dtype, source: Box<candle_core::Error> },
}

/// The index: shard by tensor.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The file of an unsharded model.
const SINGLE_FILE: &str = "model.safetensors";
/// Prefix of files with the same weights under another program's names.
const CONSOLIDATED: &str = "consolidated";
/// Prefixes of weight files.
const WEIGHTS: [&str; 4] = ["model", CONSOLIDATED, "adapter_model", "pytorch_model"];

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
pub(super) struct WeightFiles {
    /// Deduplicated and sorted by name.
    pub taken: Vec<PathBuf>,
    /// The index file, and the shard of every tensor.
    pub index: Option<(PathBuf, BTreeMap<String, String>)>,
    /// Files that another program would load instead: transformers prefers `model.safetensors` to an index, others the reverse.
    pub rivals: Vec<PathBuf>,
    /// Other files named like weights.
    pub left: Vec<PathBuf>,
}

impl WeightFiles {
    /// Chooses the weight files. Returns an error if the folder is unreadable or has no weights, or if its index is invalid or names a
    /// missing file.
    pub fn of(dir: &Path) -> Result<Self, SafetensorsError> {
        let all = safetensors_in(dir)?;
        let index_path = dir.join(INDEX_FILE);
        let index = if index_path.is_file() { Some(read_index(&index_path)?) } else { None };
        let single = dir.join(SINGLE_FILE);
        let has_single = all.contains(&single);
        let names: Vec<String> = all.iter().map(|path| name(path)).collect();
        let shards: Option<BTreeSet<&str>> =
            index.as_ref().map(|index| index.weight_map.values().map(String::as_str).collect());
        let taken = chosen(&names.iter().map(String::as_str).collect(), shards.as_ref());
        let is_indexed = shards.is_some_and(|shards| taken.iter().eq(&shards));
        let taken: Vec<PathBuf> = taken.into_iter().map(|name| dir.join(name)).collect();
        let mut files = WeightFiles::default();
        if let Some(index) = index.filter(|_| is_indexed) {
            files.taken = indexed_shards(dir, &index_path, &index)?;
            files.index = Some((index_path, index.weight_map));
        } else {
            files.taken = taken;
        }
        if files.taken.is_empty() {
            return Err(SafetensorsError::Invalid(format!(
                "{} holds no *.safetensors; is it a model folder in Hugging Face layout? (weights in *.bin are not read)",
                dir.display()
            )));
        }
        let is_weights = |path: &PathBuf| WEIGHTS.iter().any(|begins| name(path).starts_with(begins));
        files.left = all.into_iter().filter(|path| !files.taken.contains(path) && is_weights(path)).collect();
        let is_rival = |path: &&PathBuf| **path == single || (has_single && is_shard(&name(path)));
        files.rivals = files.left.iter().filter(is_rival).cloned().collect();
        Ok(files)
    }
}

/// The weight files among the *.safetensors of a folder: the shards of its index, else `model.safetensors`, else all but copies.
pub fn chosen<'a>(names: &BTreeSet<&'a str>, shards: Option<&BTreeSet<&'a str>>) -> Vec<&'a str> {
    let has_single = names.contains(SINGLE_FILE);
    match shards {
        // Without its shards the index is that of a model that was saved again as a single file.
        Some(shards) if !has_single || !shards.is_disjoint(names) => shards.iter().copied().collect(),
        _ if has_single => vec![SINGLE_FILE],
        _ => {
            let (copies, own): (Vec<_>, Vec<_>) =
                names.iter().partition(|name| name.starts_with(CONSOLIDATED));
            if own.is_empty() { copies } else { own }
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}

/// True for `model-00001-of-00002.safetensors`.
pub fn is_shard(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    parts.and_then(|parts| parts.split_once("-of-")).is_some_and(|(part, of)| number(part) && number(of))
}

fn safetensors_in(dir: &Path) -> Result<Vec<PathBuf>, SafetensorsError> {
    let at = |source| SafetensorsError::Io { file: dir.to_path_buf(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(at)? {
        let path = entry.map_err(at)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_index(path: &Path) -> Result<Index, SafetensorsError> {
    let bytes =
        std::fs::read(path).map_err(|source| SafetensorsError::Io { file: path.to_path_buf(), source })?;
    let index: Index = serde_json::from_slice(&bytes).map_err(|error| no_index(path, &error.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(no_index(path, "its weight_map is empty"));
    }
    Ok(index)
}

fn no_index(file: &Path, fault: &str) -> SafetensorsError {
    SafetensorsError::Invalid(format!("{} is no index of safetensors shards: {fault}", file.display()))
}

/// Shards named by the index, deduplicated and sorted.
fn indexed_shards(dir: &Path, index_path: &Path, index: &Index) -> Result<Vec<PathBuf>, SafetensorsError> {
    let by_shard: BTreeMap<&str, &str> =
        index.weight_map.iter().map(|(tensor, shard)| (shard.as_str(), tensor.as_str())).collect();
    let mut files = Vec::with_capacity(by_shard.len());
    for (shard, tensor) in by_shard {
        // An untrusted index must not open files outside its folder.
        let mut parts = Path::new(shard).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(no_index(index_path, &format!("{shard:?} is not the name of a file in its folder")));
        }
        let path = dir.join(shard);
        if !path.is_file() {
            return Err(SafetensorsError::Invalid(format!(
                "{} names the shard {shard:?} (for the tensor {tensor:?}), which is not in the folder; fetch it",
                index_path.display()
            )));
        }
        files.push(path);
    }
    Ok(files)
}
