//! `palimpsest table`: the results of any number of runs side by side, and the difference of two.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use serde_json::json;

use super::WrongUsage;
use crate::benchmarks::{Context, Graded, Table};
use crate::ground::sheet::Sheet;
use crate::lens::{AnalysedRun, Verdicts};
use crate::results::compare::{Comparison, compare};
use crate::results::graded::graded;
use crate::results::labels::{label_agreement, label_table};
use crate::results::metrics::AccuracyTable;
use crate::results::outcomes::{Counts, Outcomes};
use crate::results::overview::{Entry, overview, overview_records};
use crate::results::repeats::repeats;
use crate::results::retrieval::retrieval;
use crate::results::sheets::{self, ResultRow};
use crate::run::condition::Condition;
use crate::run::judge_name::{JudgeChoice, JudgeName};
use crate::run::judged::no_result;
use crate::run::labels::label_rows;
use crate::run::rows::AnswerRow;
use crate::run::store::RunFolder;

const EXAMPLES: &str = "\
Examples:
  palimpsest table runs/*
  palimpsest table runs/qwen runs/gpt --compare
  palimpsest table runs/five --repeats --format latex
  palimpsest table runs/stale-9b runs/knowme-9b runs/subtle-9b";

/// Results of any number of runs side by side: table 2 of the STALE paper, and with --repeats table 6.
///
/// Runs of several benchmarks have one table: a row a model, its overall numbers beside each other.
///
/// A row a run, condition, judge and rubric; a column a cell of the benchmark. Each accuracy stands above its counts and its 95%
/// interval. Reads run folders only: local models, endpoints and imported answers stand in one table. Denominators are
/// the plan's; what has no answer or no verdict counts as wrong. Percentages are rounded half up.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run folders, judged with `palimpsest judge`
    #[arg(required = true, num_args = 1.., value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// How to write it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The verdicts of this judge alone, with or without its rubric in brackets [default: a row each]
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// The verdicts by this rubric alone [default: a row each]
    #[arg(long, value_name = "NAME")]
    rubric: Option<String>,
    /// The answers of this condition alone, for example repeat-2, or an empty name for the plain one [default: a row each]
    #[arg(long, value_name = "NAME")]
    condition: Option<String>,
    /// Mean and standard deviation (n - 1) over the repetitions of `run --repeat` instead of a row each
    #[arg(long, conflicts_with_all = ["condition", "compare"])]
    repeats: bool,
    /// Also the difference of the two rows: exact McNemar test, Holm's correction over the cells, interval
    #[arg(long)]
    compare: bool,
    /// Compare the questions that both have, where they were not asked the same
    #[arg(long, requires = "compare")]
    common: bool,
}

/// A form of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum Format {
    /// Aligned columns
    #[default]
    Text,
    /// A table of GitHub's Markdown
    Md,
    /// A line a number, unrounded; with --compare the differences alone
    Csv,
    /// Everything, unrounded
    Json,
    /// A tabular with the rules of booktabs
    Latex,
}

impl Format {
    /// What stands above a table.
    fn title(self, title: &str) -> String {
        match self {
            Format::Md => format!("### {title}\n"),
            Format::Latex => format!("% {title}"),
            Format::Text | Format::Csv | Format::Json => format!("{title}\n"),
        }
    }

    fn write(self, sheet: &Sheet) -> anyhow::Result<String> {
        Ok(match self {
            Format::Text => sheet.text(),
            Format::Md => sheet.markdown(),
            Format::Latex => sheet.latex(),
            Format::Csv => sheet.csv()?,
            Format::Json => bail!("a sheet is not written as JSON"),
        })
    }
}

impl Args {
    /// Whose verdicts are meant.
    fn choice(&self) -> JudgeChoice<'_> {
        JudgeChoice { judge: self.judge.as_deref(), rubric: self.rubric.as_deref() }
    }
}

/// A run under one condition or, of repetitions, under several, by one judge.
struct Source {
    /// By condition; one, unless repetitions are put together.
    runs: Vec<AnalysedRun>,
    verdicts: Vec<Verdicts>,
    condition: String,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut sources = Vec::new();
    for (at, dir) in args.dirs.iter().enumerate() {
        if args.dirs.iter().take(at).any(|before| before == dir) {
            return Err(WrongUsage(format!("{} is given twice; give it once", dir.display())).into());
        }
        sources.extend(sources_of(dir, &args)?);
    }
    let of_benchmarks = one_benchmark(sources.iter().map(|source: &Source| {
        let run = source.first();
        (run.path(), run.benchmark().title())
    }));
    match of_benchmarks {
        Ok(()) => {}
        Err(refused) if args.compare || args.repeats => return Err(refused),
        Err(_) => return over_benchmarks(&sources, &args),
    }
    let names = names(&sources);
    let outcomes: Vec<Vec<Outcomes<'_>>> = sources.iter().map(Source::outcomes).collect();
    let rows: Vec<ResultRow> =
        sources.iter().zip(&names).zip(&outcomes).map(|((s, name), o)| s.row(name, o, &args)).collect();
    let comparison = args.compare.then(|| compared(&rows, &outcomes, &args)).transpose()?;
    let split = sources.first().map_or("", |source| source.first().benchmark().split());
    let own = own_tables(&sources, &args)?;
    let text = match (args.format, &comparison) {
        (Format::Json, _) => {
            let benchmark = sources.first().map(|source| source.first().benchmark().name());
            let mut all = json!({ "benchmark": benchmark, "split": split, "rows": rows });
            if let (Some(comparison), Some(all)) = (&comparison, all.as_object_mut()) {
                all.insert("comparison".to_owned(), json!(comparison));
            }
            if let (false, Some(all)) = (own.is_empty(), all.as_object_mut()) {
                let tables = own.iter().map(|table| (table.key.clone(), of_table(table)));
                all.insert("tables".to_owned(), serde_json::Value::Object(tables.collect()));
            }
            format!("{all:#}\n")
        }
        (Format::Csv, Some(comparison)) => sheets::difference_records(comparison).csv()?,
        (Format::Csv, None) if args.repeats => sheets::spread_records(&rows).csv()?,
        (Format::Csv, None) => sheets::accuracy_records(&rows).csv()?,
        (format, _) if args.repeats => format.write(&sheets::spreads(&rows, split))?,
        (format, None) => {
            let mut texts = vec![format.write(&sheets::accuracies(&rows))?];
            for Table { title, sheet, .. } in &own {
                texts.push(format!("{}\n{}", format.title(title), format.write(sheet)?));
            }
            texts.join("\n")
        }
        (format, Some(comparison)) => {
            let both = [sheets::accuracies(&rows), sheets::differences(comparison)];
            both.iter().map(|sheet| format.write(sheet)).collect::<Result<Vec<_>, _>>()?.join("\n")
        }
    };
    super::write_out(text.as_bytes())
}

/// A model's row over the benchmarks of its runs.
fn over_benchmarks(sources: &[Source], args: &Args) -> anyhow::Result<()> {
    let outcomes: Vec<Vec<Outcomes<'_>>> = sources.iter().map(Source::outcomes).collect();
    let models: Vec<String> = sources.iter().map(Source::model).collect();
    let rows: Vec<ResultRow> = sources
        .iter()
        .zip(&models)
        .zip(&outcomes)
        .map(|((source, model), outcomes)| source.row(model, outcomes, args))
        .collect();
    let entries: Vec<Entry<'_>> = sources
        .iter()
        .zip(&models)
        .zip(&rows)
        .map(|((source, model), row)| Entry { benchmark: source.first().benchmark().title(), model, row })
        .collect();
    let text = match args.format {
        Format::Json => {
            let rows = entries.iter().map(|entry| json!({ "benchmark": entry.benchmark, "row": entry.row }));
            format!("{:#}\n", json!({ "rows": rows.collect::<Vec<_>>() }))
        }
        Format::Csv => overview_records(&entries).csv()?,
        format => format.write(&overview(&entries))?,
    };
    super::write_out(text.as_bytes())
}

/// The tables that only the runs' benchmark has, of all their conditions and judges.
fn own_tables(sources: &[Source], args: &Args) -> anyhow::Result<Vec<Table>> {
    let Some(benchmark) = sources.first().map(|source| source.first().benchmark()) else {
        return Ok(Vec::new());
    };
    let folders = args.dirs.iter().map(|dir| RunFolder::read(dir)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = folders.iter().map(|folder| folder.dir.display().to_string()).collect();
    let rows: Vec<Graded<'_>> = (folders.iter().zip(&names))
        .flat_map(|(folder, name)| graded(folder, name))
        .filter(|row| {
            row.judge.map_or(args.choice() == JudgeChoice::default(), |label| args.choice().takes(label))
        })
        .collect();
    let mut tables = benchmark.tables(&rows);
    // What is cut belongs to the answers, whoever judged them.
    for note in cut_notes(&rows) {
        tables.iter_mut().for_each(|table| table.sheet.notes.push(note.clone()));
    }
    let runs: Vec<(&RunFolder, &str)> = folders.iter().zip(names.iter().map(String::as_str)).collect();
    tables.extend(retrieval(&runs));
    if let Some(check) = benchmark.label_check() {
        for (folder, name) in folders.iter().zip(&names) {
            let mut agreements = label_agreement(&check, &folder.plan, &label_rows(&folder.dir)?);
            agreements.retain(|agreement| args.judge.as_ref().is_none_or(|judge| agreement.judge == *judge));
            tables.extend(label_table(&check, name, &agreements));
        }
    }
    Ok(tables)
}

/// How many answers of each run and condition the limit of new tokens cut off.
fn cut_notes(rows: &[Graded<'_>]) -> Vec<String> {
    // An answer has a row for every judge.
    let mut seen = HashSet::new();
    let mut counts: Vec<((&str, &str), [usize; 2])> = Vec::new();
    for row in rows {
        let key = (row.run, row.condition);
        if !seen.insert((key, row.repetition, row.case, row.probe)) {
            continue;
        }
        let add = [usize::from(row.cut), usize::from(row.answered)];
        match counts.iter_mut().find(|(known, _)| *known == key) {
            Some((_, [cut, answered])) => {
                *cut += add[0];
                *answered += add[1];
            }
            None => counts.push((key, add)),
        }
    }
    let note = |((run, condition), [cut, answered]): ((&str, &str), [usize; 2])| {
        let of = if condition.is_empty() { run.to_owned() } else { format!("{run}, {condition}") };
        format!("{of}: {cut} of {answered} answers were cut at the limit of new tokens")
    };
    counts.into_iter().filter(|(_, [cut, _])| *cut > 0).map(note).collect()
}

/// A table as JSON: its title, and each row by the names of its columns.
fn of_table(Table { title, sheet, .. }: &Table) -> serde_json::Value {
    let name =
        |column: &crate::ground::sheet::Column| format!("{} {}", column.group, column.name).trim().to_owned();
    let row = |cells: &Vec<Vec<String>>| -> serde_json::Map<String, serde_json::Value> {
        sheet.columns.iter().zip(cells).map(|(column, cell)| (name(column), json!(cell.join(" ")))).collect()
    };
    json!({ "title": title, "rows": sheet.rows.iter().map(row).collect::<Vec<_>>(), "notes": sheet.notes })
}

/// What a folder gives rows for.
fn sources_of(dir: &Path, args: &Args) -> anyhow::Result<Vec<Source>> {
    let under = |condition: &str| AnalysedRun::open_condition(dir, condition);
    let identity = RunFolder::read(dir)?.header.identity;
    if let Some(name) = &args.condition {
        // Refuses one that the run has not.
        under(name)?;
    }
    let all = identity.conditions_or_plain().to_vec();
    // The conditions of each row.
    let mut groups: Vec<(String, Vec<&Condition>)> = Vec::new();
    for condition in &all {
        let base = if args.repeats { condition.base() } else { &condition.name };
        if args.condition.as_ref().is_some_and(|name| *name != condition.name) {
            continue;
        }
        match groups.iter_mut().find(|(name, _)| name == base) {
            Some((_, group)) => group.push(condition),
            None => groups.push((base.to_owned(), vec![condition])),
        }
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
            let of = |run: &AnalysedRun| match &judge {
                // A repetition may have none of this judge yet.
                Some(judge) if run.judges().contains(judge) => run.verdicts(Some(judge)),
                _ => Ok(Verdicts::default()),
            };
            let verdicts = runs.iter().map(of).collect::<Result<_, _>>()?;
            sources.push(Source { runs: runs.clone(), verdicts, condition: condition.clone() });
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
    fn first(&self) -> &AnalysedRun {
        // Every source is made of at least one.
        &self.runs[0]
    }

    /// The model, of an endpoint the one that it serves.
    fn model(&self) -> String {
        let name = &self.first().identity().model.name;
        let served = name.starts_with("http").then(|| name.rsplit_once('#')).flatten();
        served.map_or(name.clone(), |(_, model)| model.to_owned())
    }

    /// What of the history its condition shows.
    fn context(&self) -> Context {
        let all = self.first().identity().conditions_or_plain();
        all.iter()
            .find(|condition| condition.name == self.condition)
            .map_or(Context::Whole, |one| one.context)
    }

    fn judge(&self) -> Option<&JudgeName> {
        self.verdicts.iter().find_map(Verdicts::name)
    }

    /// By condition.
    fn outcomes(&self) -> Vec<Outcomes<'_>> {
        let judge = self.judge().map_or("", |name| name.judge.as_str());
        fn of<'a>(run: &'a AnalysedRun, verdicts: &Verdicts, judge: &str) -> Outcomes<'a> {
            Outcomes::of(run.benchmark(), run.cases(), run.answers(), verdicts.rows(), judge)
        }
        self.runs.iter().zip(&self.verdicts).map(|(run, verdicts)| of(run, verdicts, judge)).collect()
    }

    /// What a reader must know of the verdicts: a judge that tells something of one repetition apart tells something.
    fn warning(&self) -> Option<String> {
        let judged = self.verdicts.iter().filter(|verdicts| verdicts.judge.is_some());
        let warnings: Vec<Option<String>> = judged.map(Verdicts::warning).collect();
        if warnings.iter().any(Option::is_none) { None } else { warnings.into_iter().flatten().next() }
    }

    fn row(&self, name: &str, outcomes: &[Outcomes<'_>], args: &Args) -> ResultRow {
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
            dir: run.path().display().to_string(),
            model: run.identity().model.name.clone(),
            data: run.identity().dataset.clone(),
            condition: self.condition.clone(),
            judge: judge.map(|name| name.judge.clone()),
            rubric: judge.map(|name| name.in_brackets().to_owned()).unwrap_or_default(),
            rubric_sha256: judge.and_then(|name| name.digest.clone()),
            truncated: rows().filter(truncated).count(),
            cut: rows().filter(|row| row.reached_limit()).count(),
            cut_thoughts: rows().filter(cut_thought).count(),
            no_answer: sum(|total| total.expected - total.answered),
            no_verdict: sum(|total| total.answered - total.judged),
            expected: sum(|total| total.expected),
            table,
            repeats: (counts && args.repeats).then(|| repeats(outcomes)),
            warning: self.warning().filter(|_| no_result.is_none()),
            no_result,
        }
    }
}

/// The difference of the only two rows.
fn compared(rows: &[ResultRow], outcomes: &[Vec<Outcomes<'_>>], args: &Args) -> anyhow::Result<Comparison> {
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
            "{} has no verdicts to compare; judge it with `palimpsest judge {}`",
            row.name,
            row.dir
        );
    }
    let by = |row: &ResultRow| row.judged_by().unwrap_or_default();
    // What tells two ways of asking apart in one folder need not stand in the other's.
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
        "the judge was not told the same of {} and {}, although the rubric has one name; judge both again with this version",
        first.name,
        second.name
    );
    Ok(compare(of_first, of_second, (&first.name, &second.name), args.common)?)
}

/// Refuses runs of several benchmarks: their cells are not the same, so that they have no difference and no spread.
fn one_benchmark<P: AsRef<Path>>(
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

/// What the rows are called: the model, with what tells it apart from its like.
fn names(sources: &[Source]) -> Vec<String> {
    let with_condition = |source: &Source| match source.condition.as_str() {
        "" => source.model(),
        condition => format!("{} ({})", source.model(), source.context().named(condition)),
    };
    let with_folder =
        |source: &Source| format!("{} [{}]", with_condition(source), source.first().path().display());
    let plain: Vec<String> = sources.iter().map(with_condition).collect();
    // Rows of one folder and condition differ in their judge, which has a column then.
    let same_place =
        |a: &Source, b: &Source| a.first().path() == b.first().path() && a.condition == b.condition;
    let name = |(at, source): (usize, &Source)| {
        let mut others = sources.iter().zip(&plain).enumerate().filter(|(other, _)| *other != at);
        let like = others.any(|(_, (other, name))| Some(name) == plain.get(at) && !same_place(source, other));
        if like { with_folder(source) } else { with_condition(source) }
    };
    sources.iter().enumerate().map(name).collect()
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
