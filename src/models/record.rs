//! The record of a fetched model.

use serde::{Deserialize, Serialize};

use crate::models::manifest::Source;

/// One file of a fetched model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedFile {
    pub name: String,
    pub sha256: String,
}

/// Where a fetched model came from and what it must be; written last, so its presence says that the rest is complete.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub source: Source,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    pub files: Vec<RecordedFile>,
}
