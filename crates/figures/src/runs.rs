//! Collects the figures of run folders: one run, several of one benchmark, or one model over several benchmarks. Used by `figures` and
//! `report`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::{Figure, MOST_BESIDE, Origin, Source, look};
use palimpsest_analysis::dose::{DoseError, DoseOptions, Doses};
use palimpsest_analysis::evict::Evictions;
use palimpsest_analysis::lens::causes::Causes;
use palimpsest_analysis::lens::selection::joined;
use palimpsest_analysis::lens::{Condition, Lens, LensError, Options, Scale, Selection, Study};
use palimpsest_analysis::losses::Losses;
use palimpsest_analysis::results::own::graded;
use palimpsest_data::benchmarks::Graded;
use palimpsest_run::runs::condition::{Condition as RunCondition, label};
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
    let judge = options.judge.as_deref();
    if difference && dirs.len() > 1 {
        bail!(
            "--difference holds the conditions of one run against each other; give one run folder, not {}",
            dirs.len()
        );
    }
    let others = || -> anyhow::Result<Vec<Figure>> {
        let mut figures = charts(dirs, judge, asked)?;
        // Memory systems, doses and evictions belong to a whole run.
        if let ([dir], []) = (dirs, asked) {
            figures.extend(of_memory(dir, judge)?);
            figures.extend(of_doses(dir)?);
            let folder = RunFolder::read(dir)?;
            let evictions = Evictions::open(&folder, folder.benchmark()?, JudgeChoice::of(judge))?;
            figures.extend(evictions.iter().flat_map(super::evict::of_evictions));
        }
        Ok(figures)
    };
    let opened: Result<Vec<Study>, LensError> =
        dirs.iter().map(|dir| Study::open(dir, asked, options)).collect();
    let studies = match opened {
        // Answers and verdicts have figures without attention.
        Err(error @ LensError::NoAttention { .. }) => {
            let figures = others()?;
            if figures.is_empty() {
                return Err(error.into());
            }
            return Ok((figures, vec![format!("{error}: only what answers and verdicts show is drawn")]));
        }
        opened => opened?,
    };
    for (dir, study) in dirs.iter().zip(&studies) {
        say_which(dir, study.judge.as_deref(), judge);
    }
    let known: BTreeSet<&str> = studies.iter().flat_map(Study::measures).map(|measure| measure.key).collect();
    if let Some(unknown) = look::current().measures.iter().find(|key| !known.contains(key.as_str())) {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        bail!(
            "--measures names `{unknown}`; measured are: {}",
            if known.is_empty() { "none" } else { &known }
        );
    }
    let mut remarks = Vec::new();
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
        several => {
            let name = several[0].benchmark.name;
            let mut figures = match several.iter().all(|study| study.benchmark.name == name) {
                true => together(dirs, several),
                false => over_benchmarks(dirs, several)?,
            };
            // Selections of conditions do not overwrite each other.
            let prefix =
                several.iter().map(|study| &study.selection.prefix).find(|prefix| !prefix.is_empty());
            for figure in &mut figures {
                figure.name = format!("{}{}", prefix.map_or("", String::as_str), figure.name);
            }
            figures
        }
    };
    figures.extend(others()?);
    Ok((figures, remarks))
}

/// Memory waterfall over all conditions.
fn of_memory(dir: &Path, judge: Option<&str>) -> anyhow::Result<Option<Figure>> {
    let folder = RunFolder::read(dir)?;
    let losses = Losses::open(&folder, folder.benchmark()?, JudgeChoice::of(judge))?;
    let origin = |losses: &Losses| format!("{}, {}", losses.benchmark.title, folder_name(dir));
    Ok(losses.map(|losses| super::waterfall::memory_waterfall(&losses, &origin(&losses))))
}

/// Dose figures by factor; empty for other benchmarks and answers without log-probabilities.
fn of_doses(dir: &Path) -> anyhow::Result<Vec<Figure>> {
    match Doses::open(dir, &DoseOptions::default()) {
        Ok(doses) => Ok(super::draw_doses(&doses)),
        Err(DoseError::OtherBenchmark { .. } | DoseError::NoContrast { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn against(study: &Study) -> anyhow::Result<Vec<Figure>> {
    let figures = super::draw_differences(study);
    if figures.is_empty() {
        bail!(
            "--difference needs two conditions with questions that were measured under both; {} has {}: make a run with --knockout or \
             --conditions, or name more with --condition",
            study.folder.dir.display(),
            study.selection.names.iter().map(|name| label(name)).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(figures)
}

/// Benchmark-specific charts by one judge or all, under the requested conditions or all; empty for runs of several benchmarks.
pub fn charts(dirs: &[PathBuf], judge: Option<&str>, asked: &[String]) -> anyhow::Result<Vec<Figure>> {
    let folders = dirs.iter().map(|dir| RunFolder::read(dir)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = dirs.iter().map(|dir| folder_name(dir)).collect();
    let Some(first) = folders.first() else { return Ok(Vec::new()) };
    let benchmark = first.benchmark()?;
    let (mut selections, mut rows) = (Vec::new(), Vec::<Graded<'_>>::new());
    for (folder, name) in folders.iter().zip(&names) {
        if folder.benchmark()?.name != benchmark.name {
            return Ok(Vec::new());
        }
        let identity = &folder.header.identity;
        let selection = match asked {
            [] => Selection::all(identity, &folder.dir)?,
            _ => Selection::of(identity, &folder.dir, asked)?,
        };
        let chosen = |row: &Graded<'_>| {
            let own = |one: &RunCondition| {
                (one.base(), one.repetition) == (row.condition, row.repetition)
                    && selection.names.contains(&one.name)
            };
            identity.conditions_or_plain().iter().any(own)
                && (judge.is_none() || row.judge.is_some_and(|label| JudgeChoice::of(judge).takes(label)))
        };
        rows.extend(graded(folder, name).into_iter().filter(chosen));
        selections.push(selection);
    }
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
    // The folder tells runs of one model apart.
    let origin = |(dir, _, origin): &(&Path, &Lens, Origin)| {
        let same = runs.iter().filter(|(.., other)| other.name == origin.name).count();
        let folder = folder_name(dir);
        match same {
            1 => origin.clone(),
            _ => Origin {
                model: format!("{folder} {}", origin.model),
                name: format!("{folder} {}", origin.name),
                line: format!("{}: {}", dir.display(), origin.line),
                condition: origin.condition.clone(),
            },
        }
    };
    let origins: Vec<Origin> = runs.iter().map(origin).collect();
    let sources = runs.iter().zip(&origins).map(|((_, lens, _), origin)| Source { lens, origin });
    super::draw_together(&sources.collect::<Vec<_>>())
}

/// Overview of several benchmarks; all runs must be of one model.
fn over_benchmarks(dirs: &[PathBuf], studies: &[Study]) -> anyhow::Result<Vec<Figure>> {
    let origin = |study: &Study| Origin::of(&study.conditions[0].run, study.judge.as_deref());
    let mut origins: Vec<Origin> = studies.iter().map(origin).collect();
    if let Some(at) = origins.iter().position(|origin| origin.model != origins[0].model) {
        bail!(
            "{} is a run of {} by {}, and {} of {} by {}; draw runs of several benchmarks by one model, or runs of one benchmark by \
             several models",
            dirs[0].display(),
            studies[0].benchmark.title,
            origins[0].model,
            dirs[at].display(),
            studies[at].benchmark.title,
            origins[at].model
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

fn folder_name(dir: &Path) -> String {
    let folder = dir.file_name().map(|name| name.to_string_lossy().into_owned());
    folder.unwrap_or_else(|| dir.display().to_string())
}
