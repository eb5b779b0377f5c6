//! Typed access to the architecture's GGUF metadata, with errors that name file, key and value.
//!
//! Keys that were neither read nor known to be harmless are rejected, like config.json fields.

use std::cell::RefCell;
use std::collections::HashSet;

use crate::model::ModelError;
use crate::model::weights::{GgufFile, Value};

/// The keys `{architecture}.*` of a GGUF file.
pub struct Meta<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
    place: &'a str,
    read: RefCell<HashSet<String>>,
}

/// Keys that do not affect the computation or repeat a tensor's shape.
const HARMLESS: [&str; 4] =
    ["vocab_size", "rope.dimension_sections", "rope.scaling.finetuned", "tensor_data_layout"];

impl<'a> Meta<'a> {
    pub fn new(file: &'a GgufFile, place: &'a str) -> Result<Self, ModelError> {
        Ok(Meta { file, architecture: file.architecture()?, place, read: RefCell::default() })
    }

    pub fn file(&self) -> &'a GgufFile {
        self.file
    }

    pub fn place(&self) -> &'a str {
        self.place
    }

    /// Rows of the embedding; the metadata's vocabulary can be shorter.
    pub fn vocab(&self) -> Result<usize, ModelError> {
        const EMBEDDING: &str = "token_embd.weight";
        self.rows(EMBEDDING).ok_or_else(|| ModelError::MissingTensor {
            place: self.place.to_owned(),
            name: EMBEDDING.to_owned(),
        })
    }

    /// Layers without those for multi-token prediction, which are not run.
    pub fn layers(&self) -> Result<usize, ModelError> {
        let predicting = self.optional_count("nextn_predict_layers")?.unwrap_or(0);
        let blocks = self.count("block_count")?;
        blocks.checked_sub(predicting).filter(|&n| n > 0).ok_or_else(|| {
            self.refuse("nextn_predict_layers", format!("is {predicting} of {blocks} layers; none is left"))
        })
    }

    pub fn refuse(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Config {
            place: self.place.to_owned(),
            field: format!("{}.{key}", self.architecture),
            problem: problem.into(),
        }
    }

    fn key(&self, key: &str) -> String {
        let full = format!("{}.{key}", self.architecture);
        self.read.borrow_mut().insert(full.clone());
        full
    }

    /// Rejects the first key that was not read and is not harmless.
    pub fn finish(&self) -> Result<(), ModelError> {
        let read = self.read.borrow();
        let prefix = format!("{}.", self.architecture);
        let mut unknown: Vec<&str> = (self.file.keys())
            .filter(|key| !read.contains(*key))
            .filter_map(|key| key.strip_prefix(&prefix))
            .filter(|key| !HARMLESS.contains(key))
            .collect();
        unknown.sort_unstable();
        match unknown.first() {
            None => Ok(()),
            Some(key) => Err(self.refuse(
                key,
                "is a key that this architecture is not known to have; it may change the maths, so it is not passed over",
            )),
        }
    }

    /// An optional count of at most 2^24; 0 counts as absent. Of a list by layer the largest; the tensors' shapes have each layer's own.
    pub fn optional_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let full = self.key(key);
        let found = match self.file.value(&full) {
            Some(Value::Array(_)) => {
                self.file.get::<Vec<u64>>(&full)?.and_then(|list| list.into_iter().max())
            }
            _ => self.file.get::<u64>(&full)?,
        };
        match found {
            None | Some(0) => Ok(None),
            Some(n @ 1..=0x100_0000) => Ok(Some(n as usize)),
            Some(n) => Err(self.refuse(key, format!("is {n}, not a whole number from 0 to 16777216"))),
        }
    }

    pub fn count(&self, key: &str) -> Result<usize, ModelError> {
        match self.optional_count(key)? {
            Some(n) => Ok(n),
            None if self.file.value(&self.key(key)).is_some() => {
                Err(self.refuse(key, "is 0, not a whole number from 1 to 16777216"))
            }
            None => Err(self.refuse(key, "is missing")),
        }
    }

    pub fn optional_positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.file.get::<f64>(&self.key(key))? {
            Some(x) if !(x.is_finite() && x > 0.0) => {
                Err(self.refuse(key, format!("is {x}, not a number above 0")))
            }
            found => Ok(found),
        }
    }

    pub fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        Ok(self.file.get::<bool>(&self.key(key))?.unwrap_or(default))
    }

    pub fn optional_text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.file.get::<&str>(&self.key(key))?)
    }

    /// Rejects a nonzero count, for unsupported variants of an architecture.
    pub fn expect_none(&self, key: &str) -> Result<(), ModelError> {
        match self.optional_count(key)? {
            None => Ok(()),
            Some(n) => Err(self.refuse(key, format!("is {n}; this architecture is built without it"))),
        }
    }

    /// An optional list of booleans, one per block.
    pub fn optional_flags(&self, key: &str) -> Result<Option<Vec<bool>>, ModelError> {
        Ok(self.file.get::<Vec<bool>>(&self.key(key))?)
    }

    /// Rows of a tensor, if it is there.
    pub fn rows(&self, tensor: &str) -> Option<usize> {
        self.file.tensor_info(tensor)?.shape.first().copied()
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.file.contains(tensor)
    }
}
