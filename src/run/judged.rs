//! The verdicts of one judge on a run, looked up by answer, and how far they are a result.
//!
//! Called by tables, exports, the attention analysis and the scoring of human ratings, which judge nothing.

use std::collections::HashMap;
use std::path::PathBuf;

use super::judge_name::{JudgeChoice, JudgeName};
use super::rows::{AnswerKey, VerdictRow};
use super::store::RunFolder;
use crate::benchmarks::is_reading;

/// The verdicts of one judge by one rubric, error rows included.
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

/// Caveat of a judge's numbers: no verdict could be read, or all verdicts are the same and nobody knows how able it is. The latter
/// may well be so: a model that notices nothing gets 0%.
pub fn warning<'a>(judge: &str, verdicts: impl Iterator<Item = &'a VerdictRow>) -> Option<String> {
    // The judge was not asked about an answer that equals a reference answer.
    let rows: Vec<&VerdictRow> = verdicts.filter(|row| !row.settled).collect();
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

#[derive(Debug, thiserror::Error)]
#[error("{dir} has no verdict of the {judge}; it has verdicts of: {known}")]
pub struct UnknownJudge {
    pub dir: PathBuf,
    pub judge: String,
    /// The judges that gave verdicts, with their rubrics.
    pub known: String,
}

impl RunFolder {
    /// The verdicts of each judge by each rubric that it judged by, in order of first appearance.
    pub fn judged(&self) -> Vec<Judged<'_>> {
        self.judges().iter().map(|name| self.judged_as(name)).collect()
    }

    pub fn judged_as<'a>(&'a self, name: &'a JudgeName) -> Judged<'a> {
        let own = self.verdicts.iter().filter(|row| name.gave(row));
        Judged { name, rows: own.map(|row| (row.key(), row)).collect() }
    }

    /// The judging that is shown where one is, of those that are meant: the last of which anything could be read; and the labels of the
    /// others, which a reader is told of.
    pub fn judged_last(
        &self,
        choice: JudgeChoice<'_>,
    ) -> Result<(Option<Judged<'_>>, Vec<String>), UnknownJudge> {
        let mut all = self.judged_by(choice)?;
        let readable = all.iter().rposition(Judged::said_something);
        let shown = readable.or(all.len().checked_sub(1)).map(|at| all.remove(at));
        Ok((shown, all.iter().map(|judged| judged.name.label.clone()).collect()))
    }

    /// Verdicts of the chosen judges; none where nobody judged and none is named.
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

    fn of_rows(judge: &str, correct: &[Option<bool>]) -> Option<String> {
        let row = |correct: &Option<bool>| VerdictRow { correct: *correct, ..VerdictRow::default() };
        warning(judge, correct.iter().map(row).collect::<Vec<_>>().iter())
    }

    #[test]
    fn a_judge_that_is_too_small_gives_no_result_and_one_that_says_the_same_of_all_a_result_with_a_warning() {
        for (small, millions) in [
            ("local:smollm2-135m", "135"),
            ("local:qwen3-0.6b", "600"),
            ("http://h/v1#Gemma-3-270M-it", "270"),
        ] {
            assert!(no_result(small).unwrap().contains(&format!("about {millions} million")));
        }
        for able in
            ["local:qwen3.5-9b", "http://h/v1#gpt-oss-120b", "http://h:8000/v1#gemini", "local:Llama-3.1-8B"]
        {
            assert_eq!(no_result(able), None, "{able}");
            assert_eq!(of_rows(able, &[Some(true), Some(false), None]), None, "{able}");
            // All wrong is a result; of a judge of which nobody knows how able it is, with a word beside it.
            let said = of_rows(able, &[Some(false), None, Some(false)]);
            let known = !able.ends_with("gemini");
            assert_eq!(said.is_none(), known, "{able}: {said:?}");
            assert!(known || said.is_some_and(|said| said.contains("all 2 answers wrong")));
            // One verdict is the same as itself.
            assert_eq!(of_rows(able, &[Some(true)]), None);
        }
    }
}
