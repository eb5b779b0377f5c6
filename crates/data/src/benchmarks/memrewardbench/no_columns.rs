//! Stub for builds without the feature `parquet`.

use super::row::RawRow;

pub(super) const MAGIC: &str = "PAR1";

#[derive(Debug, thiserror::Error)]
#[error(
    "this build of palimpsest reads no Parquet; build it with the cargo feature `parquet`, which is on by default, or write the file as \
     JSONL"
)]
pub(super) struct ColumnsError;

pub(super) enum ParquetRows {}

impl ParquetRows {
    pub fn open(_: Vec<u8>) -> Result<Self, ColumnsError> {
        Err(ColumnsError)
    }

    pub fn next_row(&mut self) -> Result<Option<RawRow>, ColumnsError> {
        match *self {}
    }
}
