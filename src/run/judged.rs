//! The verdicts of one judge on a run, looked up by answer.
//!
//! Called by the exports and by the scoring of human ratings, which read run folders and judge nothing.

use std::collections::HashMap;
use std::path::PathBuf;

use super::rows::VerdictRow;
use super::store::RunFolder;

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
    /// The row on an answer, where there is one.
    pub fn get(&self, case: &str, probe: &str, condition: &str) -> Option<&'a VerdictRow> {
        self.rows.get(&(case, probe, condition)).copied()
    }
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
