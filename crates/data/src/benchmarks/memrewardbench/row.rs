//! Validates a row and builds its [`Case`]. Unknown fields are ignored: published files may add provenance.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::constraints;
use super::orders::{Order, Pair};
use super::terms::{
    CTX_LENGTH, GENERATION, LENGTH, Length, SETTING, SOURCE, SUBTASK, Setting, TASK, Task, UNDERSTANDING,
    VERDICT, names,
};
use crate::benchmarks::reading::RowProblems;
use crate::benchmarks::shape::{Checker, quote};
use crate::case::{Case, Probe};

const QUERY: &str = "Which agent managed its memory better? Begin your reply with the verdict alone, [[A]] if agent A did or [[B]] if \
                     agent B did, and then give your reasons.";

pub(super) const OPTIONS: [&str; 2] = ["[[A]]", "[[B]]"];

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawRow {
    pub index: Option<Value>,
    pub task: Option<Value>,
    pub subtask: Option<Value>,
    pub ctx_length: Option<Value>,
    pub question: Option<Value>,
    pub chosen: Option<Value>,
    pub rejected: Option<Value>,
}

pub(super) fn case_of(raw: RawRow, row: Checker<'_>) -> Result<Case, RowProblems> {
    let RawRow { index, task, subtask, ctx_length, question, chosen, rejected } = raw;
    let mut checker = PairChecker(row);
    let id = checker.id(index);
    let setting = checker.named("subtask", subtask, Setting::parse, &names(Setting::ALL, Setting::name));
    let task = checker.named("task", task, Task::parse, &names(Task::ALL, Task::name));
    if let (Some(setting), Some(task)) = (setting, task)
        && setting.task() != task
    {
        let remedy = format!("{setting} is a setting of {}; put the two right", setting.task().name());
        checker.0.problem("task", task.name(), remedy);
    }
    let length = checker.named("ctx_length", ctx_length, Length::parse, &names(Length::ALL, Length::name));
    let [question, chosen, rejected] = [("question", question), ("chosen", chosen), ("rejected", rejected)]
        .map(|(field, value)| checker.text(field, value));
    if chosen.is_some() && chosen == rejected {
        let remedy = "give two trajectories that differ, or drop the row";
        checker.0.problem("rejected", "the chosen trajectory again", remedy);
    }
    let mut labels = BTreeMap::new();
    let mut label = |name: &str, value: Option<&'static str>| {
        labels.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    };
    label(TASK, setting.map(|setting| setting.task().name()).or(task.map(Task::name)));
    label(SUBTASK, setting.map(Setting::name));
    label(CTX_LENGTH, length.map(Length::name));
    let problems = checker.0.problems;
    let (Some(id), Some(setting), Some(length), Some(question), Some(chosen), Some(rejected), true) =
        (id, setting, length, question, chosen, rejected, problems.is_empty())
    else {
        return Err(RowProblems { problems, labels, ..RowProblems::default() });
    };
    let source = if setting.task() == Task::Generation { constraints::source(&question) } else { None };
    let pair = Pair { question, chosen, rejected };
    let (history, evidence) = pair.shown(Order::ChosenFirst.chosen_first(&id, 0));
    let mut facets = vec![(TASK, setting.task().name()), (SETTING, setting.name()), (LENGTH, length.name())];
    facets.extend(source.map(|source| (SOURCE, source.name())));
    let form = match setting.task() {
        Task::Generation => GENERATION,
        Task::Reasoning | Task::Dialogue => UNDERSTANDING,
    };
    let probe = Probe {
        id: VERDICT.to_owned(),
        form: form.to_owned(),
        query: QUERY.to_owned(),
        facets: facets.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        options: OPTIONS.map(str::to_owned).to_vec(),
        ..Probe::default()
    };
    Ok(Case { id, labels, history, evidence, probes: vec![probe], ..Case::default() })
}

/// A `None` from its methods always comes with a problem.
struct PairChecker<'a>(Checker<'a>);

impl PairChecker<'_> {
    /// `index` or the row number, prefixed by the file name in folders.
    fn id(&mut self, index: Option<Value>) -> Option<String> {
        let own = match index {
            None | Some(Value::Null) => format!("row-{}", self.0.row),
            Some(Value::String(text)) if !text.trim().is_empty() => text,
            Some(Value::Number(number)) if !number.is_f64() => number.to_string(),
            Some(other) => {
                self.0.problem(
                    "index",
                    described(Some(&other)),
                    "give a whole number or a text, or leave it out",
                );
                return None;
            }
        };
        let stem = self.0.file.map(|file| file.rsplit_once('.').map_or(file, |(stem, _)| stem));
        let id = match stem {
            Some(stem) => format!("{}-{own}", stem.replace('/', "-")),
            None => own,
        };
        self.0.uid = Some(id.clone());
        Some(id)
    }

    fn named<T>(
        &mut self,
        field: &str,
        value: Option<Value>,
        parse: impl Fn(&str) -> Option<T>,
        known: &str,
    ) -> Option<T> {
        let text = match &value {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let found = text.and_then(|text| parse(&text));
        if found.is_none() {
            self.0.problem(field, described(value.as_ref()), format!("it is one of {known}"));
        }
        found
    }

    fn text(&mut self, field: &str, value: Option<Value>) -> Option<String> {
        match value {
            Some(Value::String(text)) if !text.trim().is_empty() => Some(text),
            other => {
                self.0.problem(field, described(other.as_ref()), "give a text that is not empty");
                None
            }
        }
    }
}

fn described(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "nothing".to_owned(),
        Some(Value::String(text)) => quote(text),
        Some(Value::Array(items)) => format!("a list of {}", items.len()),
        Some(Value::Object(fields)) => format!("an object of {} fields", fields.len()),
        Some(other) => other.to_string(),
    }
}
