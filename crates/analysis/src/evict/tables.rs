//! Tables of `palimpsest table --evict`: answers, and the keys that stayed.

use std::path::PathBuf;

use anyhow::Context;
use serde_json::{Value, json};

use super::{AND_LEADS, AND_WRONG, CONTRAST, EFFECT, EvictionRow, Evictions, Number, OUTLIVED};
use crate::dose::estimate::Estimate;
use palimpsest_core::evict::Evict;
use palimpsest_data::benchmarks::Table;
use palimpsest_data::ground::numbers::percent;
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::sheet::{Columns, Format, Sheet, cell};
use palimpsest_run::runs::judge_name::JudgeChoice;
use palimpsest_run::runs::store::RunFolder;

/// A row, and the run that it is of.
type Line<'a> = (&'a Evictions, &'a EvictionRow);

pub fn text(dirs: &[PathBuf], choice: JudgeChoice<'_>, format: Format) -> anyhow::Result<String> {
    let open = |dir: &PathBuf| {
        let folder = RunFolder::read(dir)?;
        Evictions::open(&folder, folder.benchmark()?, choice)?.with_context(|| {
            format!(
                "{} has no evictions; make a run with --evict POLICY:KEEP, or leave --evict out",
                dir.display()
            )
        })
    };
    let runs = dirs.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let lines: Vec<Line<'_>> =
        runs.iter().flat_map(|run| run.rows.iter().map(move |row| (run, row))).collect();
    let tables = || [answers(&lines), keys(&lines)];
    Ok(match format {
        Format::Json => format!("{:#}\n", json!({ "rows": lines.iter().map(of_row).collect::<Vec<_>>() })),
        Format::Csv => records(&lines).csv()?,
        format => {
            tables().iter().map(|table| table.written(format)).collect::<Result<Vec<_>, _>>()?.join("\n")
        }
    })
}

/// Policy as a condition names it, with `@question` if it saw the question.
pub fn policy(Evict { policy, question, .. }: &Evict) -> String {
    format!("{policy}{}", if *question { "@question" } else { "" })
}

fn is_of_keys(name: &str) -> bool {
    name.starts_with("kept ") || [OUTLIVED, AND_LEADS, AND_WRONG].contains(&name)
}

/// Accuracy, update effect and contrast, each with its difference from the same questions with nothing evicted.
fn answers(lines: &[Line<'_>]) -> Table {
    let mut notes = vec![
        "below each number are its count, its 95% interval, and its difference from the same questions with nothing evicted with that of \
         the difference; accuracies in %, intervals and differences as in `palimpsest table`"
            .to_owned(),
        "u: update effect in nats, mean over items; contrast: log p of the current value less that of the replaced one, in nats, of the \
         questions with a replaced value"
            .to_owned(),
    ];
    notes.extend(unique(
        lines.iter().filter_map(|(run, _)| run.judge.as_ref()).map(|judge| format!("accuracy by {judge}")),
    ));
    notes.extend(unique(lines.iter().filter_map(|(run, _)| run.no_result.clone())));
    table(lines, ("evict", "Answers after evictions"), |name| !is_of_keys(name), notes)
}

/// Kept shares by role, and how often the older evidence outlives the newer.
fn keys(lines: &[Line<'_>]) -> Table {
    let evicting: Vec<Line<'_>> = lines.iter().filter(|(_, row)| row.evict.is_some()).copied().collect();
    let notes = vec![
        "kept: mean share of the keys (tokens, layers that evict, key/value heads) that stayed, in %: of all before the question, of all \
         sessions, of each role's"
            .to_owned(),
        format!(
            "{OUTLIVED}: questions of which a smaller share of the newer evidence's keys stayed than of the older evidence's; `and ...`: of \
             which the answer is the older one, too; below are the count and the 95% interval over cases (items)"
        ),
    ];
    table(&evicting, ("evict-kept", "Keys that stayed"), is_of_keys, notes)
}

fn table(
    lines: &[Line<'_>],
    (key, title): (&str, &str),
    is_meant: impl Fn(&str) -> bool,
    notes: Vec<String>,
) -> Table {
    let runs = unique(lines.iter().map(|(run, _)| &run.dir));
    let bases = unique(lines.iter().map(|(_, row)| &row.base));
    let mut columns = Columns::of(lines)
        .text_if(runs.len() > 1, "run", |(run, _)| run.dir.display().to_string())
        .text_if(bases.len() > 1, "condition", |(_, row)| &*row.base)
        .text("policy", |(_, row)| row.evict.as_ref().map_or("none".to_owned(), policy))
        .number("budget", |(_, row)| {
            row.evict.as_ref().map_or("-".to_owned(), |evict| evict.keep.to_string())
        })
        .number("questions", |(_, row)| row.questions);
    let numbers = lines.iter().flat_map(|(_, row)| &row.numbers).map(|number| number.name.as_str());
    for name in unique(numbers).into_iter().filter(|name| is_meant(name)) {
        columns = columns.number(name, |(_, row)| row.number(name).map_or_else(|| cell("-"), written));
    }
    Table { key: key.to_owned(), title: title.to_owned(), sheet: columns.sheet(notes) }
}

/// Number, count, interval, difference with its interval.
fn written(number: &Number) -> Vec<String> {
    let write = |x: f64| match number.name.as_str() {
        EFFECT | CONTRAST => format!("{x:.2}"),
        _ => percent(x),
    };
    let between = |of: &Estimate| of.interval.map(|of| format!("{} to {}", write(of.low), write(of.high)));
    let difference = |of: &Estimate| {
        let sign = if of.mean > 0.0 { "+" } else { "" };
        let interval = between(of).map(|interval| format!(" ({interval})"));
        format!("{sign}{}{}", write(of.mean), interval.unwrap_or_default())
    };
    let count =
        number.count.map_or_else(|| format!("n = {}", number.value.n), |[held, of]| format!("{held}/{of}"));
    let lines = [write(number.value.mean), count].into_iter().chain(between(&number.value));
    lines.chain(number.difference.as_ref().map(difference)).collect()
}

/// One line per number, unrounded.
fn records(lines: &[Line<'_>]) -> Sheet {
    let of = |estimate: &Estimate| [estimate.interval.map(|of| of.low), estimate.interval.map(|of| of.high)];
    let less = |number: &Number, of: fn(&Estimate) -> Option<f64>| number.difference.as_ref().and_then(of);
    Columns::of(
        lines.iter().flat_map(|(run, row)| row.numbers.iter().map(move |number| (*run, *row, number))),
    )
    .text("run", |(run, ..)| run.dir.display().to_string())
    .text("model", |(run, ..)| &*run.model)
    .text("condition", |(_, row, _)| &*row.condition)
    .text("base", |(_, row, _)| &*row.base)
    .text("policy", |(_, row, _)| row.evict.as_ref().map(|evict| evict.policy.to_string()))
    .text("budget", |(_, row, _)| row.evict.as_ref().map(|evict| evict.keep.to_string()))
    .text("question", |(_, row, _)| row.evict.as_ref().map(|evict| evict.question.to_string()))
    .text("number", |(.., number)| &*number.name)
    .text("n", |(.., number)| number.value.n)
    .text("count", |(.., number)| number.count.map(|[held, _]| held))
    .text("of", |(.., number)| number.count.map(|[_, of]| of))
    .text("value", |(.., number)| number.value.mean)
    .text("low", |(.., number)| of(&number.value)[0])
    .text("high", |(.., number)| of(&number.value)[1])
    .text("difference", |(.., number)| less(number, |of| Some(of.mean)))
    .text("difference_low", |(.., number)| less(number, |of| Some(of.interval?.low)))
    .text("difference_high", |(.., number)| less(number, |of| Some(of.interval?.high)))
    .sheet(Vec::new())
}

fn of_row((run, row): &Line<'_>) -> Value {
    let estimate = |of: &Estimate| json!({ "n": of.n, "mean": of.mean, "interval": of.interval });
    let number = |number: &Number| {
        json!({
            "number": number.name, "value": estimate(&number.value), "count": number.count,
            "difference": number.difference.as_ref().map(estimate),
        })
    };
    json!({
        "run": run.dir, "model": run.model, "condition": row.condition, "base": row.base, "evict": row.evict,
        "judge": run.judge, "questions": row.questions,
        "numbers": row.numbers.iter().map(number).collect::<Vec<_>>(),
    })
}
