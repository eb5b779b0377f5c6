//! Exchange format of STALE's authors: `{"uid", "target_model_responses": {"dim1_response", "dim2_response", "dim3_response"}}` in a JSON
//! array, optionally under `data`; dimensions are SR, PR and IPA. [`FAILED`] replaces the answer of a failed call.

use serde::{Deserialize, Serialize};

use super::row::PROBES;
use super::terms::TITLE;
use crate::benchmarks::Exchanged;
use crate::benchmarks::arrays::rows;
use crate::benchmarks::reading::ReadError;
use crate::ground::json::Fault;

pub const FAILED: &str = "ERROR: Failed after multiple retries.";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleAnswers {
    pub uid: String,
    pub target_model_responses: StaleResponses,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleResponses {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub dim1_response: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub dim2_response: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub dim3_response: String,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the answers are not in the exchange format: {0}; expected an array, or an object whose `data` is one, of {{\"uid\", \"target_model_responses\": {{\"dim1_response\", \"dim2_response\", \"dim3_response\"}}}}"
)]
pub struct NotAnswers(#[from] ReadError);

/// Empty answers are missing; failed ones and entries with invalid JSON values are errors.
pub fn parse(text: &[u8]) -> Result<Vec<Exchanged>, NotAnswers> {
    let mut entries = Vec::new();
    for (row, (mut entry, faults)) in rows::<StaleAnswers>(text, None, TITLE)?.into_iter().enumerate() {
        for Fault { field, found, remedy } in faults {
            tracing::warn!("row {row}, {field}: found {found}; {remedy}; its answers count as failed calls");
            let failed = || FAILED.to_owned();
            entry.target_model_responses =
                StaleResponses { dim1_response: failed(), dim2_response: failed(), dim3_response: failed() };
        }
        entries.push(entry);
    }
    let exchanged = |entry: StaleAnswers| {
        let StaleResponses { dim1_response, dim2_response, dim3_response } = entry.target_model_responses;
        let responses = PROBES.iter().zip([dim1_response, dim2_response, dim3_response]);
        let given = responses.filter(|(_, response)| !response.trim().is_empty());
        let given = given.map(|((_, id, _), response)| ((*id).to_owned(), response));
        let (errors, answers) = given.partition(|(_, response)| has_failed(response));
        Exchanged { case: entry.uid, answers, errors }
    };
    Ok(entries.into_iter().map(exchanged).collect())
}

fn has_failed(response: &str) -> bool {
    response.trim().trim_end_matches('.') == FAILED.trim_end_matches('.')
}

/// Missing answers become empty strings, which the authors' judge accepts.
pub fn format(answers: Vec<Exchanged>) -> Vec<StaleAnswers> {
    let format = |Exchanged { case, mut answers, .. }| {
        let [dim1_response, dim2_response, dim3_response] =
            PROBES.map(|(_, id, _)| answers.remove(id).unwrap_or_default());
        let target_model_responses = StaleResponses { dim1_response, dim2_response, dim3_response };
        StaleAnswers { uid: case, target_model_responses }
    };
    answers.into_iter().map(format).collect()
}
