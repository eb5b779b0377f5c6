//! GGUF files, single or split: quantised weights and metadata (GGUF specification, versions 2 and 3, little-endian).
//!
//! Used by decoders, the tokeniser and `model info`. Files are mapped and loaded lazily: [`GgufFile::tensor`] dequantises one tensor to a
//! device; raw bytes of tensors and of single experts are available too. [`header`] parses untrusted headers, [`block`] decodes blocks.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::{GgmlDType, ggml_file::qtensor_from_ggml};
use candle_core::{DType, Device, Tensor};

use super::blocks::BlocksError;
use super::mapped::{Mapped, map};

pub mod block;
mod grids;
pub mod header;
mod i_quants;
pub mod value;

pub use block::{BlockType, dequantise};
pub use header::{Header, TensorInfo};
pub use value::{Array, FromValue, Value};

/// An invalid GGUF file, or a request for something that it does not hold.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum GgufError {
    #[error("cannot read {file}")]
    Io { file: PathBuf, source: std::io::Error },
    #[error("{file}{fault}")]
    Invalid { file: PathBuf, fault: String },
    #[error("split GGUF {file}: {fault}")]
    Split { file: PathBuf, fault: String },
    #[error("{file}: tensor {tensor:?}")]
    Blocks { file: PathBuf, tensor: String, source: BlocksError },
    #[error("{file}: tensor {tensor:?} could not be put on the device")]
    Candle { file: PathBuf, tensor: String, source: Box<candle_core::Error> },
}

impl GgufError {
    /// `fault` follows the file's name.
    pub(super) fn invalid(file: &Path, fault: impl Into<String>) -> Self {
        GgufError::Invalid { file: file.to_path_buf(), fault: fault.into() }
    }
}

/// One mapped part of a GGUF.
#[derive(Debug)]
struct SplitFile {
    path: PathBuf,
    bytes: Mapped,
}

#[derive(Debug)]
struct TensorLocation {
    part: usize,
    info: TensorInfo,
}

/// An opened GGUF: the metadata of the first part and the tensors of all parts.
#[derive(Debug)]
pub struct GgufFile {
    parts: Vec<SplitFile>,
    metadata: HashMap<String, Value>,
    tensors: Vec<TensorLocation>,
    by_name: HashMap<String, usize>,
}

impl GgufFile {
    /// Opens a GGUF file, or a split one given by all parts or any single one (the others are found by the `-00001-of-00003.gguf` pattern).
    /// Reads headers only. A missing part is an error that names it.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Self, GgufError> {
        let paths = match paths {
            [] => {
                let fault = "no file was given".to_string();
                return Err(GgufError::Split { file: PathBuf::new(), fault });
            }
            [one] => split_parts(one.as_ref())?,
            many => many.iter().map(|path| path.as_ref().to_path_buf()).collect(),
        };
        let mut parts = Vec::with_capacity(paths.len());
        let mut headers = Vec::with_capacity(paths.len());
        for path in paths {
            let bytes = map(&path).map_err(|source| GgufError::Io { file: path.clone(), source })?;
            headers.push(Header::parse(&bytes, &path)?);
            parts.push(SplitFile { path, bytes });
        }
        check_split(&parts, &headers)?;

        let mut metadata = HashMap::new();
        let mut tensors = Vec::with_capacity(headers.iter().map(|header| header.tensors.len()).sum());
        let mut by_name = HashMap::new();
        for (part, header) in headers.into_iter().enumerate() {
            if part == 0 {
                metadata = header.metadata;
            }
            for info in header.tensors {
                if by_name.insert(info.name.clone(), tensors.len()).is_some() {
                    let fault = format!(": tensor {:?} appears twice; the file is corrupt", info.name);
                    return Err(GgufError::invalid(&parts[part].path, fault));
                }
                tensors.push(TensorLocation { part, info });
            }
        }
        Ok(Self { parts, metadata, tensors, by_name })
    }

    /// The (first) file, for messages.
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// All files, in split order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    /// Total size in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.len() as u64).sum()
    }

    /// All metadata keys, unordered.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// Raw metadata value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// Metadata value of a key as a `T`; `None` if the key is missing, an error if it is no `T`. Integers convert to any width that holds
    /// them, and to floats.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(found) => Ok(Some(found)),
            None => {
                let fault = format!(": metadata {key:?} is {}, expected {}", value.describe(), T::WANTED);
                Err(GgufError::invalid(self.path(), fault))
            }
        }
    }

    /// Required metadata value of a key as a `T`.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.get(key)?.ok_or_else(|| {
            let fault = format!(
                " has no metadata {key:?}, which a model needs; convert the model again with a current converter"
            );
            GgufError::invalid(self.path(), fault)
        })
    }

    /// `general.architecture`, the prefix of the hyper-parameter keys.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.require("general.architecture")
    }

    /// Tensors in file order. Shapes are row-major (outermost dimension first).
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter().map(|placed| &placed.info)
    }

    /// Name, shape and type of a tensor.
    pub fn tensor_info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?).map(|placed| &placed.info)
    }

    /// Raw (quantised) bytes of a tensor.
    pub fn tensor_bytes(&self, name: &str) -> Result<&[u8], GgufError> {
        let placed = self.placed(name)?;
        let part = &self.parts[placed.part];
        // The range was validated with the header.
        part.bytes
            .get(placed.info.range.clone())
            .ok_or_else(|| GgufError::invalid(&part.path, format!(": tensor {name:?} lies outside the file")))
    }

    /// Raw bytes of entry `index` along the outermost dimension (an expert of a stacked tensor).
    pub fn part_bytes(&self, name: &str, index: usize) -> Result<&[u8], GgufError> {
        let placed = self.placed(name)?;
        let bytes = self.tensor_bytes(name)?;
        // Rows are whole blocks, so entries of at least one row are too.
        let entries = match placed.info.shape.as_slice() {
            [entries, _, ..] => *entries,
            _ => 0,
        };
        if index >= entries {
            let fault = format!(
                ": tensor {name:?} of shape {:?} has no entry {index} along its first dimension; do the experts in the metadata agree \
                 with the tensors?",
                placed.info.shape
            );
            return Err(GgufError::invalid(&self.parts[placed.part].path, fault));
        }
        let length = bytes.len() / entries;
        Ok(&bytes[index * length..(index + 1) * length])
    }

    /// Blocks of a tensor, or of its entry `index`, with their type. NVFP4 becomes f32, for a tensor of its own
    /// ([`scale_of`](Self::scale_of)) multiplies it.
    pub fn blocks(&self, name: &str, index: Option<usize>) -> Result<(Cow<'_, [u8]>, BlockType), GgufError> {
        let TensorLocation { part, info } = self.placed(name)?;
        let bytes = match index {
            Some(index) => self.part_bytes(name, index)?,
            None => self.tensor_bytes(name)?,
        };
        if info.dtype != BlockType::NVFP4 {
            return Ok((Cow::Borrowed(bytes), info.dtype));
        }
        let file = &self.parts[*part].path;
        let values = |tensor: &str, dtype, bytes| {
            let (file, tensor) = (file.clone(), tensor.to_owned());
            dequantise(dtype, bytes).map_err(|source| GgufError::Blocks { file, tensor, source })
        };
        let mut scale = 1.0;
        if let Some(tensor) = self.scale_of(name) {
            let scales = values(&tensor, self.placed(&tensor)?.info.dtype, self.tensor_bytes(&tensor)?)?;
            scale = *scales.get(index.unwrap_or(0)).ok_or_else(|| {
                let fault =
                    format!(": tensor {tensor:?} has too few numbers for {name:?}; the file is corrupt");
                GgufError::invalid(file, fault)
            })?;
        }
        let values = values(name, info.dtype, bytes)?.into_iter();
        let bytes = values.flat_map(|value| (value * scale).to_le_bytes()).collect();
        Ok((Cow::Owned(bytes), BlockType::F32))
    }

    /// The tensor that multiplies the NVFP4 weight `name`: a number, or one for each entry.
    pub fn scale_of(&self, name: &str) -> Option<String> {
        let scale = format!("{}.scale", name.strip_suffix(".weight")?);
        let scaled = self.tensor_info(name)?.dtype == BlockType::NVFP4 && self.contains(&scale);
        scaled.then_some(scale)
    }

    /// A tensor, dequantised to `dtype` on a device.
    pub fn tensor(&self, name: &str, device: &Device, dtype: DType) -> Result<Tensor, GgufError> {
        let placed = self.placed(name)?;
        self.dequantised(placed, self.tensor_bytes(name)?, &placed.info.shape, device, dtype)
    }

    /// Entry `index` along the outermost dimension, dequantised to `dtype` on a device, without that dimension.
    pub fn tensor_part(
        &self,
        name: &str,
        index: usize,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, GgufError> {
        let placed = self.placed(name)?;
        let bytes = self.part_bytes(name, index)?;
        self.dequantised(placed, bytes, &placed.info.shape[1..], device, dtype)
    }

    fn dequantised(
        &self,
        placed: &TensorLocation,
        bytes: &[u8],
        shape: &[usize],
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor, GgufError> {
        let (file, tensor) = (self.parts[placed.part].path.clone(), placed.info.name.clone());
        match values_on(placed.info.dtype, bytes, shape, device, dtype) {
            Ok(Ok(values)) => Ok(values),
            Ok(Err(source)) => Err(GgufError::Candle { file, tensor, source: Box::new(source) }),
            Err(source) => Err(GgufError::Blocks { file, tensor, source }),
        }
    }

    /// True if the file has this tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    fn placed(&self, name: &str) -> Result<&TensorLocation, GgufError> {
        self.by_name.get(name).and_then(|index| self.tensors.get(*index)).ok_or_else(|| {
            let fault =
                format!(" has no tensor {name:?}; is it the architecture that general.architecture names?");
            GgufError::invalid(self.path(), fault)
        })
    }
}

/// Dequantised blocks on a device, in `dtype`. The outer error is [`BlocksError`] for partial blocks, the inner one Candle's.
///
/// Quantised weights are uploaded as they are and dequantised on the GPU in parts, to bound the f32 buffer. Dense weights, and types that
/// Candle does not support, are converted before the upload.
pub fn values_on(
    stored: BlockType,
    bytes: &[u8],
    shape: &[usize],
    device: &Device,
    dtype: DType,
) -> Result<candle_core::Result<Tensor>, BlocksError> {
    if let (false, Some(_), Some(known), [.., cols]) =
        (device.is_cpu(), stored.groups(), stored.candle(), shape)
    {
        return Ok(
            values_made_on(device, known, bytes, *cols, dtype).and_then(|values| values.reshape(shape))
        );
    }
    let values = dequantise(stored, bytes)?;
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)
        .and_then(|tensor| tensor.to_dtype(dtype)?.to_device(device)))
}

/// Weights dequantised at a time on a GPU.
const AT_ONCE: usize = 1 << 24;

/// Dequantises (rows, cols) on `device`.
fn values_made_on(
    device: &Device,
    stored: GgmlDType,
    bytes: &[u8],
    cols: usize,
    dtype: DType,
) -> candle_core::Result<Tensor> {
    let row_bytes = cols / stored.block_size() * stored.type_size();
    let rows = bytes.len() / row_bytes.max(1);
    // Candle casts the bytes to blocks in place, which need 2-byte alignment; rows have an even size.
    let part = |start: usize, rows: usize| {
        let bytes = &bytes[start * row_bytes..(start + rows) * row_bytes];
        qtensor_from_ggml(stored, bytes, vec![rows, cols], device)?.dequantize(device)?.to_dtype(dtype)
    };
    let step = (AT_ONCE / cols.max(1)).max(1);
    if rows <= step {
        return part(0, rows);
    }
    let values = Tensor::zeros((rows, cols), dtype, device)?;
    for start in (0..rows).step_by(step) {
        values.slice_set(&part(start, step.min(rows - start))?, 0, start)?;
    }
    Ok(values)
}

/// All parts of a split GGUF, given any one of them; the file alone if its name does not follow `-00001-of-00003.gguf`. A missing part
/// is an error that names it.
pub fn split_parts(path: &Path) -> Result<Vec<PathBuf>, GgufError> {
    let Some((stem, count)) = split_pattern(path) else { return Ok(vec![path.to_path_buf()]) };
    let mut parts = Vec::new();
    for number in 1..=count {
        let part = path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"));
        // Stop at the first gap: a name may claim 99,999 parts.
        if !part.is_file() {
            let fault = format!("part {number} of {count} is missing: {} does not exist", part.display());
            return Err(GgufError::Split { file: path.to_path_buf(), fault });
        }
        parts.push(part);
    }
    Ok(parts)
}

/// `("llama", 3)` for `llama-00002-of-00003.gguf`.
pub fn split_pattern(path: &Path) -> Option<(&str, u32)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = name.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five_digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !five_digits(count) || !five_digits(number) {
        return None;
    }
    let (number, count): (u32, u32) = (number.parse().ok()?, count.parse().ok()?);
    (1..=count).contains(&number).then_some((stem, count))
}

fn check_split(parts: &[SplitFile], headers: &[Header]) -> Result<(), GgufError> {
    let number = |header: &Header, key: &str| header.metadata.get(key).and_then(u64::from_value);
    for (position, (part, header)) in parts.iter().zip(headers).enumerate() {
        let fail = |fault: String| Err(GgufError::Split { file: part.path.clone(), fault });
        let count = number(header, "split.count").unwrap_or(0).max(1);
        if count != parts.len() as u64 {
            return fail(format!(
                "the file says it is one of {count}, but {} were given; name all parts, first to last",
                parts.len()
            ));
        }
        let no = number(header, "split.no").unwrap_or(0);
        if no != position as u64 {
            return fail(format!(
                "it is part {} but stands at place {}; give the parts in order",
                no + 1,
                position + 1
            ));
        }
    }
    if let (Some(part), Some(header)) = (parts.first(), headers.first())
        && let Some(promised) = number(header, "split.tensors.count")
    {
        let found: u64 = headers.iter().map(|header| header.tensors.len() as u64).sum();
        if promised != found {
            let fault = format!(
                "the parts hold {found} tensors, the first one promises {promised}; fetch them again"
            );
            return Err(GgufError::Split { file: part.path.clone(), fault });
        }
    }
    Ok(())
}
