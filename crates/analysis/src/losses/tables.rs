//! Tables of `palimpsest table --memory`: writing, retrieval, answers, waterfall, system comparisons.

use std::path::PathBuf;

use anyhow::Context;

use super::count::{Number, Part};
use super::fact::Level;
use super::records::{ALL, Block, Pair, blocks, json, pairs, sheet};
use super::retrieval::KS;
use super::trace::Stage;
use super::words::in_words;
use super::{Losses, SystemLosses};
use palimpsest_data::benchmarks::Table;
use palimpsest_data::ground::numbers::{p_value, percent};
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::sheet::{Columns, Format, Sheet, cell};
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
    let (blocks, pairs, words) = (blocks(runs), pairs(runs), in_words(runs));
    Ok(match format {
        Format::Json => format!("{:#}\n", json(runs, &blocks, &pairs, &words)),
        Format::Csv => sheet(&blocks).csv()?,
        format => {
            let mut texts: Vec<String> = words.iter().map(|words| format.remark(words)).collect();
            let tables = LAYOUTS.iter().map(|layout| layout.table(runs, &blocks));
            for table in tables.chain((!pairs.is_empty()).then(|| against(&pairs))) {
                texts.push(table.written(format)?);
            }
            texts.join("\n")
        }
    })
}

/// A part's table. Its notes explain the numbers; columns are the part's numbers, in their order.
struct Layout {
    part: Part,
    key: &'static str,
    title: &'static str,
    notes: &'static [&'static str],
}

const LAYOUTS: [Layout; 4] = [
    Layout {
        part: Part::Writing,
        key: "writing",
        title: "Writing",
        notes: &[
            "written: some event wrote a memory from the evidence, or the final store holds one; kept: an active memory of the final store \
             carries it; lost at: the event after which none did, as a share of the written facts; a fact that several questions of a \
             case need \
             counts once",
            "columns on the older evidence: looked at: among the candidates of a memory from the newer evidence; gated: passed the gate \
             before the decision, as a share of these; marked: updated, deleted, or kept as out of date, unknown or weak in the newer \
             session or at the end of the writing; removed: deleted then; active: kept",
        ],
    },
    Layout {
        part: Part::Retrieval,
        key: "retrieval",
        title: "Retrieval",
        notes: &[
            "all k are cut from one search; hit: a memory that carries the evidence is among the first k; newer above older: its first \
             memory comes first, as a share of the questions with both; distractor: the first memory carries no evidence; mean rank: rank \
             of the first memory that carries the evidence, if one was found and the sources of all before it are known",
        ],
    },
    Layout {
        part: Part::Answers,
        key: "answers",
        title: "Answers given the evidence",
        notes: &[
            "given: questions with this evidence among the condition's memories; failure despite: wrong answers although the newer \
             evidence is among them; first: questions with both, by the side whose memory comes first",
            "list known: questions for which it is known whether each piece of evidence is among these memories; the others are in no \
             column `given`",
        ],
    },
    Layout {
        part: Part::Waterfall,
        key: "memory-waterfall",
        title: "The waterfall: where facts are lost",
        notes: &[
            "each stage, from left to right, as a share of the facts that reached it; an unknown stage does not stop a fact; attended and \
             used: only answers with recorded attention or effects",
            "attended: the question's density on a memory with the fact is above that of the next memories in rank without evidence, and \
             among the 3 highest; used: hiding that memory costs the answer more log-probability per token than 95% of the control \
             stretches, or changes its likeliest tokens (palimpsest causes)",
        ],
    },
];

impl Layout {
    /// Key of a row within its block: the k of a search, or the role of the facts.
    fn index(&self, number: &Number) -> String {
        match self.part {
            Part::Retrieval => number.k.unwrap_or(KS[0]).to_string(),
            Part::Waterfall => number.role.clone(),
            Part::Writing | Part::Answers | Part::Left => String::new(),
        }
    }

    fn head(&self, number: &Number) -> String {
        match self.part {
            Part::Waterfall => number.name.clone(),
            _ => format!("{} {}", number.name, number.role).trim().to_owned(),
        }
    }

    fn numbers<'b>(&self, block: &'b Block<'_>) -> impl Iterator<Item = &'b Number> {
        block.numbers.iter().filter(|number| number.part == self.part)
    }

    fn table(&self, runs: &[Losses], blocks: &[Block<'_>]) -> Table {
        let indices = |block: &Block<'_>| unique(self.numbers(block).map(|number| self.index(number)));
        let rows: Vec<(&Block<'_>, String)> = blocks
            .iter()
            .flat_map(|block| indices(block).into_iter().map(move |index| (block, index)))
            .collect();
        let benchmark = runs.first().map(|run| run.benchmark);
        let by_system = matches!(self.part, Part::Writing | Part::Retrieval);
        let mut table = Columns::of(&rows)
            .text_if(runs.len() > 1, "run", |(block, _)| &*block.run.run)
            .text_if(by_system, "system", |(block, _)| &*block.system.name)
            .text_if(!by_system, "condition", |(block, _)| label(&block.condition.name))
            .text_if(blocks.iter().any(|block| block.level == Level::Stated), "level", |(block, _)| {
                block.level.number().to_string()
            })
            .text_if(
                blocks.iter().any(|block| block.kind.is_some()),
                benchmark.map_or("", |benchmark| benchmark.split),
                |(block, _)| block.kind.as_deref().unwrap_or(ALL),
            )
            .text(benchmark.map_or("", |benchmark| benchmark.dimension.name()), |(block, _)| {
                block.probe.as_deref().unwrap_or(ALL)
            })
            .number_if(self.part == Part::Retrieval, "k", |(_, k)| &**k)
            .text_if(self.part == Part::Waterfall, "fact", |(_, role)| &**role);
        let numbers = blocks.iter().flat_map(|block| self.numbers(block));
        let mut heads = unique(numbers.map(|number| self.head(number)));
        let mut notes: Vec<String> = self.notes.iter().map(|note| (*note).to_owned()).collect();
        if self.part == Part::Waterfall {
            // The first block may lack a stage that others have.
            heads.sort_by_key(|head| Stage::ALL.iter().position(|stage| stage.key() == head));
            let selected = heads.iter().any(|head| head == Stage::Selected.key());
            notes.extend(selected.then(|| {
                "selected: some layer's window or eviction left the question a token of a memory with the fact; only answers of `run --selected`"
                    .to_owned()
            }));
        }
        for head in heads {
            table = table.number(&head, |(block, index)| {
                let mut numbers = self.numbers(block);
                counted(numbers.find(|number| self.head(number) == head && self.index(number) == *index))
            });
        }
        if self.part == Part::Answers {
            notes.extend(runs.first().map(verdict_note));
        }
        notes.extend(levels_note(runs));
        notes.push(
            "below each share are its count and its 95% interval (Wilson); if some facts are unknown, the certain and the possible share, \
             with the interval around both; -: no facts"
                .to_owned(),
        );
        titled(self.key, self.title, table.sheet(notes))
    }
}

fn levels_note(runs: &[Losses]) -> Vec<String> {
    let systems = runs.iter().flat_map(|run| &run.systems);
    let (judged, not_judged): (Vec<&SystemLosses>, Vec<&SystemLosses>) =
        systems.partition(|system| system.levels().contains(&Level::Stated));
    let mut notes = vec!["level 1: a session of the evidence is among the memory's sources".to_owned()];
    if !judged.is_empty() {
        notes.push("level 2: a judge also says that the memory states the fact".to_owned());
    }
    if !not_judged.is_empty() {
        let names: Vec<&str> = not_judged.iter().map(|system| system.name.as_str()).collect();
        notes.push(format!(
            "level 2, a judge's verdict on each memory, is missing for {} (palimpsest judge RUN --judge JUDGE --memories)",
            names.join(", ")
        ));
    }
    notes
}

fn titled(key: &str, title: &str, sheet: Sheet) -> Table {
    Table { key: key.to_owned(), title: title.to_owned(), sheet }
}

fn verdict_note(run: &Losses) -> String {
    match (&run.judge, &run.no_result) {
        (_, Some(why)) => format!("right is not measured: {why}"),
        (None, None) => {
            "right is not measured: the answers are not judged; run `palimpsest judge`".to_owned()
        }
        (Some(judge), None) => format!(
            "right by {judge}; an answer without a verdict is wrong; if the judge gives scores, only the best one is right"
        ),
    }
}

/// Share, count and interval; a certain-to-possible range if some are unknown. A mean rank with its count.
fn counted(number: Option<&Number>) -> Vec<String> {
    let Some(number) = number else { return cell("-") };
    let (shown, unknown) = (number.shown(), number.count.unknown);
    let (least, most, all) = (shown.count, shown.most(), shown.all());
    if let Some(mean) = number.mean {
        let more = if unknown > 0 { format!(", {unknown} unknown") } else { String::new() };
        return vec![format!("{mean:.1}"), format!("n = {least}{more}")];
    }
    let Some([certain, possible]) = shown.shares() else {
        return cell(if unknown > 0 { "not measured" } else { "-" });
    };
    let to = |[low, high]: [f64; 2]| format!("{} to {}", percent(low), percent(high));
    let mut lines = match unknown {
        0 => vec![percent(certain), format!("{least}/{all}")],
        _ if number.of_sample => vec![percent(certain), format!("{least}/{all}, {unknown} not measured")],
        _ => vec![to([certain, possible]), format!("{least}/{all} to {most}/{all}")],
    };
    lines.extend(shown.interval().map(|Interval { low, high }| to([low, high])));
    lines
}

fn against(pairs: &[Pair]) -> Table {
    let share = |right: usize, pair: &Pair| {
        vec![percent(right as f64 / pair.questions as f64), format!("{right}/{}", pair.questions)]
    };
    let notes = vec![
        "b: only the first is right, c: only the second; exact two-sided McNemar test on the questions that both were asked, Holm's \
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
