//! The table: one row per planned answer, without long texts.
//!
//! Repeated words are dictionary-encoded: ten thousand rows take two megabytes. Empty columns are omitted.

use std::collections::HashMap;

use serde::Serialize;

use super::folder::{Folder, RowFacts, Way};
use super::ranks::{Ranked, RoleRank, STAGES};
use super::state::Runs;
use palimpsest_analysis::losses::fact::Known;
use palimpsest_analysis::losses::trace::{FactTrace, Stage};
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::Condition;
use palimpsest_run::runs::plan::{PlannedCase, PlannedProbe, dimension_of};
use palimpsest_run::runs::rows::{AnswerRow, VerdictRow};

/// Longest question and answer, note, and error, in characters.
const TEXT: usize = 100;
const NOTE: usize = 140;
const ERROR: usize = 200;

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
    fn words(words: impl Iterator<Item = Option<String>>) -> Self {
        let (mut values, mut codes) = (Vec::new(), Vec::new());
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

    fn is_empty(&self) -> bool {
        match self {
            Values::Category { codes, .. } => codes.iter().all(|code| *code < 0),
            Values::Number { values, .. } => values.iter().all(Option::is_none),
            Values::Text { values } => values.iter().all(Option::is_none),
        }
    }

    /// The word, number or text of a row.
    fn text(&self, row: usize) -> Option<String> {
        match self {
            Values::Category { values, codes } => Some(values[usize::try_from(codes[row]).ok()?].clone()),
            Values::Number { values, .. } => values[row].map(|value| value.to_string()),
            Values::Text { values } => values[row].clone(),
        }
    }

    /// The text, empty if absent.
    pub fn cell(&self, row: usize) -> String {
        self.text(row).unwrap_or_default()
    }

    fn select(&self, rows: &[usize]) -> Values {
        match self {
            Values::Category { .. } => Values::words(rows.iter().map(|row| self.text(*row))),
            Values::Number { unit, values } => {
                Values::Number { unit: *unit, values: rows.iter().map(|row| values[*row]).collect() }
            }
            Values::Text { .. } => Values::Text { values: rows.iter().map(|row| self.text(*row)).collect() },
        }
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

#[derive(Clone, Copy)]
struct Row<'a> {
    folder: &'a Folder,
    case: &'a PlannedCase,
    probe: &'a PlannedProbe,
    condition: &'a Condition,
    facts: &'a RowFacts,
    verdict: Option<&'a VerdictRow>,
}

impl<'a> Row<'a> {
    fn answer(self) -> Option<&'a AnswerRow> {
        self.facts.answer.as_ref()
    }

    fn role(self, role: &str) -> Option<usize> {
        self.folder.roles.iter().position(|one| one == role)
    }

    /// The fact whose loss is reported.
    fn fact(self) -> Option<&'a FactTrace> {
        self.facts.ranked.as_ref().and_then(Ranked::fact)
    }

    fn dimension(self) -> String {
        dimension_of(self.folder.benchmark, self.probe)
    }
}

pub fn state(answer: Option<&AnswerRow>) -> &'static str {
    match answer {
        None => "not yet",
        Some(row) if row.too_long => "too long",
        Some(row) if row.cut => "thought cut",
        Some(row) if row.error.is_some() => "error",
        Some(row) if row.reached_limit() => "cut",
        Some(_) => "answered",
    }
}

pub fn verdict_in_words(row: &VerdictRow) -> String {
    match (row.is_clean(), row.correct, row.score, &row.choice) {
        (false, ..) => "no verdict".to_owned(),
        (_, _, Some(score), _) => format!("score {score}"),
        // Alone, the rule's word for an answer that names no value reads as a missing verdict.
        (_, _, _, Some(choice)) if choice == "none" => "no value".to_owned(),
        (_, _, _, Some(choice)) => choice.clone(),
        (_, Some(true), ..) => "right".to_owned(),
        _ => "wrong".to_owned(),
    }
}

pub fn known_key(known: Known) -> &'static str {
    match known {
        Known::Yes => "yes",
        Known::No => "no",
        Known::Unknown => "unknown",
    }
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", text[..at].trim_end()),
    }
}

/// In one line.
fn beginning(text: &str) -> String {
    cut(&text.split_whitespace().take(TEXT).collect::<Vec<_>>().join(" "), TEXT)
}

/// First stage at which the fact was lost. Unknown stages are skipped; a shown fact was not lost.
fn lost(stages: &[Known]) -> &'static str {
    let first = stages.iter().zip(Stage::ALL).find(|(known, _)| **known == Known::No);
    match (first, stages.last()) {
        (Some((_, stage)), _) => stage.key(),
        (None, Some(Known::Yes)) => "not lost",
        (None, _) => "unknown",
    }
}

fn shown(row: Row<'_>, role: &str) -> Option<&'static str> {
    let answer = row.answer()?;
    if row.condition.memory.is_some() {
        let fact = row.facts.ranked.as_ref()?.facts.iter().find(|fact| fact.role == role)?;
        return Some(known_key(fact.stages[STAGES - 1]));
    }
    let evidence = row.case.evidence_of(row.probe).filter(|one| one.role == role);
    let sessions: Vec<usize> = unique(evidence.map(|one| one.segment));
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

impl<'a> Columns<'a> {
    fn push(&mut self, names: [&str; 3], values: Values) {
        if !values.is_empty() {
            let [name, label, about] = names.map(str::to_owned);
            self.made.push(Column { name, label, about, values });
        }
    }

    fn words<W: Into<String>>(&mut self, names: [&str; 3], of: impl Fn(Row<'a>) -> Option<W>) {
        let words = Values::words(self.rows.iter().map(|row| of(*row).map(W::into)));
        self.push(names, words);
    }

    fn texts<W: Into<String>>(&mut self, names: [&str; 3], of: impl Fn(Row<'a>) -> Option<W>) {
        let values = self.rows.iter().map(|row| of(*row).map(W::into)).collect();
        self.push(names, Values::Text { values });
    }

    fn numbers(&mut self, names: [&str; 3], unit: Option<&'static str>, of: impl Fn(Row<'a>) -> Option<f64>) {
        let values = self.rows.iter().map(|row| of(*row).filter(|value| value.is_finite())).collect();
        self.push(names, Values::Number { unit, values });
    }

    fn names(&mut self) {
        self.words(["run", "run", "The run's folder"], |row| Some(&row.folder.id));
        self.texts(["case", "case", "The case's id"], |row| Some(&row.case.case));
        let names = ["type", "type", "The label that the benchmark's cases are split by"];
        self.words(names, |row| row.case.labels.get(row.folder.benchmark.split));
        self.words(["probe", "id", "The question's id, `probe` in files"], |row| Some(&row.probe.id));
        if self.rows.iter().any(|row| row.dimension() != row.probe.id) {
            let names = ["dimension", "group", "The group that the question is counted in"];
            self.words(names, |row| Some(row.dimension()));
        }
        let names = ["question", "question", "The beginning of the question"];
        self.words(names, |row| Some(beginning(&row.probe.query)));
        let names = ["condition", "condition", "The context of the question, and how it was asked"];
        self.words(names, |row| Some(row.condition.label()));
    }

    fn outcomes(&mut self) {
        self.words(["state", "state", "How far the answer came; cut: at the limit of new tokens"], |row| {
            Some(state(row.answer()))
        });
        self.texts(["answer", "answer", "The beginning of the answer"], |row| {
            Some(beginning(row.answer()?.answer.as_ref()?))
        });
        self.words(["verdict", "verdict", "The judge's verdict"], |row| row.verdict.map(verdict_in_words));
        let names = ["correct", "right", "Right by the verdict; of scores only the best one"];
        self.words(names, |row| Some(if row.folder.is_right(row.verdict?)? { "right" } else { "wrong" }));
        self.numbers(["worth", "worth", "The score's share of the best one"], Some("share"), |row| {
            row.verdict?.score?;
            row.verdict?.worth(row.folder.best_score())
        });
        self.texts(["note", "judge's note", "The beginning of the judge's reason"], |row| {
            let VerdictRow { reason, error, .. } = row.verdict?;
            let reason = reason.as_ref().map(|reason| cut(reason, NOTE));
            reason.or_else(|| error.as_ref().map(|error| cut(error, ERROR)))
        });
    }

    fn evidence(&mut self) {
        let roles = unique(self.rows.iter().flat_map(|row| &row.folder.roles));
        for role in &roles {
            let about = format!("Was the evidence in the role `{role}` in the context?");
            let names = [&format!("shown.{role}"), &format!("{role} shown"), about.as_str()];
            self.words(names, |row| shown(row, role));
        }
        type Of = fn(Row<'_>, usize) -> Option<RoleRank>;
        let measures: [(&str, &str, &str, &str, Of); 4] = [
            (
                "mass",
                "rank_mass",
                "share",
                "the question's attention mass on its session, mean over heads and layers that see the whole prompt",
                |row, role| *row.facts.ranked.as_ref()?.masses.get(role)?,
            ),
            (
                "effect",
                "rank_effect",
                "nats",
                "the answer's loss when it is hidden from the question on",
                |row, role| row.folder.effect_of(&row.facts.causes, Way::Direct, role),
            ),
            (
                "total",
                "rank_total",
                "nats",
                "the answer's loss when it is removed and the rest computed anew",
                |row, role| row.folder.effect_of(&row.facts.causes, Way::Total, role),
            ),
            (
                "contrast_effect",
                "rank_contrast",
                "nats",
                "the contrast's loss when it is hidden from the question on",
                |row, role| row.folder.effect_of(&row.facts.contrasts, Way::Direct, role),
            ),
        ];
        for (name, ranks, unit, what, of) in measures {
            for role in &roles {
                let label = name.replace('_', " ");
                let about = format!("Rank of the {role} evidence by {what}, 1 = most");
                let names = [&format!("{ranks}.{role}"), &format!("{role}: rank by {label}"), about.as_str()];
                self.numbers(names, Some("rank"), |row| Some(of(row, row.role(role)?)?.rank as f64));
                let about = format!("The {role} evidence: {what}");
                let names = [&format!("{name}.{role}"), &format!("{role}: {label}"), about.as_str()];
                self.numbers(names, Some(unit), |row| Some(of(row, row.role(role)?)?.value));
            }
        }
    }

    fn causes(&mut self) {
        self.words(["why", "why", "The label of `palimpsest why`"], |row| Some(row.facts.why?.0?.key()));
        let names = ["certificate", "certificate", "Number of sessions whose hiding turns the answer"];
        self.numbers(names, None, |row| Some(row.facts.why?.1? as f64));
        let about = "The first stage of a memory system that the newer fact did not pass";
        self.words(["lost", "lost at", about], |row| Some(lost(&row.fact()?.stages[..STAGES])));
        for (at, stage) in Stage::ALL.into_iter().take(STAGES).enumerate() {
            let about = format!("Was the newer fact {} by the memory system?", stage.key());
            let names = [&format!("memory.{}", stage.key()), stage.key(), about.as_str()];
            self.words(names, |row| Some(known_key(row.fact()?.stages[at])));
        }
    }

    fn numbers_of_answers(&mut self) {
        let about = "log p of the current value minus log p of the other value";
        self.numbers(["contrast", "contrast", about], Some("nats"), |row| {
            Some(row.answer()?.contrast.as_ref()?.value)
        });
        self.numbers(["prompt_tokens", "prompt", "Tokens of the prompt"], Some("tokens"), |row| {
            Some(row.answer()?.prompt_tokens? as f64)
        });
        self.numbers(["answer_tokens", "answer tokens", "Tokens generated"], Some("tokens"), |row| {
            Some(row.answer()?.completion_tokens? as f64)
        });
        let names = ["history_shown", "history shown", "Share of the history's tokens that fitted"];
        self.numbers(names, Some("share"), |row| row.answer()?.history_shown());
        self.numbers(["trials", "trials", "Times that it was asked again"], None, |row| {
            Some(row.facts.trials.len()).filter(|count| *count > 0).map(|count| count as f64)
        });
        self.texts(["error", "error", "Why there is no answer"], |row| {
            row.answer()?.error.as_ref().map(|error| cut(error, ERROR))
        });
    }
}

impl Table {
    pub fn of(runs: &Runs) -> Self {
        let mut rows = Vec::with_capacity(runs.count());
        for (.., folder) in runs.readable() {
            let verdicts = folder.shown_verdicts();
            rows.extend(folder.rows.iter().enumerate().map(|(at, facts)| {
                let (case, probe, condition) = folder.named(at);
                Row { folder, case, probe, condition, facts, verdict: verdicts.get(&at).copied() }
            }));
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_answers_have_a_state_of_their_own() {
        let row = |text: &str| serde_json::from_str::<AnswerRow>(text).ok();
        let names = r#""case": "c", "probe": "SR", "labels": {}, "query": "?", "dropped_sessions": []"#;
        for (fields, expected) in [
            (r#""answer": "a", "stop": "end_of_turn""#, "answered"),
            (r#""answer": "a", "stop": "max_new_tokens""#, "cut"),
            (r#""error": "e", "cut": true"#, "thought cut"),
            (r#""error": "e""#, "error"),
        ] {
            let row = row(&format!("{{{names}, {fields}}}"));
            assert!(row.is_some(), "{fields}");
            assert_eq!(state(row.as_ref()), expected);
        }
        let none =
            VerdictRow { correct: Some(true), choice: Some("none".to_owned()), ..VerdictRow::default() };
        assert_eq!(verdict_in_words(&none), "no value");
    }

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
            assert_eq!(lost(&stages), expected, "{stages:?}");
        }
    }
}
