//! Files of a build's data: which they are, and one digest of all.

use std::io::{Error, Result};
use std::path::Path;

use palimpsest_core::digest::sha256;
use palimpsest_data::ground::folder::{entries, read};
use serde_json::json;

/// Paths of the regular files below `name` of `dir`, sorted by folder. A link, FIFO or device among them is an error.
pub fn files(dir: &Path, name: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (entry, kind) in entries(dir, name)? {
        let path = format!("{name}/{entry}");
        if kind.is_dir() {
            found.extend(files(dir, &path)?);
        } else if kind.is_file() {
            found.push(path);
        } else {
            let what = "is a link, FIFO, socket or device, and data are files and folders; remove it";
            return Err(Error::other(format!("`{path}` {what}")));
        }
    }
    Ok(found)
}

/// SHA-256 of the paths and contents of all files below `name` of `dir`.
pub fn digest(dir: &Path, name: &str) -> Result<String> {
    let of = |path: String| Ok(json!([path, sha256(read(dir, &path)?.unwrap_or_default())]));
    let all: Vec<_> = files(dir, name)?.into_iter().map(of).collect::<Result<_>>()?;
    Ok(sha256(json!(all).to_string()))
}
