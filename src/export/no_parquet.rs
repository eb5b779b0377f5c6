//! Parquet in a build without the feature `parquet`: it is refused.

use std::io::Write;

use super::ExportError;
use crate::run::judged::Judged;
use crate::run::store::RunFolder;

/// Why no Parquet file is written.
#[derive(Debug, thiserror::Error)]
#[error(
    "this build of palimpsest writes none; build it with the cargo feature `parquet`, which is on by default"
)]
pub struct Error;

/// Refuses.
///
/// # Errors
/// [`ExportError::Parquet`].
pub fn write(
    _: impl Write + Send,
    _: &RunFolder,
    _: &[String],
    _: Option<&Judged>,
) -> Result<usize, ExportError> {
    Err(Error.into())
}
