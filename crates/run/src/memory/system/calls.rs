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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
            let calls = &mut self.folder(&flight.folder)?.calls;
            // Rows are from the last execution of an operation.
            let is_other = |row: &&CallRow| row.phase != flight.phase || row.about != flight.about;
            if flight.attempt == 0 {
                calls.rewrite(calls.rows.iter().filter(is_other).cloned().collect())?;
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
        let kept = folder.responses.rows.iter().rfind(|kept| kept.key == key).cloned();
        Ok((key, kept))
    }

    /// Records a call. Replies that are errors, which may be transient, or no text are not replayed.
    pub fn end(
        &mut self,
        folder: &Path,
        key: CallKey,
        row: CallRow,
        response: Option<&Response>,
    ) -> Result<(), JsonlError> {
        if let Some(Response { status, content_type, body }) = response {
            match String::from_utf8(body.clone()).ok().filter(|_| (200..300).contains(status)) {
                Some(body) => self.folder(folder)?.responses.append(KeptResponse {
                    key,
                    status: *status,
                    content_type: content_type.clone(),
                    body,
                    seconds: row.seconds,
                })?,
                None => {
                    if let Some(nth) = self.counts.get_mut(&key.request) {
                        *nth = key.nth;
                    }
                }
            }
        }
        self.folder(folder)?.calls.append(row)
    }

    fn folder(&mut self, path: &Path) -> Result<&mut Folder, JsonlError> {
        let open = match self.open.take().filter(|open| open.path == path) {
            Some(open) => open,
            None => {
                std::fs::create_dir_all(path).map_err(JsonlError::io("create", path))?;
                let responses = RowLog::open(path.join(RESPONSES))?;
                Folder { path: path.to_owned(), calls: RowLog::open(path.join(CALLS))?, responses }
            }
        };
        Ok(self.open.insert(open))
    }
}
