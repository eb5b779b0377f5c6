//! The waterfall of memory systems: of the facts of all questions, the share that is left at each stage from the store to the answer.
//!
//! A panel a condition, a bar a stage and role with its count above it and its 95% interval as a whisker. A stage that was not measured has no
//! bar. Counts by type and probe lie beside the picture as CSV.

use plotters::prelude::*;

use super::canvas::{
    Area, Head, LABEL, Refusal, TICK, Tiling, fitted, is_sized, line, margin, percent_lines, svg, text_width,
    units, write, write_middle,
};
use super::legend::Legend;
use super::meaning::Meaning;
use super::style::{GREY, INK, UNIT};
use super::{Figure, FigureError};
use crate::ground::csv::CsvTable;
use crate::ground::order::unique;
use crate::losses::count::{Step, roles, waterfall};
use crate::losses::fact::Level;
use crate::losses::records::{ALL, Block, blocks};
use crate::losses::trace::{Stage, Trace};
use crate::losses::{ConditionLosses, Losses};
use crate::run::condition::label;

/// Of the figure and its files.
const NAME: &str = "memory-waterfall";
const TITLE: &str = "Where memory systems lose facts";
const PANEL_HEAD: i32 = 24;
const Y_AXIS: i32 = 40;
const X_AXIS: i32 = 22;
const GAP: i32 = 14;
const FOOT: i32 = 20;
/// Room of a swatch in the legend.
const SWATCH: i32 = 20;
/// Height of a panel's plot, and the width of a stage in it, in pixels.
const HEIGHT: i32 = 130;
const STAGE: i32 = 58;
/// The narrowest stage, where a width is stated.
const LEAST: i32 = 40;
/// The part of a stage's width that its bars take.
const FILLED: f64 = 0.72;

/// One condition's bars, by role.
struct Panel {
    title: String,
    bars: Vec<(String, Vec<Step>)>,
}

/// The waterfall of a run's memory systems. `origin` says where the numbers come from.
pub fn memory_waterfall(losses: &Losses, origin: &str) -> Result<Figure, FigureError> {
    let panels = panels(losses);
    let names = unique(panels.iter().flat_map(|panel| &panel.bars).map(|(role, _)| role.as_str()));
    let colours = colours(&names);
    let across = |columns: i32, stage: i32| 2 * margin() + columns * (stage * STAGES + Y_AXIS + GAP);
    let least = if is_sized() { LEAST } else { STAGE };
    let tiling = Tiling::of(panels.len(), [least, STAGE], across);
    let (width, fitting) = (tiling.width, tiling.panel / STAGES);
    let stage = if is_sized() { fitting.max(20) } else { STAGE.min(fitting) };
    let cell = (stage * STAGES + Y_AXIS + GAP, PANEL_HEAD + HEIGHT + X_AXIS + GAP);
    let head = Head::of(TITLE, origin, width);
    let top = head.height();
    let bottom = top + tiling.rows * cell.1;
    let words = |name: &str| fitted(&name.replace('_', " "), 12, width - 2 * margin() - SWATCH);
    let entries = names.iter().zip(&colours).map(|(name, colour)| (*colour, SWATCH, words(name)));
    let legend = Legend::of(entries, LABEL, [22, FOOT], width - 2 * margin());
    let height = bottom + 4 + legend.height() + margin();
    let svg = svg(NAME, TITLE, (width, height), |area| {
        head.draw(area)?;
        for (at, panel) in panels.iter().enumerate() {
            let (column, row) = tiling.place(at);
            let corner = (margin() + column * cell.0, top + row * cell.1);
            draw_panel(area, panel, (corner, stage), (&names, &colours))?;
        }
        let swatch = |colour: &RGBColor, (x, y): (i32, i32)| {
            let corners = [(x, y + 1), (x + 14, y + 13)].map(units);
            area.draw(&Rectangle::new(corners, colour.filled()))
        };
        legend.draw(area, |_| margin(), bottom + 4, swatch)
    })?;
    let figure = Figure {
        name: NAME.to_owned(),
        title: TITLE.to_owned(),
        caption: caption(losses),
        svg,
        csv: csv(losses),
    };
    Ok(figure)
}

const STAGES: i32 = Stage::ALL.len() as i32;

/// Of two conflicting sides theirs, of others the groups'.
fn colours(names: &[&str]) -> Vec<RGBColor> {
    let mut groups = 0;
    let of = |name: &&str| {
        let meaning = Meaning::of_role(name).unwrap_or_else(|| {
            groups += 1;
            Meaning::Group(groups - 1)
        });
        meaning.colour()
    };
    names.iter().map(of).collect()
}

fn panels(losses: &Losses) -> Vec<Panel> {
    let conditions = losses.systems.iter().flat_map(|system| &system.conditions);
    let panel = |condition: &ConditionLosses| {
        let traces: Vec<&Trace> = condition.traces.get(&Level::Source).into_iter().flatten().collect();
        let bars = roles(&traces).into_iter().map(|role| {
            let steps = waterfall(&traces, &role);
            (role, steps)
        });
        Panel { title: label(&condition.name).to_owned(), bars: bars.collect() }
    };
    conditions.map(panel).collect()
}

fn draw_panel(
    area: &Area<'_>,
    panel: &Panel,
    ((left, top), stage): ((i32, i32), i32),
    (names, colours): (&[&str], &[RGBColor]),
) -> Result<(), Refusal> {
    let width = stage * STAGES;
    write(area, &fitted(&panel.title, 12, width), (left + Y_AXIS, top), LABEL)?;
    let (x0, y0) = (left + Y_AXIS, top + PANEL_HEAD + 10);
    let (x1, y1) = (x0 + width, top + PANEL_HEAD + HEIGHT);
    let level = |share: f64| y1 - (share * f64::from(y1 - y0)).round() as i32;
    percent_lines(area, (x0, x1), level)?;
    let bars = panel.bars.len().max(1) as f64;
    let wide = f64::from(stage) * FILLED / bars;
    for (nth, one) in Stage::ALL.into_iter().enumerate() {
        let middle = f64::from(x0) + (nth as f64 + 0.5) * f64::from(stage);
        let name = fitted(one.key(), 10, stage);
        write(area, &name, (middle.round() as i32, y1 + 5), TICK.centred())?;
        for (at, (role, steps)) in panel.bars.iter().enumerate() {
            let place = names.iter().position(|name| name == role).unwrap_or(0);
            let from = middle + (at as f64 - bars / 2.0) * wide;
            let x = |part: f64| ((from + part * wide) * f64::from(UNIT)).round() as i32;
            let Some(step) = steps.get(nth) else { continue };
            let (_, left) = step.shown();
            let Some([certain, possible]) = left.shares() else { continue };
            let corners = [(x(0.04), level(certain) * UNIT), (x(0.96), y1 * UNIT)];
            area.draw(&Rectangle::new(corners, colours[place].filled()))?;
            if possible > certain {
                let corners = [(x(0.04), level(possible) * UNIT), (x(0.96), level(certain) * UNIT)];
                area.draw(&Rectangle::new(corners, colours[place].mix(0.35).filled()))?;
            }
            let mut high = possible;
            if let Some(interval) = left.interval() {
                high = interval.high;
                let whisker = [(x(0.5), level(interval.low) * UNIT), (x(0.5), level(interval.high) * UNIT)];
                area.draw(&PathElement::new(whisker, INK.mix(0.6).stroke_width(UNIT as u32)))?;
            }
            let count = match (left.count, left.most()) {
                (certain, possible) if certain == possible => certain.to_string(),
                (certain, possible) => format!("{certain}-{possible}"),
            };
            if text_width(&count, 9) <= wide as i32 + 4 {
                write(area, &count, (x(0.5) / UNIT, level(high) - 12), LABEL.sized(9).centred())?;
            }
        }
        if panel.bars.iter().all(|(_, steps)| steps.get(nth).is_none_or(|step| step.left.of == 0)) {
            let at = ((middle * f64::from(UNIT)) as i32, (y1 - 8) * UNIT);
            write_middle(area, "not measured", at, TICK.sized(8).centred())?;
        }
    }
    line(area, [(x0, y0), (x0, y1), (x1, y1)], GREY)
}

fn caption(losses: &Losses) -> String {
    let right = match (&losses.judge, &losses.no_result) {
        (Some(judge), None) => format!("right: the answer is right by {judge}"),
        _ => "right: nobody judged".to_owned(),
    };
    format!(
        "Of the facts of all questions, those that are left at each stage: written: some event wrote a memory from the evidence; kept: an active \
         memory of the final store carries it; retrieved: one is in the list that the condition takes; shown: and fitted the context; attended: \
         the query's density on it is above that of the memories next in rank that carry no evidence, and among the 3 highest; used: hiding it \
         costs the answer more log-probability a token than 95% of the control stretches, or changes its likeliest tokens; {right}. A stage that \
         was not measured stops no fact. Pale: those of which it is not known, up to all that are possible. Numbers: facts; whiskers: 95% \
         intervals (Wilson), around what is certain and what is possible. The older of two conflicting facts should be lost \
         before it is used."
    )
}

/// Rows of every condition, level, type, probe, role and stage: `reached` are the facts that came so far, `unknown` those of them of which the
/// stage is not known, `of` all facts but these.
fn csv(losses: &Losses) -> Vec<u8> {
    struct Row<'a> {
        block: &'a Block<'a>,
        role: String,
        step: Step,
    }
    let blocks = blocks(std::slice::from_ref(losses));
    let mut rows = Vec::new();
    for block in &blocks {
        for role in roles(&block.traces) {
            let steps = waterfall(&block.traces, &role).into_iter();
            rows.extend(steps.map(|step| Row { block, role: role.clone(), step }));
        }
    }
    let named = |name: &Option<String>| name.clone().unwrap_or_else(|| ALL.to_owned());
    let ends = |row: &Row<'_>| row.step.shown().1.interval();
    CsvTable::of(&rows)
        .column("condition", |row| label(&row.block.condition.name))
        .column("level", |row| row.block.level.number())
        .column("type", |row| named(&row.block.kind))
        .column("probe", |row| named(&row.block.probe))
        .column("fact", |row| &row.role)
        .column("stage", |row| row.step.stage.key())
        .column("count", |row| row.step.arrow.count)
        .column("reached", |row| row.step.arrow.of + row.step.arrow.unknown)
        .column("unknown", |row| row.step.arrow.unknown)
        .column("of", |row| row.step.left.of)
        .optional("low", |row| Some(format!("{:.6}", ends(row)?.low)))
        .optional("high", |row| Some(format!("{:.6}", ends(row)?.high)))
        .bytes()
}
