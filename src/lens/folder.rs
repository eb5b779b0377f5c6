//! A run folder as the analysis sees it: the header, the cases that were shown, the answers and the verdicts.
//!
//! Rows are append-only, so a (case, probe) can have several; the last one counts. A torn last line, left by a run that
//! was killed while writing, is passed over; any other line that does not parse is an error with its number.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::LensError;
use crate::data::{EvidenceRole, Turn};
use crate::eval::rows::{AnswerRow, VerdictRow};

/// One line of `plan.jsonl`: a case that the run is expected to answer. The source of every denominator.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PlannedCase {
    /// The case's id.
    pub case: String,
    /// What the case is grouped by, for example `type` -> `T1`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Which sessions carry the evidence.
    #[serde(default)]
    pub evidence: Vec<EvidenceRow>,
    /// The probes to answer, in the data's order.
    pub probes: Vec<ProbeRow>,
}

/// An evidence session of a [`PlannedCase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct EvidenceRow {
    /// The part it plays.
    pub role: EvidenceRole,
    /// The session's original index.
    pub session: usize,
}

/// A probe of a [`PlannedCase`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ProbeRow {
    /// Unique within the case (STALE: `SR`, `PR`, `IPA`).
    pub id: String,
    /// The query's text.
    pub query: String,
}

/// One file of `cases/`: what the model was shown of a case, after truncation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ShownCase {
    /// The case's id.
    pub case: String,
    /// The sessions of the prompt, in time order.
    pub sessions: Vec<SessionRow>,
}

/// A session of a [`ShownCase`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct SessionRow {
    /// Zero-based position in the file's history.
    pub index: usize,
    /// When it took place, as written.
    pub time: String,
    /// In order.
    pub turns: Vec<Turn>,
}

/// Everything of a run folder but its attention stores.
#[derive(Debug, Clone)]
pub struct RunFolder {
    /// The folder.
    pub path: PathBuf,
    /// `run.json`: what was run.
    pub header: serde_json::Value,
    /// What the run is expected to answer, in the data's order.
    pub cases: Vec<PlannedCase>,
    /// In order of first appearance, one a (case, probe).
    pub answers: Vec<AnswerRow>,
    /// In file order, every line: several judges may have judged.
    pub verdicts: Vec<VerdictRow>,
}

/// The verdicts of one judge, the last of each (case, probe).
#[derive(Debug, Clone, Default)]
pub struct Verdicts {
    /// Which judge; `None` where the run has no verdicts.
    pub judge: Option<String>,
    rows: HashMap<(String, String), VerdictRow>,
}

impl Verdicts {
    /// The verdict on a probe of a case, if the judge gave one (which may be an error row).
    pub fn get(&self, case: &str, probe: &str) -> Option<&VerdictRow> {
        self.rows.get(&(case.to_owned(), probe.to_owned()))
    }

    /// Whether the answer was judged correct; `None` where there is no verdict or only an error row.
    pub fn correct(&self, case: &str, probe: &str) -> Option<bool> {
        self.get(case, probe)?.correct
    }
}

impl RunFolder {
    /// Reads a run folder.
    ///
    /// # Errors
    /// [`LensError::NotARun`] without `run.json`, `plan.jsonl` or `answers.jsonl`; [`LensError::Row`] for a line that
    /// does not parse; [`LensError::Io`] where the file system refuses.
    pub fn open(path: &Path) -> Result<Self, LensError> {
        let missing = |missing| LensError::NotARun { path: path.to_owned(), missing };
        let header_path = path.join("run.json");
        let text = read(&header_path)?.ok_or_else(|| missing("run.json"))?;
        let header = serde_json::from_str(&text).map_err(|e| LensError::Row {
            path: header_path,
            line: e.line(),
            reason: e.to_string(),
        })?;
        let cases = rows::<PlannedCase>(&path.join("plan.jsonl"))?.ok_or_else(|| missing("plan.jsonl"))?;
        let answers =
            rows::<AnswerRow>(&path.join("answers.jsonl"))?.ok_or_else(|| missing("answers.jsonl"))?;
        Ok(RunFolder {
            path: path.to_owned(),
            header,
            cases: last_of_each(cases, |row| row.case.clone()),
            answers: last_of_each(answers, |row| (row.case.clone(), row.probe.clone())),
            verdicts: rows(&path.join("verdicts.jsonl"))?.unwrap_or_default(),
        })
    }

    /// The verdicts of `judge`, or of the judge that judged last.
    ///
    /// # Errors
    /// [`LensError::UnknownJudge`] where `judge` is named and has no verdict here.
    pub fn verdicts(&self, judge: Option<&str>) -> Result<Verdicts, LensError> {
        let Some(name) = judge.or(self.verdicts.last().map(|row| row.judge.as_str())) else {
            return Ok(Verdicts::default());
        };
        let rows: HashMap<_, _> = self
            .verdicts
            .iter()
            .filter(|row| row.judge == name)
            .map(|row| ((row.case.clone(), row.probe.clone()), row.clone()))
            .collect();
        if rows.is_empty() {
            let mut known: Vec<&str> = self.verdicts.iter().map(|row| row.judge.as_str()).collect();
            known.sort_unstable();
            known.dedup();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(LensError::UnknownJudge { path: self.path.clone(), judge: name.to_owned(), known });
        }
        Ok(Verdicts { judge: Some(name.to_owned()), rows })
    }

    /// The answer to a probe of a case, if there is a row.
    pub fn answer(&self, case: &str, probe: &str) -> Option<&AnswerRow> {
        self.answers.iter().find(|row| row.case == case && row.probe == probe)
    }

    /// The probes' ids, in order of first appearance in the cases.
    pub fn probes(&self) -> Vec<String> {
        in_order(self.cases.iter().flat_map(|case| &case.probes).map(|probe| probe.id.as_str()))
    }

    /// The values of the label `type`, sorted. Empty for data without types.
    pub fn kinds(&self) -> Vec<String> {
        let mut kinds =
            in_order(self.cases.iter().filter_map(|case| case.labels.get("type")).map(String::as_str));
        kinds.sort_unstable();
        kinds
    }

    /// A text or number of the header at a JSON pointer, for example `/identity/model/name`.
    pub fn header_text(&self, pointer: &str) -> Option<String> {
        match self.header.pointer(pointer)? {
            serde_json::Value::String(text) => Some(text.clone()),
            serde_json::Value::Number(number) => Some(number.to_string()),
            serde_json::Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        }
    }

    /// Where each case's file of shown sessions lies. The files name their case themselves, so this knows nothing of how
    /// ids become file names; sessions are read one case at a time with [`shown`], since histories are large.
    ///
    /// # Errors
    /// [`LensError::Io`] or [`LensError::Row`] for a file that cannot be read.
    pub fn shown_files(&self) -> Result<HashMap<String, PathBuf>, LensError> {
        #[derive(Deserialize)]
        struct OnlyCase {
            case: String,
        }
        let folder = self.path.join("cases");
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(HashMap::new()),
            Err(source) => return Err(LensError::Io { path: folder, source }),
        };
        let mut files = HashMap::new();
        for entry in entries {
            let path = entry.map_err(|source| LensError::Io { path: folder.clone(), source })?.path();
            if path.extension().is_some_and(|ext| ext == "json") {
                files.insert(parsed::<OnlyCase>(&path)?.case, path);
            }
        }
        Ok(files)
    }
}

/// What the model was shown of a case, from a file of [`RunFolder::shown_files`].
///
/// # Errors
/// [`LensError::Io`] or [`LensError::Row`] for a file that cannot be read.
pub fn shown(path: &Path) -> Result<ShownCase, LensError> {
    parsed(path)
}

fn parsed<T: DeserializeOwned>(path: &Path) -> Result<T, LensError> {
    let bytes = std::fs::read(path).map_err(|source| LensError::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&bytes).map_err(|e| LensError::Row {
        path: path.to_owned(),
        line: e.line(),
        reason: e.to_string(),
    })
}

/// The text of a file, or `None` where there is none.
fn read(path: &Path) -> Result<Option<String>, LensError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(source) => Err(LensError::Io { path: path.to_owned(), source }),
    }
}

/// The rows of a JSON-lines file; blank lines are passed over, and so is a torn last line.
fn rows<T: DeserializeOwned>(path: &Path) -> Result<Option<Vec<T>>, LensError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let mut rows = Vec::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(line) {
            Ok(row) => rows.push(row),
            Err(_) if !line.ends_with('\n') => {}
            Err(e) => {
                return Err(LensError::Row {
                    path: path.to_owned(),
                    line: number + 1,
                    reason: e.to_string(),
                });
            }
        }
    }
    Ok(Some(rows))
}

/// The last row of each key, in order of the keys' first appearance.
fn last_of_each<T, K: std::hash::Hash + Eq>(rows: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut place = HashMap::new();
    let mut kept: Vec<T> = Vec::new();
    for row in rows {
        match place.entry(key(&row)) {
            std::collections::hash_map::Entry::Occupied(at) => {
                let at: usize = *at.get();
                if let Some(slot) = kept.get_mut(at) {
                    *slot = row;
                }
            }
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(kept.len());
                kept.push(row);
            }
        }
    }
    kept
}

/// Each distinct text once, in order of first appearance.
fn in_order<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for text in texts {
        if !seen.iter().any(|known| known == text) {
            seen.push(text.to_owned());
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_of_a_key_wins_and_keeps_the_first_place() {
        let rows = vec![("a", 1), ("b", 2), ("a", 3)];
        assert_eq!(last_of_each(rows, |row| row.0), vec![("a", 3), ("b", 2)]);
    }

    #[test]
    fn a_torn_last_line_is_passed_over_and_a_broken_inner_line_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        std::fs::write(&path, "1\n2\n\"to").unwrap();
        assert_eq!(rows::<serde_json::Value>(&path).unwrap().unwrap().len(), 2);
        std::fs::write(&path, "1\n\"to\n2\n").unwrap();
        let error = rows::<serde_json::Value>(&path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
