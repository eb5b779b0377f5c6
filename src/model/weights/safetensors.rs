//! Safetensors folders: one file, or shards with or without an index.
//!
//! Called by the decoders for weights in Hugging Face layout, and by `model info` for the headers. Maps the files,
//! lets the `safetensors` crate validate the headers, and finds a tensor's shard by its name; it does not know
//! which names a model has.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use candle_core::safetensors::Load;
use candle_core::{DType, Device, Tensor};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorInfo, TensorView};
use serde::Deserialize;

/// The index that lists which shard holds which tensor.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The one file of a model that is not sharded.
const SINGLE_FILE: &str = "model.safetensors";
/// The bytes before the header: its length.
const LENGTH_BYTES: usize = 8;

/// What can be wrong with a folder of safetensors. Every message names the file, the thing and the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum SafetensorsError {
    /// A file or folder could not be read or mapped.
    #[error("cannot read {file}")]
    Io { file: PathBuf, source: std::io::Error },
    /// The folder has no weights.
    #[error(
        "{dir} holds no *.safetensors; is it a model folder in Hugging Face layout? (weights in *.bin are not read)"
    )]
    NoWeights { dir: PathBuf },
    /// The file is not valid safetensors.
    #[error("{file} is not a complete safetensors file: {fault}; fetch it again")]
    Invalid { file: PathBuf, fault: String },
    /// The index is not valid.
    #[error("{file} is no index of safetensors shards: {fault}")]
    Index { file: PathBuf, fault: String },
    /// The index names a shard that is not there.
    #[error(
        "{index} names the shard {shard:?} (for the tensor {tensor:?}), which is not in the folder; fetch it"
    )]
    MissingShard { index: PathBuf, shard: String, tensor: String },
    /// The index says that a shard holds a tensor, and it does not.
    #[error(
        "{index} places the tensor {tensor:?} in {shard:?}, which does not hold it; index and shards are of different models"
    )]
    Misplaced { index: PathBuf, shard: String, tensor: String },
    /// Two shards hold the same tensor.
    #[error(
        "the tensor {tensor:?} is in {first} and in {second}; remove the file that does not belong to the model"
    )]
    Duplicate { tensor: String, first: PathBuf, second: PathBuf },
    /// A tensor that the caller asked for and the folder has not.
    #[error("{dir} has no tensor {tensor:?}; is it the architecture that config.json names?")]
    MissingTensor { dir: PathBuf, tensor: String },
    /// Candle could not make the tensor.
    #[error("{file}: tensor {tensor:?} ({stored:?}) could not be put on the device")]
    Candle { file: PathBuf, tensor: String, stored: Dtype, source: Box<candle_core::Error> },
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    bytes: Mmap,
    data_start: usize,
}

#[derive(Debug)]
struct Placed {
    shard: usize,
    info: TensorInfo,
}

/// An opened folder: all shards mapped, all headers read and validated, no weights loaded.
#[derive(Debug)]
pub struct SafetensorsFolder {
    dir: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Placed>,
}

impl SafetensorsFolder {
    /// Opens the weights of a model folder: the shards that `model.safetensors.index.json` names, else
    /// `model.safetensors`, else every `*.safetensors` in the folder.
    ///
    /// # Errors
    /// Any fault of [`SafetensorsError`] but those of tensors.
    pub fn open(dir: &Path) -> Result<Self, SafetensorsError> {
        let index_path = dir.join(INDEX_FILE);
        let index = if index_path.is_file() { Some(read_index(&index_path)?) } else { None };
        let files = match &index {
            Some(index) => indexed_shards(dir, &index_path, index)?,
            None => unindexed_files(dir)?,
        };

        let mut shards = Vec::with_capacity(files.len());
        let mut tensors: BTreeMap<String, Placed> = BTreeMap::new();
        for path in files {
            let bytes = map(&path)?;
            let (header_len, metadata) = read_header(&bytes, &path)?;
            for name in metadata.offset_keys() {
                let Some(info) = metadata.info(&name) else { continue };
                if let Some(first) = tensors.get(&name).and_then(|placed| shards.get(placed.shard)) {
                    let first: &Shard = first;
                    return Err(SafetensorsError::Duplicate {
                        tensor: name,
                        first: first.path.clone(),
                        second: path,
                    });
                }
                tensors.insert(name, Placed { shard: shards.len(), info: info.clone() });
            }
            shards.push(Shard { path, bytes, data_start: LENGTH_BYTES + header_len });
        }
        if let Some(index) = index {
            for (tensor, shard) in index.weight_map {
                let found = tensors.get(&tensor).and_then(|placed| shards.get(placed.shard));
                if found.and_then(|found| found.path.file_name()).is_none_or(|name| name != shard.as_str()) {
                    return Err(SafetensorsError::Misplaced { index: index_path, shard, tensor });
                }
            }
        }
        Ok(Self { dir: dir.to_path_buf(), shards, tensors })
    }

    /// The files, in the order in which they were opened.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// The size of all files together, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes.len() as u64).sum()
    }

    /// The tensors' names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether the folder has this tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A tensor's row-major shape.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|placed| placed.info.shape.as_slice())
    }

    /// The type that a tensor is stored in.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.tensors.get(name).map(|placed| placed.info.dtype)
    }

    /// One tensor on a device, converted to `dtype` there.
    ///
    /// # Errors
    /// [`SafetensorsError::MissingTensor`], or [`SafetensorsError::Candle`] where Candle does not know the stored type or
    /// the device refuses it.
    pub fn tensor(&self, name: &str, device: &Device, dtype: DType) -> Result<Tensor, SafetensorsError> {
        let missing = || SafetensorsError::MissingTensor { dir: self.dir.clone(), tensor: name.to_string() };
        let placed = self.tensors.get(name).ok_or_else(missing)?;
        let shard = self.shards.get(placed.shard).ok_or_else(missing)?;
        let invalid = |fault: String| SafetensorsError::Invalid { file: shard.path.clone(), fault };
        let (start, end) = placed.info.data_offsets;
        let bytes = shard
            .bytes
            .get(shard.data_start..)
            .and_then(|data| data.get(start..end))
            .ok_or_else(|| invalid(format!("tensor {name:?} lies outside the file")))?;
        let view = TensorView::new(placed.info.dtype, placed.info.shape.clone(), bytes)
            .map_err(|fault| invalid(fault.to_string()))?;
        view.load(device).and_then(|tensor| tensor.to_dtype(dtype)).map_err(|source| {
            SafetensorsError::Candle {
                file: shard.path.clone(),
                tensor: name.to_string(),
                stored: placed.info.dtype,
                source: Box::new(source),
            }
        })
    }
}

fn map(path: &Path) -> Result<Mmap, SafetensorsError> {
    let at = |source| SafetensorsError::Io { file: path.to_path_buf(), source };
    let file = File::open(path).map_err(at)?;
    // SAFETY: the map is read-only; as for GGUF, a file that is truncated by another program while it is mapped can raise
    // SIGBUS, and files of our cache are only ever replaced by rename.
    unsafe { Mmap::map(&file) }.map_err(at)
}

fn read_header(
    bytes: &[u8],
    path: &Path,
) -> Result<(usize, safetensors::tensor::Metadata), SafetensorsError> {
    SafeTensors::read_metadata(bytes).map_err(|error| {
        let left = bytes.len().saturating_sub(LENGTH_BYTES);
        let declared = bytes.first_chunk::<LENGTH_BYTES>().map(|length| u64::from_le_bytes(*length));
        let fault = match (&error, declared) {
            (SafeTensorError::HeaderTooSmall, _) => {
                format!("it has {} bytes, fewer than the header's length takes", bytes.len())
            }
            (SafeTensorError::HeaderTooLarge | SafeTensorError::InvalidHeaderLength, Some(declared)) => {
                format!("it claims a header of {declared} bytes and holds {left} after that claim")
            }
            (SafeTensorError::MetadataIncompleteBuffer, _) => {
                format!("its {} bytes are not the number that its header promises", bytes.len())
            }
            _ => error.to_string(),
        };
        SafetensorsError::Invalid { file: path.to_path_buf(), fault }
    })
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

fn unindexed_files(dir: &Path) -> Result<Vec<PathBuf>, SafetensorsError> {
    let single = dir.join(SINGLE_FILE);
    if single.is_file() {
        return Ok(vec![single]);
    }
    let at = |source| SafetensorsError::Io { file: dir.to_path_buf(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(at)? {
        let path = entry.map_err(at)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(SafetensorsError::NoWeights { dir: dir.to_path_buf() });
    }
    files.sort();
    Ok(files)
}
