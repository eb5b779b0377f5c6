//! The verdicts of one judge on a run, looked up by answer, and whether they are a result.
//!
//! Called by the exports and by the scoring of human ratings, which read run folders and judge nothing.

use std::collections::HashMap;
use std::path::PathBuf;

use super::rows::VerdictRow;
use super::store::RunFolder;
use crate::benchmarks::is_reading;

/// The verdicts of one judge by one rubric, error rows included.
#[derive(Debug, Clone)]
pub struct Judged<'a> {
    /// Which judge.
    pub judge: &'a str,
    /// SHA-256 of the rubric; absent in runs of version 0.1.0.
    pub rubric: Option<&'a str>,
    rows: HashMap<(&'a str, &'a str, &'a str), &'a VerdictRow>,
}

impl<'a> Judged<'a> {
    /// Why these verdicts are no result, where they are none ([`no_result`]).
    pub fn no_result(&self) -> Option<String> {
        no_result(self.judge, self.rows.values().copied())
    }

    /// The row on an answer, where there is one.
    pub fn get(&self, case: &str, probe: &str, condition: &str) -> Option<&'a VerdictRow> {
        self.rows.get(&(case, probe, condition)).copied()
    }
}

/// Parameters of the smallest judge whose verdicts are taken for a result.
const LEAST_PARAMETERS: f64 = 1e9;

/// Why a judge's verdicts are no result, where they are none: the judge is too small to judge, or of unknown size and says the
/// same of all answers.
pub fn no_result<'a>(judge: &str, verdicts: impl Iterator<Item = &'a VerdictRow>) -> Option<String> {
    // a rule says what the answers say, also where that is always the same
    if is_reading(judge) {
        return None;
    }
    if let Some(parameters) = parameters_by_name(judge).filter(|parameters| *parameters < LEAST_PARAMETERS) {
        let millions = parameters / 1e6;
        return Some(format!(
            "{judge} has about {millions:.0} million parameters by its name. A judge below 1 billion cannot judge: its \
             verdicts only show that the machinery works"
        ));
    }
    // One that is known to be able may well find all answers right, or all wrong.
    if parameters_by_name(judge).is_some() {
        return None;
    }
    let said: Vec<&VerdictRow> = verdicts.filter(|row| row.is_clean()).collect();
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
        format!("{judge} {what}, which tells nothing of them")
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
#[error("{dir} has no verdict of the judge `{judge}`; it has verdicts of: {known}")]
pub struct UnknownJudge {
    /// The run folder.
    pub dir: PathBuf,
    /// What was typed.
    pub judge: String,
    /// The judges that gave verdicts.
    pub known: String,
}

impl RunFolder {
    /// The verdicts of each judge by the rubric that it judged by last, in order of first appearance.
    pub fn judged(&self) -> Vec<Judged<'_>> {
        let mut last: Vec<(&str, Option<&str>)> = Vec::new();
        for (judge, rubric) in self.judges() {
            last.retain(|(name, _)| *name != judge);
            last.push((judge, rubric));
        }
        let of = |(judge, rubric): (&'_ str, Option<&'_ str>)| {
            let own =
                self.verdicts.iter().filter(|row| row.judge == judge && row.rubric.as_deref() == rubric);
            own.map(|row| ((row.case.as_str(), row.probe.as_str(), row.condition.as_str()), row)).collect()
        };
        last.into_iter().map(|(judge, rubric)| Judged { judge, rubric, rows: of((judge, rubric)) }).collect()
    }

    /// The verdicts of `judge`, or of the judge that came last; absent where nobody judged.
    ///
    /// # Errors
    /// [`UnknownJudge`] where `judge` is named and gave no verdict.
    pub fn judged_by(&self, judge: Option<&str>) -> Result<Option<Judged<'_>>, UnknownJudge> {
        let mut all = self.judged();
        let Some(wanted) = judge else { return Ok(all.pop()) };
        match all.iter().position(|judged| judged.judge == wanted) {
            Some(at) => Ok(Some(all.swap_remove(at))),
            None => {
                let known: Vec<&str> = all.iter().map(|judged| judged.judge).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(UnknownJudge { dir: self.dir.clone(), judge: wanted.to_owned(), known })
            }
        }
    }
}
