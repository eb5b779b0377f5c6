//! Tables of `palimpsest table --memory`: writing, retrieval, answers, waterfall, system comparisons.

use std::path::PathBuf;

use anyhow::Context;

use super::Losses;
use super::count::{Count, LIST_KNOWN, Number, Part, SHARES, level_in_words, roles};
use super::fact::Level;
use super::records::{ALL, Block, Pair, blocks, json, pairs, sheet};
use super::retrieval::KS;
use super::trace::{Stage, Trace};
use super::words::in_words;
use palimpsest_data::benchmarks::{Side, Table};
use palimpsest_data::ground::numbers::{p_value, percent};
use palimpsest_data::ground::sheet::{Column, Columns, Format, Sheet, cell};
use palimpsest_data::statistics::Interval;
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::judge_name::JudgeChoice;
use palimpsest_run::runs::store::RunFolder;

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

struct Several {
    runs: bool,
    levels: bool,
    kinds: bool,
    split: &'static str,
    dimension: &'static str,
}

impl Several {
    fn of(runs: &[Losses], blocks: &[&Block<'_>]) -> Self {
        let benchmark = runs.first().map(|run| run.benchmark);
        Several {
            runs: runs.len() > 1,
            levels: blocks.iter().any(|block| block.level == Level::Stated),
            kinds: blocks.iter().any(|block| block.kind.is_some()),
            split: benchmark.map_or("", |benchmark| benchmark.split),
            dimension: benchmark.map_or("", |benchmark| benchmark.dimension.name()),
        }
    }

    /// Adds the distinguishing columns; `by_system` uses the system's name, else the condition's.
    fn named<'a, R: Copy>(
        &self,
        items: impl IntoIterator<Item = R>,
        block: fn(R) -> &'a Block<'a>,
        by_system: bool,
    ) -> Columns<R> {
        Columns::of(items)
            .text_if(self.runs, "run", |item| &*block(item).run.run)
            .text_if(by_system, "system", |item| &*block(item).system.name)
            .text_if(!by_system, "condition", |item| label(&block(item).condition.name))
            .text_if(self.levels, "level", |item| block(item).level.number().to_string())
            .text_if(self.kinds, self.split, |item| block(item).kind.as_deref().unwrap_or(ALL))
            .text(self.dimension, |item| block(item).probe.as_deref().unwrap_or(ALL))
    }

    fn writing(&self, blocks: &[&Block<'_>]) -> Table {
        let traces = traces(blocks);
        let older = role_of(&traces, Side::Older);
        let get = |block: &Block<'_>, name: &str, role: &str| {
            counted(block.number(Part::Writing, name, role, None))
        };
        let mut table = self.named(blocks.iter().copied(), |block| block, true);
        for role in &roles(&traces) {
            for name in ["written", "kept"] {
                table = table.column(Column::number(name).under(role), |block| get(block, name, role));
            }
            table = table.column(Column::text("lost at").under(role), |block| lost(block, role));
            let overwritten = OVERWRITTEN.into_iter().filter(|_| older.as_ref() == Some(role));
            for name in overwritten {
                table = table.column(Column::number(name).under(role), |block| get(block, name, role));
            }
        }
        let shares = SHARES.into_iter().filter(|_| has_shares(&traces));
        for (group, share) in
            ["written", "kept"].into_iter().flat_map(|of| shares.clone().map(move |s| (of, s)))
        {
            let name = format!("{group} {share}");
            table = table.column(Column::number(share).under(group), |block| get(block, &name, ""));
        }
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
        titled("writing", "Writing", table.sheet(notes))
    }

    fn retrieval(&self, blocks: &[&Block<'_>]) -> Table {
        let traces = traces(blocks);
        let roles = roles(&traces);
        let get = |(block, k): (&Block<'_>, usize), name: &str, role: &str| {
            counted(block.number(Part::Retrieval, name, role, Some(k)))
        };
        let items = blocks.iter().flat_map(|block| KS.map(|k| (*block, k)));
        let mut table = self.named(items, |(block, _)| block, true).number("k", |(_, k)| k);
        for role in &roles {
            table = table.column(Column::number(role).under("hit"), |item| get(item, "hit", role));
        }
        if role_of(&traces, Side::Older).is_some() {
            for name in ["both", "newer above older"] {
                table = table.number(name, |item| get(item, name, ""));
            }
        }
        for share in SHARES.into_iter().filter(|_| has_shares(&traces)) {
            let name = format!("hit {share}");
            table = table.column(Column::number(share).under("hit"), |item| get(item, &name, ""));
        }
        let is_first = |k: usize| k == KS[0];
        table = table.number("distractor first", |(block, k)| match is_first(k) {
            true => get((block, k), "distractor", ""),
            false => Vec::new(),
        });
        for role in &roles {
            table = table.column(Column::number(role).under("mean rank"), |(block, k)| {
                let number = block.number(Part::Retrieval, "mean rank", role, None);
                match number.and_then(|number| Some((number.mean?, number.count))) {
                    _ if !is_first(k) => Vec::new(),
                    Some((mean, Count { count: n, unknown, .. })) => {
                        let more = if unknown > 0 { format!(", {unknown} unknown") } else { String::new() };
                        vec![format!("{mean:.1}"), format!("n = {n}{more}")]
                    }
                    None => cell("-"),
                }
            });
        }
        let notes = vec![
            "all k are cut from one search, - where none asked for so many; hit: a memory that carries the evidence is among the first k; newer above older: of the \
             questions with both, its first memory comes first; distractor first: the first memory carries none of the evidence; mean \
             rank: of the first memory that carries it, where one was found and it is known of all before it"
                .to_owned(),
        ];
        titled("retrieval", "Retrieval", table.sheet(notes))
    }

    fn answers(&self, blocks: &[&Block<'_>]) -> Table {
        let traces = traces(blocks);
        let get = |block: &Block<'_>, name: &str, role: &str| {
            counted(block.number(Part::Answers, name, role, None))
        };
        let mut table = self
            .named(blocks.iter().copied(), |block| block, false)
            .number("right", |block| get(block, "right", ""));
        if let (Some(older), Some(newer)) = (role_of(&traces, Side::Older), role_of(&traces, Side::Newer)) {
            let wanted = [
                ("failure despite", &*newer, format!("failure despite {newer}")),
                ("right given neither", "", "right given neither".to_owned()),
                ("right given only", &*older, format!("right given only {older}")),
                ("right given only", &*newer, format!("right given only {newer}")),
                ("right given both", "", "right given both".to_owned()),
                ("right given first", &*older, format!("right, {older} first")),
                ("right given first", &*newer, format!("right, {newer} first")),
            ];
            for (name, role, head) in wanted {
                table = table.number(head, |block| get(block, name, role));
            }
        }
        for share in SHARES.into_iter().filter(|_| has_shares(&traces)) {
            let name = format!("right given {share}");
            table = table.number(&name, |block| get(block, &name, ""));
        }
        let known = |block: &&Block<'_>| block.number(Part::Answers, LIST_KNOWN, "", None).cloned();
        let unknown = blocks.iter().filter_map(known).any(|number| number.count.count < number.count.of);
        let table = table.number_if(unknown, LIST_KNOWN, |block| get(block, LIST_KNOWN, ""));
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
        titled("answers", "Answers given the evidence", table.sheet(notes))
    }

    fn waterfall(&self, blocks: &[&Block<'_>]) -> Table {
        let items: Vec<(&Block<'_>, String)> = blocks
            .iter()
            .flat_map(|block| roles(&block.traces).into_iter().map(move |role| (*block, role)))
            .collect();
        let items = items.iter().map(|(block, role)| (*block, role.as_str()));
        let mut table = self.named(items, |(block, _)| block, false).text("fact", |(_, role)| role);
        for stage in Stage::ALL {
            table = table.number(stage.key(), |(block, role)| {
                counted(block.number(Part::Waterfall, stage.key(), role, None))
            });
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
        titled("memory-waterfall", "The waterfall: where facts are lost", table.sheet(notes))
    }
}

const OVERWRITTEN: [&str; 4] = ["looked at", "gated", "marked", "removed"];

fn titled(key: &str, title: &str, sheet: Sheet) -> Table {
    Table { key: key.to_owned(), title: title.to_owned(), sheet }
}

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

fn traces<'a>(blocks: &[&Block<'a>]) -> Vec<&'a Trace> {
    blocks.iter().flat_map(|block| block.traces.iter().copied()).collect()
}

fn role_of(traces: &[&Trace], side: Side) -> Option<String> {
    let fact = traces.iter().flat_map(|trace| &trace.facts).find(|fact| fact.side == Some(side));
    fact.map(|fact| fact.role.clone())
}

/// True if a probe has several facts other than the two sides, so all/some/none adds information.
fn has_shares(traces: &[&Trace]) -> bool {
    traces.iter().flat_map(|trace| &trace.facts).any(|fact| fact.side.is_none())
}

/// Share, count and interval; a certain-to-possible range if some are unknown.
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

fn lost(block: &Block<'_>, role: &str) -> Vec<String> {
    let of_role = block.numbers.iter().filter(|number| number.part == Part::Writing && number.role == role);
    let words: Vec<String> = of_role
        .filter_map(|number| Some((number.name.strip_prefix("lost at ")?, number.count.count)))
        .map(|(word, count)| format!("{word} {count}"))
        .collect();
    if words.is_empty() { cell("-") } else { words }
}

fn against(pairs: &[Pair]) -> Table {
    let share = |right: usize, pair: &Pair| {
        vec![percent(right as f64 / pair.questions as f64), format!("{right}/{}", pair.questions)]
    };
    let notes = vec![
        "b: only the first is right, c: only the second; exact McNemar test, two-sided, on the questions that both were asked, with Holm's \
         correction over the pairs"
            .to_owned(),
    ];
    let sheet = Columns::of(pairs)
        .text("first", |pair| &*pair.first)
        .text("second", |pair| &*pair.second)
        .number("questions", |pair| pair.questions)
        .number("first right", |pair| share(pair.first_right, pair))
        .number("second right", |pair| share(pair.second_right, pair))
        .number("b", |pair| pair.b)
        .number("c", |pair| pair.c)
        .number("p", |pair| p_value(pair.p))
        .number("p (Holm)", |pair| p_value(pair.p_holm))
        .sheet(notes);
    titled("systems", "Systems against each other", sheet)
}
