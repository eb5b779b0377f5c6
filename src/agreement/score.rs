//! Ratings against verdicts: the counts behind table 7.

use serde::Serialize;

use super::AgreementError;
use super::key::{FORMAT_1, Key, KeyItem};
use super::ratings::Ratings;
use crate::benchmarks::named;
use crate::ground::order::sorted_unique;
use crate::run::condition::label;
use crate::run::judge_name::{JudgeChoice, JudgeName};
use crate::run::judged::Judged;
use crate::run::rows::AnswerKey;
use crate::run::store::RunFolder;
use crate::statistics::agreement::{Agreement, ScoreAgreement};
use palimpsest_core::digest::sha256;

/// Raters against a judge, and against each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scored {
    pub judge: String,
    #[serde(skip)]
    pub judge_short: String,
    /// Other judgings of the first run by the rubric of the sheet, whose verdicts are not counted here.
    pub other_judges: Vec<String>,
    /// Under which condition all answers were given: `plain`, ...
    pub condition: String,
    /// The best score; absent where answers are right or wrong.
    pub most: Option<u32>,
    pub items: usize,
    /// Items on which the judge gave no verdict: left out of every count.
    pub without_verdict: usize,
    /// Items whose verdict is a score between two whole ones, which raters cannot give: left out of every count, too.
    pub between: usize,
    /// True if a run is of version 0.1.0, whose verdicts do not say by which rubric they were given.
    pub rubric_unknown: bool,
    /// True if a run was judged by a wording of the rubric before the one that the raters read.
    pub earlier_wording: bool,
    /// True if the judge was asked in the same way everywhere: reasons in one place, thoughts as in the others.
    pub asked_alike: bool,
    pub raters: Vec<RaterScore>,
    pub pairs: Vec<RatersCompared>,
}

/// One rater against the judge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RaterScore {
    pub rater: String,
    /// Items rated unsure: left out of the counts.
    pub unsure: usize,
    pub missing: usize,
    /// The rows of the table: all items, then by dimension, by the split and by model.
    pub subsets: Vec<Subset>,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Subset {
    /// Grouping that it is a value of: `all`, `probe`, `type`, `model`.
    pub group: String,
    pub name: String,
    /// The rater as reference against the judge.
    pub counts: Counts,
}

/// Joint ratings of the same items by the reference and another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Counts {
    RightOrWrong(Agreement),
    Scores(ScoreAgreement),
}

impl Counts {
    /// Counts pairs of (reference, other): scores up to `most`, or 1 for right and 0 for wrong.
    fn of(pairs: impl IntoIterator<Item = (usize, usize)>, most: Option<u32>) -> Self {
        let pairs = pairs.into_iter();
        match most {
            Some(most) => Counts::Scores(ScoreAgreement::count(pairs, most as usize)),
            None => Counts::RightOrWrong(Agreement::count(pairs.map(|(a, b)| (a == 1, b == 1)))),
        }
    }
}

/// Two raters on the items that both rated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RatersCompared {
    pub first: String,
    pub second: String,
    /// The first as reference against the second.
    pub counts: Counts,
}

/// Scores `raters` by the verdicts of the judge that is meant, or of the one that came last, by the rubric that the raters read. `runs` are those of the key, in its order, with the
/// answers of its condition.
pub fn score(
    key: &Key,
    runs: &[RunFolder],
    judge: JudgeChoice<'_>,
    raters: &[Ratings],
) -> Result<Scored, AgreementError> {
    let judged = judges(key, runs, judge)?;
    let mut verdicts: Vec<Option<f64>> = Vec::with_capacity(key.items.len());
    for item in &key.items {
        let verdict = match (runs.get(item.run), judged.get(item.run)) {
            (Some(run), Some((judged, _))) => {
                check_answer(run, item)?;
                judged.get(AnswerKey::of(&item.case, &item.probe, &key.condition)).and_then(|row| {
                    match row.error {
                        None if key.most.is_some() => row.score,
                        None => row.correct.map(|correct| f64::from(u8::from(correct))),
                        Some(_) => None,
                    }
                })
            }
            _ => None,
        };
        verdicts.push(verdict);
    }
    let without_verdict = verdicts.iter().filter(|verdict| verdict.is_none()).count();
    let whole = |verdict: Option<f64>| Some(verdict.filter(|score| score.fract() == 0.0)? as usize);
    let verdicts: Vec<Option<usize>> = verdicts.into_iter().map(whole).collect();
    let between = verdicts.iter().filter(|verdict| verdict.is_none()).count() - without_verdict;
    let rater = |ratings: &Ratings| {
        let given: Vec<_> = key.items.iter().map(|item| ratings.get(&item.item)).collect();
        let rated: Vec<(&KeyItem, (usize, usize))> = key
            .items
            .iter()
            .zip(given.iter().zip(&verdicts))
            .filter_map(|(item, (rating, verdict))| Some((item, (rating.as_ref()?.given()?, (*verdict)?))))
            .collect();
        RaterScore {
            rater: ratings.rater.clone(),
            unsure: given.iter().flatten().filter(|rating| rating.given().is_none()).count(),
            missing: given.iter().filter(|rating| rating.is_none()).count(),
            subsets: subsets(key, &rated),
        }
    };
    let mut pairs = Vec::new();
    for (at, first) in raters.iter().enumerate() {
        for second in raters.iter().skip(at + 1) {
            let both =
                |item: &KeyItem| Some((first.get(&item.item)?.given()?, second.get(&item.item)?.given()?));
            let counts = Counts::of(key.items.iter().filter_map(both), key.most);
            pairs.push(RatersCompared { first: first.rater.clone(), second: second.rater.clone(), counts });
        }
    }
    Ok(Scored {
        judge: judged.first().map_or_else(String::new, |(judged, _)| judged.name.label.clone()),
        judge_short: judged.first().map_or_else(String::new, |(judged, _)| judged.name.short_label()),
        other_judges: judged.first().zip(runs.first()).map_or_else(Vec::new, |((shown, _), run)| {
            let others =
                run.judges().iter().filter(|name| *name != shown.name && shared(key, run, name).is_some());
            others.map(|name| name.label.clone()).collect()
        }),
        condition: label(&key.condition).to_owned(),
        most: key.most,
        items: key.items.len(),
        without_verdict,
        between,
        rubric_unknown: judged.iter().any(|(_, shared)| *shared == Shared::Unknown),
        earlier_wording: judged.iter().any(|(_, shared)| *shared == Shared::Earlier),
        asked_alike: judged
            .iter()
            .all(|(one, _)| judged.iter().all(|(other, _)| one.name.digest == other.name.digest)),
        raters: raters.iter().map(rater).collect(),
        pairs,
    })
}

/// Match of the judge's rubric with the raters'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    Same,
    /// By an earlier wording of the same name.
    Earlier,
    /// Nobody knows: version 0.1.0.
    Unknown,
}

/// True if a judge of a run went by the rubric of the sheet; `None` where it was another one.
fn shared(key: &Key, run: &RunFolder, judge: &JudgeName) -> Option<Shared> {
    let Some(digest) = &judge.digest else { return Some(Shared::Unknown) };
    if key.format == FORMAT_1 {
        // The digest of all that a judge is told, with reasons in one place; the same text with reasons elsewhere has another.
        let benchmark = named(&key.benchmark);
        let mut texts =
            benchmark.into_iter().flat_map(|benchmark| benchmark.rubrics).map(|rubric| rubric.earlier);
        let both = |text: &[&str]| text.contains(&digest.as_str()) && text.contains(&key.rubric.as_str());
        return (*digest == key.rubric || texts.any(both)).then_some(Shared::Same);
    }
    match run.rubrics.iter().find(|row| row.rubric == *digest) {
        Some(row) => (row.criteria == key.rubric).then_some(Shared::Same),
        None => (judge.rubric.is_some() && judge.rubric == key.rubric_name).then_some(Shared::Earlier),
    }
}

/// The verdicts on each run, all of one judge by the rubric that raters read.
fn judges<'a>(
    key: &Key,
    runs: &'a [RunFolder],
    judge: JudgeChoice<'_>,
) -> Result<Vec<(Judged<'a>, Shared)>, AgreementError> {
    let mut found: Vec<(Judged<'a>, Shared)> = Vec::new();
    for (index, (run, expected)) in runs.iter().zip(&key.runs).enumerate() {
        if run.header.identity_sha256 != expected.identity_sha256 {
            return Err(AgreementError::OtherRun { dir: run.dir.clone(), index });
        }
        let all = run.judged_by(judge)?;
        if all.is_empty() {
            return Err(AgreementError::NotJudged(run.dir.clone()));
        }
        let known: Vec<&str> = all.iter().map(|judged| judged.name.label.as_str()).collect();
        let known = known.join(", ");
        // The one that judged last, rather one that said something.
        let (said, silent): (Vec<_>, Vec<_>) = all.into_iter().rev().partition(Judged::said_something);
        let by_it = said.into_iter().chain(silent).find_map(|judged| {
            let shared = shared(key, run, judged.name)?;
            Some((judged, shared))
        });
        let Some((judged, shared)) = by_it else {
            let wanted = key.rubric_name.clone().unwrap_or_else(|| "of the sheet".to_owned());
            return Err(AgreementError::OtherRubric { dir: run.dir.clone(), wanted, known });
        };
        if let (Some(first), Some((other, _))) =
            (runs.first(), found.first().filter(|(other, _)| other.name.judge != judged.name.judge))
        {
            return Err(AgreementError::Judges {
                first: first.dir.clone(),
                first_judge: other.name.label.clone(),
                other: run.dir.clone(),
                other_judge: judged.name.label.clone(),
            });
        }
        found.push((judged, shared));
    }
    Ok(found)
}

/// Refuses an answer that is not the one that was rated.
fn check_answer(run: &RunFolder, item: &KeyItem) -> Result<(), AgreementError> {
    let row = run.answers.iter().find(|row| row.case == item.case && row.probe == item.probe);
    let answer = row.and_then(|row| row.answer.as_deref()).map(sha256);
    if answer.as_ref() == Some(&item.answer_sha256) {
        return Ok(());
    }
    Err(AgreementError::OtherAnswer {
        dir: run.dir.clone(),
        case: item.case.clone(),
        probe: item.probe.clone(),
    })
}

/// The rows of the table. Groups keep the order of the cases' probes, of the split's values and of the runs.
fn subsets(key: &Key, rated: &[(&KeyItem, (usize, usize))]) -> Vec<Subset> {
    let row = |group: &str, name: &str, takes: &dyn Fn(&KeyItem) -> bool| Subset {
        group: group.to_owned(),
        name: name.to_owned(),
        counts: Counts::of(rated.iter().filter(|(item, _)| takes(item)).map(|(_, pair)| *pair), key.most),
    };
    let mut rows = vec![row("all", "Overall", &|_| true)];
    for dimension in &key.groups.dimensions {
        rows.push(row(&key.groups.dimension, dimension, &|item| item.dimension == *dimension));
    }
    let splits = sorted_unique(key.items.iter().map(|item| &item.split));
    for split in splits {
        rows.push(row(&key.groups.split, split, &|item| item.split == *split));
    }
    for (index, run) in key.runs.iter().enumerate() {
        rows.push(row("model", &run.model, &|item| item.run == index));
    }
    rows
}
