//! `palimpsest table`: the results of any number of runs side by side, and the difference of two.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use serde_json::json;

use super::WrongUsage;
use crate::benchmarks::{Context, Graded, Table};
use crate::ground::sheet::Format;
use crate::lens::AnalysedRun;
use crate::results::compare::{Comparison, compare};
use crate::results::graded::graded;
use crate::results::labels::{label_agreement, label_table};
use crate::results::metrics::AccuracyTable;
use crate::results::outcomes::{Counts, Outcomes};
use crate::results::overview::{Entry, overview, overview_records};
use crate::results::repeats::repeats;
use crate::results::retrieval::retrieval;
use crate::results::sheets::{self, ResultRow};
use crate::run::condition::{Condition, label};
use crate::run::judge_name::{JudgeChoice, JudgeName, short_judges};
use crate::run::judged::{Judged, no_result};
use crate::run::labels::label_rows;
use crate::run::rows::AnswerRow;
use crate::run::store::RunFolder;
use crate::why;

const EXAMPLES: &str = "\
Examples:
  palimpsest table runs/*
  palimpsest table runs/qwen runs/gpt --compare
  palimpsest table runs/qwen --condition plain,knockout-query-old --compare
  palimpsest table runs/five --repeats --format latex
  palimpsest table runs/mem0 --memory
  palimpsest table runs/stale-9b runs/knowme-9b runs/subtle-9b";

/// Results of any number of runs side by side: table 2 of the STALE paper, and with --repeats table 6.
///
/// Runs of several benchmarks have one table: a row a model, its overall numbers beside each other.
///
/// A row a run, condition and judging: a judge by a rubric, asked in one way. A column a cell of the benchmark. Each accuracy stands above
/// its counts and its 95% interval. Reads run folders only: local models, endpoints and imported answers stand in one table.
/// Denominators are the plan's; what has no answer or no verdict counts as wrong, and what was not asked yet is counted as missing.
/// Percentages are rounded half up.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run folders, judged with `palimpsest judge`
    #[arg(required = true, num_args = 1.., value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Format; csv has a line a number, with --compare the differences alone
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The verdicts of this judge alone, with or without its address, and its rubric in brackets [default: a row each]
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// The verdicts by this rubric alone [default: a row each]
    #[arg(long, value_name = "NAME")]
    rubric: Option<String>,
    /// The answers under these conditions alone, for example plain,repeat-2 [default: a row each]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    condition: Vec<String>,
    /// Mean and standard deviation (n - 1) over the repetitions of `run --repeat` instead of a row each
    #[arg(long, conflicts_with_all = ["condition", "compare"])]
    repeats: bool,
    /// Also the difference of the two rows: exact McNemar test, Holm's correction over the cells, interval
    #[arg(long)]
    compare: bool,
    /// Compare the questions that both have, where they were not asked the same
    #[arg(long, requires = "compare")]
    common: bool,
    /// The losses of memory systems instead: facts written, kept, retrieved, shown, attended and used, a row a system, type and probe
    #[arg(long, conflicts_with_all = ["condition", "repeats", "compare"])]
    memory: bool,
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
    /// Label of the judge.
    judge: Option<String>,
    condition: String,
    /// True if its run has others.
    several: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if args.memory {
        return super::memory_table::run(&args.dirs, args.choice(), args.format);
    }
    let mut sources = Vec::new();
    for (at, dir) in args.dirs.iter().enumerate() {
        if args.dirs.iter().take(at).any(|before| before == dir) {
            return Err(WrongUsage(format!("{} is given twice; give it once", dir.display())).into());
        }
        sources.extend(sources_of(dir, &args)?);
    }
    let of_benchmarks = one_benchmark(sources.iter().map(|source: &Source| {
        let run = source.first();
        (run.path(), run.benchmark().title)
    }));
    match of_benchmarks {
        Ok(()) => {}
        Err(refused) if args.compare || args.repeats => return Err(refused),
        Err(_) => return over_benchmarks(&sources, &args),
    }
    let names = names(&sources);
    let outcomes: Vec<Vec<Outcomes<'_>>> = sources.iter().map(Source::outcomes).collect();
    let rows: Vec<ResultRow> = sources
        .iter()
        .zip(&names)
        .zip(&outcomes)
        .map(|((s, (name, system)), o)| s.row((name, system), o, &args))
        .collect();
    let comparison = args.compare.then(|| compared(&rows, &outcomes, &args)).transpose()?;
    let split = sources.first().map_or("", |source| source.first().benchmark().split);
    let own = own_tables(&sources, &args)?;
    let text = match (args.format, &comparison) {
        (Format::Json, _) => {
            let benchmark = sources.first().map(|source| source.first().benchmark().name);
            let mut conditions: Vec<&str> = Vec::new();
            for row in &rows {
                if !conditions.contains(&row.condition.as_str()) {
                    conditions.push(&row.condition);
                }
            }
            let mut all =
                json!({ "benchmark": benchmark, "split": split, "conditions": conditions, "rows": rows });
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
        (format, _) if args.repeats => format.of(&sheets::spreads(&rows, split))?,
        (format, None) => {
            let mut texts = vec![format.of(&sheets::accuracies(&rows))?];
            for Table { title, sheet, .. } in &own {
                texts.push(format!("{}\n{}", format.title(title), format.of(sheet)?));
            }
            texts.join("\n")
        }
        (format, Some(comparison)) => {
            let both = [sheets::accuracies(&rows), sheets::differences(comparison)];
            both.iter().map(|sheet| format.of(sheet)).collect::<Result<Vec<_>, _>>()?.join("\n")
        }
    };
    super::write_out(text.as_bytes())
}

fn over_benchmarks(sources: &[Source], args: &Args) -> anyhow::Result<()> {
    let outcomes: Vec<Vec<Outcomes<'_>>> = sources.iter().map(Source::outcomes).collect();
    let models: Vec<String> = sources.iter().map(Source::model).collect();
    let rows: Vec<ResultRow> = sources
        .iter()
        .zip(&models)
        .zip(&outcomes)
        .map(|((source, model), outcomes)| source.row((model, model), outcomes, args))
        .collect();
    let entries: Vec<Entry<'_>> = sources
        .iter()
        .zip(&models)
        .zip(&rows)
        .map(|((source, model), row)| Entry { benchmark: source.first().benchmark().title, model, row })
        .collect();
    let text = match args.format {
        Format::Json => {
            let rows = entries.iter().map(|entry| json!({ "benchmark": entry.benchmark, "row": entry.row }));
            format!("{:#}\n", json!({ "rows": rows.collect::<Vec<_>>() }))
        }
        Format::Csv => overview_records(&entries).csv()?,
        format => format.of(&overview(&entries))?,
    };
    super::write_out(text.as_bytes())
}

/// The tables that only the runs' benchmark has, of the conditions and judges that are meant.
fn own_tables(sources: &[Source], args: &Args) -> anyhow::Result<Vec<Table>> {
    let Some(benchmark) = sources.first().map(|source| source.first().benchmark()) else {
        return Ok(Vec::new());
    };
    let folders = args.dirs.iter().map(|dir| RunFolder::read(dir)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = folders.iter().map(|folder| folder.dir.display().to_string()).collect();
    let chosen: Vec<Vec<String>> =
        folders.iter().map(|folder| folder.chosen_conditions(&args.condition)).collect::<Result<_, _>>()?;
    let all_judges = folders.iter().flat_map(|folder| folder.judges());
    let short = short_judges(all_judges.map(|name| name.judge.as_str()));
    // By the label of a judge, what tables for people call it.
    let called: BTreeMap<&str, String> = (folders.iter().flat_map(|folder| folder.judges()))
        .map(|name| {
            let judge = short.get(name.judge.as_str()).copied().unwrap_or(&name.judge);
            (name.label.as_str(), name.label.replacen(name.judge.as_str(), judge, 1))
        })
        .collect();
    let mut rows: Vec<Graded<'_>> = Vec::new();
    for ((folder, name), conditions) in folders.iter().zip(&names).zip(&chosen) {
        let of_run = folder.header.identity.conditions_or_plain().iter();
        let meant: Vec<(&str, u32)> = of_run
            .filter(|condition| conditions.contains(&condition.name))
            .map(|condition| (condition.base(), condition.repetition))
            .collect();
        rows.extend(graded(folder, name).into_iter().filter(|row| {
            meant.contains(&(row.condition, row.repetition))
                && row
                    .judge
                    .map_or(args.choice() == JudgeChoice::default(), |judge| args.choice().takes(judge))
        }));
    }
    for row in &mut rows {
        row.judge = row.judge.and_then(|judge| called.get(judge)).map(String::as_str).or(row.judge);
    }
    let mut tables = (benchmark.counts)(&rows).tables;
    let runs: Vec<(&RunFolder, &str, &[String])> = (folders.iter().zip(&names).zip(&chosen))
        .map(|((folder, name), conditions)| (folder, name.as_str(), conditions.as_slice()))
        .collect();
    // What is cut or missing belongs to the answers, whoever judged them.
    for note in cut_notes(&rows).into_iter().chain(runs.iter().flat_map(missing_notes)) {
        tables.iter_mut().for_each(|table| table.sheet.notes.push(note.clone()));
    }
    tables.extend(retrieval(&runs));
    if folders.iter().any(RunFolder::has_conditions) {
        let mut conditions: Vec<&str> = Vec::new();
        for name in chosen.iter().flatten().map(|name| label(name)) {
            if !conditions.contains(&name) {
                conditions.push(name);
            }
        }
        let which = if conditions.len() == 1 { "condition" } else { "conditions" };
        tables.iter_mut().for_each(|table| table.title += &format!("; {which}: {}", conditions.join(", ")));
    }
    for (folder, name) in folders.iter().zip(&names) {
        tables.extend(why::labels::Labels::open(folder)?.map(|labels| why::sheet::table(&labels, name)));
    }
    if let Some(check) = benchmark.label_check {
        for (folder, name) in folders.iter().zip(&names) {
            let mut agreements = label_agreement(&check, &folder.plan, &label_rows(&folder.dir)?);
            agreements.retain(|agreement| {
                args.judge.as_ref().is_none_or(|judge| JudgeChoice::of(Some(judge)).takes(&agreement.judge))
            });
            tables.extend(label_table(&check, name, &agreements));
        }
    }
    Ok(tables)
}

/// Of each condition how many of its questions were not asked yet.
fn missing_notes((folder, name, conditions): &(&RunFolder, &str, &[String])) -> Vec<String> {
    let probes: usize = folder.plan.iter().map(|case| case.probes.len()).sum();
    let note = |condition: &String| {
        let missing = folder.missing(std::slice::from_ref(condition)).len();
        let of = if folder.has_conditions() {
            format!("{name}, {}", label(condition))
        } else {
            (*name).to_owned()
        };
        (missing > 0).then(|| {
            format!("{of}: {missing} of {probes} probes are missing, which were not asked yet; they count as wrong")
        })
    };
    conditions.iter().filter_map(note).collect()
}

/// Notes on answers of each run and condition that the limit of new tokens cut off.
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
    let conditions = counts.iter().map(|((_, condition), _)| *condition).collect::<HashSet<_>>().len();
    let note = |((run, condition), [cut, answered]): ((&str, &str), [usize; 2])| {
        let alone = condition.is_empty() && conditions == 1;
        let of = if alone { run.to_owned() } else { format!("{run}, {}", label(condition)) };
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

fn sources_of(dir: &Path, args: &Args) -> anyhow::Result<Vec<Source>> {
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

    fn outcomes(&self) -> Vec<Outcomes<'_>> {
        let judge = self.judge().map_or("", |name| name.judge.as_str());
        let runs = self.runs.iter().zip(self.judged());
        runs.map(|(run, judged)| {
            let verdicts = judged.iter().flat_map(Judged::rows);
            Outcomes::of(run.benchmark(), run.cases(), run.answers(), verdicts, judge)
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

    fn row(&self, (name, system): (&str, &str), outcomes: &[Outcomes<'_>], args: &Args) -> ResultRow {
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
            expected: sum(|total| total.expected),
            table,
            repeats: (counts && args.repeats).then(|| repeats(outcomes)),
            warning: self.warning().filter(|_| no_result.is_none()),
            no_result,
        }
    }
}

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

/// Names of the rows with and without their condition: the model, with the fields that tell it apart from its like.
fn names(sources: &[Source]) -> Vec<(String, String)> {
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
