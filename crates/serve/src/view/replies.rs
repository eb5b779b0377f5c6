//! Replies to the page by path; used by the server and by exported files.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::case::{Attention, Case};
use super::compare::compare;
use super::fields::Fields;
use super::folder::Folder;
use super::search::{Field, search};
use super::state::Runs;
use super::table::Table;
use super::{maps, runs, take, trials};
use crate::api::error::ApiError;
use palimpsest_data::ground::file_stem::file_stem;

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Json(String),
    /// Download: name, content type, bytes.
    File(String, &'static str, Vec<u8>),
}

impl Content {
    fn of(value: &Value) -> Self {
        Content::Json(value.to_string())
    }
}

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

    pub fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let wrong =
            || ApiError::field(name, format!("`{name}` is `{text}`, which is no number; give one from 0"));
        text.parse().map(Some).map_err(|_| wrong())
    }

    fn rows(&self) -> Result<Option<Vec<usize>>, ApiError> {
        let number = |text: &str| {
            text.trim().parse().map_err(|_| ApiError::field("rows", format!("`{text}` is no row")))
        };
        self.get("rows").map(|rows| rows.split(',').map(number).collect()).transpose()
    }

    fn needed<T: FromStr>(&self, name: &str) -> Result<T, ApiError> {
        self.parsed(name)?.ok_or_else(|| ApiError::missing(name))
    }
}

fn csv(name: &str, bytes: Vec<u8>) -> Content {
    Content::File(name.to_owned(), "text/csv; charset=utf-8", bytes)
}

fn not_found(message: impl Display) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, Some("not_found"), message.to_string())
}

fn wrong(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, None, message)
}

fn located<'a>(runs: &'a Runs, query: &Query) -> Result<(usize, usize, &'a Folder, usize), ApiError> {
    let row: usize = query.needed("row")?;
    let located = runs.located(row).map(|(run, folder, at)| (row, run, folder, at));
    located.ok_or_else(|| not_found(format!("there is no row {row}; there are {}", runs.count())))
}

fn case<'a>(runs: &'a Runs, query: &Query) -> Result<(usize, usize, Case<'a>), ApiError> {
    let (row, run, folder, at) = located(runs, query)?;
    let case = Case::open(folder, at);
    Ok((row, run, case.ok_or_else(|| not_found(format!("row {row} is no longer in its run's plan")))?))
}

fn attention(runs: &Runs, query: &Query) -> Result<Attention, ApiError> {
    let (row, _, folder, at) = located(runs, query)?;
    let read = Attention::of(folder, at).map_err(wrong)?;
    read.ok_or_else(|| not_found(format!("no attention was recorded for row {row}")))
}

pub fn runs_json(runs: &Runs, model: Option<Value>) -> Value {
    json!({"stamp": runs.stamp(), "version": env!("CARGO_PKG_VERSION"), "runs": runs::of_all(runs)})
        .with("model", model)
}

/// Reply to a GET; `None` for unknown paths.
pub fn reply(runs: &Runs, path: &str, query: &Query) -> Result<Option<Content>, ApiError> {
    let content = match path {
        "/api/stamp" => Content::of(&json!({"stamp": runs.stamp()})),
        "/api/runs" => Content::of(&runs_json(runs, None)),
        "/api/table" => {
            let json = serde_json::to_string(&Table::of(runs));
            Content::Json(json.map_err(|error| ApiError::internal(error.to_string()))?)
        }
        "/api/table.csv" => csv("table.csv", Table::of(runs).csv(query.rows()?.as_deref())),
        "/api/search" => {
            let words = query.get("q").ok_or_else(|| ApiError::missing("q"))?;
            let fields = match query.get("in") {
                None => Field::ALL.to_vec(),
                Some(names) => {
                    names.split(',').map(str::parse).collect::<Result<_, String>>().map_err(wrong)?
                }
            };
            let rows = search(runs, words, &fields).map_err(|error| ApiError::internal(error.to_string()))?;
            Content::of(&json!({"q": words, "rows": rows}))
        }
        "/api/case" => {
            let (row, run, case) = case(runs, query)?;
            Content::of(&case.json(row, run))
        }
        "/api/layers" => Content::of(&maps::layers(&attention(runs, query)?)),
        "/api/heads" => {
            let layer = query.needed("layer")?;
            Content::of(&maps::heads(&attention(runs, query)?, layer).map_err(not_found)?)
        }
        "/api/measures" => {
            let (row, _, case) = case(runs, query)?;
            let measures = case.measures.as_ref().ok_or_else(|| {
                not_found(format!("row {row} has no value norms; `palimpsest causes` measures them"))
            })?;
            Content::of(&maps::measures(measures, query.parsed("layer")?).map_err(not_found)?)
        }
        "/api/tokens" => tokens(runs, query)?,
        "/api/trials" => {
            let found = match query.get("row") {
                None => trials::of_all(runs),
                Some(_) => {
                    let (row, _, folder, at) = located(runs, query)?;
                    trials::of_run(folder, row - at, Some(at))
                }
            };
            Content::of(&json!({"trials": found}))
        }
        "/api/trials.json" => {
            let bytes = json!(trials::of_all(runs)).to_string().into_bytes();
            Content::File("trials.json".to_owned(), "application/json", bytes)
        }
        "/api/trials.csv" => csv("trials.csv", trials::csv(&trials::of_all(runs))),
        "/api/compare" => {
            let side = |name: &str| query.get(name).ok_or_else(|| ApiError::missing(name));
            Content::of(&compare(runs, side("a")?, side("b")?).map_err(wrong)?)
        }
        "/api/numbers.csv" => numbers(runs, query)?,
        "/api/figure.svg" => figure(runs, query)?,
        _ => return Ok(None),
    };
    Ok(Some(content))
}

/// Single tokens, which run files lack.
fn tokens(runs: &Runs, query: &Query) -> Result<Content, ApiError> {
    let store = attention(runs, query)?.store;
    let about = "a run's files hold attention by session: the question's tokens and the answer's are one row each, their mean. Single \
                 tokens are read anew by a model at hand (`palimpsest view DIR --model NAME`)";
    Ok(Content::of(&json!({"level": "span", "about": about, "generated": store.generated.len()})))
}

fn numbers(runs: &Runs, query: &Query) -> Result<Content, ApiError> {
    let of = query.get("of").unwrap_or("strip");
    let (row, run, case) = case(runs, query)?;
    let whole = case.json(row, run);
    let bytes = match (of, &case.attention) {
        ("strip", _) => take::strip_csv(&case),
        ("map", Some(attention)) => take::map_csv(attention),
        ("map", None) => return Err(not_found(format!("no attention was recorded for row {row}"))),
        ("curves", _) => take::curves_csv(&whole["curves"], &whole["layers"]),
        ("causes", _) => take::causes_csv(&whole["causes"]),
        (other, _) => {
            let message = format!("`of` is `{other}`; give strip, map, curves or causes");
            return Err(ApiError::field("of", message));
        }
    };
    let stem = |key: &str| file_stem(whole[key].as_str().unwrap_or_default());
    Ok(csv(&format!("{}-{}-{of}.csv", stem("case"), stem("probe")), bytes))
}

#[cfg(feature = "figures")]
fn figure(runs: &Runs, query: &Query) -> Result<Content, ApiError> {
    use super::picture::{Caption, map_svg, strip_svg};
    use palimpsest_analysis::lens::Scale;
    let (_, _, folder, at) = located(runs, query)?;
    let (_, _, case) = case(runs, query)?;
    let (planned, probe, condition) =
        folder.named(at).ok_or_else(|| not_found("this row is no longer in its run's plan"))?;
    let identity = &folder.thin.header.identity;
    let caption = Caption {
        title: format!("{} {} {}", planned.case, probe.id, condition.label()),
        origin: format!("{} · {}", identity.model.name, identity.dataset.name),
        segment: condition.segment(folder.benchmark).to_owned(),
    };
    let kind = query.get("figure").unwrap_or("map");
    let measures: Vec<&str> = query.get("measure").map(|text| text.split(',').collect()).unwrap_or_default();
    let svg = match kind {
        "strip" => strip_svg(&case, caption, &measures).map_err(wrong)?,
        "map" => {
            let scale = match measures[..] {
                [] | ["mass"] => Scale::Mass,
                ["density"] => Scale::Density,
                _ => return Err(ApiError::field("measure", "a map is of `mass` or `density`")),
            };
            map_svg(&case, caption, scale, &query.rows()?.unwrap_or_default()).map_err(wrong)?
        }
        other => return Err(ApiError::field("figure", format!("`figure` is `{other}`; give strip or map"))),
    };
    let name = format!("{}-{}-{kind}.svg", file_stem(&planned.case), file_stem(&probe.id));
    Ok(Content::File(name, "image/svg+xml", svg.into_bytes()))
}

#[cfg(not(feature = "figures"))]
fn figure(_: &Runs, _: &Query) -> Result<Content, ApiError> {
    Err(not_found("this build of palimpsest draws no figures; build it with the cargo feature `figures`"))
}
