//! Verdicts of one judge on a run, looked up by answer, and whether they count as a result.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::judge_name::{JudgeChoice, JudgeName};
use super::rows::{AnswerKey, VerdictRow};
use super::store::RunFolder;
use crate::progress::note;
use palimpsest_data::benchmarks::is_reading;

#[derive(Debug, Clone)]
pub struct Judged<'a> {
    pub name: &'a JudgeName,
    rows: HashMap<AnswerKey<&'a str>, &'a VerdictRow>,
}

impl<'a> Judged<'a> {
    pub fn no_result(&self) -> Option<String> {
        no_result(&self.name.judge)
    }

    pub fn warning(&self) -> Option<String> {
        warning(&self.name.judge, self.rows())
    }

    pub fn said_something(&self) -> bool {
        self.rows().any(VerdictRow::is_clean)
    }

    pub fn judged_under(&self, condition: &str) -> bool {
        self.rows.keys().any(|key| key.condition == condition)
    }

    pub fn rows(&self) -> impl Iterator<Item = &'a VerdictRow> {
        self.rows.values().copied()
    }

    pub fn get(&self, key: AnswerKey<&str>) -> Option<&'a VerdictRow> {
        self.rows.get(&key).copied()
    }
}

/// Smaller judges' verdicts are not reported as results.
const LEAST_PARAMETERS: f64 = 1e9;

/// Reason why the judge's verdicts do not count: its name gives too few parameters.
pub fn no_result(judge: &str) -> Option<String> {
    let parameters = parameters_by_name(judge).filter(|_| !is_reading(judge));
    let millions = parameters.filter(|parameters| *parameters < LEAST_PARAMETERS)? / 1e6;
    Some(format!(
        "{judge} has about {millions:.0} million parameters by its name. A judge below 1 billion cannot judge: its \
         verdicts only show that the machinery works"
    ))
}

/// Warning for a judge of unknown size whose verdicts are all unreadable or all equal.
pub fn warning<'a>(judge: &str, verdicts: impl Iterator<Item = &'a VerdictRow>) -> Option<String> {
    // Settled answers did not reach the judge.
    let rows: Vec<&VerdictRow> = verdicts.filter(|row| !row.settled).collect();
    let said: Vec<&VerdictRow> = rows.iter().copied().filter(|row| row.is_clean()).collect();
    if is_reading(judge) {
        return None;
    }
    if said.is_empty() && !rows.is_empty() {
        return Some(format!(
            "{judge} gave no readable verdict on any of {} answers, which count as wrong: `error` in verdicts.jsonl says why",
            rows.len()
        ));
    }
    // A judge of known size may find all answers right or wrong.
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
        format!("{judge} {what}, and its name does not give its size: check some of its reasons before you rely on it")
    })
}

/// Parameter count in a model name: `135m`, `0.5B`, `8b`.
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

#[derive(Debug, thiserror::Error)]
#[error("{dir} has no verdict of the {judge}; it has verdicts of: {known}")]
pub struct UnknownJudge {
    pub dir: PathBuf,
    pub judge: String,
    pub known: String,
}

/// Notes which judging is shown. Silent if the folder is unreadable: the command reports that.
pub fn say_which(dir: &Path, shown: Option<&str>, named: Option<&str>) {
    let (Ok(folder), Some(shown)) = (RunFolder::read(dir), shown) else { return };
    if let Some(text) = which(folder.judges(), shown, named) {
        note(format_args!("note: {}: {text}", dir.display()));
    }
}

fn which(judges: &[JudgeName], shown: &str, named: Option<&str>) -> Option<String> {
    let choice = JudgeChoice::of(named);
    let labels = judges.iter().map(|name| name.label.as_str());
    let others: Vec<&str> =
        labels.filter(|label| choice.takes(label) && *label != shown && named != Some(shown)).collect();
    (!others.is_empty()).then(|| {
        format!(
            "verdicts are those of {shown}, the last readable ones; --judge shows the others: {} (`palimpsest table` has a row each)",
            others.join("; ")
        )
    })
}

impl RunFolder {
    /// Verdicts by judge and rubric, in order of first appearance.
    pub fn judged(&self) -> Vec<Judged<'_>> {
        self.judges().iter().map(|name| self.judged_as(name)).collect()
    }

    pub fn judged_as<'a>(&'a self, name: &'a JudgeName) -> Judged<'a> {
        let own = self.verdicts.iter().filter(|row| name.gave(row));
        Judged { name, rows: own.map(|row| (row.key(), row)).collect() }
    }

    /// The last readable of the chosen judges, and the labels of the others.
    pub fn judged_last(
        &self,
        choice: JudgeChoice<'_>,
    ) -> Result<(Option<Judged<'_>>, Vec<String>), UnknownJudge> {
        let mut all = self.judged_by(choice)?;
        let readable = all.iter().rposition(Judged::said_something);
        let shown = readable.or(all.len().checked_sub(1)).map(|at| all.remove(at));
        Ok((shown, all.iter().map(|judged| judged.name.label.clone()).collect()))
    }

    /// Empty if there are no verdicts and no judge is named.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_judgings_are_named_unless_one_was_meant() {
        let judge = |label: &str| JudgeName {
            judge: "j".to_owned(),
            digest: None,
            rubric: None,
            label: label.to_owned(),
        };
        let two = [judge("j (strict, reasons first)"), judge("j (strict, reasons last)")];
        let shown = "j (strict, reasons last)";
        assert!(which(&two, shown, None).is_some_and(|text| text.contains("j (strict, reasons first)")));
        assert!(which(&two, shown, Some("j")).is_some(), "the name alone means both");
        assert_eq!(which(&two, shown, Some(shown)), None);
        assert_eq!(which(&two[1..], shown, None), None);
    }
}
