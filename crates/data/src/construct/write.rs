//! Output files of a build: data, `provenance.jsonl`, `build.json`. Data go to a temporary file that is renamed when complete.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use palimpsest_core::digest::hex;
use palimpsest_core::files::write_atomically;
use palimpsest_core::text::CountTokens;
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::builder::{Builder, Built};
use super::error::BuildError;
use super::fillers::GivenFillers;
use super::spec::Spec;
use super::texts::{LICENCE, Texts};

pub const DOSE_FILE: &str = "dose.jsonl";
const PROVENANCE_FILE: &str = "provenance.jsonl";
const BUILD_FILE: &str = "build.json";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    pub kept: usize,
    pub rows: usize,
    pub tokens: usize,
    pub twins_dropped: usize,
    /// Count per reason, items and twins together.
    pub dropped: BTreeMap<String, usize>,
    pub left_out: Vec<(String, String)>,
}

pub trait Format {
    fn file(&self) -> &str;
    /// Returns false if the row is left out.
    fn row(&mut self, built: &Built, out: &mut dyn Write) -> std::io::Result<bool>;
    fn end(&mut self, _: &mut dyn Write) -> std::io::Result<()> {
        Ok(())
    }
}

pub struct Lines;

impl Format for Lines {
    fn file(&self) -> &str {
        DOSE_FILE
    }

    fn row(&mut self, built: &Built, out: &mut dyn Write) -> std::io::Result<bool> {
        serde_json::to_writer(&mut *out, &built.row)?;
        out.write_all(b"\n")?;
        Ok(true)
    }
}

/// Tokenizer for lengths, with name and digest for `build.json`.
#[derive(Clone, Copy)]
pub struct Counter<'a> {
    pub name: &'a str,
    pub digest: &'a str,
    pub tokens: &'a dyn CountTokens,
}

/// `on_item` is called after each item.
pub fn write_build(
    dir: &Path,
    spec: &Spec,
    tokenizer: Counter<'_>,
    given: Option<&GivenFillers>,
    format: &mut dyn Format,
    mut on_item: impl FnMut(),
) -> Result<Summary, BuildError> {
    let data = format.file().to_owned();
    let builder = Builder::new(spec, tokenizer.tokens, given)?;
    std::fs::create_dir_all(dir).map_err(BuildError::io("write", dir))?;
    let mut rows = Output::new(dir, &data)?;
    let mut provenance = Output::new(dir, PROVENANCE_FILE)?;
    let mut summary = Summary { left_out: builder.left_out.clone(), ..Summary::default() };
    let mut first = None;
    for number in 0..spec.items {
        let item = builder.item(number)?;
        let mut written = false;
        for built in &item.rows {
            if rows.with(|out| format.row(built, out))? {
                written = true;
                summary.rows += 1;
                summary.tokens += built.provenance["tokens"].as_u64().unwrap_or(0) as usize;
                provenance.line(&built.provenance)?;
            }
        }
        for dropped in &item.dropped {
            let kind = if dropped.item { "item" } else { "row" };
            provenance.line(&json!({kind: dropped.id, "dropped": dropped.reason}))?;
            first.get_or_insert_with(|| dropped.reason.clone());
            summary.twins_dropped += usize::from(!dropped.item);
            *summary.dropped.entry(without_names(&dropped.reason)).or_default() += 1;
        }
        summary.kept += usize::from(written);
        on_item();
    }
    if summary.kept == 0 {
        let reason = first.unwrap_or_else(|| "no row of theirs can be written so".to_owned());
        return Err(BuildError::Nothing { asked: spec.items, tokenizer: tokenizer.name.to_owned(), reason });
    }
    rows.with(|out| format.end(out))?;
    let digest = rows.finish()?;
    provenance.finish()?;
    let texts = Texts::get()?;
    let given = given.map(|given| {
        let file = given.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let licences: BTreeMap<&str, usize> =
            given.fillers.iter().fold(BTreeMap::new(), |mut all, filler| {
                *all.entry(filler.licence.as_str()).or_default() += 1;
                all
            });
        json!({"file": file, "sha256": given.digest, "sessions": given.fillers.len(), "licences": licences})
    });
    let left_out: BTreeMap<&str, &str> =
        summary.left_out.iter().map(|(name, reason)| (name.as_str(), reason.as_str())).collect();
    let build = json!({
        "kind": "dose",
        "palimpsest": env!("CARGO_PKG_VERSION"),
        "seed": spec.seed,
        "spec": spec,
        "tokenizer": {"name": tokenizer.name, "digest": tokenizer.digest},
        "texts": {"sha256": texts.digest, "licence": LICENCE},
        "distractors": given,
        "items": {"asked": spec.items, "kept": summary.kept, "dropped": spec.items - summary.kept},
        "rows": summary.rows,
        "twins_dropped": summary.twins_dropped,
        "dropped": summary.dropped,
        "templates_left_out": left_out,
        "tokens": summary.tokens,
        "data": {"file": data, "sha256": digest},
    });
    let path = dir.join(BUILD_FILE);
    write_atomically(&path, format!("{build:#}\n").as_bytes()).map_err(BuildError::io("write", &path))?;
    Ok(summary)
}

/// Strips quotations and ids, so that equal reasons are counted together.
fn without_names(reason: &str) -> String {
    let quoted = reason.find('"').map_or(reason, |at| reason[..at].trim_end_matches([' ', ':']));
    match quoted.split_once(": ") {
        Some((id, rest)) if id.contains('.') => rest.to_owned(),
        _ => quoted.to_owned(),
    }
}

struct Output<'a> {
    dir: &'a Path,
    name: &'a str,
    file: BufWriter<NamedTempFile>,
    hash: Sha256,
}

impl<'a> Output<'a> {
    fn new(dir: &'a Path, name: &'a str) -> Result<Self, BuildError> {
        let mut builder = tempfile::Builder::new();
        // Temporary files are private by default; the output follows the umask.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(dir).map_err(BuildError::io("write", dir))?;
        Ok(Output { dir, name, file: BufWriter::new(file), hash: Sha256::new() })
    }

    fn with<T>(&mut self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<T>) -> Result<T, BuildError> {
        let mut bytes = Vec::new();
        let done = write(&mut bytes).and_then(|value| self.file.write_all(&bytes).map(|()| value));
        self.hash.update(&bytes);
        done.map_err(BuildError::io("write", &self.dir.join(self.name)))
    }

    fn line(&mut self, value: &impl serde::Serialize) -> Result<(), BuildError> {
        self.with(|out| {
            serde_json::to_writer(&mut *out, value)?;
            out.write_all(b"\n")
        })
    }

    /// Renames to the final path; returns the SHA-256.
    fn finish(self) -> Result<String, BuildError> {
        let path = self.dir.join(self.name);
        let file = self.file.into_inner().map_err(|error| error.into_error());
        let file = file.map_err(BuildError::io("write", &path))?;
        file.persist(&path).map_err(|error| BuildError::io("write", &path)(error.error))?;
        Ok(hex(&self.hash.finalize()))
    }
}
