//! Records a memory system's model calls: one row per call in `calls.jsonl`, and the replies in `responses.jsonl` for replay.
//!
//! The key of a call is its operation, its request and the number of equal requests before it in that operation. A repeated operation
//! (after a kill, a crash or in a rerun) therefore gets the same replies. Rows are from the last execution of each operation.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::driver::InFlight;
use super::http_server::Response;
use super::rows::CallRow;
use palimpsest_data::ground::jsonl::{JsonlError, RowLog};

pub(super) const CALLS: &str = "calls.jsonl";
const RESPONSES: &str = "responses.jsonl";

/// Identifies a call within a case.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallKey {
    pub phase: String,
    pub about: String,
    pub attempt: u32,
    pub request: String,
    /// Number of equal requests before it in this attempt.
    pub nth: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptResponse {
    #[serde(flatten)]
    pub key: CallKey,
    pub status: u16,
    pub content_type: String,
    pub body: String,
    pub seconds: f64,
}

#[derive(Debug, Default)]
pub struct CallLog {
    open: Option<Folder>,
    /// Counts of equal requests in the current operation, by digest.
    counts: HashMap<String, usize>,
    serial: u64,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    calls: RowLog<CallRow>,
    responses: RowLog<KeptResponse>,
    by_key: HashMap<CallKey, usize>,
}

impl CallLog {
    /// Returns the key of the next call, and its recorded reply if there is one.
    pub fn begin(
        &mut self,
        flight: &InFlight,
        request: &str,
    ) -> Result<(CallKey, Option<KeptResponse>), JsonlError> {
        if self.serial != flight.serial {
            self.serial = flight.serial;
            self.counts.clear();
            let folder = self.folder(&flight.folder)?;
            if flight.attempt == 0 {
                folder.forget(flight)?;
            }
        }
        let nth = self.counts.entry(request.to_owned()).or_default();
        let key = CallKey {
            phase: flight.phase.to_owned(),
            about: flight.about.clone(),
            attempt: flight.attempt,
            request: request.to_owned(),
            nth: *nth,
        };
        *nth += 1;
        let folder = self.folder(&flight.folder)?;
        let kept = folder.by_key.get(&key).map(|at| folder.responses.rows[*at].clone());
        Ok((key, kept))
    }

    /// Records a call. Error replies are not replayed, since they may be transient.
    pub fn end(
        &mut self,
        folder: &Path,
        key: CallKey,
        row: CallRow,
        response: Option<&Response>,
    ) -> Result<(), JsonlError> {
        let good = response.filter(|response| (200..300).contains(&response.status));
        let kept = good.and_then(|response| {
            Some(KeptResponse {
                key: key.clone(),
                status: response.status,
                content_type: response.content_type.clone(),
                // Non-text replies are not replayed.
                body: String::from_utf8(response.body.clone()).ok()?,
                seconds: row.seconds,
            })
        });
        if response.is_some()
            && kept.is_none()
            && let Some(nth) = self.counts.get_mut(&key.request)
        {
            *nth = key.nth;
        }
        let folder = self.folder(folder)?;
        if let Some(kept) = kept {
            folder.by_key.insert(key, folder.responses.rows.len());
            folder.responses.append(kept)?;
        }
        folder.calls.append(row)
    }

    fn folder(&mut self, path: &Path) -> Result<&mut Folder, JsonlError> {
        let open = match self.open.take().filter(|open| open.path == path) {
            Some(open) => open,
            None => {
                std::fs::create_dir_all(path).map_err(JsonlError::io("create", path))?;
                let responses: RowLog<KeptResponse> = RowLog::open(path.join(RESPONSES))?;
                let by_key = responses.rows.iter().enumerate().map(|(at, row)| (row.key.clone(), at));
                Folder {
                    path: path.to_owned(),
                    calls: RowLog::open(path.join(CALLS))?,
                    by_key: by_key.collect(),
                    responses,
                }
            }
        };
        Ok(self.open.insert(open))
    }
}

impl Folder {
    fn forget(&mut self, flight: &InFlight) -> Result<(), JsonlError> {
        let other = |row: &&CallRow| row.phase != flight.phase || row.about != flight.about;
        if self.calls.rows.iter().all(|row| other(&row)) {
            return Ok(());
        }
        let rows = self.calls.rows.iter().filter(other).cloned().collect();
        self.calls.rewrite(rows)
    }
}
