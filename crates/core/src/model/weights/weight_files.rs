//! Which safetensors of a model folder are its weights.
//!
//! Looks at names and at the index; [`SafetensorsFolder`](super::SafetensorsFolder) opens the files, and refuses a second set
//! whose weights differ.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::safetensors_error::SafetensorsError;

/// The index that lists which shard holds which tensor.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The one file of a model that is not sharded.
const SINGLE_FILE: &str = "model.safetensors";
/// Begins the names of files that hold the same weights by the names of their maker's own program.
const CONSOLIDATED: &str = "consolidated";
/// Begin the names of files that a reader may take for weights.
const WEIGHTS: [&str; 4] = ["model", CONSOLIDATED, "adapter_model", "pytorch_model"];

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The safetensors of a folder.
#[derive(Debug, Default)]
pub(super) struct WeightFiles {
    /// The weights, each file once, sorted by name.
    pub taken: Vec<PathBuf>,
    /// The index that names them, and the shard of every tensor.
    pub index: Option<(PathBuf, BTreeMap<String, String>)>,
    /// Files not chosen here that another program would load: transformers prefers `model.safetensors` to an index, others the
    /// reverse.
    pub rivals: Vec<PathBuf>,
    /// The others whose names are those of weights.
    pub left: Vec<PathBuf>,
}

impl WeightFiles {
    /// Chooses the weight files of a folder.
    ///
    /// # Errors
    /// A folder that cannot be read or has no weights, and an index that is wrong or names a file that is not there.
    pub fn of(dir: &Path) -> Result<Self, SafetensorsError> {
        let all = safetensors_in(dir)?;
        let index_path = dir.join(INDEX_FILE);
        let index = if index_path.is_file() { Some(read_index(&index_path)?) } else { None };
        let single = dir.join(SINGLE_FILE);
        let has_single = all.contains(&single);
        let mut files = WeightFiles::default();
        match index {
            // An index whose shards were replaced by the one file, as when a model is saved again.
            Some(index)
                if has_single && index.weight_map.values().all(|shard| !dir.join(shard).is_file()) =>
            {
                files.taken = vec![single.clone()];
            }
            Some(index) => {
                files.taken = indexed_shards(dir, &index_path, &index)?;
                files.index = Some((index_path, index.weight_map));
            }
            None if has_single => files.taken = vec![single.clone()],
            None => {
                let (copies, own): (Vec<_>, Vec<_>) =
                    all.iter().cloned().partition(|path| name(path).starts_with(CONSOLIDATED));
                files.taken = if own.is_empty() { copies } else { own };
            }
        }
        if files.taken.is_empty() {
            return Err(SafetensorsError::NoWeights { dir: dir.to_path_buf() });
        }
        let is_weights = |path: &PathBuf| WEIGHTS.iter().any(|begins| name(path).starts_with(begins));
        files.left = all.into_iter().filter(|path| !files.taken.contains(path) && is_weights(path)).collect();
        let is_rival = |path: &&PathBuf| **path == single || (has_single && is_shard(&name(path)));
        files.rivals = files.left.iter().filter(is_rival).cloned().collect();
        Ok(files)
    }
}

fn name(path: &Path) -> String {
    path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}

/// True for `model-00001-of-00002.safetensors`.
fn is_shard(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    parts.and_then(|parts| parts.split_once("-of-")).is_some_and(|(part, of)| number(part) && number(of))
}

/// The `*.safetensors` of a folder, sorted by name.
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
    let fail = |fault: String| SafetensorsError::Index { file: path.to_path_buf(), fault };
    let index: Index = serde_json::from_slice(&bytes).map_err(|error| fail(error.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(fail("its weight_map is empty".to_string()));
    }
    Ok(index)
}

/// The shards that an index names, each once, sorted by name.
fn indexed_shards(dir: &Path, index_path: &Path, index: &Index) -> Result<Vec<PathBuf>, SafetensorsError> {
    let by_shard: BTreeMap<&str, &str> =
        index.weight_map.iter().map(|(tensor, shard)| (shard.as_str(), tensor.as_str())).collect();
    let mut files = Vec::with_capacity(by_shard.len());
    for (shard, tensor) in by_shard {
        // An index from elsewhere must not make us open files outside its folder.
        let mut parts = Path::new(shard).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            let fault = format!("{shard:?} is not the name of a file in its folder");
            return Err(SafetensorsError::Index { file: index_path.to_path_buf(), fault });
        }
        let path = dir.join(shard);
        if !path.is_file() {
            let (shard, tensor) = (shard.to_string(), tensor.to_string());
            return Err(SafetensorsError::MissingShard { index: index_path.to_path_buf(), shard, tensor });
        }
        files.push(path);
    }
    Ok(files)
}
