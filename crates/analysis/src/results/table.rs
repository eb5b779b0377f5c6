//! Side-by-side results of runs, and the difference of two: `palimpsest table`. A row is a run, judge and condition, or all repetitions of
//! a condition.

use std::path::Path;

use anyhow::{bail, ensure};
use serde_json::json;

pub use super::TableArgs;
use super::compare::{Comparison, compare};
use super::metrics::{AccuracyTable, repeats};
use super::outcomes::{Counts, Outcomes};
use super::overview::overview;
use super::own::{of_table, own_tables};
use super::sheets::{self, ResultRow};
use crate::lens::AnalysedRun;
use crate::records;
use palimpsest_data::benchmarks::Context;
use palimpsest_data::ground::order::{entry, unique};
use palimpsest_data::ground::sheet::Format;
use palimpsest_data::statistics::bounded::Intervals;
use palimpsest_run::progress::over;
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::judge_name::{JudgeChoice, JudgeName, short_judge};
use palimpsest_run::runs::judged::{Judged, no_result};
use palimpsest_run::runs::rows::AnswerRow;
use palimpsest_run::runs::setup::WrongUsage;
use palimpsest_run::runs::store::RunFolder;

pub fn text(args: &TableArgs) -> anyhow::Result<String> {
    let (mut folders, mut sources) = (Vec::new(), Vec::new());
    for (at, dir) in over(args.dirs.iter(), "reading runs").enumerate() {
        if args.dirs.iter().take(at).any(|before| before == dir) {
            return Err(WrongUsage(format!("{} is given twice; give it once", dir.display())).into());
        }
        let folder = RunFolder::read(dir)?;
        sources.extend(sources_of(&folder, args)?);
        folders.push(folder);
    }
    let lacks_paper = |source: &&Source| source.first().benchmark().paper_counts.is_none();
    if let (Intervals::Paper, Some(source)) = (args.intervals, sources.iter().find(lacks_paper)) {
        let benchmark = source.first().benchmark().title;
        let why = format!("--intervals paper: the paper of {benchmark} gives no intervals; leave it out");
        return Err(WrongUsage(why).into());
    }
    let benchmarks: Vec<(&Path, &str)> =
        sources.iter().map(|source| (source.first().path(), source.first().benchmark().title)).collect();
    let several = match one_benchmark(&benchmarks) {
        Err(refused) if args.compare || args.repeats => return Err(refused),
        refused => refused.is_err(),
    };
    let outcomes: Vec<Vec<Outcomes<'_>>> =
        over(sources.iter(), "computing intervals").map(|s| s.outcomes(args.intervals)).collect();
    let names = match several {
        true => sources.iter().map(|source| (source.model(), source.model())).collect(),
        false => names(&sources),
    };
    let rows = sources.iter().zip(names).zip(&outcomes);
    let rows: Vec<ResultRow> = rows.map(|((source, names), of)| source.row(names, of, args)).collect();
    if several {
        return Ok(match args.format {
            Format::Json => {
                let rows: Vec<_> =
                    rows.iter().map(|row| json!({ "benchmark": row.benchmark, "row": row })).collect();
                format!("{:#}\n", json!({ "rows": rows }))
            }
            Format::Csv => sheets::accuracy_records(&rows, true).csv()?,
            format => format.of(&overview(&rows))?,
        });
    }
    let comparison = args.compare.then(|| compared(&rows, &outcomes, args)).transpose()?;
    let benchmark = sources.first().map(|source| source.first().benchmark());
    let split = benchmark.map_or("", |benchmark| benchmark.split);
    let own = benchmark.map(|benchmark| own_tables(benchmark, &folders, args)).transpose()?;
    let own = own.unwrap_or_default();
    Ok(match (args.format, &comparison) {
        (Format::Json, _) => {
            let conditions = unique(rows.iter().map(|row| &row.condition));
            let name = benchmark.map(|benchmark| benchmark.name);
            let mut all =
                json!({ "benchmark": name, "split": split, "conditions": conditions, "rows": rows });
            if let Some(comparison) = &comparison {
                all["comparison"] = json!(comparison);
            }
            if !own.is_empty() {
                all["tables"] = own.iter().map(|table| (table.key.clone(), of_table(table))).collect();
            }
            format!("{all:#}\n")
        }
        (Format::Csv, Some(comparison)) => sheets::difference_records(comparison).csv()?,
        (Format::Csv, None) if args.repeats => sheets::spread_records(&rows).csv()?,
        (Format::Csv, None) => sheets::accuracy_records(&rows, false).csv()?,
        (format, _) if args.repeats => format.of(&sheets::spreads(&rows, split))?,
        (format, None) => {
            let mut texts = vec![format.of(&sheets::accuracies(&rows))?];
            for table in &own {
                texts.push(table.written(format)?);
            }
            texts.join("\n")
        }
        (format, Some(comparison)) => {
            [format.of(&sheets::accuracies(&rows))?, format.of(&sheets::differences(comparison))?].join("\n")
        }
    })
}

fn compared(
    rows: &[ResultRow],
    outcomes: &[Vec<Outcomes<'_>>],
    args: &TableArgs,
) -> anyhow::Result<Comparison> {
    let (&[first, second], &[of_first, of_second]) =
        (&rows.iter().collect::<Vec<_>>()[..], &outcomes.iter().flatten().collect::<Vec<_>>()[..])
    else {
        return Err(WrongUsage(format!(
            "--compare takes two rows, and these folders have {}; give two, and choose among conditions, judges and rubrics with \
             --condition, --judge and --rubric",
            rows.len()
        ))
        .into());
    };
    for row in [first, second] {
        if let Some(why) = &row.no_result {
            bail!("{} cannot be compared: {why}; judge it with an able judge", row.name);
        }
        ensure!(
            row.judge.is_some(),
            "{} has no verdicts to compare; judge it with `palimpsest judge {} --judge JUDGE`",
            row.name,
            row.dir
        );
    }
    let by = |row: &ResultRow| row.judged_by().unwrap_or_default();
    // Rubric suffixes are unique within a folder only.
    let one_rubric = first.rubric_sha256 == second.rubric_sha256;
    ensure!(
        first.judge == second.judge && (one_rubric || first.rubric == second.rubric),
        "{} is judged by {} and {} by {}; a difference needs one judge and rubric for both: choose them with --judge and --rubric, or \
         judge again",
        first.name,
        by(first),
        second.name,
        by(second)
    );
    ensure!(
        one_rubric,
        "the judge's prompts differ between {} and {}, although the rubric has one name; judge both again with this version",
        first.name,
        second.name
    );
    Ok(compare(of_first, of_second, (&first.name, &second.name), args.common)?)
}

/// A run and judge, under one condition or all its repetitions.
struct Source {
    runs: Vec<AnalysedRun>,
    judge: Option<String>,
    condition: String,
    /// True if its run has further conditions.
    several: bool,
}

fn sources_of(folder: &RunFolder, args: &TableArgs) -> anyhow::Result<Vec<Source>> {
    let chosen = folder.chosen_conditions(&args.condition)?;
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for condition in folder.header.identity.conditions_or_plain() {
        let base = if args.repeats { condition.base() } else { &condition.name };
        if chosen.contains(&condition.name) {
            entry(&mut groups, |(name, _)| *name == base, || (base, Vec::new())).1.push(&condition.name);
        }
    }
    if args.repeats && groups.iter().all(|(_, group)| group.len() < 2) {
        bail!(
            "{} has no repetitions, so it has no spread; run it with --repeat 5, or leave --repeats out",
            folder.dir.display()
        );
    }
    let choice = args.choice();
    let mut sources = Vec::new();
    let mut judges_of_all: Vec<String> = Vec::new();
    for (condition, group) in groups {
        let under = |name: &&str| AnalysedRun::of_condition(folder, name);
        let runs: Vec<AnalysedRun> = group.iter().map(under).collect::<Result<_, _>>()?;
        let own = unique(runs.iter().flat_map(AnalysedRun::judges));
        let mut judges: Vec<Option<String>> =
            own.iter().filter(|judge| choice.takes(judge)).cloned().map(Some).collect();
        judges_of_all = unique(judges_of_all.into_iter().chain(own));
        if judges.is_empty() {
            judges.push(None);
        }
        let several = folder.has_conditions() && !args.repeats;
        sources.extend(judges.into_iter().map(|judge| Source {
            runs: runs.clone(),
            judge,
            condition: condition.to_owned(),
            several,
        }));
    }
    if choice != JudgeChoice::default() && !judges_of_all.iter().any(|label| choice.takes(label)) {
        let known = if judges_of_all.is_empty() { "none".to_owned() } else { judges_of_all.join(", ") };
        bail!("{} holds no verdict of {choice}; its judges are: {known}", folder.dir.display());
    }
    Ok(sources)
}

impl Source {
    fn first(&self) -> &AnalysedRun {
        &self.runs[0]
    }

    /// Model name; for an endpoint, the served model.
    fn model(&self) -> String {
        short_judge(&self.first().identity().model.name).to_owned()
    }

    /// By condition; a repetition may lack this judge.
    fn judged(&self) -> Vec<Option<Judged<'_>>> {
        let judge = self.judge.as_deref();
        self.runs.iter().map(|run| judge.and_then(|judge| run.verdicts_as(judge))).collect()
    }

    fn judge(&self) -> Option<&JudgeName> {
        self.judged().into_iter().flatten().map(|judged| judged.name).next()
    }

    fn outcomes(&self, intervals: Intervals) -> Vec<Outcomes<'_>> {
        let judge = self.judge().map_or("", |name| name.judge.as_str());
        let runs = self.runs.iter().zip(self.judged());
        runs.map(|(run, judged)| {
            let verdicts = judged.iter().flat_map(Judged::rows);
            let records = records::join(run.cases(), run.condition(), run.answers(), verdicts);
            Outcomes { intervals, ..Outcomes::of(run.benchmark(), &records, judge) }
        })
        .collect()
    }

    fn shown(&self) -> String {
        let mut all = self.first().identity().conditions_or_plain().iter();
        let context = all.find(|one| one.name == self.condition).map_or(Context::Whole, |one| one.context);
        context.named(label(&self.condition))
    }

    fn row(
        &self,
        (name, system): (String, String),
        outcomes: &[Outcomes<'_>],
        args: &TableArgs,
    ) -> ResultRow {
        let run = self.first();
        let totals: Vec<Counts> = outcomes.iter().map(Outcomes::total).collect();
        let sum = |of: fn(&Counts) -> usize| totals.iter().map(of).sum::<usize>();
        let answers = |is: fn(&AnswerRow) -> bool| {
            self.runs.iter().flat_map(|run| run.answers()).filter(|row| is(row)).count()
        };
        let (judge, judged) = (self.judge(), self.judged());
        let no_result = judge.and_then(|name| no_result(&name.judge));
        // No caveat if the judge distinguishes within one repetition.
        let warnings: Option<Vec<String>> = judged.iter().flatten().map(Judged::warning).collect();
        let counts = judge.is_some() && no_result.is_none();
        let table = match (outcomes, judge) {
            ([one], Some(name)) if counts && !args.repeats => Some(AccuracyTable::of(one, &name.label)),
            _ => None,
        };
        ResultRow {
            benchmark: run.benchmark().title,
            name,
            system,
            dir: run.path().display().to_string(),
            model: run.identity().model.name.clone(),
            data: run.identity().dataset.clone(),
            condition: label(&self.condition).to_owned(),
            shown: self.shown(),
            judge: judge.map(|name| name.judge.clone()),
            rubric: judge.map(|name| name.in_brackets().to_owned()).unwrap_or_default(),
            rubric_sha256: judge.and_then(|name| name.digest.clone()),
            truncated: answers(|row| row.error.is_none() && row.was_cut_to_fit()),
            cut: answers(AnswerRow::reached_limit),
            cut_thoughts: answers(|row| row.error.is_some() && row.cut),
            missing: sum(|total| total.missing),
            no_answer: sum(|total| total.expected - total.answered - total.missing),
            no_verdict: sum(|total| total.answered - total.judged),
            settled: judged.iter().flatten().flat_map(Judged::rows).filter(|row| row.settled).count(),
            expected: sum(|total| total.expected),
            unreadable: outcomes.first().map_or(0, |one| one.unreadable),
            unscored: outcomes.first().map_or(0, |one| one.unscored),
            apart: outcomes.first().map(Outcomes::apart_in_words).unwrap_or_default(),
            table,
            repeats: (counts && args.repeats).then(|| repeats(outcomes)),
            warning: warnings.and_then(|all| all.into_iter().next()).filter(|_| no_result.is_none()),
            no_result,
        }
    }
}

/// Rejects runs of several benchmarks: they have no difference and no spread.
fn one_benchmark(runs: &[(&Path, &str)]) -> anyhow::Result<()> {
    let Some((first, benchmark)) = runs.first() else { return Ok(()) };
    let Some((other, its)) = runs.iter().find(|(_, its)| its != benchmark) else { return Ok(()) };
    let (first, other) = (first.display(), other.display());
    bail!(
        "{other} is a run of {its} and {first} of {benchmark}; a difference and a spread are of one benchmark"
    )
}

/// Row names with and without the condition: the model, plus fields that distinguish equal models.
fn names(sources: &[Source]) -> Vec<(String, String)> {
    // Rows of one folder differ in condition and judge, which have columns.
    let name = |source: &Source| {
        let (model, path) = (source.model(), source.first().path());
        let is_like = |other: &Source| other.model() == model && other.condition == source.condition;
        let like = sources.iter().any(|other| other.first().path() != path && is_like(other));
        let system = if like { format!("{model} [{}]", path.display()) } else { model.clone() };
        match source.condition.as_str() {
            "" if !source.several => (system.clone(), system),
            _ => (format!("{system} ({})", source.shown()), system),
        }
    };
    sources.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_two_benchmarks_are_refused_by_their_names() {
        let runs = [("a", "STALE"), ("b", "STALE"), ("c", "Logbook")];
        let runs = runs.map(|(path, benchmark)| (Path::new(path), benchmark));
        assert_eq!(
            one_benchmark(&runs).unwrap_err().to_string(),
            "c is a run of Logbook and a of STALE; a difference and a spread are of one benchmark"
        );
        assert!(one_benchmark(&runs[..2]).is_ok() && one_benchmark(&[]).is_ok());
    }
}
