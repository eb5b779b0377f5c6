//! Safetensors folders: one file, or shards with or without an index.
//!
//! Called by the decoders for weights in Hugging Face layout, and by `model info` for the headers. Maps the files that
//! `weight_files` chooses, lets the `safetensors` crate validate the headers, and finds a tensor's shard by its name; it does not know
//! which names a model has. Weights that are stored as blocks with scales beside them (FP8, MXFP4) are put together here from
//! the two tensors; the arithmetic is in [`blocks`](super::blocks).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::safetensors::Load;
use candle_core::{DType, Device, Tensor};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorInfo, TensorView};

use super::blocks::{BlocksError, MXFP4_GROUP, e8m0, fp8_block_scaled, mxfp4};
use super::map;
pub use super::safetensors_error::SafetensorsError;
pub use super::weight_files::INDEX_FILE;
use super::weight_files::WeightFiles;

/// The bytes before the header: its length.
const LENGTH_BYTES: usize = 8;

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    bytes: Mmap,
    data_start: usize,
}

#[derive(Debug)]
struct TensorLocation {
    shard: usize,
    info: TensorInfo,
}

/// A tensor, or a part of one, as it lies in its file.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The type that it is stored in.
    pub dtype: Dtype,
    /// Its row-major shape.
    pub shape: &'a [usize],
    /// Its bytes, row-major and little-endian, not necessarily aligned.
    pub bytes: &'a [u8],
}

/// An opened folder: all shards mapped, all headers read and validated, no weights loaded.
#[derive(Debug)]
pub struct SafetensorsFolder {
    dir: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, TensorLocation>,
    left: Vec<PathBuf>,
}

impl SafetensorsFolder {
    /// Opens the weights of a model folder: the shards that `model.safetensors.index.json` names, else `model.safetensors`, else every
    /// `*.safetensors` in the folder but `consolidated*`, a copy by the names of another program.
    ///
    /// # Errors
    /// Any fault of [`SafetensorsError`] but those of tensors.
    pub fn open(dir: &Path) -> Result<Self, SafetensorsError> {
        let chosen = WeightFiles::of(dir)?;
        let mut folder = Self::map(dir, &chosen.taken)?;
        if let Some((index, weight_map)) = chosen.index {
            for (tensor, shard) in weight_map {
                let found = folder.tensors.get(&tensor).and_then(|placed| folder.shards.get(placed.shard));
                if found.and_then(|found| found.path.file_name()).is_none_or(|name| name != shard.as_str()) {
                    return Err(SafetensorsError::Misplaced { index, shard, tensor });
                }
            }
        }
        // A file that is no safetensors is no second set of weights.
        let rivals =
            chosen.rivals.iter().filter_map(|rival| Self::map(dir, std::slice::from_ref(rival)).ok());
        if let Some((second, tensor)) = rivals.into_iter().find_map(|rival| folder.lacks(&rival)) {
            let first = folder.shards.first().map_or(dir, |shard| &shard.path).to_path_buf();
            return Err(SafetensorsError::TwoSets { dir: dir.to_path_buf(), first, second, tensor });
        }
        folder.left = chosen.left;
        Ok(folder)
    }

    /// Maps files and reads their headers.
    fn map(dir: &Path, files: &[PathBuf]) -> Result<Self, SafetensorsError> {
        let mut shards = Vec::with_capacity(files.len());
        let mut tensors: BTreeMap<String, TensorLocation> = BTreeMap::new();
        for path in files {
            let bytes = map(path).map_err(|source| SafetensorsError::Io { file: path.clone(), source })?;
            let (header_len, metadata) = read_header(&bytes, path)?;
            for name in metadata.offset_keys() {
                let Some(info) = metadata.info(&name) else { continue };
                if let Some(first) = tensors.get(&name).and_then(|placed| shards.get(placed.shard)) {
                    let first: &Shard = first;
                    return Err(SafetensorsError::Duplicate {
                        tensor: name,
                        first: first.path.clone(),
                        second: path.clone(),
                    });
                }
                tensors.insert(name, TensorLocation { shard: shards.len(), info: info.clone() });
            }
            shards.push(Shard { path: path.clone(), bytes, data_start: LENGTH_BYTES + header_len });
        }
        Ok(Self { dir: dir.to_path_buf(), shards, tensors, left: Vec::new() })
    }

    /// The first tensor of another folder that is not here with the same bytes, and its file.
    fn lacks(&self, other: &Self) -> Option<(PathBuf, String)> {
        let same = |name: &str| match (self.view(name), other.view(name)) {
            (Ok(a), Ok(b)) => a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes,
            _ => false,
        };
        other.names().find(|name| !same(name)).map(|name| (other.file_of(name), name.to_owned()))
    }

    /// Safetensors of the folder that are named as weights and are not read.
    pub fn left(&self) -> impl Iterator<Item = String> {
        self.left.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned())
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

    /// True if the folder has this tensor.
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

    /// One tensor as it lies in its file; nothing is copied.
    pub fn view(&self, name: &str) -> Result<View<'_>, SafetensorsError> {
        let (placed, shard) = self.placed(name)?;
        let (start, end) = placed.info.data_offsets;
        // The header was checked against the file's length when it was opened; the map cannot have changed since.
        let bytes =
            shard.bytes.get(shard.data_start..).and_then(|data| data.get(start..end)).ok_or_else(|| {
                SafetensorsError::Invalid {
                    file: shard.path.clone(),
                    fault: format!("tensor {name:?} lies outside the file"),
                }
            })?;
        Ok(View { dtype: placed.info.dtype, shape: &placed.info.shape, bytes })
    }

    /// Entry `index` along the outermost dimension of one tensor (an expert in a stack of experts) as it lies in its file;
    /// nothing is copied. Its shape is the tensor's without the outermost dimension.
    pub fn view_part(&self, name: &str, index: usize) -> Result<View<'_>, SafetensorsError> {
        let View { dtype, shape, bytes } = self.view(name)?;
        match shape {
            // Entries of a type of less than a byte can share one; there is none that models use, and it is refused.
            [entries, rest @ ..] if index < *entries && bytes.len().is_multiple_of(*entries) => {
                let length = bytes.len() / entries;
                Ok(View { dtype, shape: rest, bytes: &bytes[index * length..(index + 1) * length] })
            }
            _ => Err(SafetensorsError::MissingEntry {
                file: self.file_of(name),
                tensor: name.to_string(),
                shape: shape.to_vec(),
                index,
            }),
        }
    }

    /// One tensor on a device, converted to `dtype` there.
    ///
    /// # Errors
    /// [`SafetensorsError::MissingTensor`], or [`SafetensorsError::Candle`] where Candle does not know the stored type or
    /// the device refuses it.
    pub fn tensor(&self, name: &str, device: &Device, dtype: DType) -> Result<Tensor, SafetensorsError> {
        self.load(name, self.view(name)?, device, dtype)
    }

    /// Entry `index` along the outermost dimension of one tensor, on a device, converted to `dtype` there; the others are not
    /// read. Its shape is the tensor's without the outermost dimension.
    pub fn tensor_part(
        &self,
        name: &str,
        index: usize,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, SafetensorsError> {
        self.load(name, self.view_part(name, index)?, device, dtype)
    }

    /// The FP8 weight `name`, (out, in) of E4M3 codes, times the tensor `scales`: (ceil(out / block.0), ceil(in / block.1)) in a float
    /// type or as E8M0 codes, one scale for each block of `block` (rows, columns). The product is taken in f32 and then converted to
    /// `dtype`.
    pub fn fp8_tensor(
        &self,
        name: &str,
        scales: &str,
        block: (usize, usize),
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, SafetensorsError> {
        let codes = self.view(name)?;
        let (Dtype::F8_E4M3, &[rows, cols]) = (codes.dtype, codes.shape) else {
            return Err(self.layout(name, codes, "F8_E4M3 of shape [out, in]".to_string()));
        };
        if block.0 == 0 || block.1 == 0 {
            let source = BlocksError::Size { size: format!("of a block, ({}, {})", block.0, block.1) };
            return Err(self.blocks(name, source));
        }
        let stored = self.view(scales)?;
        let wanted = [rows.div_ceil(block.0), cols.div_ceil(block.1)];
        let factors = floats(stored).filter(|_| stored.shape == wanted).ok_or_else(|| {
            self.layout(scales, stored, format!("a float type of shape {wanted:?} (of {name:?})"))
        })?;
        let values = fp8_block_scaled(codes.bytes, &factors, rows, cols, block);
        let values = values.map_err(|source| self.blocks(name, source))?;
        self.place(name, codes.dtype, values, codes.shape.to_vec(), device, dtype)
    }

    /// Entry `index` of the MXFP4 weights `stem`: `{stem}_blocks` is (entries, .., groups, 16) and `{stem}_scales` (entries, .., groups),
    /// both of bytes; the tensor is (.., 32 groups).
    pub fn mxfp4_tensor(
        &self,
        stem: &str,
        index: usize,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, SafetensorsError> {
        let (name, scales) = (format!("{stem}_blocks"), format!("{stem}_scales"));
        let stored = self.view_part(&name, index)?;
        let (Dtype::U8, [of_scales @ .., 16]) = (stored.dtype, stored.shape) else {
            return Err(self.layout(&name, stored, "U8 of shape [.., groups, 16]".to_string()));
        };
        let exponents = self.view_part(&scales, index)?;
        let (Dtype::U8, [stack @ .., groups]) = (exponents.dtype, of_scales) else {
            return Err(self.layout(&scales, exponents, format!("U8 of shape {of_scales:?}")));
        };
        if exponents.shape != of_scales {
            return Err(self.layout(&scales, exponents, format!("U8 of shape {of_scales:?}")));
        }
        let values = mxfp4(stored.bytes, exponents.bytes).map_err(|source| self.blocks(&name, source))?;
        let shape = [stack, &[groups.saturating_mul(MXFP4_GROUP)]].concat();
        self.place(&name, stored.dtype, values, shape, device, dtype)
    }

    fn load(
        &self,
        name: &str,
        view: View<'_>,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, SafetensorsError> {
        // Integers, and FP8 without its scales, are no weights that a model could be run with.
        if !matches!(view.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(self.layout(name, view, "F32, F16, BF16 or F64".to_owned()));
        }
        let whole = TensorView::new(view.dtype, view.shape.to_vec(), view.bytes).map_err(|fault| {
            SafetensorsError::Invalid { file: self.file_of(name), fault: fault.to_string() }
        })?;
        let tensor = whole.load(device).and_then(|tensor| tensor.to_dtype(dtype));
        tensor.map_err(|source| self.candle(name, view.dtype, source))
    }

    fn place(
        &self,
        name: &str,
        stored: Dtype,
        values: Vec<f32>,
        shape: Vec<usize>,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, SafetensorsError> {
        Tensor::from_vec(values, shape, &Device::Cpu)
            .and_then(|tensor| tensor.to_dtype(dtype)?.to_device(device))
            .map_err(|source| self.candle(name, stored, source))
    }

    fn placed(&self, name: &str) -> Result<(&TensorLocation, &Shard), SafetensorsError> {
        self.tensors.get(name).and_then(|placed| Some((placed, self.shards.get(placed.shard)?))).ok_or_else(
            || SafetensorsError::MissingTensor { dir: self.dir.clone(), tensor: name.to_string() },
        )
    }

    /// The file that a tensor is in, for messages.
    fn file_of(&self, name: &str) -> PathBuf {
        self.placed(name).map_or_else(|_| self.dir.clone(), |(_, shard)| shard.path.clone())
    }

    fn layout(&self, name: &str, view: View<'_>, wanted: String) -> SafetensorsError {
        SafetensorsError::Layout {
            file: self.file_of(name),
            tensor: name.to_string(),
            stored: view.dtype,
            shape: view.shape.to_vec(),
            wanted,
        }
    }

    fn blocks(&self, name: &str, source: BlocksError) -> SafetensorsError {
        SafetensorsError::Blocks { file: self.file_of(name), tensor: name.to_string(), source }
    }

    fn candle(&self, name: &str, stored: Dtype, source: candle_core::Error) -> SafetensorsError {
        let (file, tensor) = (self.file_of(name), name.to_string());
        SafetensorsError::Candle { file, tensor, stored, source: Box::new(source) }
    }
}

/// Scales as f32; `None` where they are stored in no such type. Bytes are E8M0 codes, as in transformers.
fn floats(view: View<'_>) -> Option<Vec<f32>> {
    let pairs = || view.bytes.as_chunks::<2>().0.iter();
    Some(match view.dtype {
        Dtype::F32 => view.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Dtype::BF16 => pairs().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32()).collect(),
        Dtype::F16 => pairs().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect(),
        Dtype::F8_E8M0 | Dtype::U8 => view.bytes.iter().map(|&code| e8m0(code)).collect(),
        _ => return None,
    })
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
