//! `palimpsest figures`: the figures of a run, as SVG and PNG.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::lens::Analysis;
use crate::figures::{self, Origin, Source};
use crate::lens::{AnalysedRun, Lens};

/// The figures of a run, as SVG and PNG; of several runs, side by side.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder. Several are drawn side by side: curves and ratios over layers, on the same axes.
    #[arg(required = true, value_name = "DIR")]
    pub(super) dirs: Vec<PathBuf>,
    /// Where the figures go [default: DIR/figures]; needed for several runs.
    #[arg(long, value_name = "FOLDER")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) analysis: Analysis,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { dirs, out, analysis } = args;
    let out = match (out, &dirs[..]) {
        (Some(out), _) => out,
        (None, [dir]) => dir.join("figures"),
        (None, _) => {
            bail!("{} runs were given and no folder for their figures; add --out FOLDER", dirs.len())
        }
    };
    let runs: Vec<(Lens, Origin)> =
        dirs.iter().map(|dir| opened(dir, &analysis)).collect::<anyhow::Result<_>>()?;
    let figures = match &runs[..] {
        [(lens, origin)] => figures::draw_all(lens, origin)?,
        _ => {
            let origins = told_apart(&dirs, &runs);
            let sources = runs.iter().zip(&origins);
            let sources: Vec<Source<'_>> =
                sources.map(|((lens, _), origin)| Source { lens, origin }).collect();
            one_benchmark(&dirs, &sources)?;
            figures::draw_together(&sources)?
        }
    };
    figures::write(&figures, &out)?;
    for figure in &figures {
        super::say(format_args!("{}: {}", figure.name, figure.title))?;
    }
    super::say(format_args!(
        "wrote {} figures (svg, png, csv) and captions.json to {}",
        figures.len(),
        out.display()
    ))?;
    Ok(())
}

fn opened(dir: &Path, analysis: &Analysis) -> anyhow::Result<(Lens, Origin)> {
    let folder = AnalysedRun::open_condition(dir, &analysis.condition)?;
    let lens = Lens::of(&folder, &analysis.clone().options())?;
    let origin = Origin::of(&folder, lens.judge.as_deref());
    Ok((lens, origin))
}

/// The runs' origins, with the folder in the name of a model that made several of them.
fn told_apart(dirs: &[PathBuf], runs: &[(Lens, Origin)]) -> Vec<Origin> {
    let one = |(dir, (_, origin)): (&PathBuf, &(Lens, Origin))| {
        let same = runs.iter().filter(|(_, other)| other.model == origin.model).count();
        let mut origin = origin.clone();
        if same > 1 {
            let folder = dir.file_name().map(|name| name.to_string_lossy().into_owned());
            origin.model =
                format!("{} {}", folder.unwrap_or_else(|| dir.display().to_string()), origin.model);
            origin.line = format!("{}: {}", dir.display(), origin.line);
        }
        origin
    };
    dirs.iter().zip(runs).map(one).collect()
}

/// Refuses runs of several benchmarks, whose curves are of different things.
fn one_benchmark(dirs: &[PathBuf], sources: &[Source<'_>]) -> anyhow::Result<()> {
    let name = |source: &Source<'_>| source.lens.benchmark.name();
    let Some(first) = sources.first().map(name) else { return Ok(()) };
    let mut others = dirs.iter().zip(sources).filter(|(_, source)| name(source) != first);
    match (dirs.first(), others.next()) {
        (Some(dir), Some((other, source))) => bail!(
            "{} is a run of {first} and {} of {}; draw runs of one benchmark together",
            dir.display(),
            other.display(),
            name(source)
        ),
        _ => Ok(()),
    }
}
