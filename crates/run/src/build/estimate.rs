//! Estimates the questions of a build before it starts: at most by the spec, and as the folder's stages went so far.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::folder::asks_of;
use super::rows::{Known, Part, form};
use super::yields::Yield;
use palimpsest_data::build::{Ask, Row, Spec};

/// Characters of a token, roughly: prompts are counted without a tokenizer.
const CHARACTERS: usize = 4;

#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    pub stage: String,
    pub rows: f64,
    /// True if the rows are counted; otherwise earlier stages decide how many there will be.
    pub is_counted: bool,
    /// A list of unknown length, which counts as one element: all numbers are lower bounds.
    pub unknown: Option<String>,
    /// Questions, if every try is needed.
    pub most_asks: f64,
    /// Tokens of prompts and replies of these questions, the prompts by characters of the templates and the rows.
    pub most_tokens: f64,
    /// Questions at the rate of the folder's stage, if it began.
    pub asks: Option<f64>,
}

/// By stage; `seen`: counts of the folder's stages, of any part of the build. A list that is not made yet has as many elements as the middle
/// of the bounds that its schema, a check `size` or its steps give.
pub fn estimate(spec: &Spec, known: &Known, part: Part, seen: &[Yield]) -> Vec<Estimate> {
    let rows_of = |(name, rows): (_, &Vec<_>)| (String::as_str(name), (rows.len() as f64, None));
    let mut counted: BTreeMap<&str, (f64, Option<String>)> = known.iter().map(rows_of).collect();
    let mut all = Vec::new();
    for (nth, stage) in spec.stages.iter().enumerate() {
        let part = if nth == 0 { part } else { Part::default() };
        let is_known = stage.rows.iter().all(|name| known.contains_key(name));
        let formed = is_known.then(|| form(stage, known, part).ok()).flatten();
        let named = || stage.rows.iter().filter_map(|name| counted.get(name.as_str()));
        let mut unknown = named().find_map(|(_, unknown)| unknown.clone());
        let mut elements = |path: &String| {
            let rows = formed.as_ref().map(|rows| mean(rows.iter(), path));
            rows.unwrap_or_else(|| middle_of(spec, known, nth, path)).unwrap_or_else(|| {
                unknown = unknown.take().or(Some(path.clone()));
                1.0
            })
        };
        let rows = match (&formed, &stage.each) {
            (Some(rows), _) => rows.len() as f64,
            (None, each) => {
                let each = each.as_ref().map_or(1.0, &mut elements);
                named().map(|(rows, _)| rows).sum::<f64>() * each * stage.times as f64
            }
        };
        let steps = match stage.steps.as_ref().map(|steps| (steps.most, &steps.over)) {
            Some((Some(most), _)) => most as f64,
            Some((None, Some(over))) => elements(over),
            _ => 1.0,
        };
        // Without an ask a row is judged once.
        let tries = if stage.ask.is_some() { rows * steps * stage.tries as f64 } else { rows };
        let of_row = |row: &Row| serde_json::to_string(&row.fields).map_or(0, |text| text.len());
        let characters = formed.iter().flatten().map(of_row).max().unwrap_or(0);
        let tokens = |ask: &Ask| {
            let prompt = ask.system.chars().count() + ask.template.chars().count() + characters;
            (prompt / CHARACTERS + ask.max_tokens) as f64
        };
        let seen = seen.iter().find(|counts| counts.stage == stage.name && counts.rows > 0);
        let rate = |of: fn(&Yield) -> usize| seen.map(|counts| rows * of(counts) as f64 / counts.rows as f64);
        all.push(Estimate {
            stage: stage.name.clone(),
            rows,
            is_counted: formed.is_some(),
            unknown: unknown.clone(),
            most_asks: tries * asks_of(stage).count() as f64,
            most_tokens: tries * asks_of(stage).map(tokens).sum::<f64>(),
            asks: rate(|counts| counts.asks),
        });
        counted.insert(&stage.name, (rate(|counts| counts.made).unwrap_or(rows), unknown));
    }
    all
}

/// Mean length of the lists at a path.
fn mean<'r>(rows: impl Iterator<Item = &'r Row>, path: &str) -> Option<f64> {
    let lengths: Vec<f64> = rows.filter_map(|row| Some(row.list(path).ok()?.len() as f64)).collect();
    (!lengths.is_empty()).then(|| lengths.iter().sum::<f64>() / lengths.len() as f64)
}

/// Elements of the list at `path` of rows that stage `nth` takes, by the latest stage before it that bounds them, else by the tables.
fn middle_of(spec: &Spec, known: &Known, nth: usize, path: &str) -> Option<f64> {
    let mut names: Vec<&String> = spec.stages.get(nth)?.rows.iter().collect();
    for (at, stage) in spec.stages.iter().enumerate().take(nth).rev() {
        if !names.contains(&&stage.name) {
            continue;
        }
        names.extend(&stage.rows);
        let is_of = |with: &Map<String, Value>| with.get("field").is_some_and(|field| field == path);
        let mut sized = stage.checks.iter().filter(|call| call.check == "size" && is_of(&call.with));
        let checked = sized.find_map(|call| middle(&call.with, "least", "most"));
        let made = || match (&stage.steps, &stage.ask) {
            (Some(steps), _) if steps.into != path => None,
            (Some(steps), _) => match (steps.most, &steps.over) {
                (Some(most), _) => Some((steps.least + most) as f64 / 2.0),
                (None, over) => middle_of(spec, known, at, over.as_ref()?),
            },
            (None, ask) => middle(schema_at(ask.as_ref()?, path)?.as_object()?, "minItems", "maxItems"),
        };
        if let Some(found) = checked.or_else(made) {
            return Some(found);
        }
    }
    mean(names.into_iter().filter_map(|name| known.get(name)).flatten(), path)
}

/// Without a most there is no middle.
fn middle(bounds: &Map<String, Value>, least: &str, most: &str) -> Option<f64> {
    let bound = |name| bounds.get(name).and_then(Value::as_f64);
    Some((bound(least).unwrap_or(0.0) + bound(most)?) / 2.0)
}

/// The schema of a field that a reply gives the row.
fn schema_at<'a>(ask: &'a Ask, path: &str) -> Option<&'a Value> {
    let mut names = path.split('.');
    if let Some(into) = &ask.into
        && names.next() != Some(into.as_str())
    {
        return None;
    }
    names.try_fold(ask.schema.as_ref()?, |schema, name| schema["properties"].get(name))
}
