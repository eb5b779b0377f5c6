//! Counts by system, condition, type and probe, and paired comparisons of systems.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::count::{Number, Part, numbers};
use super::fact::{Known, Level};
use super::trace::Trace;
use super::writing::Extraction;
use super::{ConditionLosses, Losses, SystemLosses};
use palimpsest_data::ground::order::{sorted_unique, unique};
use palimpsest_data::ground::sheet::{Columns, Sheet};
use palimpsest_data::statistics::holm::holm;
use palimpsest_data::statistics::mcnemar::mcnemar;
use palimpsest_run::runs::condition::label;

pub const ALL: &str = "all";

#[derive(Debug, Clone)]
pub struct Block<'a> {
    pub run: &'a Losses,
    pub system: &'a SystemLosses,
    pub condition: &'a ConditionLosses,
    pub level: Level,
    pub kind: Option<String>,
    pub probe: Option<String>,
    pub traces: Vec<&'a Trace>,
    pub numbers: Vec<Number>,
}

impl Block<'_> {
    pub fn number(&self, part: Part, name: &str, role: &str, k: Option<usize>) -> Option<&Number> {
        let is = |number: &&Number| {
            number.part == part && number.name == name && number.role == role && number.k == k
        };
        self.numbers.iter().find(is)
    }
}

/// All blocks of some runs in table order: each type and probe, all types, all probes.
pub fn blocks(runs: &[Losses]) -> Vec<Block<'_>> {
    let mut all = Vec::new();
    for run in runs {
        for system in &run.systems {
            for (nth, condition) in system.conditions.iter().enumerate() {
                for (level, traces) in &condition.traces {
                    for (kind, probe) in groups(traces) {
                        let own = |trace: &&Trace| {
                            (kind.is_none() || trace.kind == kind)
                                && probe.as_ref().is_none_or(|probe| trace.dimension == *probe)
                        };
                        let traces: Vec<&Trace> = traces.iter().filter(own).collect();
                        if !traces.is_empty() {
                            let (level, numbers) = (*level, numbers(&traces, nth == 0));
                            all.push(Block { run, system, condition, level, kind, probe, traces, numbers });
                        }
                    }
                }
            }
        }
    }
    all
}

/// Types and probe groups, with totals where there are several.
fn groups(traces: &[Trace]) -> Vec<(Option<String>, Option<String>)> {
    let kinds = sorted_unique(traces.iter().filter_map(|trace| trace.kind.clone()));
    let probes = unique(traces.iter().map(|trace| trace.dimension.clone()));
    let with_all = |names: Vec<String>| -> Vec<Option<String>> {
        match names.len() {
            0 | 1 => vec![None],
            _ => names.into_iter().map(Some).chain([None]).collect(),
        }
    };
    // A single probe group keeps its name; a single type is dropped.
    let probes = match &probes[..] {
        [only] => vec![Some(only.clone())],
        _ => with_all(probes),
    };
    let kinds = with_all(kinds);
    kinds.iter().flat_map(|kind| probes.iter().map(|probe| (kind.clone(), probe.clone()))).collect()
}

/// Paired difference of two systems: exact McNemar test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    pub first: String,
    pub second: String,
    pub questions: usize,
    pub first_right: usize,
    pub second_right: usize,
    pub b: usize,
    /// Right in the second only.
    pub c: usize,
    pub p: f64,
    pub p_holm: f64,
}

/// All pairs of systems with equal display settings, benchmark and judge.
pub fn pairs(runs: &[Losses]) -> Vec<Pair> {
    let mut all: Vec<(&Losses, &SystemLosses, &ConditionLosses)> = Vec::new();
    for run in runs.iter().filter(|run| run.judge.is_some()) {
        for system in &run.systems {
            all.extend(system.conditions.iter().map(|condition| (run, system, condition)));
        }
    }
    let named = |run: &Losses, condition: &ConditionLosses| match runs.len() {
        1 => label(&condition.name).to_owned(),
        _ => format!("{} {}", run.run, label(&condition.name)),
    };
    let mut pairs: Vec<Pair> = Vec::new();
    for (at, &(run, system, condition)) in all.iter().enumerate() {
        for &(first_run, first_system, first) in &all[..at] {
            let alike = (first.shown.show, first.shown.k) == (condition.shown.show, condition.shown.k)
                && first_run.judge == run.judge
                && first_run.benchmark.name == run.benchmark.name
                && (&first_run.run, &first_system.name) != (&run.run, &system.name);
            let (ours, theirs) = (right(first), right(condition));
            let both: Vec<(bool, bool)> =
                (ours.iter()).filter_map(|(question, one)| Some((*one, *theirs.get(question)?))).collect();
            if !alike || both.is_empty() {
                continue;
            }
            let count = |holds: fn(&(bool, bool)) -> bool| both.iter().filter(|pair| holds(pair)).count();
            let (b, c) = (count(|(one, other)| *one && !other), count(|(one, other)| *other && !one));
            pairs.push(Pair {
                first: named(first_run, first),
                second: named(run, condition),
                questions: both.len(),
                first_right: count(|(one, _)| *one),
                second_right: count(|(_, other)| *other),
                b,
                c,
                p: mcnemar(b, c),
                p_holm: 1.0,
            });
        }
    }
    let adjusted = holm(&pairs.iter().map(|pair| pair.p).collect::<Vec<_>>());
    for (pair, p) in pairs.iter_mut().zip(adjusted) {
        pair.p_holm = p;
    }
    pairs
}

/// By question, if its answer is known to be right or wrong.
fn right(condition: &ConditionLosses) -> BTreeMap<(&str, &str), bool> {
    let traces = condition.traces.get(&Level::Source).into_iter().flatten();
    let known = traces.filter(|trace| trace.right != Known::Unknown);
    known.map(|trace| ((trace.case.as_str(), trace.probe.as_str()), trace.right.is_yes())).collect()
}

pub fn sheet(blocks: &[Block<'_>]) -> Sheet {
    let shares = |number: &Number| number.shown().shares();
    let interval = |number: &Number| number.shown().interval();
    Columns::of(blocks.iter().flat_map(|block| block.numbers.iter().map(move |number| (block, number))))
        .text("run", |(block, _)| &*block.run.run)
        .text("system", |(block, _)| &*block.system.name)
        .text("condition", |(block, _)| label(&block.condition.name))
        .text("level", |(block, _)| block.level.number().to_string())
        .text("type", |(block, _)| block.kind.as_deref().unwrap_or(ALL))
        .text("probe", |(block, _)| block.probe.as_deref().unwrap_or(ALL))
        .text("table", |(_, number)| number.part.key())
        .text("number", |(_, number)| &*number.name)
        .text("role", |(_, number)| &*number.role)
        .text("k", |(_, number)| number.k)
        .text("count", |(_, number)| number.count.count)
        .text("of", |(_, number)| number.count.of)
        .text("unknown", |(_, number)| number.count.unknown)
        .text("share", |(_, number)| shares(number).map(|[certain, _]| certain))
        .text("possible", |(_, number)| shares(number).map(|[_, possible]| possible))
        .text("low", |(_, number)| interval(number).map(|interval| interval.low))
        .text("high", |(_, number)| interval(number).map(|interval| interval.high))
        .text("mean", |(_, number)| number.mean)
        .sheet(Vec::new())
}

/// Everything, unrounded: one row per run, system, condition, level, type and probe.
pub fn json(runs: &[Losses], blocks: &[Block<'_>], pairs: &[Pair], words: &[String]) -> Value {
    let number = |number: &Number| {
        let (count, shown) = (number.count, number.shown());
        let (shares, interval) = (shown.shares(), shown.interval());
        json!({
            "table": number.part.key(), "number": number.name, "role": number.role, "k": number.k,
            "count": count.count, "of": count.of, "unknown": count.unknown,
            "share": shares.map(|[certain, _]| certain), "possible": shares.map(|[_, possible]| possible),
            "low": interval.map(|interval| interval.low), "high": interval.map(|interval| interval.high),
            "mean": number.mean,
        })
    };
    let row = |block: &Block<'_>| {
        json!({
            "run": block.run.run, "system": block.system.name, "condition": label(&block.condition.name),
            "k": block.condition.shown.k, "show": block.condition.shown.show, "level": block.level.number(),
            "type": block.kind, "probe": block.probe, "questions": block.traces.len(),
            "numbers": block.numbers.iter().map(number).collect::<Vec<_>>(),
        })
    };
    let system = |system: &SystemLosses| {
        let Extraction { cases, sessions, fruitful, untold, unplaced: _, failed, memories, json, unparsed } =
            system.extraction;
        let told = |count: usize| (!system.extraction.is_untold()).then_some(count);
        let changed = system.changed_searches;
        json!({
            "name": system.name, "provenance": system.provenance, "cases": cases, "missing_cases": system.missing,
            "sessions": sessions, "untold_sessions": untold, "sessions_with_memories": told(fruitful),
            "failed_sessions": failed, "memories": told(memories),
            "json_calls": json, "json_unparsed": unparsed, "failed_searches": system.failed_searches,
            "changed_searches": (changed.of > 0).then_some(changed.count),
            "levels": system.levels().iter().map(|level| level.number()).collect::<Vec<_>>(),
        })
    };
    let run = |run: &Losses| {
        json!({
            "run": run.run, "benchmark": run.benchmark.name, "judge": run.judge, "no_result": run.no_result,
            "systems": run.systems.iter().map(system).collect::<Vec<_>>(),
        })
    };
    json!({
        "runs": runs.iter().map(run).collect::<Vec<_>>(),
        "words": words,
        "rows": blocks.iter().map(row).collect::<Vec<_>>(),
        "pairs": pairs,
    })
}
