//! The table: one row per planned answer, without long texts.
//!
//! Repeated words are dictionary-encoded: ten thousand rows take two megabytes. Empty columns are omitted.

use std::collections::HashMap;

use serde::Serialize;

use super::folder::{Folder, Way};
use super::ranks::{FactStages, Ranked, STAGES};
use super::state::Runs;
use palimpsest_analysis::losses::fact::Known;
use palimpsest_analysis::losses::trace::Stage;
use palimpsest_data::benchmarks::Side;
use palimpsest_data::ground::csv::write;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::plan::dimension_of;
use palimpsest_run::runs::rows::{AnswerRow, VerdictRow};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Column {
    pub name: String,
    pub label: String,
    pub about: String,
    #[serde(flatten)]
    pub values: Values,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Values {
    Category {
        /// Distinct words in order of first appearance.
        values: Vec<String>,
        /// Indices into `values`; -1 if absent.
        codes: Vec<i32>,
    },
    /// Numbers; null if absent.
    Number {
        #[serde(skip_serializing_if = "Option::is_none")]
        unit: Option<&'static str>,
        values: Vec<Option<f64>>,
    },
    /// Texts; null if absent.
    Text { values: Vec<Option<String>> },
}

impl Values {
    fn is_empty(&self) -> bool {
        match self {
            Values::Category { codes, .. } => codes.iter().all(|code| *code < 0),
            Values::Number { values, .. } => values.iter().all(Option::is_none),
            Values::Text { values } => values.iter().all(Option::is_none),
        }
    }

    pub fn cell(&self, row: usize) -> String {
        match self {
            Values::Category { values, codes } => {
                let code = codes.get(row).and_then(|code| usize::try_from(*code).ok());
                code.and_then(|code| values.get(code)).cloned().unwrap_or_default()
            }
            Values::Number { values, .. } => {
                values.get(row).copied().flatten().map(|value| value.to_string()).unwrap_or_default()
            }
            Values::Text { values } => values.get(row).cloned().flatten().unwrap_or_default(),
        }
    }

    fn select(&self, rows: &[usize]) -> Values {
        match self {
            Values::Category { values, codes } => {
                let kept = rows.iter().map(|row| self.word(values, codes, *row));
                category(kept.collect::<Vec<_>>())
            }
            Values::Number { unit, values } => {
                let kept = rows.iter().map(|row| values.get(*row).copied().flatten()).collect();
                Values::Number { unit: *unit, values: kept }
            }
            Values::Text { values } => {
                Values::Text { values: rows.iter().map(|row| values.get(*row).cloned().flatten()).collect() }
            }
        }
    }

    fn word(&self, values: &[String], codes: &[i32], row: usize) -> Option<String> {
        let code = usize::try_from(*codes.get(row)?).ok()?;
        values.get(code).cloned()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    pub stamp: String,
    pub n: usize,
    /// (computed, total) rows with ranks.
    pub ranked: Progress,
    pub columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Progress {
    pub done: usize,
    pub of: usize,
}

struct Row<'a> {
    folder: &'a Folder,
    at: usize,
    verdict: Option<&'a VerdictRow>,
}

impl Row<'_> {
    fn answer(&self) -> Option<&AnswerRow> {
        self.folder.facts[self.at].answer.as_ref()
    }

    fn ranked(&self) -> Option<&Ranked> {
        self.folder.facts[self.at].ranked.as_ref()
    }

    fn role(&self, role: &str) -> Option<usize> {
        self.folder.roles.iter().position(|one| one == role)
    }
}

fn category(words: Vec<Option<String>>) -> Values {
    let (mut values, mut codes) = (Vec::new(), Vec::with_capacity(words.len()));
    let mut known: HashMap<String, i32> = HashMap::new();
    for word in words {
        codes.push(match word {
            None => -1,
            Some(word) => *known.entry(word).or_insert_with_key(|word| {
                values.push(word.clone());
                i32::try_from(values.len()).unwrap_or(i32::MAX) - 1
            }),
        });
    }
    Values::Category { values, codes }
}

pub fn state(answer: Option<&AnswerRow>) -> &'static str {
    match answer {
        None => "not yet",
        Some(row) if row.too_long => "too long",
        Some(row) if row.cut => "cut",
        Some(row) if row.error.is_some() => "error",
        Some(_) => "answered",
    }
}

pub fn verdict_in_words(row: &VerdictRow) -> String {
    match (row.is_clean(), row.correct, row.score, &row.choice) {
        (false, ..) => "no verdict".to_owned(),
        (_, _, Some(score), _) => format!("score {score}"),
        (_, _, _, Some(choice)) => choice.clone(),
        (_, Some(true), ..) => "right".to_owned(),
        _ => "wrong".to_owned(),
    }
}

pub fn side_key(side: Side) -> &'static str {
    match side {
        Side::Older => "older",
        Side::Newer => "newer",
        Side::Right => "right",
        Side::Wrong => "wrong",
    }
}

pub fn known_key(known: Known) -> &'static str {
    match known {
        Known::Yes => "yes",
        Known::No => "no",
        Known::Unknown => "unknown",
    }
}

/// First stage at which the fact was lost. Unknown stages are skipped; a shown fact was not lost.
fn lost(fact: &FactStages) -> &'static str {
    let first = fact.stages.iter().zip(Stage::ALL).find(|(known, _)| **known == Known::No);
    match (first, fact.stages[STAGES - 1]) {
        (Some((_, stage)), _) => stage.key(),
        (None, Known::Yes) => "not lost",
        (None, _) => "unknown",
    }
}

fn shown(row: &Row<'_>, role: &str) -> Option<&'static str> {
    let answer = row.answer()?;
    let (case, probe, condition) = row.folder.named(row.at)?;
    if condition.memory.is_some() {
        let fact = row.ranked()?.facts.iter().find(|fact| fact.role == role)?;
        return Some(known_key(fact.stages[STAGES - 1]));
    }
    let sessions: Vec<usize> =
        unique(case.evidence_of(probe).filter(|one| one.role == role).map(|one| one.segment));
    let count = sessions.iter().filter(|session| answer.shows(**session)).count();
    match (count, sessions.len()) {
        (_, 0) => None,
        (0, _) => Some("no"),
        (count, all) if count == all => Some("yes"),
        _ => Some("part"),
    }
}

struct Columns<'a> {
    rows: Vec<Row<'a>>,
    made: Vec<Column>,
}

impl Columns<'_> {
    fn push(&mut self, name: &str, label: &str, about: &str, values: Values) {
        if !values.is_empty() {
            let (name, label, about) = (name.to_owned(), label.to_owned(), about.to_owned());
            self.made.push(Column { name, label, about, values });
        }
    }

    fn words(&mut self, name: &str, label: &str, about: &str, of: impl Fn(&Row<'_>) -> Option<String>) {
        let words = self.rows.iter().map(of).collect();
        self.push(name, label, about, category(words));
    }

    fn texts(&mut self, name: &str, label: &str, about: &str, of: impl Fn(&Row<'_>) -> Option<String>) {
        let values = self.rows.iter().map(of).collect();
        self.push(name, label, about, Values::Text { values });
    }

    fn numbers(
        &mut self,
        (name, unit): (&str, Option<&'static str>),
        label: &str,
        about: &str,
        of: impl Fn(&Row<'_>) -> Option<f64>,
    ) {
        let values = self.rows.iter().map(|row| of(row).filter(|value| value.is_finite())).collect();
        self.push(name, label, about, Values::Number { unit, values });
    }

    fn names(&mut self) {
        self.words("run", "run", "The run's folder", |row| Some(row.folder.id.clone()));
        let case = |row: &Row<'_>| Some(row.folder.named(row.at)?.0.case.clone());
        self.texts("case", "case", "The case's id", case);
        let kind = |row: &Row<'_>| {
            let (case, ..) = row.folder.named(row.at)?;
            case.labels.get(row.folder.benchmark.split).cloned()
        };
        self.words("type", "type", "The label that the benchmark's cases are split by", kind);
        let probe = |row: &Row<'_>| Some(row.folder.named(row.at)?.1.id.clone());
        self.words("probe", "probe", "The question's id", probe);
        let dimension = |row: &Row<'_>| {
            let (_, probe, _) = row.folder.named(row.at)?;
            Some(dimension_of(row.folder.benchmark, probe))
        };
        if self.rows.iter().any(|row| dimension(row) != probe(row)) {
            self.words("dimension", "group", "The group that the question is counted in", dimension);
        }
        let condition = |row: &Row<'_>| Some(row.folder.named(row.at)?.2.label().to_owned());
        self.words("condition", "condition", "What the question was shown, and how it was asked", condition);
    }

    fn outcomes(&mut self) {
        self.words("state", "state", "How far the answer came", |row| Some(state(row.answer()).to_owned()));
        self.words("verdict", "verdict", "What the judge said", |row| row.verdict.map(verdict_in_words));
        let correct = |row: &Row<'_>| {
            let right = row.folder.is_right(row.verdict?)?;
            Some(if right { "right" } else { "wrong" }.to_owned())
        };
        self.words("correct", "right", "Right by the verdict; of scores only the best one", correct);
        let worth = |row: &Row<'_>| {
            row.verdict?.score?;
            row.verdict?.worth(row.folder.best_score())
        };
        self.numbers(("worth", Some("share")), "worth", "The score's share of the best one", worth);
        let note = |row: &Row<'_>| row.verdict?.reason.clone().or_else(|| row.verdict?.error.clone());
        self.texts("note", "judge's note", "The beginning of the judge's reason", note);
    }

    fn evidence(&mut self) {
        let roles: Vec<String> =
            unique(self.rows.iter().flat_map(|row| &row.folder.roles)).into_iter().cloned().collect();
        for role in &roles {
            let about = format!("Was the evidence in the role `{role}` in the context?");
            self.words(&format!("shown.{role}"), &format!("{role} shown"), &about, |row| {
                shown(row, role).map(str::to_owned)
            });
        }
        for role in &roles {
            let mass = |row: &Row<'_>| row.ranked()?.masses.get(row.role(role)?).copied().flatten();
            let about =
                format!("Rank of the {role} evidence's session by the query's attention mass, 1 = most");
            self.numbers(
                (&format!("rank_mass.{role}"), Some("rank")),
                &format!("{role}: rank by mass"),
                &about,
                |row| Some(mass(row)?.rank as f64),
            );
            let about = "The query's mass on it, mean over heads and layers that see the whole prompt";
            self.numbers((&format!("mass.{role}"), Some("share")), &format!("{role}: mass"), about, |row| {
                Some(mass(row)?.mass)
            });
        }
        let ways = [
            (
                Way::Direct,
                "effect",
                "rank_effect",
                "what the answer loses when it is hidden from the question on",
            ),
            (
                Way::Total,
                "total",
                "rank_total",
                "what the answer loses when it is removed and the rest read again",
            ),
            (
                Way::ContrastDirect,
                "contrast_effect",
                "rank_contrast",
                "what the contrast of the values loses when it is hidden from the question on",
            ),
        ];
        for (way, name, ranks, about) in ways {
            for role in &roles {
                let of = |row: &Row<'_>| row.folder.effect_of(row.at, way, row.role(role)?);
                let label = name.replace('_', " ");
                let about_rank = format!("Rank of the {role} evidence by {about}, 1 = most");
                self.numbers(
                    (&format!("{ranks}.{role}"), Some("rank")),
                    &format!("{role}: rank by {label}"),
                    &about_rank,
                    |row| Some(of(row)?.rank as f64),
                );
                let about = format!("Of the {role} evidence: {about}, in nats");
                self.numbers(
                    (&format!("{name}.{role}"), Some("nats")),
                    &format!("{role}: {label}"),
                    &about,
                    |row| Some(of(row)?.drop),
                );
            }
        }
    }

    fn causes(&mut self) {
        let why = |row: &Row<'_>| row.folder.facts[row.at].why;
        let label = |row: &Row<'_>| Some(why(row)?.0.key().to_owned());
        self.words("why", "why", "The label of `palimpsest why`", label);
        let certificate = |row: &Row<'_>| Some(why(row)?.1? as f64);
        self.numbers(
            ("certificate", None),
            "certificate",
            "Sessions whose blocking turns the answer",
            certificate,
        );
        let fact = |row: &Row<'_>| row.ranked().and_then(Ranked::fact).cloned();
        self.words(
            "lost",
            "lost at",
            "The first stage of a memory system that the newer fact did not pass",
            |row| Some(lost(&fact(row)?).to_owned()),
        );
        for (at, stage) in Stage::ALL.into_iter().take(STAGES).enumerate() {
            let about = format!("Was the newer fact {} by the memory system?", stage.key());
            self.words(&format!("memory.{}", stage.key()), stage.key(), &about, |row| {
                Some(known_key(fact(row)?.stages[at]).to_owned())
            });
        }
    }

    fn numbers_of_answers(&mut self) {
        let contrast = |row: &Row<'_>| Some(row.answer()?.contrast.as_ref()?.value);
        self.numbers(
            ("contrast", Some("nats")),
            "contrast",
            "log p of the current value less log p of the one that it is held against",
            contrast,
        );
        let prompt = |row: &Row<'_>| Some(row.answer()?.prompt_tokens? as f64);
        self.numbers(("prompt_tokens", Some("tokens")), "prompt", "Tokens of the prompt", prompt);
        let answer = |row: &Row<'_>| Some(row.answer()?.completion_tokens? as f64);
        self.numbers(("answer_tokens", Some("tokens")), "answer", "Tokens generated", answer);
        let history = |row: &Row<'_>| row.answer()?.history_shown();
        self.numbers(
            ("history_shown", Some("share")),
            "history shown",
            "Share of the history's tokens that fitted",
            history,
        );
        let trials = |row: &Row<'_>| {
            let count = row.folder.facts[row.at].trials.len();
            (count > 0).then_some(count as f64)
        };
        self.numbers(("trials", None), "trials", "Times that it was asked again", trials);
        self.texts("error", "error", "Why there is no answer", |row| row.answer()?.error.clone());
    }
}

impl Table {
    pub fn of(runs: &Runs) -> Self {
        let mut rows = Vec::with_capacity(runs.count());
        for (.., folder) in runs.readable() {
            let verdicts = folder.shown_verdicts();
            let all = 0..folder.rows.len();
            rows.extend(all.map(|at| Row { folder, at, verdict: verdicts.get(&at).copied() }));
        }
        let n = rows.len();
        let mut columns = Columns { rows, made: Vec::new() };
        columns.names();
        columns.outcomes();
        columns.evidence();
        columns.causes();
        columns.numbers_of_answers();
        let (done, of) = runs.ranked();
        Table { stamp: runs.stamp(), n, ranked: Progress { done, of }, columns: columns.made }
    }

    pub fn select(&self, rows: &[usize]) -> Self {
        let columns =
            self.columns.iter().map(|column| Column { values: column.values.select(rows), ..column.clone() });
        let columns = columns.filter(|column| !column.values.is_empty()).collect();
        let ranked = Progress { done: rows.len(), of: rows.len() };
        Table { stamp: self.stamp.clone(), n: rows.len(), ranked, columns }
    }

    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    pub fn csv(&self, rows: Option<&[usize]>) -> Vec<u8> {
        let all: Vec<usize> = rows.map_or_else(|| (0..self.n).collect(), <[usize]>::to_vec);
        let head = self.columns.iter().map(|column| column.name.clone()).collect();
        let line = |row: usize| self.columns.iter().map(|column| column.values.cell(row)).collect();
        let lines: Vec<Vec<String>> =
            std::iter::once(head).chain(all.into_iter().filter(|row| *row < self.n).map(line)).collect();
        write(lines.into_iter().map(csv::ByteRecord::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_that_was_shown_is_not_lost_whatever_is_known_of_its_writing() {
        use Known::{No, Unknown, Yes};
        for (stages, expected) in [
            ([Yes, Yes, Yes, Yes], "not lost"),
            ([Unknown, Unknown, Yes, Yes], "not lost"),
            ([Unknown, Unknown, No, No], "retrieved"),
            ([No, No, No, No], "written"),
            ([Yes, Yes, Unknown, Unknown], "unknown"),
        ] {
            let fact = FactStages { role: "new".to_owned(), side: None, sessions: vec![4], stages };
            assert_eq!(lost(&fact), expected, "{stages:?}");
        }
    }
}
