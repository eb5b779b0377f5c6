//! Replies to the page by path; used by the server and by exported files.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::attention::Attention;
use super::case::Case;
use super::compare::compare;
use super::fields::Fields;
use super::folder::Folder;
use super::search::search;
use super::state::Runs;
use super::table::Table;
use super::{maps, runs};
use crate::api::error::ApiError;

/// Query string parameters.
#[derive(Debug, Clone, Default)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    pub fn of(text: &str) -> Self {
        Query(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn needed<T: FromStr>(&self, name: &str) -> Result<T, ApiError> {
        let text = self.get(name).ok_or_else(|| ApiError::missing(name))?;
        let wrong =
            || ApiError::field(name, format!("`{name}` is `{text}`, which is no number; give one from 0"));
        text.parse().map_err(|_| wrong())
    }
}

pub fn not_found(message: impl Display) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, Some("not_found"), message.to_string())
}

pub fn wrong(message: impl Display) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, None, message.to_string())
}

/// A row of the page, its run's number and folder, and the row in the run.
type Located<'a> = (usize, usize, &'a Folder, usize);

fn located<'a>(runs: &'a Runs, query: &Query) -> Result<Located<'a>, ApiError> {
    let row: usize = query.needed("row")?;
    let located = runs.located(row).map(|(run, folder, at)| (row, run, folder, at));
    located.ok_or_else(|| not_found(format!("there is no row {row}; there are {}", runs.count())))
}

fn case<'a>(runs: &'a Runs, query: &Query) -> Result<(usize, usize, Case<'a>), ApiError> {
    let (row, run, folder, at) = located(runs, query)?;
    Ok((row, run, Case::open(folder, at)))
}

pub fn attention(runs: &Runs, query: &Query) -> Result<Attention, ApiError> {
    let (row, _, folder, at) = located(runs, query)?;
    let read = folder.attention(at).map_err(wrong)?;
    read.ok_or_else(|| not_found(format!("no attention was recorded for row {row}")))
}

pub fn runs_json(runs: &Runs, model: Option<Value>) -> Value {
    json!({"stamp": runs.stamp(), "version": env!("CARGO_PKG_VERSION"), "runs": runs::of_all(runs)})
        .with("model", model)
}

/// JSON reply to a GET; `None` for unknown paths.
pub fn reply(runs: &Runs, path: &str, query: &Query) -> Result<Option<String>, ApiError> {
    let value = match path {
        "/api/stamp" => json!({"stamp": runs.stamp()}),
        "/api/runs" => runs_json(runs, None),
        "/api/table" => {
            let json = serde_json::to_string(&Table::of(runs));
            return Ok(Some(json.map_err(|error| ApiError::internal(error.to_string()))?));
        }
        "/api/search" => {
            let words = query.get("q").ok_or_else(|| ApiError::missing("q"))?;
            json!({"q": words, "rows": search(runs, words)})
        }
        "/api/case" => {
            let (row, run, case) = case(runs, query)?;
            case.json(row, run)
        }
        "/api/layers" => maps::layers(&attention(runs, query)?),
        "/api/heads" => {
            let layer = query.needed("layer")?;
            maps::heads(&attention(runs, query)?, layer).map_err(not_found)?
        }
        "/api/measures" => {
            let (row, _, case) = case(runs, query)?;
            let measures = case.measures.as_ref().ok_or_else(|| {
                not_found(format!("row {row} has no value norms; `palimpsest causes` measures them"))
            })?;
            maps::measures(measures)
        }
        "/api/trials" => {
            let (row, _, folder, at) = located(runs, query)?;
            json!({"trials": folder.trials(at, row)})
        }
        "/api/compare" => {
            let side = |name: &str| query.get(name).ok_or_else(|| ApiError::missing(name));
            compare(runs, side("a")?, side("b")?).map_err(wrong)?
        }
        _ => return Ok(None),
    };
    Ok(Some(value.to_string()))
}
