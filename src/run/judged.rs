//! The verdicts of one judge on a run, looked up by answer, and how far they are a result.
//!
//! Called by the exports and by the scoring of human ratings, which read run folders and judge nothing.

use std::collections::HashMap;
use std::path::PathBuf;

use super::judge_name::{JudgeChoice, JudgeName};
use super::rows::{AnswerKey, VerdictRow};
use super::store::RunFolder;
use crate::benchmarks::is_reading;

/// The verdicts of one judge by one rubric, error rows included.
#[derive(Debug, Clone)]
pub struct Judged<'a> {
    /// Which judge, by which rubric.
    pub name: &'a JudgeName,
    rows: HashMap<AnswerKey<&'a str>, &'a VerdictRow>,
}

impl<'a> Judged<'a> {
    /// Why these verdicts are no result, where they are none ([`no_result`]).
    pub fn no_result(&self) -> Option<String> {
        no_result(&self.name.judge)
    }

    /// What a reader must know of them ([`warning`]).
    pub fn warning(&self) -> Option<String> {
        warning(&self.name.judge, self.rows.values().copied())
    }

    /// Whether the judge said anything that could be read.
    pub fn said_something(&self) -> bool {
        self.rows.values().any(|row| row.is_clean())
    }

    /// Whether the judge was asked about any answer under a condition.
    pub fn judged_under(&self, condition: &str) -> bool {
        self.rows.keys().any(|key| key.condition == condition)
    }

    /// The row on an answer, where there is one.
    pub fn get(&self, key: AnswerKey<&str>) -> Option<&'a VerdictRow> {
        self.rows.get(&key).copied()
    }
}

/// Parameters of the smallest judge whose verdicts are taken for a result.
const LEAST_PARAMETERS: f64 = 1e9;

/// Why a judge's verdicts are no result, where they are none: its name says that it is too small to judge.
pub fn no_result(judge: &str) -> Option<String> {
    // a rule's name is no model's
    let parameters = parameters_by_name(judge).filter(|_| !is_reading(judge));
    let millions = parameters.filter(|parameters| *parameters < LEAST_PARAMETERS)? / 1e6;
    Some(format!(
        "{judge} has about {millions:.0} million parameters by its name. A judge below 1 billion cannot judge: its \
         verdicts only show that the machinery works"
    ))
}

/// What a reader must know beside the numbers of a judge: nothing that it said could be read, or it says the same of all answers and
/// nobody knows how able it is. The latter may well be so: a model that notices nothing gets 0%.
pub fn warning<'a>(judge: &str, verdicts: impl Iterator<Item = &'a VerdictRow>) -> Option<String> {
    let rows: Vec<&VerdictRow> = verdicts.collect();
    let said: Vec<&VerdictRow> = rows.iter().copied().filter(|row| row.is_clean()).collect();
    // a rule says what the answers say
    if is_reading(judge) {
        return None;
    }
    if said.is_empty() && !rows.is_empty() {
        return Some(format!(
            "{judge} gave no readable verdict on any of {} answers, which count as wrong: `error` in verdicts.jsonl says why",
            rows.len()
        ));
    }
    // one that is known to be able may find all of them right or wrong
    if parameters_by_name(judge).is_some() {
        return None;
    }
    let (first, others) = said.split_first()?;
    let same = |row: &&VerdictRow| {
        (row.correct, row.score, &row.choice) == (first.correct, first.score, &first.choice)
    };
    (!others.is_empty() && others.iter().all(same)).then(|| {
        let count = said.len();
        let what = match (first.correct, first.score, &first.choice) {
            (_, Some(score), _) => format!("gives all {count} answers the score {score}"),
            (_, _, Some(choice)) => format!("chooses `{choice}` for all {count} answers"),
            (Some(true), ..) => format!("calls all {count} answers correct"),
            _ => format!("calls all {count} answers wrong"),
        };
        format!("{judge} {what}, and its name does not say how large it is: read some of its reasons before you rest on this")
    })
}

/// A model's parameters where its name tells them: `135m`, `0.5B`, `8b`.
fn parameters_by_name(name: &str) -> Option<f64> {
    name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').find_map(|part| {
        let (number, unit) = part.split_at_checked(part.len().checked_sub(1)?)?;
        let unit = match unit {
            "m" | "M" => 1e6,
            "b" | "B" => 1e9,
            _ => return None,
        };
        number.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0).map(|n| n * unit)
    })
}

/// A judge was named that gave no verdict.
#[derive(Debug, thiserror::Error)]
#[error("{dir} has no verdict of the {judge}; it has verdicts of: {known}")]
pub struct UnknownJudge {
    /// The run folder.
    pub dir: PathBuf,
    /// What was typed.
    pub judge: String,
    /// The judges that gave verdicts, with their rubrics.
    pub known: String,
}

impl RunFolder {
    /// The verdicts of each judge by each rubric that it judged by, in order of first appearance.
    pub fn judged(&self) -> Vec<Judged<'_>> {
        let of = |name| {
            let own = self.verdicts.iter().filter(|row| JudgeName::gave(name, row));
            own.map(|row| (row.key(), row)).collect()
        };
        self.judges().iter().map(|name| Judged { name, rows: of(name) }).collect()
    }

    /// The judging that is shown where one is, of those that are meant: the last of which anything could be read; and the labels of the
    /// others, which a reader is told of.
    ///
    /// # Errors
    /// As [`RunFolder::judged_by`].
    pub fn judged_last(
        &self,
        choice: JudgeChoice<'_>,
    ) -> Result<(Option<Judged<'_>>, Vec<String>), UnknownJudge> {
        let mut all = self.judged_by(choice)?;
        let readable = all.iter().rposition(Judged::said_something);
        let shown = readable.or(all.len().checked_sub(1)).map(|at| all.remove(at));
        Ok((shown, all.iter().map(|judged| judged.name.label.clone()).collect()))
    }

    /// Those of the judges that are meant; of nobody where nobody judged and none is named.
    ///
    /// # Errors
    /// [`UnknownJudge`] where a judge or a rubric is named and none is found.
    pub fn judged_by(&self, choice: JudgeChoice<'_>) -> Result<Vec<Judged<'_>>, UnknownJudge> {
        let mut all = self.judged();
        let known: Vec<&str> = all.iter().map(|judged| judged.name.label.as_str()).collect();
        let known = if known.is_empty() { "nobody".to_owned() } else { known.join(", ") };
        all.retain(|judged| choice.takes(&judged.name.label));
        if all.is_empty() && choice != JudgeChoice::default() {
            return Err(UnknownJudge { dir: self.dir.clone(), judge: choice.to_string(), known });
        }
        Ok(all)
    }
}
