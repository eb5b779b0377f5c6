//! Ratings of rows, as a build's folder keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// File of a build's folder with a [`Review`] a line.
pub const FILE: &str = "reviews.jsonl";

/// A rater's label and edits of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Review {
    pub row: String,
    /// Digest of the texts that were rated, by the form of the review. A review of other texts is not applied.
    #[serde(default)]
    pub of: String,
    pub rater: String,
    pub label: String,
    /// New texts by path of field.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub edits: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// Decides where raters disagree.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settles: bool,
}
