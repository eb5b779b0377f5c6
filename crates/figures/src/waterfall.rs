//! Waterfall of memory systems: share of facts left at each stage from store to answer.
//!
//! One panel per condition, one bar per stage and role with count and 95% interval. Unmeasured stages have no bar. The CSV has counts by
//! type and probe.

use super::Figure;
use super::meaning::Named;
use super::sheet::{Across, Mark, Panel, Plain, Sample, Sheet, ValueAxis};
use super::style::{Colour, INK, UNIT};
use palimpsest_analysis::losses::count::{Step, roles, waterfall};
use palimpsest_analysis::losses::fact::Level;
use palimpsest_analysis::losses::records::{ALL, blocks};
use palimpsest_analysis::losses::trace::{Stage, Trace};
use palimpsest_analysis::losses::{ConditionLosses, Losses};
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_run::runs::condition::label;

/// The steps of each role.
type Bars = Vec<(String, Vec<Step>)>;

fn bars(traces: &[&Trace]) -> Bars {
    let steps = |role: String| {
        let steps = waterfall(traces, &role);
        (role, steps)
    };
    roles(traces).into_iter().map(steps).collect()
}

pub(super) fn memory_waterfall(losses: &Losses, origin: &str) -> Figure {
    let conditions = losses.systems.iter().flat_map(|system| &system.conditions);
    let of_condition = |condition: &ConditionLosses| {
        let traces: Vec<&Trace> = condition.traces.get(&Level::Source).into_iter().flatten().collect();
        (label(&condition.name).to_owned(), bars(&traces))
    };
    let found: Vec<(String, Bars)> = conditions.map(of_condition).collect();
    let strokes = Named::of(found.iter().flat_map(|(_, bars)| bars).map(|(role, _)| role.as_str()));
    let colour = |role: &str| strokes.stroke(role).colour;
    let steps = || found.iter().flat_map(|(_, bars)| bars).flat_map(|(_, steps)| steps);
    let selected = steps().any(|step| step.stage == Stage::Selected);
    let stages: Vec<Stage> =
        Stage::ALL.into_iter().filter(|stage| *stage != Stage::Selected || selected).collect();
    let panel = |(title, bars): &(String, Bars)| {
        let marks = stages.iter().enumerate().flat_map(|at| stage_marks(at, bars, &colour));
        let x = Across::Names(stages.iter().map(|stage| stage.key().to_owned()).collect());
        vec![Panel { title: title.clone(), marks: marks.collect(), x, ..Panel::default() }]
    };
    let legend = strokes.0.iter().map(|(role, stroke)| (Sample::Bar(stroke.colour), role.replace('_', " ")));
    let sheet = Sheet {
        title: "Where memory systems lose facts".to_owned(),
        origin: origin.to_owned(),
        percent: true,
        rows: found.iter().map(panel).collect(),
        legend: legend.collect(),
        panel: (58 * stages.len() as i32, 130),
        // Room for the count above a full bar.
        axes: vec![ValueAxis { reference: None, linear: Some((0.0, 1.08)) }],
        ..Sheet::default()
    };
    sheet.figure("memory-waterfall", caption(losses, selected), csv(losses))
}

fn stage_marks(
    (at, stage): (usize, &Stage),
    bars: &[(String, Vec<Step>)],
    colour: &impl Fn(&str) -> Colour,
) -> Vec<Mark> {
    const FILLED: f64 = 0.72;
    let middle = at as f64;
    let of_stage = |steps: &[Step]| steps.iter().find(|step| step.stage == *stage).copied();
    let wide = FILLED / bars.len().max(1) as f64;
    let mut marks = Vec::new();
    for (at, (role, steps)) in bars.iter().enumerate() {
        let from = middle - FILLED / 2.0 + at as f64 * wide;
        let place = |part: f64| from + part * wide;
        let Some(step) = of_stage(steps) else { continue };
        let (_, left) = step.shown();
        let Some([certain, possible]) = left.shares() else { continue };
        let bar = |low: f64, high: f64, opacity: f64| {
            Mark::Bar([(place(0.04), high), (place(0.96), low)], colour(role).mix(opacity))
        };
        marks.push(bar(0.0, certain, 1.0));
        if possible > certain {
            marks.push(bar(certain, possible, 0.35));
        }
        let mut high = possible;
        if let Some(interval) = left.interval() {
            high = interval.high;
            let places = vec![(place(0.5), interval.low), (place(0.5), interval.high)];
            marks.push(Mark::Path(places, Plain { ink: INK.mix(0.6), width: UNIT, dash: None }));
        }
        let text = match (left.count, left.most()) {
            (certain, possible) if certain == possible => certain.to_string(),
            (certain, possible) => format!("{certain}-{possible}"),
        };
        marks.push(Mark::Words((place(0.5), high), text, wide * 1.2));
    }
    if bars.iter().all(|(_, steps)| of_stage(steps).is_none_or(|step| step.left.of == 0)) {
        marks.push(Mark::Words((middle, 0.0), "not measured".to_owned(), 1.0));
    }
    marks
}

fn caption(losses: &Losses, selected: bool) -> String {
    let selected =
        if selected { "selected: some layer's choice of keys leaves the query a token of it; " } else { "" };
    let right = match (&losses.judge, &losses.no_result) {
        (Some(judge), None) => format!("right: the answer is right by {judge}"),
        _ => "right: nobody judged".to_owned(),
    };
    format!(
        "Of the facts of all questions, those that are left at each stage: written: some event wrote a memory from the evidence; kept: an active \
         memory of the final store carries it; retrieved: one is in the list that the condition takes; shown: and fitted the context; {selected}attended: \
         the query's density on it is above that of the memories next in rank that carry no evidence, and among the 3 highest; used: hiding it \
         costs the answer more log-probability a token than 95% of the control stretches, or changes its likeliest tokens; {right}. A stage that \
         was not measured stops no fact. Pale: those of which it is not known, up to all that are possible. Numbers: facts; whiskers: 95% \
         intervals (Wilson), around what is certain and what is possible. The older of two conflicting facts should be lost \
         before it is used."
    )
}

/// One row per condition, level, type, probe, role and stage. `reached`: facts that came so far; `unknown`: those with an unknown outcome;
/// `of`: all facts except the unknown.
fn csv(losses: &Losses) -> Vec<u8> {
    let blocks = blocks(std::slice::from_ref(losses));
    let mut rows = Vec::new();
    for block in &blocks {
        for (role, steps) in bars(&block.traces) {
            rows.extend(steps.into_iter().map(|step| (block, role.clone(), step)));
        }
    }
    let named = |name: &Option<String>| name.clone().unwrap_or_else(|| ALL.to_owned());
    let ends = |step: &Step| step.shown().1.interval();
    CsvTable::of(&rows)
        .column("condition", |(block, ..)| label(&block.condition.name))
        .column("level", |(block, ..)| block.level.number())
        .column("type", |(block, ..)| named(&block.kind))
        .column("probe", |(block, ..)| named(&block.probe))
        .column("fact", |(_, role, _)| role)
        .column("stage", |(.., step)| step.stage.key())
        .column("count", |(.., step)| step.arrow.count)
        .column("reached", |(.., step)| step.arrow.of + step.arrow.unknown)
        .column("unknown", |(.., step)| step.arrow.unknown)
        .column("of", |(.., step)| step.left.of)
        .optional("low", |(.., step)| Some(format!("{:.6}", ends(step)?.low)))
        .optional("high", |(.., step)| Some(format!("{:.6}", ends(step)?.high)))
        .bytes()
}
