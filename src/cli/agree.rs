//! `palimpsest agree`: rating sheets for people, and their agreement with a judge.

use std::path::{Path, PathBuf};

use crate::agreement::key::Key;
use crate::agreement::ratings::Ratings;
use crate::agreement::{self, Draw, RubricChoice, sheet};
use crate::ground::sheet::Format;
use crate::runs::condition::{label, stored};
use crate::runs::judge_name::JudgeChoice;
use crate::runs::store::RunFolder;

const EXAMPLES: &str = "\
Examples:
  palimpsest agree draw runs/a runs/b --out agreement --per-cell 20
  palimpsest agree score agreement --ratings ratings.json --judge local:qwen3.5-27b";

/// Compare a judge with human raters (STALE, appendix E.3).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Draw(DrawArgs),
    Score(ScoreArgs),
}

const DRAW_EXAMPLES: &str = "\
Examples:
  palimpsest agree draw runs/a runs/b --out agreement
  palimpsest agree draw runs/quickstart --per-cell 4 --out agreement
  palimpsest agree draw runs/a --rubric strict --out agreement";

/// Draw answers and write a sheet for raters: sheet.csv, sheet.html, and key.json, which raters do not get.
///
/// The sample is stratified: --per-cell cases, each with all its questions, of every run and every value of the benchmark's split (STALE:
/// type). If a judge sees each question by itself (KnowMe-Bench), --per-cell questions of every run and task. The sheet names the
/// condition, but neither model nor verdict, and its order is random.
///
/// Raters read the rubric of the runs' last judge (its judge.j2, if it had one), or the benchmark's default if no run is judged.
#[derive(Debug, clap::Args)]
#[command(after_help = DRAW_EXAMPLES)]
struct DrawArgs {
    /// Run folders, one per model.
    #[arg(required = true, value_name = "DIR")]
    runs: Vec<PathBuf>,
    /// Folder to write; it must not hold a sheet.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Cases per run and value of the split, or questions per run and group.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = super::positive)]
    per_cell: usize,
    /// Seed of the draw and of the order.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The answers of this condition, for example repeat-2 [default: plain, or the first of a run without it].
    #[arg(long, value_name = "NAME")]
    condition: Option<String>,
    /// Raters read the rubric of this judge [default: the last judge].
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// Raters read this rubric: one of the benchmark, or one that a run was judged by.
    #[arg(long, value_name = "NAME")]
    rubric: Option<String>,
    /// Raters read the judge.j2 of this folder, for runs that are judged later.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["judge", "rubric"])]
    prompts: Option<PathBuf>,
}

const SCORE_EXAMPLES: &str = "\
Examples:
  palimpsest agree score agreement --ratings ratings.json
  palimpsest agree score agreement --ratings anna.csv --ratings ben.json --format latex";

/// Compare the judge's verdicts with the ratings: agreement, kappa, precision, recall, F1 and error rates, over all items and by
/// question, type and model (STALE, table 7). Scores are compared by agreement, agreement within one, and kappa, plain and quadratic.
///
/// The rating is the truth and the judge's `correct` the positive class. Items that are unsure, unrated or without a verdict are left out
/// and counted.
#[derive(Debug, clap::Args)]
#[command(after_help = SCORE_EXAMPLES)]
struct ScoreArgs {
    /// Folder that `agree draw` wrote.
    folder: PathBuf,
    /// Ratings saved by sheet.html, or the filled-in sheet.csv; once per rater.
    #[arg(long, required = true, value_name = "FILE")]
    ratings: Vec<PathBuf>,
    /// The judge, with or without its address, and its rubric in brackets [default: the last one by the sheet's rubric].
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// The sheet's condition; a sheet of another condition is refused [default: the sheet's].
    #[arg(long, value_name = "NAME")]
    condition: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Draw(args) => draw(&args),
        Action::Score(args) => score(&args),
    }
}

fn read(dir: &Path, condition: &str) -> anyhow::Result<RunFolder> {
    let folder = RunFolder::read(dir)?;
    folder.chosen_conditions(&[condition.to_owned()])?;
    Ok(folder.condition(condition)?)
}

fn draw(args: &DrawArgs) -> anyhow::Result<()> {
    let DrawArgs { runs, out, per_cell, seed, condition, judge, rubric, prompts } = args;
    let Some(first) = runs.first() else { return Ok(()) };
    let first = RunFolder::read(first)?;
    let names = first.header.identity.condition_names();
    let usual = names.first().copied().filter(|_| !names.contains(&"")).unwrap_or_default();
    let condition = condition.as_deref().map_or(usual, stored);
    let runs: Vec<RunFolder> = runs.iter().map(|dir| read(dir, condition)).collect::<Result<_, _>>()?;
    let benchmark = first.benchmark()?;
    let how = Draw { per_cell: *per_cell, seed: *seed };
    let template = prompts.as_deref().map(super::judge::own_template).transpose()?;
    let choice =
        RubricChoice { judge: judge.as_deref(), rubric: rubric.as_deref(), template: template.as_deref() };
    let rubric = agreement::raters_rubric(benchmark, &runs, choice)?;
    let drawn = agreement::draw(benchmark, &runs, condition, how, &rubric)?;
    sheet::write(out, benchmark.title, &drawn)?;
    let (items, out) = (drawn.items.len(), out.display());
    super::say(format_args!(
        "{out}: {items} items of {} runs under {}, by the rubric {}",
        runs.len(),
        label(condition),
        rubric.name
    ))?;
    let others: Vec<&str> = names.iter().filter(|name| **name != condition).map(|name| label(name)).collect();
    if !others.is_empty() {
        super::say(format_args!(
            "answers under {} are on no sheet: draw one of them with --condition",
            others.join(", ")
        ))?;
    }
    super::say(format_args!(
        "give raters {out}/{} or {out}/{}, and keep {out}/key.json\nnext: palimpsest agree score {out} --ratings FILE",
        sheet::HTML,
        sheet::CSV
    ))
}

fn score(args: &ScoreArgs) -> anyhow::Result<()> {
    let ScoreArgs { folder, ratings, judge, condition, format } = args;
    let key = Key::read(folder)?;
    if let Some(asked) = condition.as_deref().filter(|asked| stored(asked) != key.condition) {
        let why = format!(
            "the sheet in {} has condition {}, and --condition names {}: ratings belong to the drawn answers; draw a sheet with \
             `palimpsest agree draw --condition {}`",
            folder.display(),
            label(&key.condition),
            label(asked),
            label(asked)
        );
        return super::wrong(why);
    }
    let raters: Vec<Ratings> =
        ratings.iter().map(|path| Ratings::read(path, &key)).collect::<Result<_, _>>()?;
    let runs: Vec<RunFolder> =
        key.runs.iter().map(|run| read(&run.dir, &key.condition)).collect::<Result<_, _>>()?;
    let scored = agreement::score(&key, &runs, JudgeChoice::of(judge.as_deref()), &raters)?;
    super::write_out(scored.written(*format)?.as_bytes())
}
