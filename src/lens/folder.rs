//! A run folder as the analysis sees it: [`crate::run::store`] reads it; this adds what grouping needs.

use std::collections::HashMap;
use std::path::Path;

use super::LensError;
use crate::run::plan::PlannedCase;
use crate::run::rows::{AnswerRow, VerdictRow};
use crate::run::store::{self, ShownCase};

/// A run folder, read; its attention stores and shown sessions are read one at a time, since they are large.
#[derive(Debug, Clone)]
pub struct RunFolder {
    store: store::RunFolder,
    header: serde_json::Value,
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
    /// [`LensError::Run`] where it is none or is damaged.
    pub fn open(path: &Path) -> Result<Self, LensError> {
        let store = store::RunFolder::read(path)?;
        // a header that was read from JSON can be written as JSON
        let header = serde_json::to_value(&store.header).unwrap_or_default();
        Ok(RunFolder { store, header })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.store.dir
    }

    /// `run.json`: what was run.
    pub fn header(&self) -> &serde_json::Value {
        &self.header
    }

    /// What the run is expected to answer, in the data's order: the source of every denominator.
    pub fn cases(&self) -> &[PlannedCase] {
        &self.store.plan
    }

    /// The answers that count, in the data's order.
    pub fn answers(&self) -> &[AnswerRow] {
        &self.store.answers
    }

    /// Every verdict that counts, judge by judge.
    pub fn verdict_rows(&self) -> &[VerdictRow] {
        &self.store.verdicts
    }

    /// What the model was shown of a case; `None` where no prompt was made for it.
    ///
    /// # Errors
    /// [`LensError::Run`] for a file that cannot be read.
    pub fn shown(&self, case: &str) -> Result<Option<ShownCase>, LensError> {
        Ok(self.store.shown(case)?)
    }

    /// The verdicts of `judge`, or of the judge that came last.
    ///
    /// # Errors
    /// [`LensError::UnknownJudge`] where `judge` is named and has no verdict here.
    pub fn verdicts(&self, judge: Option<&str>) -> Result<Verdicts, LensError> {
        let known = self.store.judges();
        let Some(name) = judge.or(known.last().copied()) else {
            return Ok(Verdicts::default());
        };
        if !known.contains(&name) {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(LensError::UnknownJudge {
                path: self.path().to_owned(),
                judge: name.to_owned(),
                known,
            });
        }
        let rows = self.store.verdicts.iter().filter(|row| row.judge == name);
        let rows = rows.map(|row| ((row.case.clone(), row.probe.clone()), row.clone())).collect();
        Ok(Verdicts { judge: Some(name.to_owned()), rows })
    }

    /// The probes' ids, in order of first appearance in the cases.
    pub fn probes(&self) -> Vec<String> {
        let mut probes: Vec<String> = Vec::new();
        for probe in self.cases().iter().flat_map(|case| &case.probes) {
            if !probes.contains(&probe.id) {
                probes.push(probe.id.clone());
            }
        }
        probes
    }

    /// The values of the label `type`, sorted. Empty for data without types.
    pub fn kinds(&self) -> Vec<String> {
        let mut kinds: Vec<String> =
            self.cases().iter().filter_map(|case| case.labels.get("type")).cloned().collect();
        kinds.sort_unstable();
        kinds.dedup();
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
}
