//! Parses the untrusted header of a GGUF file: magic, version, metadata, tensor descriptions, alignment.
//!
//! Used by [`GgufFile`](super::GgufFile) and the fuzz tests. Allocates at most a small multiple of the input's length: counts are checked
//! against the bytes left.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use super::GgufError;
use super::block::BlockType;
use super::value::{Array, FromValue, Value};

/// Nested arrays deeper than this are rejected, to bound recursion; real files use at most two levels.
const DEEPEST_ARRAY: usize = 4;
const MOST_DIMENSIONS: u64 = 4;
/// Default of `general.alignment`.
const DEFAULT_ALIGNMENT: u64 = 32;

/// A validated tensor description.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Row-major shape, outermost dimension first (GGUF writes the reverse).
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: BlockType,
    /// Byte range in the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Number of elements (parameters).
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The parsed header of one file.
#[derive(Debug)]
pub struct Header {
    /// Metadata by key.
    pub metadata: HashMap<String, Value>,
    /// Tensors in file order; every range lies in the file.
    pub tensors: Vec<TensorInfo>,
}

impl Header {
    /// Parses the header from a whole file's `bytes`; `file` is for messages.
    pub fn parse(bytes: &[u8], file: &Path) -> Result<Self, GgufError> {
        let mut reader = Reader { bytes, at: 0, file };
        let magic = bytes.get(..4).unwrap_or(bytes);
        if magic != b"GGUF" {
            let found = String::from_utf8_lossy(magic).into_owned();
            let fault = format!(
                " is not a GGUF file: it begins with {found:?}, not \"GGUF\"; is the download complete?"
            );
            return Err(GgufError::invalid(file, fault));
        }
        reader.at = 4;
        let version = reader.u32("the version")?;
        if !(2..=3).contains(&version) {
            let remark = match version {
                1 => " (of August 2023, with 32-bit lengths)",
                _ if (1..=3).contains(&version.swap_bytes()) => " (a big-endian file)",
                _ => "",
            };
            let fault = format!(
                " is GGUF version {version}{remark}; versions 2 and 3 can be read, so convert it again with a current converter"
            );
            return Err(GgufError::invalid(file, fault));
        }
        let tensor_count = reader.u64("the number of tensors")?;
        let metadata_count = reader.u64("the number of metadata values")?;
        // Smallest metadata value: key length, type, one byte. Smallest tensor: name length, dimension count, type, offset.
        reader.check_count("metadata values", metadata_count, 8 + 4 + 1)?;
        reader.check_count("tensors", tensor_count, 8 + 4 + 4 + 8)?;

        let metadata = reader.metadata(metadata_count)?;
        let alignment =
            metadata.get("general.alignment").map_or(Some(DEFAULT_ALIGNMENT), u64::from_value).unwrap_or(0);
        // The specification requires a multiple of 8; ggml requires a power of two.
        if !alignment.is_power_of_two() || !(8..=65536).contains(&alignment) {
            let fault =
                format!(": general.alignment is {alignment}; it must be a power of two from 8 to 65536");
            return Err(GgufError::invalid(file, fault));
        }
        let alignment = alignment as usize;
        let described = reader.tensors(tensor_count)?;
        let data_start = reader.at.next_multiple_of(alignment);
        let mut tensors = Vec::with_capacity(described.len());
        for tensor in described {
            tensors.push(tensor.place(bytes.len(), data_start, alignment, file)?);
        }
        Ok(Self { metadata, tensors })
    }
}

/// A tensor description with an unchecked offset.
struct Described {
    name: String,
    shape: Vec<usize>,
    dtype: BlockType,
    bytes: usize,
    offset: u64,
}

impl Described {
    fn place(
        self,
        file_len: usize,
        data_start: usize,
        alignment: usize,
        file: &Path,
    ) -> Result<TensorInfo, GgufError> {
        let offset = usize::try_from(self.offset).ok();
        if offset.is_none_or(|offset| !offset.is_multiple_of(alignment)) {
            let fault = format!(
                ": tensor {:?} has offset {}, which is not a multiple of the alignment {alignment}",
                self.name, self.offset
            );
            return Err(GgufError::invalid(file, fault));
        }
        let start = offset.and_then(|offset| data_start.checked_add(offset));
        let end = start.and_then(|start| start.checked_add(self.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => {
                Ok(TensorInfo { name: self.name, shape: self.shape, dtype: self.dtype, range: start..end })
            }
            _ => {
                let at = (data_start as u64).saturating_add(self.offset);
                let left = (file_len as u64).saturating_sub(at);
                Err(truncated(file, &format!("tensor {:?}", self.name), self.bytes as u64, at, left))
            }
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    file: &'a Path,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    fn take(&mut self, needed: u64, what: &str) -> Result<&'a [u8], GgufError> {
        let end = usize::try_from(needed).ok().and_then(|needed| self.at.checked_add(needed));
        match end.and_then(|end| Some((end, self.bytes.get(self.at..end)?))) {
            Some((end, slice)) => {
                self.at = end;
                Ok(slice)
            }
            None => Err(truncated(self.file, what, needed, self.at as u64, self.left() as u64)),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn string(&mut self, what: &str) -> Result<String, GgufError> {
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| {
            let fault = format!(
                ": {what} is not valid UTF-8; the file is corrupt or was written by a faulty converter"
            );
            GgufError::invalid(self.file, fault)
        })?;
        Ok(text.to_owned())
    }

    /// Rejects a count if that many items of the smallest size do not fit the rest of the file.
    fn check_count(&self, what: &str, count: u64, smallest: u64) -> Result<usize, GgufError> {
        let fits = count.checked_mul(smallest).is_some_and(|bytes| bytes <= self.left() as u64);
        match usize::try_from(count) {
            Ok(count) if fits => Ok(count),
            _ => {
                let fault = format!(
                    " claims {count} {what}, which the {} bytes after it cannot hold; the file is corrupt, fetch it again",
                    self.left()
                );
                Err(GgufError::invalid(self.file, fault))
            }
        }
    }

    fn metadata(&mut self, count: u64) -> Result<HashMap<String, Value>, GgufError> {
        let mut metadata = HashMap::new();
        for number in 0..count {
            let key = self.string(&format!("the key of metadata value {number}"))?;
            let kind = self.u32(&key)?;
            let value = self.value(kind, &key)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(self.duplicate("metadata", &key));
            }
        }
        Ok(metadata)
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<Value, GgufError> {
        Ok(match kind {
            0..=5 | 10 | 11 => Value::Int(self.integer(kind, key)?),
            6 | 12 => Value::Float(self.float(kind, key)?),
            7 => Value::Bool(self.truth(key)?),
            8 => Value::String(self.string(key)?),
            9 => Value::Array(self.elements(key, 1)?),
            _ => return Err(self.fault(key, format!("has the unknown type {kind}"))),
        })
    }

    fn integer(&mut self, kind: u32, key: &str) -> Result<i128, GgufError> {
        Ok(match kind {
            0 => u8::from_le_bytes(self.array(key)?).into(),
            1 => i8::from_le_bytes(self.array(key)?).into(),
            2 => u16::from_le_bytes(self.array(key)?).into(),
            3 => i16::from_le_bytes(self.array(key)?).into(),
            4 => self.u32(key)?.into(),
            5 => i32::from_le_bytes(self.array(key)?).into(),
            10 => self.u64(key)?.into(),
            _ => i64::from_le_bytes(self.array(key)?).into(),
        })
    }

    fn float(&mut self, kind: u32, key: &str) -> Result<f64, GgufError> {
        Ok(match kind {
            6 => f32::from_le_bytes(self.array(key)?).into(),
            _ => f64::from_le_bytes(self.array(key)?),
        })
    }

    fn truth(&mut self, key: &str) -> Result<bool, GgufError> {
        match self.array::<1>(key)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.fault(key, format!("has the truth value {other}, which is neither 0 nor 1"))),
        }
    }

    fn elements(&mut self, key: &str, depth: usize) -> Result<Array, GgufError> {
        if depth > DEEPEST_ARRAY {
            return Err(self.fault(key, format!("nests arrays deeper than {DEEPEST_ARRAY}")));
        }
        let kind = self.u32(key)?;
        let count = self.u64(key)?;
        let smallest = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 4 + 8,
            _ => return Err(self.fault(key, format!("is an array of the unknown type {kind}"))),
        };
        let count = self.check_count(&format!("elements of {key}"), count, smallest)?;
        Ok(match kind {
            6 | 12 => Array::Floats(self.many(count, |reader| reader.float(kind, key))?),
            7 => Array::Bools(self.many(count, |reader| reader.truth(key))?),
            8 => Array::Strings(self.many(count, |reader| reader.string(key))?),
            9 => Array::Arrays(self.many(count, |reader| reader.elements(key, depth + 1))?),
            _ => Array::Ints(self.many(count, |reader| reader.integer(kind, key))?),
        })
    }

    fn many<T>(
        &mut self,
        count: usize,
        one: impl Fn(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(one(self)?);
        }
        Ok(items)
    }

    fn tensors(&mut self, count: u64) -> Result<Vec<Described>, GgufError> {
        let count = self.check_count("tensors", count, 8 + 4 + 4 + 8)?;
        let mut tensors = Vec::with_capacity(count);
        let mut names = HashSet::with_capacity(count);
        for number in 0..count {
            let tensor = self.tensor(number)?;
            if !names.insert(tensor.name.clone()) {
                return Err(self.duplicate("tensor", &tensor.name));
            }
            tensors.push(tensor);
        }
        Ok(tensors)
    }

    fn tensor(&mut self, number: usize) -> Result<Described, GgufError> {
        let name = self.string(&format!("the name of tensor {number}"))?;
        let file = self.file;
        let bad = |fault: String| GgufError::invalid(file, format!(": tensor {name:?} {fault}"));
        let dimensions = u64::from(self.u32(&name)?);
        if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
            return Err(bad(format!("has {dimensions} dimensions; 1 to {MOST_DIMENSIONS} are possible")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let length = self.u64(&name)?;
            match usize::try_from(length) {
                Ok(length) if length > 0 => shape.push(length),
                _ => return Err(bad(format!("has a dimension of length {length}"))),
            }
        }
        let code = self.u32(&name)?;
        let dtype = BlockType::from_code(code).map_err(|known_as| {
            bad(format!(
                "is stored as type {code}{known_as}, which cannot be read; use a file quantised as Q4_0, Q4_1, Q5_0, Q5_1, \
                 Q8_0, Q2_K to Q6_K (the K_S, K_M and K_L mixes too), IQ1_S to IQ4_XS, MXFP4, NVFP4, F16, BF16 or F32"
            ))
        })?;
        let offset = self.u64(&name)?;
        let row = shape.first().copied().unwrap_or(0);
        if !row.is_multiple_of(dtype.columns()) {
            let block = dtype.columns();
            return Err(bad(format!(
                "has rows of {row} elements, not a multiple of the {block} in a {} block",
                dtype.name()
            )));
        }
        let bytes = shape
            .iter()
            .try_fold(1_usize, |elements, &length| elements.checked_mul(length))
            .and_then(|elements| (elements / dtype.columns()).checked_mul(dtype.bytes()));
        let Some(bytes) = bytes else { return Err(bad(format!("has the impossible shape {shape:?}"))) };
        shape.reverse();
        Ok(Described { name, shape, dtype, bytes, offset })
    }

    fn fault(&self, key: &str, fault: String) -> GgufError {
        let fault = format!(": metadata {key:?} {fault}; the file is corrupt or newer than this reader");
        GgufError::invalid(self.file, fault)
    }

    fn duplicate(&self, what: &str, name: &str) -> GgufError {
        GgufError::invalid(self.file, format!(": {what} {name:?} appears twice; the file is corrupt"))
    }
}

fn truncated(file: &Path, what: &str, needed: u64, at: u64, left: u64) -> GgufError {
    let fault = format!(
        " is cut short: {what} needs {needed} bytes at byte {at}, {left} are left; fetch the file again"
    );
    GgufError::invalid(file, fault)
}
