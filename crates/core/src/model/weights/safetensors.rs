//! Safetensors folders: one file, or shards with or without an index.
//!
//! Maps the files chosen by `weight_files`, validates headers with the `safetensors` crate, and finds tensors by name. Weights stored as
//! blocks and scales (FP8, MXFP4, NVFP4) are combined here; the arithmetic is in [`blocks`](super::blocks).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::safetensors::Load;
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorInfo, TensorView};

use super::blocks::{BlocksError, MXFP4_GROUP, NVFP4_GROUP, e8m0, fp8_block_scaled, mxfp4, nvfp4};
use super::mapped::{Mapped, map};
pub use super::weight_files::INDEX_FILE;
use super::weight_files::{SafetensorsError, WeightFiles};

/// Size of the header length field.
const LENGTH_BYTES: usize = 8;
/// Ending of the number that divides the scales of an NVFP4 weight.
const DIVISOR: &str = "_global_scale";

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    bytes: Mapped,
    data_start: usize,
}

#[derive(Debug)]
struct TensorLocation {
    shard: usize,
    info: TensorInfo,
}

/// A tensor, or part of one, as stored.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Stored type.
    pub dtype: Dtype,
    /// Row-major shape.
    pub shape: &'a [usize],
    /// Row-major little-endian bytes, possibly unaligned.
    pub bytes: &'a [u8],
}

/// An opened folder: shards mapped, headers validated, no weights loaded.
#[derive(Debug)]
pub struct SafetensorsFolder {
    dir: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, TensorLocation>,
    left: Vec<PathBuf>,
}

impl SafetensorsFolder {
    /// Opens the weights of a model folder: the shards in `model.safetensors.index.json`, else `model.safetensors`, else every
    /// `*.safetensors` except `consolidated*`, a copy under another program's names.
    pub fn open(dir: &Path) -> Result<Self, SafetensorsError> {
        let chosen = WeightFiles::of(dir)?;
        let mut folder = Self::map(dir, &chosen.taken)?;
        if let Some((index, weight_map)) = chosen.index {
            for (tensor, shard) in weight_map {
                let found = folder.tensors.get(&tensor).and_then(|placed| folder.shards.get(placed.shard));
                if found.and_then(|found| found.path.file_name()).is_none_or(|name| name != shard.as_str()) {
                    return Err(SafetensorsError::Invalid(format!(
                        "{} places the tensor {tensor:?} in {shard:?}, which does not hold it; index and shards are of different models",
                        index.display()
                    )));
                }
            }
        }
        // An unreadable file is no second set of weights.
        let rivals =
            chosen.rivals.iter().filter_map(|rival| Self::map(dir, std::slice::from_ref(rival)).ok());
        if let Some((second, tensor)) = rivals.into_iter().find_map(|rival| folder.lacks(&rival)) {
            let first = folder.shards.first().map_or(dir, |shard| &shard.path);
            return Err(SafetensorsError::Invalid(format!(
                "{} holds two sets of weights: {} and {} differ in the tensor {tensor:?}, and programs disagree on which is the model; \
                 move one of them away",
                dir.display(),
                first.display(),
                second.display()
            )));
        }
        folder.left = chosen.left;
        Ok(folder)
    }

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
                    return Err(SafetensorsError::Invalid(format!(
                        "the tensor {name:?} is in {} and in {}; remove the file that does not belong to the model",
                        first.path.display(),
                        path.display()
                    )));
                }
                tensors.insert(name, TensorLocation { shard: shards.len(), info: info.clone() });
            }
            shards.push(Shard { path: path.clone(), bytes, data_start: LENGTH_BYTES + header_len });
        }
        Ok(Self { dir: dir.to_path_buf(), shards, tensors, left: Vec::new() })
    }

    /// The first tensor of `other` that is missing or different here, and its file.
    fn lacks(&self, other: &Self) -> Option<(PathBuf, String)> {
        let same = |name: &str| match (self.view(name), other.view(name)) {
            (Ok(a), Ok(b)) => a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes,
            _ => false,
        };
        other.names().find(|name| !same(name)).map(|name| (other.file_of(name), name.to_owned()))
    }

    /// Weight files in the folder that are not read.
    pub fn left(&self) -> impl Iterator<Item = String> {
        self.left.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned())
    }

    /// The files, in the order in which they were opened.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// Total size in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes.len() as u64).sum()
    }

    /// Tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// True if the folder has this tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Row-major shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|placed| placed.info.shape.as_slice())
    }

    /// Stored type of a tensor.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.tensors.get(name).map(|placed| placed.info.dtype)
    }

    /// A tensor as stored, without copying.
    pub fn view(&self, name: &str) -> Result<View<'_>, SafetensorsError> {
        let (placed, shard) = self.placed(name)?;
        let (start, end) = placed.info.data_offsets;
        // Offsets were validated with the header.
        let bytes = shard
            .bytes
            .get(shard.data_start..)
            .and_then(|data| data.get(start..end))
            .ok_or_else(|| incomplete(&shard.path, &format!("tensor {name:?} lies outside the file")))?;
        Ok(View { dtype: placed.info.dtype, shape: &placed.info.shape, bytes })
    }

    /// Entry `index` along the outermost dimension (an expert of a stacked tensor) as stored, without that dimension and without copying.
    pub fn view_part(&self, name: &str, index: usize) -> Result<View<'_>, SafetensorsError> {
        let View { dtype, shape, bytes } = self.view(name)?;
        match shape {
            // Rejects sub-byte types whose entries share a byte; models do not use them.
            [entries, rest @ ..] if index < *entries && bytes.len().is_multiple_of(*entries) => {
                let length = bytes.len() / entries;
                Ok(View { dtype, shape: rest, bytes: &bytes[index * length..(index + 1) * length] })
            }
            _ => Err(SafetensorsError::Invalid(format!(
                "{}: tensor {name:?} of shape {shape:?} has no entry {index} along its first dimension; do the experts in config.json \
                 agree with the tensors?",
                self.file_of(name).display()
            ))),
        }
    }

    /// A tensor on a device, converted to `dtype`. Returns an error if it is missing or Candle does not support the stored type.
    pub fn tensor(&self, name: &str, device: &Device, dtype: DType) -> Result<Tensor, SafetensorsError> {
        self.load(name, self.view(name)?, device, dtype)
    }

    /// Entry `index` along the outermost dimension on a device, converted to `dtype`, without that dimension. Reads only that entry.
    pub fn tensor_part(
        &self,
        name: &str,
        index: usize,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, SafetensorsError> {
        self.load(name, self.view_part(name, index)?, device, dtype)
    }

    /// The FP8 weight `name`, (out, in) of E4M3 codes, times `scales`, (ceil(out / block.0), ceil(in / block.1)) in a float type or as E8M0
    /// codes, one per block of `block` (rows, columns). Computed in f32, then converted to `dtype`.
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

    /// Entry `index` of the MXFP4 weights `stem`: `{stem}_blocks` (entries, .., groups, 16) and `{stem}_scales` (entries, .., groups), both
    /// bytes; returns (.., 32 groups).
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

    /// Codes, scales and the number for all scales of the NVFP4 weight `name`, if it is one: of compressed-tensors, whose number divides, or
    /// of ModelOpt, whose number multiplies.
    pub fn nvfp4_parts(&self, name: &str) -> Option<[String; 3]> {
        let packed = format!("{name}_packed");
        let (codes, number) = match self.dtype(name) {
            _ if self.contains(&packed) => (packed, DIVISOR),
            Some(Dtype::U8) => (name.to_owned(), "_scale_2"),
            _ => return None,
        };
        Some([codes, format!("{name}_scale"), format!("{name}{number}")])
    }

    /// The NVFP4 weight of these [`nvfp4_parts`](Self::nvfp4_parts): bytes (out, in / 2), E4M3 (out, in / 16) and one number; (out, in).
    pub fn nvfp4_tensor(
        &self,
        [codes, scales, number]: &[String; 3],
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, SafetensorsError> {
        let (stored, factors, view) = (self.view(codes)?, self.view(scales)?, self.view(number)?);
        let (Dtype::U8, &[rows, bytes]) = (stored.dtype, stored.shape) else {
            return Err(self.layout(codes, stored, "U8 of shape [out, in / 2]".to_owned()));
        };
        let wanted = [rows, bytes / (NVFP4_GROUP / 2)];
        if (factors.dtype, factors.shape) != (Dtype::F8_E4M3, &wanted[..]) {
            return Err(self.layout(scales, factors, format!("F8_E4M3 of shape {wanted:?}")));
        }
        let Some(&[value]) = floats(view).as_deref() else {
            return Err(self.layout(number, view, "one number of a float type".to_owned()));
        };
        let divides = number.ends_with(DIVISOR);
        let values = nvfp4(stored.bytes, factors.bytes, |scale| match divides {
            true => scale / value,
            false => scale * value,
        });
        let values = values.map_err(|source| self.blocks(codes, source))?;
        self.place(codes, stored.dtype, values, vec![rows, bytes.saturating_mul(2)], device, dtype)
    }

    fn load(
        &self,
        name: &str,
        view: View<'_>,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, SafetensorsError> {
        // Integers and unscaled FP8 are no usable weights.
        if !matches!(view.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(self.layout(name, view, "F32, F16, BF16 or F64".to_owned()));
        }
        let whole = TensorView::new(view.dtype, view.shape.to_vec(), view.bytes)
            .map_err(|fault| incomplete(&self.file_of(name), &fault.to_string()))?;
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
            || {
                SafetensorsError::Invalid(format!(
                    "{} has no tensor {name:?}; is it the architecture that config.json names?",
                    self.dir.display()
                ))
            },
        )
    }

    fn file_of(&self, name: &str) -> PathBuf {
        self.placed(name).map_or_else(|_| self.dir.clone(), |(_, shard)| shard.path.clone())
    }

    fn layout(&self, name: &str, view: View<'_>, wanted: String) -> SafetensorsError {
        SafetensorsError::Invalid(format!(
            "{}: tensor {name:?} is stored as {:?} of shape {:?} where {wanted} was expected",
            self.file_of(name).display(),
            view.dtype,
            view.shape
        ))
    }

    fn blocks(&self, name: &str, source: BlocksError) -> SafetensorsError {
        SafetensorsError::Blocks { file: self.file_of(name), tensor: name.to_string(), source }
    }

    fn candle(&self, name: &str, stored: Dtype, source: candle_core::Error) -> SafetensorsError {
        let (file, tensor) = (self.file_of(name), name.to_string());
        SafetensorsError::Candle { file, tensor, stored, source: Box::new(source) }
    }
}

/// Scales as f32; `None` for unsupported types. Bytes are E8M0 codes, as in transformers.
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
        incomplete(path, &fault)
    })
}

fn incomplete(file: &Path, fault: &str) -> SafetensorsError {
    SafetensorsError::Invalid(format!(
        "{} is not a complete safetensors file: {fault}; fetch it again",
        file.display()
    ))
}
