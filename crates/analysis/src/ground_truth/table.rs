//! Agreement by run, method and group: means over answers of a unit, then over units, as a table, CSV and JSON lines.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::metrics::{average_precision, is_first, outliers, predictions, top_drop};
use super::scores::Fitted;
use super::{By, CHANCE, EXACT, EffectsLine, ExactAnswer, GroundTruth, Run, Scored};
use crate::lens::band::{Estimate, Numbers};
use palimpsest_data::benchmarks::Table;
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::sheet::{Columns, Format};
use palimpsest_data::statistics::rank::spearman;
use palimpsest_run::runs::rows::AnswerKey;

/// Name, heading and kind of number of each measure of agreement.
pub const MEASURES: [(&str, &str, Numbers); 5] = [
    ("spearman", "Spearman", Numbers::Correlation),
    ("lds", "LDS", Numbers::Correlation),
    ("map", "mAP", Numbers::Part),
    ("top_drop", "drop", Numbers::Signed),
    ("found", "found", Numbers::Found),
];

#[derive(Debug, Clone, PartialEq)]
pub struct Agreement {
    /// Over units.
    pub estimate: Estimate,
    /// Answers for which it is not defined.
    pub undefined: usize,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    pub run: String,
    /// Empty without a split.
    pub group: String,
    pub method: String,
    /// Answers that are scored.
    pub answers: usize,
    /// Answers without a score of each session.
    pub left_out: usize,
    /// In the order of [`MEASURES`].
    pub measures: Vec<Agreement>,
    /// Mean number of subsets of the LDS.
    pub subsets: Option<f64>,
    /// Mean number of forward passes an answer; `None` if not told.
    pub readings: Option<f64>,
}

const LENGTHS: [(usize, &str); 4] = [
    (8 << 10, "below 8K"),
    (32 << 10, "8K to 32K"),
    (128 << 10, "32K to 128K"),
    (usize::MAX, "128K and more"),
];
const DISTANCES: [(usize, &str); 4] =
    [(1 << 10, "below 1K"), (8 << 10, "1K to 8K"), (32 << 10, "8K to 32K"), (usize::MAX, "32K and more")];

/// Place and name of an answer's group.
fn group(answer: &ExactAnswer, by: Option<By>) -> (usize, String) {
    let within = |bins: [(usize, &str); 4], tokens: usize| {
        let bin = bins.iter().position(|(end, _)| tokens < *end).unwrap_or(bins.len() - 1);
        (bin, bins[bin].1.to_owned())
    };
    let decisive = answer.decisive().map(|at| &answer.sessions[at]);
    match (by, decisive) {
        (None, _) => (0, String::new()),
        (Some(By::Length), _) => within(LENGTHS, answer.end()),
        (Some(_), None) => (usize::MAX, "no decisive session".to_owned()),
        (Some(By::Role), Some(session)) => (0, session.role.clone().unwrap_or_else(|| "others".to_owned())),
        (Some(By::Distance), Some(session)) => within(DISTANCES, answer.end() - session.tokens[1]),
    }
}

/// One answer's measures by one method, in the order of [`MEASURES`], and the number of subsets of the LDS.
fn agreement(answer: &ExactAnswer, scores: &[f64], fitted: Fitted, top: usize) -> ([Option<f64>; 5], usize) {
    let effects = answer.effects();
    // A fit is judged on subsets that it has not seen.
    let seen =
        |ablation, seed, subset| fitted.is_some_and(|(of, by, n)| (of, by) == (ablation, seed) && subset < n);
    let subsets = answer.subsets.iter().filter(|one| !seen(one.ablation, one.seed, one.subset));
    let (mut held, mut logits): (Vec<Vec<bool>>, Vec<f64>) = (Vec::new(), Vec::new());
    for subset in subsets {
        held.push(answer.sessions.iter().map(|session| subset.sessions.contains(&session.span)).collect());
        logits.push(subset.logit);
    }
    let measures = [
        spearman(scores, &effects),
        spearman(&predictions(scores, &held), &logits),
        average_precision(scores, &outliers(&effects)),
        Some(top_drop(scores, &effects, top)),
        answer.decisive().map(|at| is_first(scores, at)),
    ];
    (measures, held.len())
}

type Index<'a> = BTreeMap<(&'a str, &'a AnswerKey), &'a Scored>;

impl Run {
    fn methods(&self) -> Vec<&str> {
        let given = self.scored.iter().map(|scored| &*scored.method);
        unique([EXACT].into_iter().chain(given).chain([CHANCE]))
    }
}

/// Scores in the order of the answer's sessions, their readings, and what they were fitted to.
fn scores(answer: &ExactAnswer, method: &str, index: &Index<'_>) -> Option<(Vec<f64>, Option<f64>, Fitted)> {
    let sessions = answer.sessions.len();
    match method {
        EXACT => Some((answer.effects(), Some((sessions + 1) as f64), None)),
        CHANCE => Some((vec![0.0; sessions], Some(0.0), None)),
        _ => {
            let scored = index.get(&(method, &answer.key))?;
            Some((scored.of(answer)?, scored.readings, scored.fitted))
        }
    }
}

fn mean(all: &[f64]) -> Option<f64> {
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

impl GroundTruth {
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for run in &self.runs {
            let index: Index<'_> =
                run.scored.iter().map(|scored| ((&*scored.method, &scored.key), scored)).collect();
            let of_run: Vec<(usize, String)> =
                run.answers.iter().map(|answer| group(answer, self.options.by)).collect();
            for wanted in of_run.iter().collect::<BTreeSet<_>>() {
                let answers = run.answers.iter().zip(&of_run).filter(|(_, own)| *own == wanted);
                let answers: Vec<&ExactAnswer> = answers.map(|(answer, _)| answer).collect();
                let row = |method| Row {
                    run: run.name.clone(),
                    group: wanted.1.clone(),
                    ..self.row(&answers, method, &index)
                };
                rows.extend(run.methods().into_iter().map(row));
            }
        }
        rows
    }

    fn row(&self, answers: &[&ExactAnswer], method: &str, index: &Index<'_>) -> Row {
        let mut by_unit: Vec<BTreeMap<&str, Vec<f64>>> = vec![BTreeMap::new(); MEASURES.len()];
        let mut undefined = [0; MEASURES.len()];
        let (mut scored, mut subsets, mut readings) = (0, Vec::new(), Vec::new());
        for answer in answers {
            let Some((scores, took, fitted)) = scores(answer, method, index) else { continue };
            scored += 1;
            readings.push(took);
            let (values, held) = agreement(answer, &scores, fitted, self.options.top);
            subsets.extend((held > 0).then_some(held as f64));
            for ((value, units), undefined) in values.iter().zip(&mut by_unit).zip(&mut undefined) {
                match value {
                    Some(value) => units.entry(&answer.unit).or_default().push(*value),
                    None => *undefined += 1,
                }
            }
        }
        let measure = |at: usize| Agreement {
            estimate: Estimate::mean(by_unit[at].values().filter_map(|all| mean(all)), MEASURES[at].2),
            undefined: undefined[at],
        };
        let readings: Option<Vec<f64>> = readings.into_iter().collect();
        Row {
            method: method.to_owned(),
            answers: scored,
            left_out: answers.len() - scored,
            measures: (0..MEASURES.len()).map(measure).collect(),
            subsets: mean(&subsets),
            readings: readings.and_then(|all| mean(&all)),
            ..Row::default()
        }
    }

    /// A table of the rows, without measures that none has.
    pub fn table(&self, rows: &[Row]) -> Table {
        let some = |at: usize| rows.iter().any(|row| row.measures[at].estimate.value.is_some());
        let split = if self.options.by == Some(By::Length) { "history" } else { "decisive session" };
        let answers = |row: &Row| match row.left_out {
            0 => vec![row.answers.to_string()],
            n => vec![row.answers.to_string(), format!("{n} left out")],
        };
        let mut table = Columns::of(rows)
            .text_if(self.runs.len() > 1, "run", |row| &*row.run)
            .text_if(self.options.by.is_some(), split, |row| &*row.group)
            .text("method", |row| &*row.method)
            .number("answers", answers);
        for (at, (_, head, _)) in MEASURES.iter().enumerate().filter(|(at, _)| some(*at)) {
            let head = head.replace("drop", &format!("top-{} drop", self.options.top));
            table = table.number(head, |row| cell(&row.measures[at]));
        }
        let readings = |row: &Row| row.readings.map_or("-".to_owned(), |mean| format!("{mean:.1}"));
        let sheet = table.number("readings", readings).sheet(self.notes(rows));
        Table { key: "ground-truth".to_owned(), title: "Scores held against exact effects".to_owned(), sheet }
    }

    fn notes(&self, rows: &[Row]) -> Vec<String> {
        let run = |run: &Run| format!("{}: {} over {}", run.name, run.model, run.data);
        let mut notes: Vec<String> = self.runs.iter().map(run).collect();
        notes.push(format!("exact effects: {}", self.options.effects.in_words()));
        let subsets = rows.iter().filter_map(|row| row.subsets);
        if let (Some(least), Some(most)) = (subsets.clone().reduce(f64::min), subsets.reduce(f64::max)) {
            notes.push(format!(
                "LDS: over random subsets on which the method was not fitted, {least:.0} to {most:.0} an answer"
            ));
        }
        notes.push(format!(
            "drop: the sum of the exact effects of the {} sessions with the highest scores, each measured alone; found: the decisive session, which has the largest effect above 0 and its control, has the highest score; mAP: of effects above Q3 + 1.5 IQR",
            self.options.top
        ));
        notes.push(
            "means over the answers of a case, then over cases, with 95% intervals from 5 cases on; undefined: answers with equal scores or effects, without subsets, outliers or a decisive session"
                .to_owned(),
        );
        notes.extend(self.remarks.iter().cloned());
        notes
    }

    /// The table in a format; CSV and JSON have a row a measure, unrounded.
    pub fn written(&self, rows: &[Row], format: Format) -> anyhow::Result<String> {
        let all = || {
            rows.iter()
                .flat_map(|row| row.measures.iter().zip(MEASURES).map(move |(one, of)| (row, one, of.0)))
        };
        Ok(match format {
            Format::Csv => {
                let table = CsvTable::of(all())
                    .column("run", |(row, ..)| &row.run)
                    .column("group", |(row, ..)| &row.group)
                    .column("method", |(row, ..)| &row.method)
                    .column("measure", |(.., measure)| measure)
                    .column("answers", |(row, ..)| row.answers)
                    .column("left_out", |(row, ..)| row.left_out)
                    .column("undefined", |(_, one, _)| one.undefined)
                    .column("n", |(_, one, _)| one.estimate.n)
                    .optional("value", |(_, one, _)| one.estimate.value)
                    .optional("low", |(_, one, _)| one.estimate.band.map(|(low, _)| low))
                    .optional("high", |(_, one, _)| one.estimate.band.map(|(_, high)| high))
                    .optional("subsets", |(row, ..)| row.subsets)
                    .optional("readings", |(row, ..)| row.readings);
                String::from_utf8(table.bytes())?
            }
            Format::Json => {
                let one = |(row, one, measure): (&Row, &Agreement, &str)| {
                    json!({
                        "run": row.run, "group": row.group, "method": row.method, "measure": measure, "answers": row.answers,
                        "left_out": row.left_out, "undefined": one.undefined, "n": one.estimate.n, "value": one.estimate.value,
                        "low": one.estimate.band.map(|(low, _)| low), "high": one.estimate.band.map(|(_, high)| high),
                        "subsets": row.subsets, "readings": row.readings,
                    })
                };
                format!(
                    "{:#}\n",
                    json!({ "rows": all().map(one).collect::<Vec<_>>(), "notes": self.notes(rows) })
                )
            }
            format => self.table(rows).written(format)?,
        })
    }

    /// `effects.jsonl`: the exact effects, which this command reads again.
    pub fn effects_lines(&self) -> anyhow::Result<String> {
        let effects = self.options.effects;
        let line = |(run, answer): (&Run, &ExactAnswer)| {
            let (name, model, data) = (run.name.clone(), run.model.clone(), run.data.clone());
            serde_json::to_string(&EffectsLine { run: name, model, data, effects, answer: answer.clone() })
        };
        let all = self.runs.iter().flat_map(|run| run.answers.iter().map(move |answer| (run, answer)));
        Ok(all.map(line).map(|line| line.map(|line| line + "\n")).collect::<Result<String, _>>()?)
    }

    /// `scores.jsonl`: all scores, in the format of --scores.
    pub fn score_lines(&self) -> String {
        let line = |(run, one): (&Run, &Scored)| {
            let AnswerKey { case, probe, condition } = &one.key;
            let scores: BTreeMap<_, _> = one.scores.iter().filter(|(_, score)| score.is_finite()).collect();
            let line = json!({
                "run": run.name, "case": case, "probe": probe, "condition": condition, "method": one.method,
                "readings": one.readings, "fitted": one.fitted, "scores": scores,
            });
            format!("{line}\n")
        };
        self.runs.iter().flat_map(|run| run.scored.iter().map(move |one| (run, one))).map(line).collect()
    }
}

/// Number, interval, and how many answers have none.
fn cell(Agreement { estimate, undefined }: &Agreement) -> Vec<String> {
    let value = estimate.value.map_or("-".to_owned(), |value| format!("{:.3}", value + 0.0));
    let band = estimate.band.map(|(low, high)| format!("[{low:.3}, {high:.3}]"));
    let undefined = (*undefined > 0).then(|| format!("{undefined} undefined"));
    [value].into_iter().chain(band).chain(undefined).collect()
}
