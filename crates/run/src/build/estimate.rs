//! Estimates the questions of a build before it starts: at most by the spec, and as the folder's stages went so far.

use std::collections::BTreeMap;

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
    /// True if the rows are counted; otherwise earlier stages or lists decide how many there will be, and each gives one.
    pub is_counted: bool,
    /// Questions, if every try is needed.
    pub most_asks: f64,
    /// Tokens of prompts and replies of these questions, the prompts by characters of the templates and the rows.
    pub most_tokens: f64,
    /// Questions at the rate of the folder's stage, if it began.
    pub asks: Option<f64>,
}

/// By stage; `seen`: counts of the folder's stages, of any part of the build.
pub fn estimate(spec: &Spec, known: &Known, part: Part, seen: &[Yield]) -> Vec<Estimate> {
    let rows_of = |(name, rows): (_, &Vec<_>)| (String::as_str(name), rows.len() as f64);
    let mut counted: BTreeMap<&str, f64> = known.iter().map(rows_of).collect();
    let mut all = Vec::new();
    for (nth, stage) in spec.stages.iter().enumerate() {
        let part = if nth == 0 { part } else { Part::default() };
        let is_known = stage.rows.iter().all(|name| known.contains_key(name));
        let formed = is_known.then(|| form(stage, known, part).ok()).flatten();
        let named = stage.rows.iter().filter_map(|name| counted.get(name.as_str()));
        let rows = formed.as_ref().map_or(named.sum::<f64>() * stage.times as f64, |rows| rows.len() as f64);
        let steps = stage.steps.as_ref().map_or(1.0, |steps| steps.most.unwrap_or(1) as f64);
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
            most_asks: tries * asks_of(stage).count() as f64,
            most_tokens: tries * asks_of(stage).map(tokens).sum::<f64>(),
            asks: rate(|counts| counts.asks),
        });
        counted.insert(&stage.name, rate(|counts| counts.made).unwrap_or(rows));
    }
    all
}
