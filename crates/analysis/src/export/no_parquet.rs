//! Stub for builds without the feature `parquet`: returns an error.

use std::io::Write;

use super::{ExportError, ParquetError};
use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::store::RunFolder;

pub fn write(
    _: impl Write + Send,
    _: &RunFolder,
    _: &[String],
    _: Option<&Judged>,
) -> Result<usize, ExportError> {
    Err(ParquetError.into())
}
