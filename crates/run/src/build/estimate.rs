//! What a build will ask, before it starts: at most by the spec, and as the folder's stages went so far.

use super::rows::{Known, Part, form};
use super::yields::Yield;
use palimpsest_data::build::{Ask, Spec};

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
    let mut counted: Vec<(&str, f64)> = Vec::new();
    let mut all = Vec::new();
    for (nth, stage) in spec.stages.iter().enumerate() {
        let part = if nth == 0 { part } else { Part::default() };
        let is_counted = stage.rows.iter().all(|name| known.contains_key(name));
        let before = seen.iter().find(|counts| counts.stage == stage.name && counts.rows > 0);
        let formed = if is_counted { form(stage, known, part).ok() } else { None };
        let rows = match &formed {
            Some(rows) => rows.len() as f64,
            None => {
                let of =
                    |name: &String| counted.iter().find(|(stage, _)| stage == name).map(|(_, rows)| *rows);
                let of_known = |name: &String| of(name).or_else(|| Some(known.get(name)?.len() as f64));
                stage.rows.iter().filter_map(of_known).sum::<f64>() * stage.times as f64
            }
        };
        let steps = stage.steps.as_ref().map_or(1.0, |steps| steps.most.unwrap_or(1) as f64);
        let tries = rows * steps * stage.tries as f64;
        let of_row = formed
            .iter()
            .flatten()
            .map(|row| serde_json::to_string(&row.fields).map_or(0, |text| text.len()));
        let characters = of_row.max().unwrap_or(0);
        let tokens = |ask: &Ask| {
            let prompt = ask.system.chars().count() + ask.template.chars().count() + characters;
            (prompt / CHARACTERS + ask.max_tokens) as f64
        };
        let asked = || stage.judges.iter().map(|judge| &judge.ask).chain(&stage.ask);
        // Without an ask a row is judged once.
        let tries = if stage.ask.is_some() { tries } else { rows };
        all.push(Estimate {
            stage: stage.name.clone(),
            rows,
            is_counted: formed.is_some(),
            most_asks: tries * asked().count() as f64,
            most_tokens: tries * asked().map(tokens).sum::<f64>(),
            asks: before.map(|counts| rows * counts.asks as f64 / counts.rows as f64),
        });
        let made = before.map_or(1.0, |counts| counts.made as f64 / counts.rows as f64);
        counted.push((&stage.name, rows * made));
    }
    all
}
