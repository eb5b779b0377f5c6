//! Answers in the exchange format of STALE's authors, so that their judge can score ours and ours theirs.
//!
//! A JSON array of `{"uid", "target_model_responses": {"dim1_response", "dim2_response", "dim3_response"}}`; the
//! dimensions are SR, PR and IPA. Called by `palimpsest export` and `palimpsest import`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::RunError;
use super::header::{ContextPolicy, Identity, Machine, Named, RunHeader};
use super::plan::Selection;
use super::rows::AnswerRow;
use super::store::{RunFolder, RunStore};
use crate::data::Case;
use crate::ground::digest::sha256;

/// The probe behind each dimension, in order.
const DIMENSIONS: [&str; 3] = ["SR", "PR", "IPA"];

/// How many items an error lists before it only counts them.
const LISTED: usize = 10;

/// One element of the array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleAnswers {
    /// The case.
    pub uid: String,
    /// Its three responses.
    pub target_model_responses: StaleResponses,
}

/// The responses to a case's three queries. A missing one is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleResponses {
    /// State Resolution.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub dim1_response: String,
    /// Premise Resistance.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub dim2_response: String,
    /// Implicit Policy Adaptation.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub dim3_response: String,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

impl StaleResponses {
    fn by_probe(&self) -> [(&'static str, &str); 3] {
        let [sr, pr, ipa] = DIMENSIONS;
        [(sr, &self.dim1_response), (pr, &self.dim2_response), (ipa, &self.dim3_response)]
    }
}

/// Why answers could not be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The run, or the file, lacks answers.
    #[error("{count} answers are missing ({list}); {remedy}")]
    Missing {
        /// How many.
        count: usize,
        /// The first of them, as `case/probe`.
        list: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The text is not in the exchange format.
    #[error(
        "the answers are not in the exchange format: {0}; expected an array of {{\"uid\", \"target_model_responses\": {{\"dim1_response\", \"dim2_response\", \"dim3_response\"}}}}"
    )]
    Format(String),
    /// The file answers a case that the dataset does not have.
    #[error("{count} uids are not in the dataset ({list}); give the dataset that the answers were made from")]
    UnknownUids {
        /// How many.
        count: usize,
        /// The first of them.
        list: String,
    },
    /// The file answers a case twice.
    #[error("uid `{0}` occurs twice; keep one of its entries")]
    DoubleUid(String),
    /// The folder holds answers already.
    #[error("{0} holds a run already; import into a new folder")]
    Occupied(std::path::PathBuf),
    /// The run folder refused.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The run's answers in exchange format, in dataset order.
///
/// Refused while answers are missing, as a gap would be scored as a wrong answer; with `partial` a missing answer is an
/// empty string, which is what the authors' judge can read.
pub fn export_stale(folder: &RunFolder, partial: bool) -> Result<Vec<StaleAnswers>, ExchangeError> {
    let answers: HashMap<(&str, &str), &str> = folder
        .answers
        .iter()
        .filter(|row| row.error.is_none())
        .filter_map(|row| Some(((row.case.as_str(), row.probe.as_str()), row.answer.as_deref()?)))
        .collect();
    let mut missing = Vec::new();
    let mut out = Vec::with_capacity(folder.plan.len());
    for case in &folder.plan {
        let [sr, pr, ipa] = DIMENSIONS.map(|probe| match answers.get(&(case.case.as_str(), probe)) {
            Some(answer) => (*answer).to_owned(),
            None => {
                missing.push(format!("{}/{probe}", case.case));
                String::new()
            }
        });
        let responses = StaleResponses { dim1_response: sr, dim2_response: pr, dim3_response: ipa };
        out.push(StaleAnswers { uid: case.case.clone(), target_model_responses: responses });
    }
    if missing.is_empty() || partial {
        Ok(out)
    } else {
        Err(ExchangeError::Missing {
            count: missing.len(),
            list: shorten(&missing),
            remedy: "finish the run, or write them as empty strings with --partial",
        })
    }
}

/// What an import needs besides the answers.
#[derive(Debug, Clone)]
pub struct Import<'a> {
    /// The dataset's name and digest.
    pub dataset: Named,
    /// The dataset's cases.
    pub cases: &'a [Case],
    /// What to call the model that gave the answers.
    pub model: String,
    /// Whether missing answers become error rows instead of refusing the import.
    pub partial: bool,
}

/// Makes `dir` a run folder from answers in exchange format; returns how many answers it holds.
///
/// The answers' text, whatever made it, is the identity's model digest. Nothing is written unless all of it is right.
pub fn import_stale(dir: &Path, text: &[u8], import: &Import<'_>) -> Result<usize, ExchangeError> {
    let entries: Vec<StaleAnswers> =
        serde_json::from_slice(text).map_err(|e| ExchangeError::Format(e.to_string()))?;
    let mut by_uid: BTreeMap<&str, &StaleResponses> = BTreeMap::new();
    for entry in &entries {
        if by_uid.insert(&entry.uid, &entry.target_model_responses).is_some() {
            return Err(ExchangeError::DoubleUid(entry.uid.clone()));
        }
    }
    let unknown: Vec<String> = entries
        .iter()
        .filter(|entry| !import.cases.iter().any(|case| case.id == entry.uid))
        .map(|entry| entry.uid.clone())
        .collect();
    if !unknown.is_empty() {
        return Err(ExchangeError::UnknownUids { count: unknown.len(), list: shorten(&unknown) });
    }
    let plan = Selection::default().plan(import.cases).map_err(RunError::from)?;
    let mut rows = Vec::new();
    let mut missing = Vec::new();
    for case in &plan {
        let responses = by_uid.get(case.case.as_str());
        for probe in &case.probes {
            let answer = responses
                .and_then(|r| r.by_probe().into_iter().find(|(id, _)| *id == probe.id))
                .map(|(_, text)| text.to_owned())
                .filter(|text| !text.trim().is_empty());
            if answer.is_none() {
                missing.push(format!("{}/{}", case.case, probe.id));
            }
            rows.push(AnswerRow {
                case: case.case.clone(),
                probe: probe.id.clone(),
                condition: String::new(),
                labels: case.labels.clone(),
                query: probe.query.clone(),
                error: answer.is_none().then(|| "the imported file has no answer".to_owned()),
                answer,
                stop: None,
                prompt_tokens: None,
                completion_tokens: None,
                dropped_sessions: Vec::new(),
                attention: None,
            });
        }
    }
    if !missing.is_empty() && !import.partial {
        return Err(ExchangeError::Missing {
            count: missing.len(),
            list: shorten(&missing),
            remedy: "complete the file, or import them as errors with --partial",
        });
    }
    if dir.join(super::store::HEADER).exists() {
        return Err(ExchangeError::Occupied(dir.to_owned()));
    }
    let identity = Identity {
        dataset: import.dataset.clone(),
        model: Named { name: import.model.clone(), digest: sha256(text) },
        dtype: None,
        prompts: None,
        sampling: None,
        context: ContextPolicy { tokens: None, policy: "imported".to_owned() },
        seed: 0,
        only: None,
        limit: None,
        attention: false,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        conditions: Vec::new(),
    };
    let header = RunHeader::new(identity, None, Machine::here("imported", 0));
    let mut store = RunStore::open_or_create(dir, &header, plan)?;
    store.replace_answers(rows)?;
    Ok(store.clean_answers().len())
}

fn shorten(items: &[String]) -> String {
    let first = items.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    if items.len() > LISTED { format!("{first}, ...") } else { first }
}
