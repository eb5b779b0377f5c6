//! Trials of questions on subsets of their facts, and the questions that withstand them.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::build::row::object;
use crate::build::{Row, RowError, Rows, Setting};

/// Facts that a checker is shown, in order, and whether it has to choose a right answer then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    pub name: &'static str,
    pub shown: Vec<usize>,
    pub right: bool,
}

/// Trials of a question on `facts` facts whose answer is in the `target`-th (nuanced sets): all facts give a right answer and none do not.
/// Any-one: each fact alone gives it. Multi-evidence: none alone does. Nuanced: the others do not. Contradictory: the other order does, so
/// that it cannot be what resolves the conflict.
pub fn trials_of(subtype: &str, facts: usize, target: usize) -> Vec<Trial> {
    let all: Vec<usize> = (0..facts).collect();
    let trial = |name, shown, right| Trial { name, shown, right };
    let alone = |right| all.iter().map(move |fact| trial("alone", vec![*fact], right));
    let mut trials = vec![trial("all", all.clone(), true), trial("blind", Vec::new(), false)];
    match subtype {
        "any_one" => trials.extend(alone(true)),
        "multi_evidence" => trials.extend(alone(false)),
        "temporal" | "contextual" => {
            let others = all.iter().copied().filter(|fact| *fact != target).collect();
            trials.push(trial("other condition", others, false));
        }
        _ => trials.push(trial("reversed", all.iter().rev().copied().collect(), true)),
    }
    trials
}

#[derive(Deserialize)]
struct Question {
    copy: usize,
    relation: String,
    subtype: String,
    facts: Vec<String>,
    query: String,
    right_kept: Vec<String>,
    wrong_kept: Vec<String>,
}

impl Question {
    fn of(fields: &Map<String, Value>) -> Result<Self, RowError> {
        let read = Self::deserialize(&Value::Object(fields.clone()));
        read.map_err(|error| RowError::Fault(format!("a question: {error}; the stage before makes it")))
    }

    fn trials(&self) -> Vec<Trial> {
        trials_of(&self.subtype, self.facts.len(), self.copy % self.facts.len().max(1))
    }
}

/// One row a trial: `given`, the facts shown; `options`, the answers kept and `unknown`, lettered in a drawn order; `accepted`, letters that
/// pass.
pub(super) fn trials(setting: &Setting<'_>, row: &Row) -> Rows {
    let question = Question::of(&row.fields)?;
    let unknown: String = setting.needed("unknown")?;
    let trial = |(nth, trial): (usize, Trial)| {
        let mut made = row.part(nth, Map::new());
        let right = question.right_kept.iter().map(|answer| (answer, true));
        let wrong = question.wrong_kept.iter().chain([&unknown]).map(|answer| (answer, false));
        let mut options: Vec<(&String, bool)> = right.chain(wrong).collect();
        setting.draws(&made.id, 0).shuffle(&mut options);
        let lettered = || ('A'..='Z').map(String::from).zip(&options);
        let option =
            |(letter, (text, _)): (String, &(&String, bool))| json!({"letter": letter, "text": text});
        let accepted = lettered().filter(|(_, (_, right))| *right == trial.right).map(|(letter, _)| letter);
        made.fields = object(json!({
            "case_id": row.get("case_id"),
            "copy": question.copy,
            "query": question.query,
            "trial": trial.name,
            "given": trial.shown.iter().filter_map(|fact| question.facts.get(*fact)).collect::<Vec<_>>(),
            "accepted": accepted.collect::<Vec<_>>(),
            "options": lettered().map(option).collect::<Vec<_>>(),
        }));
        made
    };
    Ok(question.trials().into_iter().enumerate().map(trial).collect())
}

/// Makes a set of the `rows` of a case: its questions, and the trials that were passed. Keeps questions that passed all of theirs, and one
/// of them, drawn, where the relation is one of `sampled`.
pub(super) fn questions(setting: &Setting<'_>, row: &Row) -> Rows {
    let rows: Vec<Map<String, Value>> = row.read("rows")?;
    let (trials, asked): (Vec<_>, Vec<_>) = rows.into_iter().partition(|fields| fields.contains_key("trial"));
    let sampled: Vec<String> = setting.needed("sampled")?;
    let mut kept = Vec::new();
    for fields in &asked {
        let question = Question::of(fields)?;
        let passed = trials.iter().filter(|trial| trial.get("copy") == fields.get("copy"));
        if passed.count() == question.trials().len() {
            kept.push(question);
        }
    }
    if kept.first().is_some_and(|question| sampled.contains(&question.relation)) {
        kept = vec![kept.swap_remove(setting.draws(&row.id, 0).index(kept.len()))];
    }
    let Some(fields) = asked.into_iter().next().filter(|_| !kept.is_empty()) else {
        return Err(RowError::rejected("no question withstood the ablation"));
    };
    let qa = |question: Question| {
        let Question { query, right_kept, wrong_kept, .. } = question;
        json!({"query": query, "correct_answers": right_kept, "incorrect_answers": wrong_kept})
    };
    let qas = kept.into_iter().map(qa).collect::<Vec<_>>();
    Ok(vec![Row { fields, ..row.copy() }.with(json!({"qas": qas}))])
}
