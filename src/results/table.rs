//! The results of any number of runs side by side, and the difference of two: `palimpsest table`.

use anyhow::{bail, ensure};
use serde_json::json;

use super::compare::{Comparison, compare};
use super::outcomes::Outcomes;
use super::overview::{Entry, overview, overview_records};
use super::own::{of_table, own_tables};
use super::sheets::{self, ResultRow};
pub use super::sources::TableArgs;
use super::sources::{Source, names, one_benchmark, sources_of};
use crate::benchmarks::Table;
use crate::ground::order::unique;
use crate::ground::sheet::Format;
use crate::run::setup::WrongUsage;
use crate::statistics::bounded::Intervals;

/// The table that is asked for, as text.
pub fn text(args: &TableArgs) -> anyhow::Result<String> {
    let mut sources = Vec::new();
    for (at, dir) in args.dirs.iter().enumerate() {
        if args.dirs.iter().take(at).any(|before| before == dir) {
            return Err(WrongUsage(format!("{} is given twice; give it once", dir.display())).into());
        }
        sources.extend(sources_of(dir, args)?);
    }
    let has_paper = |source: &&Source| source.first().benchmark().paper_counts.is_some();
    if let (Intervals::Paper, Some(source)) =
        (args.intervals, sources.iter().find(|source| !has_paper(source)))
    {
        let benchmark = source.first().benchmark().title;
        let why = format!("--intervals paper: the paper of {benchmark} gives no intervals; leave it out");
        return Err(WrongUsage(why).into());
    }
    let of_benchmarks = one_benchmark(sources.iter().map(|source: &Source| {
        let run = source.first();
        (run.path(), run.benchmark().title)
    }));
    match of_benchmarks {
        Ok(()) => {}
        Err(refused) if args.compare || args.repeats => return Err(refused),
        Err(_) => return over_benchmarks(&sources, args),
    }
    let names = names(&sources);
    let outcomes: Vec<Vec<Outcomes<'_>>> = sources.iter().map(|s| s.outcomes(args.intervals)).collect();
    let rows: Vec<ResultRow> = sources
        .iter()
        .zip(&names)
        .zip(&outcomes)
        .map(|((s, (name, system)), o)| s.row((name, system), o, args))
        .collect();
    let comparison = args.compare.then(|| compared(&rows, &outcomes, args)).transpose()?;
    let split = sources.first().map_or("", |source| source.first().benchmark().split);
    let own = match sources.first() {
        Some(source) => own_tables(source.first().benchmark(), args)?,
        None => Vec::new(),
    };
    let text = match (args.format, &comparison) {
        (Format::Json, _) => {
            let benchmark = sources.first().map(|source| source.first().benchmark().name);
            let conditions = unique(rows.iter().map(|row| &row.condition));
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
    Ok(text)
}

fn over_benchmarks(sources: &[Source], args: &TableArgs) -> anyhow::Result<String> {
    let outcomes: Vec<Vec<Outcomes<'_>>> = sources.iter().map(|s| s.outcomes(args.intervals)).collect();
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
    Ok(text)
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
