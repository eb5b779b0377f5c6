//! The rows of a table of runs: a run under one condition by one judge each, or all repetitions of a condition together.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::metrics::AccuracyTable;
use super::outcomes::{Counts, Outcomes};
use super::repeats::repeats;
use super::sheets::ResultRow;
use crate::benchmarks::Context;
use crate::ground::order::entry;
use crate::ground::sheet::Format;
use crate::lens::AnalysedRun;
use crate::run::condition::{Condition, label};
use crate::run::judge_name::{JudgeChoice, JudgeName};
use crate::run::judged::{Judged, no_result};
use crate::run::rows::AnswerRow;
use crate::run::store::RunFolder;
use crate::statistics::bounded::Intervals;

/// The runs of a table, and the table.
#[derive(Debug, clap::Args)]
pub struct TableArgs {
    /// The run folders, judged with `palimpsest judge`
    #[arg(required = true, num_args = 1.., value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Format; csv has a line a number, with --compare the differences alone
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// The verdicts of this judge alone, with or without its address, and its rubric in brackets [default: a row each]
    #[arg(long, value_name = "NAME")]
    pub judge: Option<String>,
    /// The verdicts by this rubric alone [default: a row each]
    #[arg(long, value_name = "NAME")]
    pub rubric: Option<String>,
    /// The answers under these conditions alone, for example plain,repeat-2 [default: a row each]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub condition: Vec<String>,
    /// Mean and standard deviation (n - 1) over the repetitions of `run --repeat` instead of a row each
    #[arg(long, conflicts_with_all = ["condition", "compare"])]
    pub repeats: bool,
    /// How 95% intervals are made; paper: as the benchmark's paper makes them (SubtleMemory's table 11)
    #[arg(long, value_enum, default_value_t, conflicts_with = "repeats")]
    pub intervals: Intervals,
    /// Also the difference of the two rows: exact McNemar test, Holm's correction over the cells, interval
    #[arg(long)]
    pub compare: bool,
    /// Compare the questions that both have, where they were not asked the same
    #[arg(long, requires = "compare")]
    pub common: bool,
}

impl TableArgs {
    /// Whose verdicts are meant.
    pub fn choice(&self) -> JudgeChoice<'_> {
        JudgeChoice { judge: self.judge.as_deref(), rubric: self.rubric.as_deref() }
    }
}

/// A run under one condition or, of repetitions, under several, by one judge.
pub(super) struct Source {
    /// By condition; one, unless repetitions are put together.
    runs: Vec<AnalysedRun>,
    judge: Option<String>,
    condition: String,
    /// True if its run has others.
    several: bool,
}

/// The rows of a run's folder that are asked for: by condition and judge.
pub(super) fn sources_of(dir: &Path, args: &TableArgs) -> anyhow::Result<Vec<Source>> {
    let under = |condition: &str| AnalysedRun::open_condition(dir, condition);
    let folder = RunFolder::read(dir)?;
    let chosen = folder.chosen_conditions(&args.condition)?;
    let all = folder.header.identity.conditions_or_plain().to_vec();
    // The conditions of each row.
    let mut groups: Vec<(String, Vec<&Condition>)> = Vec::new();
    for condition in &all {
        let base = if args.repeats { condition.base() } else { &condition.name };
        if !chosen.contains(&condition.name) {
            continue;
        }
        entry(&mut groups, |(name, _)| name == base, || (base.to_owned(), Vec::new())).1.push(condition);
    }
    if args.repeats && groups.iter().all(|(_, group)| group.len() < 2) {
        bail!(
            "{} has no repetitions, so it has no spread; run it with --repeat 5, or leave --repeats out",
            dir.display()
        );
    }
    let mut sources = Vec::new();
    let mut judges_of_all: Vec<String> = Vec::new();
    for (condition, group) in groups {
        let runs: Vec<AnalysedRun> =
            group.iter().map(|condition| under(&condition.name)).collect::<Result<_, _>>()?;
        let mut judges: Vec<Option<String>> = Vec::new();
        for judge in runs.iter().flat_map(AnalysedRun::judges) {
            if !judges_of_all.contains(&judge) {
                judges_of_all.push(judge.clone());
            }
            if args.choice().takes(&judge) && !judges.contains(&Some(judge.clone())) {
                judges.push(Some(judge));
            }
        }
        if judges.is_empty() {
            judges.push(None);
        }
        for judge in judges {
            let (condition, several) = (condition.clone(), folder.has_conditions() && !args.repeats);
            sources.push(Source { runs: runs.clone(), judge, condition, several });
        }
    }
    let choice = args.choice();
    if choice != JudgeChoice::default() && !judges_of_all.iter().any(|label| choice.takes(label)) {
        let known = if judges_of_all.is_empty() { "none".to_owned() } else { judges_of_all.join(", ") };
        bail!("{} holds no verdict of {choice}; its judges are: {known}", dir.display());
    }
    Ok(sources)
}

impl Source {
    pub(super) fn first(&self) -> &AnalysedRun {
        // Every source is made of at least one.
        &self.runs[0]
    }

    /// The model, of an endpoint the one that it serves.
    pub(super) fn model(&self) -> String {
        let name = &self.first().identity().model.name;
        let served = name.starts_with("http").then(|| name.rsplit_once('#')).flatten();
        served.map_or(name.clone(), |(_, model)| model.to_owned())
    }

    fn context(&self) -> Context {
        let all = self.first().identity().conditions_or_plain();
        all.iter()
            .find(|condition| condition.name == self.condition)
            .map_or(Context::Whole, |one| one.context)
    }

    /// The verdicts by condition; a repetition may have none of this judge yet.
    fn judged(&self) -> Vec<Option<Judged<'_>>> {
        let judge = self.judge.as_deref();
        self.runs.iter().map(|run| judge.and_then(|judge| run.verdicts_as(judge))).collect()
    }

    fn judge(&self) -> Option<&JudgeName> {
        self.judged().into_iter().flatten().map(|judged| judged.name).next()
    }

    /// By condition, with intervals made so.
    pub(super) fn outcomes(&self, intervals: Intervals) -> Vec<Outcomes<'_>> {
        let judge = self.judge().map_or("", |name| name.judge.as_str());
        let runs = self.runs.iter().zip(self.judged());
        runs.map(|(run, judged)| {
            let verdicts = judged.iter().flat_map(Judged::rows);
            let outcomes = Outcomes::of(run.benchmark(), run.cases(), run.answers(), verdicts, judge);
            Outcomes { intervals, ..outcomes }
        })
        .collect()
    }

    /// Caveat of the verdicts: a judge that distinguishes within one repetition is fine.
    fn warning(&self) -> Option<String> {
        let warnings: Vec<_> = self.judged().iter().flatten().map(Judged::warning).collect();
        if warnings.iter().any(Option::is_none) { None } else { warnings.into_iter().flatten().next() }
    }

    fn shown(&self) -> String {
        self.context().named(label(&self.condition))
    }

    pub(super) fn row(
        &self,
        (name, system): (&str, &str),
        outcomes: &[Outcomes<'_>],
        args: &TableArgs,
    ) -> ResultRow {
        let run = self.first();
        let totals: Vec<_> = outcomes.iter().map(Outcomes::total).collect();
        let sum = |of: fn(&Counts) -> usize| totals.iter().map(of).sum::<usize>();
        let truncated = |row: &&AnswerRow| row.error.is_none() && row.was_cut_to_fit();
        let cut_thought = |row: &&AnswerRow| row.error.is_some() && row.cut;
        let rows = || self.runs.iter().flat_map(|run| run.answers());
        let judge = self.judge();
        let no_result = judge.and_then(|name| no_result(&name.judge));
        let counts = judge.is_some() && no_result.is_none();
        let table = match (outcomes, judge) {
            ([one], Some(name)) if counts && !args.repeats => Some(AccuracyTable::of(one, &name.label)),
            _ => None,
        };
        ResultRow {
            name: name.to_owned(),
            system: system.to_owned(),
            dir: run.path().display().to_string(),
            model: run.identity().model.name.clone(),
            data: run.identity().dataset.clone(),
            condition: label(&self.condition).to_owned(),
            shown: self.shown(),
            judge: judge.map(|name| name.judge.clone()),
            rubric: judge.map(|name| name.in_brackets().to_owned()).unwrap_or_default(),
            rubric_sha256: judge.and_then(|name| name.digest.clone()),
            truncated: rows().filter(truncated).count(),
            cut: rows().filter(|row| row.reached_limit()).count(),
            cut_thoughts: rows().filter(cut_thought).count(),
            missing: sum(|total| total.missing),
            no_answer: sum(|total| total.expected - total.answered - total.missing),
            no_verdict: sum(|total| total.answered - total.judged),
            settled: self.judged().iter().flatten().flat_map(Judged::rows).filter(|row| row.settled).count(),
            expected: sum(|total| total.expected),
            unreadable: outcomes.first().map_or(0, |one| one.unreadable),
            unscored: outcomes.first().map_or(0, |one| one.unscored),
            apart: outcomes.first().map(Outcomes::apart_in_words).unwrap_or_default(),
            table,
            repeats: (counts && args.repeats).then(|| repeats(outcomes)),
            warning: self.warning().filter(|_| no_result.is_none()),
            no_result,
        }
    }
}

/// Refuses runs of several benchmarks: their cells are not the same, so that they have no difference and no spread.
pub(super) fn one_benchmark<P: AsRef<Path>>(
    mut runs: impl Iterator<Item = (P, impl Display + PartialEq)>,
) -> anyhow::Result<()> {
    let Some((first, benchmark)) = runs.next() else { return Ok(()) };
    if let Some((other, its)) = runs.find(|(_, its)| *its != benchmark) {
        let (first, other) = (first.as_ref().display(), other.as_ref().display());
        bail!(
            "{other} is a run of {its} and {first} of {benchmark}; a difference and a spread are of one benchmark"
        );
    }
    Ok(())
}

/// Names of the rows with and without their condition: the model, with the fields that tell it apart from its like.
pub(super) fn names(sources: &[Source]) -> Vec<(String, String)> {
    let with_condition = |system: &str, source: &Source| match source.condition.as_str() {
        "" if !source.several => system.to_owned(),
        _ => format!("{system} ({})", source.shown()),
    };
    // Rows of one folder differ in condition and judge, which have columns then.
    let name = |source: &Source| {
        let (model, path) = (source.model(), source.first().path());
        let is_like = |other: &Source| other.model() == model && other.condition == source.condition;
        let like = sources.iter().any(|other| other.first().path() != path && is_like(other));
        let of_folder = || format!("{model} [{}]", path.display());
        let system = if like { of_folder() } else { model.clone() };
        (with_condition(&system, source), system)
    };
    sources.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_two_benchmarks_are_refused_by_their_names() {
        let refused = one_benchmark([("a", "STALE"), ("b", "STALE"), ("c", "Logbook")].into_iter());
        assert_eq!(
            refused.unwrap_err().to_string(),
            "c is a run of Logbook and a of STALE; a difference and a spread are of one benchmark"
        );
        assert!(one_benchmark([("a", "STALE"), ("b", "STALE")].into_iter()).is_ok());
        assert!(one_benchmark(std::iter::empty::<(&str, &str)>()).is_ok());
    }
}
