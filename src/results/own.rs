//! The tables of runs that only their benchmark has, with notes on answers that were cut off or not asked for.

use std::collections::{BTreeMap, HashSet};

use serde_json::json;

use super::graded::graded;
use super::labels::{label_agreement, label_table};
use super::retrieval::retrieval;
use super::sources::TableArgs;
use crate::benchmarks::{Benchmark, Graded, Table};
use crate::ground::order::{entry, unique};
use crate::ground::sheet::Column;
use crate::run::condition::label;
use crate::run::judge_name::{JudgeChoice, short_judges};
use crate::run::labels::label_rows;
use crate::run::store::RunFolder;
use crate::statistics::bounded::Intervals;
use crate::why;

/// The tables that only the runs' benchmark has, of the conditions and judges that are meant.
pub(super) fn own_tables(benchmark: &Benchmark, args: &TableArgs) -> anyhow::Result<Vec<Table>> {
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
    let of_paper = benchmark.paper_counts.filter(|_| args.intervals == Intervals::Paper);
    let mut tables = of_paper.unwrap_or(benchmark.counts)(&rows).tables;
    let runs: Vec<(&RunFolder, &str, &[String])> = (folders.iter().zip(&names).zip(&chosen))
        .map(|((folder, name), conditions)| (folder, name.as_str(), conditions.as_slice()))
        .collect();
    // What is cut or missing belongs to the answers, whoever judged them.
    for note in cut_notes(&rows).into_iter().chain(runs.iter().flat_map(missing_notes)) {
        tables.iter_mut().for_each(|table| table.sheet.notes.push(note.clone()));
    }
    tables.extend(retrieval(&runs));
    if folders.iter().any(RunFolder::has_conditions) {
        let conditions = unique(chosen.iter().flatten().map(|name| label(name)));
        let which = if conditions.len() == 1 { "condition" } else { "conditions" };
        tables.iter_mut().for_each(|table| table.title += &format!("; {which}: {}", conditions.join(", ")));
    }
    for (folder, name) in folders.iter().zip(&names) {
        tables.extend(why::labels::Labels::open(folder)?.map(|labels| labels.table(name)));
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
        let (_, [cut, answered]) = entry(&mut counts, |(known, _)| *known == key, || (key, [0, 0]));
        *cut += usize::from(row.cut);
        *answered += usize::from(row.answered);
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
pub(super) fn of_table(Table { title, sheet, .. }: &Table) -> serde_json::Value {
    let name = |column: &Column| format!("{} {}", column.group, column.name).trim().to_owned();
    let row = |cells: &Vec<Vec<String>>| -> serde_json::Map<String, serde_json::Value> {
        sheet.columns.iter().zip(cells).map(|(column, cell)| (name(column), json!(cell.join(" ")))).collect()
    };
    json!({ "title": title, "rows": sheet.rows.iter().map(row).collect::<Vec<_>>(), "notes": sheet.notes })
}
