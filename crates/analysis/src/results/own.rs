//! Benchmark-specific tables, notes on truncated and missing answers, and the evidence shown by contexts.

use std::collections::{BTreeMap, HashSet};

use serde_json::json;

use super::TableArgs;
use super::labels::{label_agreement, label_table};
use crate::records::{self, Record};
use crate::why;
use palimpsest_data::benchmarks::{
    Benchmark, Context, Graded, GradedMemory, HistoryCut, ShownSegments, Table,
};
use palimpsest_data::ground::numbers::percent;
use palimpsest_data::ground::order::{entry, unique};
use palimpsest_data::ground::sheet::{Column, Columns};
use palimpsest_data::ground::words::of_counted;
use palimpsest_data::statistics::bounded::Intervals;
use palimpsest_data::statistics::spread::mean;
use palimpsest_run::memory::evidence_present;
use palimpsest_run::runs::condition::{Condition, label};
use palimpsest_run::runs::judge_name::{JudgeChoice, JudgeName, short_judges};
use palimpsest_run::runs::labels::label_rows;
use palimpsest_run::runs::rows::AnswerRow;
use palimpsest_run::runs::store::RunFolder;

/// Run, display name, selected conditions.
type Named<'a> = (&'a RunFolder, &'a str, &'a [String]);

pub(super) fn own_tables(
    benchmark: &Benchmark,
    folders: &[RunFolder],
    args: &TableArgs,
) -> anyhow::Result<Vec<Table>> {
    let names: Vec<String> = folders.iter().map(|folder| folder.dir.display().to_string()).collect();
    let chosen: Vec<Vec<String>> =
        folders.iter().map(|folder| folder.chosen_conditions(&args.condition)).collect::<Result<_, _>>()?;
    let runs: Vec<Named<'_>> = (folders.iter().zip(&names).zip(&chosen))
        .map(|((folder, name), conditions)| (folder, name.as_str(), conditions.as_slice()))
        .collect();
    let judges = || folders.iter().flat_map(RunFolder::judges);
    let short = short_judges(judges().map(|name| name.judge.as_str()));
    let called = judges().map(|name| {
        let judge = short.get(name.judge.as_str()).copied().unwrap_or(&name.judge);
        (name.label.as_str(), name.label.replacen(name.judge.as_str(), judge, 1))
    });
    let called: BTreeMap<&str, String> = called.collect();
    let choice = args.choice();
    let is_meant =
        |row: &Graded<'_>| row.judge.map_or(choice == JudgeChoice::default(), |judge| choice.takes(judge));
    let mut rows: Vec<Graded<'_>> = Vec::new();
    for (folder, name, conditions) in &runs {
        let meant = |condition: &Condition| conditions.contains(&condition.name);
        rows.extend(graded_under(folder, name, meant).into_iter().filter(is_meant));
    }
    for row in &mut rows {
        row.judge = row.judge.and_then(|judge| called.get(judge)).map(String::as_str).or(row.judge);
    }
    let of_paper = benchmark.paper_counts.filter(|_| args.intervals == Intervals::Paper);
    let mut tables = of_paper.unwrap_or(benchmark.counts)(&rows).tables;
    // These notes do not depend on the judge.
    for note in cut_notes(&rows).into_iter().chain(runs.iter().flat_map(missing_notes)) {
        tables.iter_mut().for_each(|table| table.sheet.notes.push(note.clone()));
    }
    tables.extend(retrieval(&runs));
    if folders.iter().any(RunFolder::has_conditions) {
        let conditions = unique(chosen.iter().flatten().map(|name| label(name)));
        let which = if conditions.len() == 1 { "condition" } else { "conditions" };
        tables.iter_mut().for_each(|table| table.title += &format!("; {which}: {}", conditions.join(", ")));
    }
    for (folder, name, _) in &runs {
        tables.extend(why::labels::Labels::open(folder)?.and_then(|labels| labels.table(name)));
    }
    if let Some(check) = benchmark.label_check {
        for (folder, name, _) in &runs {
            let mut agreements = label_agreement(&check, &folder.plan, &label_rows(&folder.dir)?);
            agreements.retain(|agreement| {
                args.judge.as_ref().is_none_or(|judge| JudgeChoice::of(Some(judge)).takes(&agreement.judge))
            });
            tables.extend(label_table(&check, name, &agreements));
        }
    }
    Ok(tables)
}

/// All planned probes under all conditions, once per judge and rubric with verdicts (or once without), ordered by judge, condition and
/// plan.
pub fn graded<'a>(run: &'a RunFolder, name: &'a str) -> Vec<Graded<'a>> {
    graded_under(run, name, |_| true)
}

fn graded_under<'a>(
    run: &'a RunFolder,
    name: &'a str,
    meant: impl Fn(&Condition) -> bool,
) -> Vec<Graded<'a>> {
    let conditions = run.header.identity.conditions_or_plain().iter().filter(|one| meant(one));
    let records: Vec<(&Condition, Vec<Record<'a>>)> =
        conditions.map(|condition| (condition, records::of(run, &condition.name))).collect();
    let judges: Vec<Option<&JudgeName>> = match run.judges() {
        [] => vec![None],
        some => some.iter().map(Some).collect(),
    };
    let by = |judge: Option<&'a JudgeName>| {
        let all = records.iter().flat_map(|(condition, all)| all.iter().map(move |one| (*condition, one)));
        all.map(|(condition, record)| grade(run, name, judge, condition, record)).collect::<Vec<_>>()
    };
    judges.into_iter().flat_map(by).collect()
}

fn grade<'a>(
    run: &'a RunFolder,
    name: &'a str,
    judge: Option<&'a JudgeName>,
    condition: &'a Condition,
    record: &Record<'a>,
) -> Graded<'a> {
    let (identity, answer) = (&run.header.identity, record.answer());
    let verdict = judge.and_then(|judge| record.verdict(judge));
    Graded {
        run: name,
        model: &identity.model.name,
        dataset: &identity.dataset.name,
        judge: judge.map(|judge| judge.label.as_str()),
        condition: condition.base(),
        context: condition.context,
        memory: memory_of(condition),
        repetition: condition.repetition,
        case: &record.case.case,
        probe: &record.probe.id,
        labels: &record.case.labels,
        facets: &record.probe.facets,
        answered: answer.is_some(),
        answer: answer.and_then(|row| row.answer.as_deref()),
        fits: record.row.is_none_or(AnswerRow::fits),
        shown: answer.map_or_else(ShownSegments::default, |row| ShownSegments {
            context: row.context.as_deref(),
            dropped: &row.dropped_sessions,
            memories: row.memories.as_deref(),
        }),
        cut: answer.is_some_and(AnswerRow::reached_limit),
        correct: verdict.and_then(|row| row.correct),
        score: verdict.and_then(|row| row.score),
        choice: verdict.and_then(|row| row.choice.as_deref()),
        history_cut: answer
            .filter(|row| row.was_cut_to_fit())
            .map(|row| HistoryCut { dropped: row.dropped_tokens, of: row.history_tokens }),
    }
}

/// Memory system of a condition: `memory-NAME`, `memory-NAME-k5`, `memory-NAME-perfect`.
fn memory_of(condition: &Condition) -> Option<GradedMemory<'_>> {
    let system = condition.memory.as_ref()?.system.as_str();
    let after = condition.base().split_once(system).map_or("", |(_, after)| after);
    Some(GradedMemory { system, shown: after.trim_start_matches('-') })
}

fn missing_notes((folder, name, conditions): &Named<'_>) -> Vec<String> {
    let probes: usize = folder.plan.iter().map(|case| case.probes.len()).sum();
    let note = |condition: &String| {
        let missing = folder.missing(std::slice::from_ref(condition)).len();
        let of = match folder.has_conditions() {
            true => format!("{name}, {}", label(condition)),
            false => (*name).to_owned(),
        };
        let verb = ["was not asked yet and counts", "were not asked yet and count"];
        let missing = (missing > 0).then(|| of_counted(missing, probes, "question", verb));
        missing.map(|missing| format!("{of}: {missing} as wrong"))
    };
    conditions.iter().filter_map(note).collect()
}

fn cut_notes(rows: &[Graded<'_>]) -> Vec<String> {
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
        let cut = of_counted(cut, answered, "answer", ["was", "were"]);
        format!("{of}: {cut} cut at the limit of new tokens")
    };
    counts.into_iter().filter(|(_, [cut, _])| *cut > 0).map(note).collect()
}

const RETRIEVAL: [&str; 6] =
    ["segments", "tokens kept %", "questions with evidence", "evidence shown %", "all of it %", "clipped"];

/// Share of the evidence shown, one row per condition with a partial history, by design or by truncation; `None` without any. Excludes
/// probes without evidence or without an answer.
fn retrieval(runs: &[Named<'_>]) -> Option<Table> {
    let mut rows: Vec<[String; 8]> = Vec::new();
    for (run, name, conditions) in runs {
        let meant = run.header.identity.conditions_or_plain().iter();
        // Evidence in memories is counted by provenance (`crate::losses`).
        let of_history = meant.filter(|condition| condition.memory.is_none());
        for condition in of_history.filter(|condition| conditions.contains(&condition.name)) {
            let records = records::of(run, &condition.name);
            let answered =
                records.iter().filter_map(|one| Some((one, one.row.filter(|row| row.error.is_none())?)));
            let answered: Vec<(&Record<'_>, &AnswerRow)> = answered.collect();
            let whole_history = condition.context == Context::Whole;
            if whole_history && !answered.iter().any(|(_, row)| row.was_cut_to_fit()) {
                continue;
            }
            let (mut share, mut whole, mut questions, mut segments, mut clipped) = (0.0, 0, 0, 0, 0);
            for (record, row) in answered.iter().filter(|(_, row)| row.context.is_some() || whole_history) {
                let evidence: Vec<usize> = record.case.evidence_of(record.probe).map(|e| e.segment).collect();
                // For a full history, only the evidence is known: the plan lacks its other segments.
                let context = row.context.as_ref().unwrap_or(&evidence);
                let shown: Vec<usize> = context.iter().copied().filter(|&index| row.shows(index)).collect();
                segments += if whole_history { row.dropped_sessions.len() } else { shown.len() };
                clipped += usize::from(row.was_cut_to_fit());
                let (present, all) = evidence_present(evidence.into_iter(), &shown);
                if all > 0 {
                    share += present as f64 / all as f64;
                    whole += usize::from(present == all);
                    questions += 1;
                }
            }
            let of = |sum: f64| if questions == 0 { "-".to_owned() } else { percent(sum / questions as f64) };
            let tokens: Option<Vec<f64>> = answered.iter().map(|(_, row)| row.history_shown()).collect();
            let segments = format!("{:.1}", segments as f64 / answered.len().max(1) as f64);
            rows.push([
                (*name).to_owned(),
                condition.context.named(condition.label()),
                if whole_history { format!("all but {segments}") } else { segments },
                tokens.as_deref().and_then(mean).map_or("-".to_owned(), percent),
                questions.to_string(),
                of(share),
                of(whole as f64),
                clipped.to_string(),
            ]);
        }
    }
    let mut table = Columns::of(&rows).text("run", |row| &*row[0]).text("condition", |row| &*row[1]);
    for (at, name) in RETRIEVAL.into_iter().enumerate() {
        table = table.number(name, |row| &*row[at + 2]);
    }
    let notes = vec![
        "segments: mean number in the context after truncation (`all but`: mean number dropped from whole histories); tokens kept: mean \
         share of the context's tokens after truncation; evidence shown: mean share of a question's evidence in the context after \
         truncation; clipped: answers with a cut context"
            .to_owned(),
    ];
    (!rows.is_empty()).then(|| Table {
        key: "retrieval".to_owned(),
        title: "Evidence in the contexts".to_owned(),
        sheet: table.sheet(notes),
    })
}

/// JSON with the title and rows keyed by column.
pub(super) fn of_table(Table { title, sheet, .. }: &Table) -> serde_json::Value {
    let name = |column: &Column| format!("{} {}", column.group, column.name).trim().to_owned();
    let row = |cells: &Vec<Vec<String>>| -> serde_json::Map<String, serde_json::Value> {
        sheet.columns.iter().zip(cells).map(|(column, cell)| (name(column), json!(cell.join(" ")))).collect()
    };
    json!({ "title": title, "rows": sheet.rows.iter().map(row).collect::<Vec<_>>(), "notes": sheet.notes })
}
