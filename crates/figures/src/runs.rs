//! Collects the figures of run folders: one run, several of one benchmark, or one model over several benchmarks. Used by `figures` and
//! `report`.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::{Figure, MOST_BESIDE, Origin, Source};
use palimpsest_analysis::dose::{DoseError, DoseOptions, Doses};
use palimpsest_analysis::lens::causes::Causes;
use palimpsest_analysis::lens::selection::joined;
use palimpsest_analysis::lens::{Condition, Lens, LensError, Options, Scale, Selection, Study};
use palimpsest_analysis::losses::Losses;
use palimpsest_analysis::results::own::graded;
use palimpsest_data::benchmarks::Graded;
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::judge_name::JudgeChoice;
use palimpsest_run::runs::judged::say_which;
use palimpsest_run::runs::store::RunFolder;

#[derive(Debug, Clone, Copy)]
pub struct RunFigures<'a> {
    pub options: &'a Options,
    /// Empty: all conditions that repeat no other.
    pub conditions: &'a [String],
    /// Also draw differences between conditions.
    pub difference: bool,
}

/// All figures of run folders, and notes on omitted ones.
pub fn draw_runs(dirs: &[PathBuf], wanted: RunFigures<'_>) -> anyhow::Result<(Vec<Figure>, Vec<String>)> {
    let RunFigures { options, conditions: asked, difference } = wanted;
    let mut remarks = Vec::new();
    if difference && dirs.len() > 1 {
        bail!(
            "--difference holds the conditions of one run against each other; give one run folder, not {}",
            dirs.len()
        );
    }
    let opened: Result<Vec<Study>, LensError> =
        dirs.iter().map(|dir| Study::open(dir, asked, options)).collect();
    let studies = match opened {
        // Answers and verdicts have figures without attention.
        Err(error @ LensError::NoAttention { .. }) => {
            let mut figures = charts(dirs, options.judge.as_deref(), asked)?;
            figures.extend(of_memory(dirs, options.judge.as_deref(), asked)?);
            figures.extend(of_doses(dirs, asked)?);
            if figures.is_empty() {
                return Err(error.into());
            }
            return Ok((figures, vec![format!("{error}: only what answers and verdicts show is drawn")]));
        }
        opened => opened?,
    };
    for (dir, study) in dirs.iter().zip(&studies) {
        say_which(dir, study.judge.as_deref(), options.judge.as_deref());
    }
    let mut figures = match &studies[..] {
        [study] => {
            let mut figures = super::draw_study(study);
            if let Some(causes) = Causes::open(study)? {
                figures.extend(super::draw_causes(&causes, study));
            }
            if difference {
                figures.extend(against(study)?);
            }
            let many = study.measured().count();
            if many > MOST_BESIDE && asked.is_empty() {
                remarks.push(format!(
                    "{many} conditions are drawn apart; --condition A,B draws some of them side by side"
                ));
            }
            figures
        }
        several if one_benchmark(several) => after_conditions(several, together(dirs, several)),
        several => after_conditions(several, over_benchmarks(dirs, several)?),
    };
    if one_benchmark(&studies) {
        figures.extend(charts(dirs, options.judge.as_deref(), asked)?);
    }
    figures.extend(of_memory(dirs, options.judge.as_deref(), asked)?);
    figures.extend(of_doses(dirs, asked)?);
    Ok((figures, remarks))
}

/// Memory waterfall over all conditions; empty for several runs or selected conditions.
fn of_memory(dirs: &[PathBuf], judge: Option<&str>, asked: &[String]) -> anyhow::Result<Vec<Figure>> {
    let ([dir], []) = (dirs, asked) else { return Ok(Vec::new()) };
    let folder = RunFolder::read(dir)?;
    let Some(losses) = Losses::open(&folder, folder.benchmark()?, JudgeChoice::of(judge))? else {
        return Ok(Vec::new());
    };
    let origin = format!("{}, {}", losses.benchmark.title, folder_name(dir));
    Ok(vec![super::waterfall::memory_waterfall(&losses, &origin)])
}

/// Dose figures by factor; empty for several runs, other benchmarks, selected conditions, or answers without log-probabilities.
fn of_doses(dirs: &[PathBuf], asked: &[String]) -> anyhow::Result<Vec<Figure>> {
    let ([dir], []) = (dirs, asked) else { return Ok(Vec::new()) };
    match Doses::open(dir, &DoseOptions::default()) {
        Ok(doses) => Ok(super::draw_doses(&doses)),
        Err(DoseError::OtherBenchmark { .. } | DoseError::NoContrast { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn against(study: &Study) -> anyhow::Result<Vec<Figure>> {
    let figures = super::draw_differences(study);
    if figures.is_empty() {
        let dir = study.conditions.first().map(|condition| condition.run.path().display().to_string());
        bail!(
            "--difference needs two conditions with questions that were measured under both; {} has {}: make a run with --knockout or \
             --conditions, or name more with --condition",
            dir.unwrap_or_default(),
            study.selection.names.iter().map(|name| label(name)).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(figures)
}

/// Prefixes figure names with the selected conditions, so that selections do not overwrite each other.
fn after_conditions(studies: &[Study], mut figures: Vec<Figure>) -> Vec<Figure> {
    let prefix = studies.iter().map(|study| &study.selection.prefix).find(|prefix| !prefix.is_empty());
    for figure in &mut figures {
        figure.name = format!("{}{}", prefix.map_or("", String::as_str), figure.name);
    }
    figures
}

/// Benchmark-specific charts by one judge or all, under the requested conditions or all; empty for runs of several benchmarks.
pub fn charts(dirs: &[PathBuf], judge: Option<&str>, asked: &[String]) -> anyhow::Result<Vec<Figure>> {
    let folders = dirs.iter().map(|dir| RunFolder::read(dir)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = dirs.iter().map(|dir| folder_name(dir)).collect();
    let Some(first) = folders.first() else { return Ok(Vec::new()) };
    let benchmark = first.benchmark()?;
    for folder in &folders {
        if folder.benchmark()?.name != benchmark.name {
            return Ok(Vec::new());
        }
    }
    let select = |folder: &RunFolder| match asked {
        [] => Selection::all(&folder.header.identity, &folder.dir),
        _ => Selection::of(&folder.header.identity, &folder.dir, asked),
    };
    let selections = folders.iter().map(select).collect::<Result<Vec<_>, _>>()?;
    let of_folder = |(folder, selection, name)| {
        let (folder, selection, name): (&RunFolder, &Selection, &String) = (folder, selection, name);
        let all = folder.header.identity.conditions_or_plain().iter();
        let chosen: Vec<(&str, u32)> = all
            .filter(|condition| selection.names.contains(&condition.name))
            .map(|condition| (condition.base(), condition.repetition))
            .collect();
        let rows = graded(folder, name).into_iter();
        rows.filter(|row| chosen.contains(&(row.condition, row.repetition))).collect::<Vec<_>>()
    };
    let rows: Vec<Graded<'_>> = (folders.iter().zip(&selections).zip(&names))
        .flat_map(|((folder, selection), name)| of_folder((folder, selection, name)))
        .filter(|row| judge.is_none() || row.judge.is_some_and(|label| JudgeChoice::of(judge).takes(label)))
        .collect();
    let origin = format!("{}, {}", benchmark.title, names.join(", "));
    let charts = (benchmark.counts)(&rows).charts;
    let drawn = charts.iter().map(|chart| super::draw_chart(chart, &origin)).collect();
    let named = selections.iter().find(|selection| !selection.prefix.is_empty());
    let Some(selection) = named.or(selections.first()) else { return Ok(drawn) };
    let labels: Vec<&str> = selection.names.iter().map(|name| label(name)).collect();
    let plural = if labels.len() == 1 { "" } else { "s" };
    let (prefix, said) = match asked.is_empty() || selection.prefix.is_empty() {
        true => ("", String::new()),
        false => (&*selection.prefix, format!(" Condition{plural}: {}.", labels.join(", "))),
    };
    Ok(super::named(drawn, prefix, &said, &joined(&selection.names)))
}

fn together(dirs: &[PathBuf], studies: &[Study]) -> Vec<Figure> {
    let runs: Vec<(&Path, &Lens, Origin)> =
        dirs.iter().zip(studies).flat_map(|(dir, study)| runs_of(dir, study)).collect();
    let origins = told_apart(&runs);
    let sources = runs.iter().zip(&origins).map(|((_, lens, _), origin)| Source { lens, origin });
    super::draw_together(&sources.collect::<Vec<_>>())
}

/// Overview of several benchmarks; all runs must be of one model.
fn over_benchmarks(dirs: &[PathBuf], studies: &[Study]) -> anyhow::Result<Vec<Figure>> {
    let origin = |study: &Study| Origin::of(&study.conditions[0].run, study.judge.as_deref());
    let mut origins: Vec<Origin> = studies.iter().map(origin).collect();
    let mut others = dirs.iter().zip(studies).zip(&origins).skip(1);
    if let (Some(dir), Some(study), Some(first)) = (dirs.first(), studies.first(), origins.first())
        && let Some(((other, its), origin)) = others.find(|(_, origin)| origin.model != first.model)
    {
        bail!(
            "{} is a run of {} by {}, and {} of {} by {}; draw runs of several benchmarks by one model, or runs of one benchmark by \
             several models",
            dir.display(),
            study.benchmark.title,
            first.model,
            other.display(),
            its.benchmark.title,
            origin.model
        );
    }
    for ((origin, dir), study) in origins.iter_mut().zip(dirs).zip(studies) {
        let same = studies.iter().filter(|other| other.benchmark.name == study.benchmark.name);
        if same.count() > 1 {
            origin.model = folder_name(dir);
        }
    }
    let both: Vec<(&Study, &Origin)> = studies.iter().zip(&origins).collect();
    Ok(Scale::ALL.into_iter().map(|scale| super::measures::lifts(&both, scale)).collect())
}

fn runs_of<'a>(dir: &'a Path, study: &'a Study) -> Vec<(&'a Path, &'a Lens, Origin)> {
    let (named, several) = (study.selection.several, study.conditions.len() > 1);
    let run = |(condition, lens): (&'a Condition, &'a Lens)| {
        let mut origin = Origin::of(&condition.run, lens.judge.as_deref());
        if named {
            let model = origin.name.clone();
            origin = origin.under(label(&condition.name));
            origin.name = if several { format!("{} {model}", origin.name) } else { model };
        }
        (dir, lens, origin)
    };
    study.measured().map(run).collect()
}

/// Origins, with the folder added to ambiguous model names.
fn told_apart(runs: &[(&Path, &Lens, Origin)]) -> Vec<Origin> {
    let one = |(dir, _, origin): &(&Path, &Lens, Origin)| {
        let (same, mut origin) =
            (runs.iter().filter(|(.., other)| other.name == origin.name), origin.clone());
        if same.count() > 1 {
            let folder = folder_name(dir);
            origin.model = format!("{folder} {}", origin.model);
            origin.name = format!("{folder} {}", origin.name);
            origin.line = format!("{}: {}", dir.display(), origin.line);
        }
        origin
    };
    runs.iter().map(one).collect()
}

fn folder_name(dir: &Path) -> String {
    let folder = dir.file_name().map(|name| name.to_string_lossy().into_owned());
    folder.unwrap_or_else(|| dir.display().to_string())
}

fn one_benchmark(studies: &[Study]) -> bool {
    let name = |study: &Study| study.benchmark.name;
    studies.iter().all(|study| studies.first().map(name) == Some(name(study)))
}
