//! The tables of `palimpsest table --memory`: writing, retrieval, answers, the waterfall, and systems against each other.

use std::path::PathBuf;

use anyhow::Context;

use super::Losses;
use super::count::{Count, LIST_KNOWN, Number, Part, level_in_words, roles};
use super::fact::Level;
use super::records::{ALL, Block, Pair, blocks, json, pairs, sheet};
use super::retrieval::KS;
use super::trace::{Stage, Trace};
use super::words::in_words;
use crate::benchmarks::{Side, Table};
use crate::ground::numbers::{p_value, percent};
use crate::ground::sheet::{Column, Format, Sheet, cell};
use crate::run::condition::label;
use crate::run::judge_name::JudgeChoice;
use crate::run::store::RunFolder;
use crate::statistics::Interval;

/// Everything on the memory systems of some runs of one benchmark, in a format.
pub fn text(dirs: &[PathBuf], choice: JudgeChoice<'_>, format: Format) -> anyhow::Result<String> {
    let open = |dir: &PathBuf| {
        let folder = RunFolder::read(dir)?;
        Losses::open(&folder, folder.benchmark()?, choice)?.with_context(|| {
            format!(
                "{} has no memory system; make a run with --memory NAME=COMMAND, or leave --memory out",
                dir.display()
            )
        })
    };
    let runs = &dirs.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?[..];
    if let [first, others @ ..] = runs
        && let Some(other) = others.iter().find(|other| other.benchmark.name != first.benchmark.name)
    {
        anyhow::bail!(
            "{} is a run of {} and {} of {}; give runs of one benchmark",
            first.run,
            first.benchmark.title,
            other.run,
            other.benchmark.title
        );
    }
    let (pairs, words) = (pairs(runs), in_words(runs));
    Ok(match format {
        Format::Json => format!("{:#}\n", json(runs, &blocks(runs), &pairs, &words)),
        Format::Csv => sheet(&blocks(runs)).csv()?,
        format => {
            let mut texts: Vec<String> = words.iter().map(|words| format.remark(words)).collect();
            for table in tables(runs, &pairs) {
                texts.push(table.written(format)?);
            }
            texts.join("\n")
        }
    })
}

/// The tables of some runs.
pub fn tables(runs: &[Losses], pairs: &[Pair]) -> Vec<Table> {
    let blocks = blocks(runs);
    let of_system: Vec<&Block<'_>> = blocks.iter().filter(|block| block.is_of_system()).collect();
    let all: Vec<&Block<'_>> = blocks.iter().collect();
    let several = Several::of(runs, &all);
    let levels = levels_note(runs);
    let mut tables = vec![
        several.writing(&of_system),
        several.retrieval(&of_system),
        several.answers(&all),
        several.waterfall(&all),
    ];
    for table in &mut tables {
        table.sheet.notes.extend(levels.clone());
        table.sheet.notes.push(
            "each share stands above its count and its 95% interval (Wilson); of what cannot be told of some, the share that is certain and \
             the one that is possible, with the interval around both; -: there is none"
                .to_owned(),
        );
    }
    tables.extend((!pairs.is_empty()).then(|| against(pairs)));
    tables
}

/// The levels of provenance that stand in the tables, and the systems of which one is missing.
fn levels_note(runs: &[Losses]) -> Vec<String> {
    let mut notes = vec![level_in_words(Level::Source).to_owned()];
    let systems = || runs.iter().flat_map(|run| &run.systems);
    let judged = |level: Level| systems().filter(move |system| system.levels().contains(&level));
    if judged(Level::Stated).next().is_some() {
        notes.push(level_in_words(Level::Stated).to_owned());
    }
    let missing: Vec<&str> = systems()
        .filter(|system| !system.levels().contains(&Level::Stated))
        .map(|system| system.name.as_str())
        .collect();
    if !missing.is_empty() {
        notes.push(format!(
            "level 2, by a judge of what each memory says, is not judged of {} (palimpsest judge RUN --judge JUDGE --memories)",
            missing.join(", ")
        ));
    }
    notes
}

/// The columns before the numbers that rows need to be told apart.
struct Several {
    runs: bool,
    levels: bool,
    kinds: bool,
    split: String,
    dimension: String,
}

impl Several {
    fn of(runs: &[Losses], blocks: &[&Block<'_>]) -> Self {
        let benchmark = runs.first().map(|run| run.benchmark);
        Several {
            runs: runs.len() > 1,
            levels: blocks.iter().any(|block| block.level == Level::Stated),
            kinds: blocks.iter().any(|block| block.kind.is_some()),
            split: benchmark.map_or(String::new(), |benchmark| benchmark.split.to_owned()),
            dimension: benchmark.map_or(String::new(), |benchmark| benchmark.dimension.name().to_owned()),
        }
    }

    fn columns(&self, first: &str) -> Vec<Column> {
        let names = [
            self.runs.then_some("run"),
            Some(first),
            self.levels.then_some("level"),
            self.kinds.then_some(self.split.as_str()),
            Some(self.dimension.as_str()),
        ];
        names.into_iter().flatten().map(Column::text).collect()
    }

    fn cells(&self, block: &Block<'_>, first: &str) -> Vec<Vec<String>> {
        let level = block.level.number().to_string();
        let cells = [
            self.runs.then_some(block.run.run.as_str()),
            Some(first),
            self.levels.then_some(level.as_str()),
            self.kinds.then_some(block.kind.as_deref().unwrap_or(ALL)),
            Some(block.probe.as_deref().unwrap_or(ALL)),
        ];
        cells.into_iter().flatten().map(cell).collect()
    }

    fn writing(&self, blocks: &[&Block<'_>]) -> Table {
        let traces = traces(blocks);
        let (roles, older) = (roles(&traces), role_of(&traces, Side::Older));
        let mut columns = self.columns("system");
        for role in &roles {
            let grouped =
                |name: &str| Column { group: role.clone(), right: name != LOST, ..Column::text(name) };
            columns.extend(["written", "kept", LOST].map(grouped));
            if older.as_ref() == Some(role) {
                columns.extend(OVERWRITTEN.map(grouped));
            }
        }
        let shares = has_shares(&traces);
        if shares {
            for group in ["written", "kept"] {
                let of = |name: &str| Column { group: group.to_owned(), ..Column::number(name) };
                columns.extend(["all", "some", "none"].map(of));
            }
        }
        let row = |block: &&Block<'_>| {
            let get = |name: &str, role: &str| counted(block.number(Part::Writing, name, role, None));
            let mut cells = self.cells(block, &block.system.name);
            for role in &roles {
                cells.extend([get("written", role), get("kept", role), lost(block, role)]);
                if older.as_ref() == Some(role) {
                    cells.extend(OVERWRITTEN.map(|name| get(name, role)));
                }
            }
            if shares {
                let names =
                    ["written", "kept"].into_iter().flat_map(|of| ["all", "some", "none"].map(|s| (of, s)));
                cells.extend(names.map(|(of, share)| get(&format!("{of} {share}"), "")));
            }
            cells
        };
        let mut notes = vec![
            "written: some event wrote a memory from the evidence, or the final store holds one; kept: an active memory of the final store \
             carries it; lost at: the event after which none did, of those that were written; a fact that several questions of a case need \
             counts once"
                .to_owned(),
        ];
        if let Some(older) = &older {
            notes.push(format!(
                "{older}: looked at: among the candidates of a memory from the newer evidence; gated: of these, let through the gate before the \
                 decision; marked: updated, deleted, or kept as out of date, unknown or weak in the newer session or at the end of the writing; \
                 removed: deleted then"
            ));
        }
        let sheet = Sheet { columns, rows: blocks.iter().map(row).collect(), notes };
        Table { key: "writing".to_owned(), title: "Writing".to_owned(), sheet }
    }

    fn retrieval(&self, blocks: &[&Block<'_>]) -> Table {
        let traces = traces(blocks);
        let roles = roles(&traces);
        let sided = role_of(&traces, Side::Older).is_some();
        let shares = has_shares(&traces);
        let mut columns = self.columns("system");
        columns.push(Column::number("k"));
        let hit = |name: &str| Column { group: "hit".to_owned(), ..Column::number(name) };
        columns.extend(roles.iter().map(|role| hit(role)));
        if sided {
            columns.extend(["both", "newer above older"].map(Column::number));
        }
        if shares {
            columns.extend(["all", "some", "none"].map(hit));
        }
        columns.push(Column::number("distractor first"));
        let rank = |role: &String| Column { group: "mean rank".to_owned(), ..Column::number(role.as_str()) };
        columns.extend(roles.iter().map(rank));
        let mut rows = Vec::new();
        for block in blocks {
            for k in KS {
                let get =
                    |name: &str, role: &str| counted(block.number(Part::Retrieval, name, role, Some(k)));
                let mut cells = self.cells(block, &block.system.name);
                cells.push(cell(k.to_string()));
                cells.extend(roles.iter().map(|role| get("hit", role)));
                if sided {
                    cells.extend(["both", "newer above older"].map(|name| get(name, "")));
                }
                if shares {
                    cells.extend(["hit all", "hit some", "hit none"].map(|name| get(name, "")));
                }
                let first = k == KS[0];
                cells.push(if first { get("distractor", "") } else { Vec::new() });
                let rank = |role: &String| {
                    let number = block.number(Part::Retrieval, "mean rank", role, None);
                    match number.and_then(|number| Some((number.mean?, number.count))) {
                        Some((mean, Count { count: n, unknown, .. })) if first => {
                            let more =
                                if unknown > 0 { format!(", {unknown} unknown") } else { String::new() };
                            vec![format!("{mean:.1}"), format!("n = {n}{more}")]
                        }
                        None if first => cell("-"),
                        _ => Vec::new(),
                    }
                };
                cells.extend(roles.iter().map(rank));
                rows.push(cells);
            }
        }
        let notes = vec![
            "all k are cut from one search, - where none asked for so many; hit: a memory that carries the evidence is among the first k; newer above older: of the \
             questions with both, its first memory comes first; distractor first: the first memory carries none of the evidence; mean \
             rank: of the first memory that carries it, where one was found and it is known of all before it"
                .to_owned(),
        ];
        let sheet = Sheet { columns, rows, notes };
        Table { key: "retrieval".to_owned(), title: "Retrieval".to_owned(), sheet }
    }

    fn answers(&self, blocks: &[&Block<'_>]) -> Table {
        let traces = traces(blocks);
        let (older, newer) = (role_of(&traces, Side::Older), role_of(&traces, Side::Newer));
        let shares = has_shares(&traces);
        let mut wanted: Vec<(String, String, String)> =
            vec![("right".to_owned(), String::new(), "right".to_owned())];
        if let (Some(older), Some(newer)) = (&older, &newer) {
            let of = |name: &str, role: &str, head: String| (name.to_owned(), role.to_owned(), head);
            wanted.extend([
                of("failure despite", newer, format!("failure despite {newer}")),
                of("right given neither", "", "right given neither".to_owned()),
                of("right given only", older, format!("right given only {older}")),
                of("right given only", newer, format!("right given only {newer}")),
                of("right given both", "", "right given both".to_owned()),
                of("right given first", older, format!("right, {older} first")),
                of("right given first", newer, format!("right, {newer} first")),
            ]);
        }
        if shares {
            let of = |share: &str| {
                let name = format!("right given {share}");
                (name.clone(), String::new(), name)
            };
            wanted.extend(["all", "some", "none"].map(of));
        }
        let known = |block: &&Block<'_>| block.number(Part::Answers, LIST_KNOWN, "", None).cloned();
        let unknown = blocks.iter().filter_map(known).any(|number| number.count.count < number.count.of);
        if unknown {
            wanted.push((LIST_KNOWN.to_owned(), String::new(), LIST_KNOWN.to_owned()));
        }
        let mut columns = self.columns("condition");
        columns.extend(wanted.iter().map(|(_, _, head)| Column::number(head.as_str())));
        let row = |block: &&Block<'_>| {
            let mut cells = self.cells(block, label(&block.condition.name));
            let get = |(name, role, _): &(String, String, String)| {
                counted(block.number(Part::Answers, name, role, None))
            };
            cells.extend(wanted.iter().map(get));
            cells
        };
        let mut notes = vec![
            "given: by the evidence among the memories that the condition takes; failure despite: wrong answers of those with the newer \
             evidence among them; first: of both, by whose memory comes first"
                .to_owned(),
        ];
        if unknown {
            notes.push(format!(
                "{LIST_KNOWN}: questions of which it is known whether each piece of evidence is among these memories; the others are in no \
                 column that is given it"
            ));
        }
        notes.extend(blocks.first().into_iter().flat_map(|block| verdict_notes(block.run)));
        let sheet = Sheet { columns, rows: blocks.iter().map(row).collect(), notes };
        Table { key: "answers".to_owned(), title: "Answers given the evidence".to_owned(), sheet }
    }

    fn waterfall(&self, blocks: &[&Block<'_>]) -> Table {
        let mut columns = self.columns("condition");
        columns.push(Column::text("fact"));
        columns.extend(Stage::ALL.map(|stage| Column::number(stage.key())));
        let mut rows = Vec::new();
        for block in blocks {
            for role in roles(&block.traces) {
                let mut cells = self.cells(block, label(&block.condition.name));
                cells.push(cell(&role));
                let get = |stage: Stage| counted(block.number(Part::Waterfall, stage.key(), &role, None));
                cells.extend(Stage::ALL.map(get));
                rows.push(cells);
            }
        }
        let notes = vec![
            "each stage of the facts that reached it, from left to right; what is not known of a fact stops it not; attended and used: of \
             the answers whose attention or causes were recorded"
                .to_owned(),
            "attended: the query's density on a memory that carries it is above that of the memories next in rank that carry no evidence, \
             and among the 3 highest; used: hiding that memory costs the answer more log-probability a token than 95% of the control \
             stretches, or changes its likeliest tokens (palimpsest causes)"
                .to_owned(),
        ];
        let sheet = Sheet { columns, rows, notes };
        let title = "The waterfall: where facts are lost".to_owned();
        Table { key: "memory-waterfall".to_owned(), title, sheet }
    }
}

const LOST: &str = "lost at";
const OVERWRITTEN: [&str; 4] = ["looked at", "gated", "marked", "removed"];

/// Remarks on the verdicts.
fn verdict_notes(run: &Losses) -> Vec<String> {
    match (&run.judge, &run.no_result) {
        (_, Some(why)) => vec![format!("right is not measured: {why}")],
        (None, None) => {
            vec!["right is not measured: nobody judged the answers; run `palimpsest judge`".to_owned()]
        }
        (Some(judge), None) => vec![format!(
            "right by {judge}; an answer without a verdict is wrong, and where the judge gives scores the best one is right"
        )],
    }
}

/// The evidence of some blocks.
fn traces<'a>(blocks: &[&Block<'a>]) -> Vec<&'a Trace> {
    blocks.iter().flat_map(|block| block.traces.iter().copied()).collect()
}

fn role_of(traces: &[&Trace], side: Side) -> Option<String> {
    let fact = traces.iter().flat_map(|trace| &trace.facts).find(|fact| fact.side == Some(side));
    fact.map(|fact| fact.role.clone())
}

/// Has a probe several facts that are no two sides, so that all, some or none of them says more than the sides do?
fn has_shares(traces: &[&Trace]) -> bool {
    traces.iter().flat_map(|trace| &trace.facts).any(|fact| fact.side.is_none())
}

/// A share, its count and its interval; where it is not known of all, what is certain and what is possible.
fn counted(number: Option<&Number>) -> Vec<String> {
    let Some(number) = number else { return cell("-") };
    let (shown, unknown) = (number.shown(), number.count.unknown);
    let Some([certain, possible]) = shown.shares() else {
        return cell(if unknown > 0 { "not measured" } else { "-" });
    };
    let to = |[low, high]: [f64; 2]| format!("{} to {}", percent(low), percent(high));
    let (least, most, all) = (shown.count, shown.most(), shown.all());
    let mut lines = match unknown {
        0 => vec![percent(certain), format!("{least}/{all}")],
        _ if number.of_sample => vec![percent(certain), format!("{least}/{all}, {unknown} not measured")],
        _ => vec![to([certain, possible]), format!("{least}/{all} to {most}/{all}")],
    };
    lines.extend(shown.interval().map(|Interval { low, high }| to([low, high])));
    lines
}

/// The events that lost a fact, with how many each: `update 3, delete 1`.
fn lost(block: &Block<'_>, role: &str) -> Vec<String> {
    let of_role = block.numbers.iter().filter(|number| number.part == Part::Writing && number.role == role);
    let words: Vec<String> = of_role
        .filter_map(|number| Some((number.name.strip_prefix("lost at ")?, number.count.count)))
        .map(|(word, count)| format!("{word} {count}"))
        .collect();
    if words.is_empty() { cell("-") } else { words }
}

/// Systems against each other.
fn against(pairs: &[Pair]) -> Table {
    let mut columns: Vec<Column> = ["first", "second"].map(Column::text).to_vec();
    let numbers = ["questions", "first right", "second right", "b", "c", "p", "p (Holm)"];
    columns.extend(numbers.map(Column::number));
    let row = |pair: &Pair| {
        let share = |right: usize| {
            vec![percent(right as f64 / pair.questions as f64), format!("{right}/{}", pair.questions)]
        };
        vec![
            cell(&pair.first),
            cell(&pair.second),
            cell(pair.questions.to_string()),
            share(pair.first_right),
            share(pair.second_right),
            cell(pair.b.to_string()),
            cell(pair.c.to_string()),
            cell(p_value(pair.p)),
            cell(p_value(pair.p_holm)),
        ]
    };
    let notes = vec![
        "b: only the first is right, c: only the second; exact McNemar test, two-sided, on the questions that both were asked, with Holm's \
         correction over the pairs"
            .to_owned(),
    ];
    let sheet = Sheet { columns, rows: pairs.iter().map(row).collect(), notes };
    Table { key: "systems".to_owned(), title: "Systems against each other".to_owned(), sheet }
}
