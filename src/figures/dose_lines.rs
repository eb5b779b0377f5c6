//! Panels of lines over the levels of a factor: means with intervals, and a thin line an item.
//!
//! Called by [`super::dose`]. Levels stand at even distances in their order; a level without a value interrupts a line.

use plotters::element::DashedPathElement;
use plotters::prelude::*;

use super::FigureError;
use super::axis::{round_ticks, write_value};
use super::canvas::{
    Area, Head, LABEL, NOTE, Refusal, TICK, Tiling, ValueAxis, fitted, is_sized, line, margin, svg,
    text_width, units, write, write_middle, write_ticks,
};
use super::legend::Legend;
use super::plot::{SAMPLE, Sample, marked_line, runs, sample};
use super::style::{GREY, GRID, INK, Stroke, UNIT};
use crate::dose::estimate::Estimate;

/// A line of means.
#[derive(Debug, Clone)]
pub(super) struct DoseLine {
    /// As the legend has it; lines of one name look the same in all panels.
    pub name: String,
    pub stroke: Stroke,
    pub points: Vec<Option<Estimate>>,
}

/// A panel: levels along the axis.
#[derive(Debug, Clone, Default)]
pub(super) struct DosePanel {
    pub title: String,
    /// At its right upper corner: the number of items.
    pub note: String,
    pub x_label: String,
    pub levels: Vec<String>,
    pub lines: Vec<DoseLine>,
    /// A thin line an item, by level.
    pub items: Vec<Vec<Option<f64>>>,
    /// Dotted lines across: values that say nothing, in the colour of the lines that they belong to.
    pub baselines: Vec<(f64, RGBColor)>,
}

/// A picture of panels.
#[derive(Debug, Clone)]
pub(super) struct DoseLines {
    pub title: String,
    pub origin: String,
    pub y_label: String,
    pub panels: Vec<DosePanel>,
    /// The legend's words for the dotted lines; none where there are none.
    pub baseline: Option<String>,
    /// Ends that the value axis has in any case.
    pub ends: (f64, f64),
    pub of_items: bool,
}

const SIZE: (i32, i32) = (270, 170);
const Y_AXIS: i32 = 46;
const GAP: i32 = 14;
const PANEL_HEAD: i32 = 22;
const X_AXIS: i32 = 46;
const FOOT: i32 = 20;
/// Between the first and the last level and the panel's edges, in pixels.
const PAD: i32 = 18;
/// The distance between lines of one panel, in pixels.
const BESIDE: i32 = 4;
/// The narrowest plot, where a width is stated.
const LEAST: i32 = 120;

/// The place of a level, and that of a value, in units.
struct Plane<'a> {
    across: &'a dyn Fn(usize) -> i32,
    up: &'a dyn Fn(f64) -> i32,
}

impl DoseLines {
    /// The picture.
    pub fn draw(&self, name: &str) -> Result<String, FigureError> {
        let across = |columns: i32, plot: i32| {
            2 * margin() + ValueAxis::beside(&self.y_label) + columns * (plot + Y_AXIS + GAP)
        };
        let least = if is_sized() { LEAST } else { SIZE.0 };
        let tiling = Tiling::of(self.panels.len(), [least, SIZE.0], across);
        let (rows, width) = (tiling.rows, tiling.width);
        let plot = if is_sized() { tiling.panel } else { tiling.panel.min(SIZE.0 * 3 / 2) }.max(60);
        let cell = PANEL_HEAD + SIZE.1 + X_AXIS + GAP;
        let head = Head::of(&self.title, &self.origin, width);
        let y_label = ValueAxis::of(&self.y_label, rows * cell, width);
        let top = head.height() + y_label.above();
        let bottom = top + rows * cell;
        let legend = self.legend(width - 2 * margin());
        let height = bottom + 4 + legend.height() + margin();
        let ends = self.value_ends();
        svg(name, &self.title, (width, height), |area| {
            head.draw(area)?;
            y_label.draw(area, head.height(), top + rows * cell / 2)?;
            for (at, panel) in self.panels.iter().enumerate() {
                let (column, row) = tiling.place(at);
                let left = margin() + ValueAxis::beside(&self.y_label) + column * (tiling.panel.max(plot));
                let left = left + column * (Y_AXIS + GAP) + Y_AXIS;
                panel.draw(area, (left, top + row * cell + PANEL_HEAD), (plot, SIZE.1), ends)?;
            }
            legend.draw(
                area,
                |_| margin(),
                bottom + 4,
                |swatch, (x, y)| match swatch {
                    Swatch::Line(stroke) => sample(area, Sample::Line(*stroke), (x, y + 7)),
                    Swatch::Item => thin(area, &[(x, y + 7), (x + SAMPLE, y + 7)].map(units)),
                    Swatch::Baseline => dotted(area, [(x, y + 7), (x + SAMPLE, y + 7)].map(units), GREY),
                },
            )
        })
    }

    fn legend(&self, room: i32) -> Legend<Swatch> {
        let mut entries: Vec<(Swatch, String)> = Vec::new();
        for one in self.panels.iter().flat_map(|panel| &panel.lines) {
            if !entries.iter().any(|(_, name)| *name == one.name) {
                entries.push((Swatch::Line(one.stroke), one.name.clone()));
            }
        }
        if self.of_items && self.panels.iter().any(|panel| !panel.items.is_empty()) {
            entries.push((Swatch::Item, "one item".to_owned()));
        }
        entries.extend(self.baseline.clone().map(|words| (Swatch::Baseline, words)));
        let indent = SAMPLE + 7;
        let entries =
            entries.into_iter().map(|(swatch, name)| (swatch, indent, fitted(&name, 12, room - indent)));
        Legend::of(entries, LABEL, [22, FOOT], room)
    }

    /// The ends of all panels' value axis. What lies far beyond the means and most items does not set them.
    fn value_ends(&self) -> (f64, f64) {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        let estimates = lines.flat_map(|line| line.points.iter().flatten());
        let of = |estimate: &Estimate| {
            let interval =
                estimate.interval.map_or([estimate.mean; 2], |interval| [interval.low, interval.high]);
            [estimate.mean, interval[0], interval[1]]
        };
        let means: Vec<f64> = estimates.flat_map(of).collect();
        let items = self.panels.iter().flat_map(|panel| panel.items.iter().flatten().flatten());
        let mut items: Vec<f64> = items.copied().filter(|_| self.of_items).collect();
        items.sort_by(f64::total_cmp);
        let quantile = |q: f64| crate::ground::numbers::quantile(&items, q);
        let of_items = [quantile(0.02), quantile(0.98)];
        let all = means.iter().chain(&of_items).copied().filter(|value| value.is_finite());
        let (low, high) = all.fold(self.ends, |(low, high), value| (low.min(value), high.max(value)));
        let pad = (high - low).max(1e-9) * 0.05;
        (low - pad, high + pad)
    }
}

enum Swatch {
    Line(Stroke),
    Item,
    Baseline,
}

fn thin(area: &Area<'_>, places: &[(i32, i32)]) -> Result<(), Refusal> {
    area.draw(&PathElement::new(places.to_vec(), INK.mix(0.22).stroke_width(UNIT as u32 * 3 / 4)))
}

fn dotted(area: &Area<'_>, places: [(i32, i32); 2], colour: RGBColor) -> Result<(), Refusal> {
    let stroke = colour.stroke_width(UNIT as u32 * 5 / 4);
    area.draw(&DashedPathElement::new(places, 2 * UNIT, 3 * UNIT, stroke))
}

impl DosePanel {
    fn draw(
        &self,
        area: &Area<'_>,
        (left, top): (i32, i32),
        (width, height): (i32, i32),
        (low, high): (f64, f64),
    ) -> Result<(), Refusal> {
        let (right, bottom) = (left + width, top + height);
        let note = text_width(&self.note, 11);
        write(area, &fitted(&self.title, 12, width - note - 8), (left, top - 20), LABEL)?;
        write(area, &self.note, (right, top - 19), NOTE.right())?;
        let up = |value: f64| {
            let share = (value.clamp(low, high) - low) / (high - low);
            bottom * UNIT - (share * f64::from(height * UNIT)).round() as i32
        };
        for tick in round_ticks(low, high) {
            let ends = [(left * UNIT, up(tick)), (right * UNIT, up(tick))];
            let colour = if tick == 0.0 { GREY } else { GRID };
            area.draw(&PathElement::new(ends, colour.stroke_width(UNIT as u32 * 3 / 4)))?;
            write_middle(area, &write_value(tick, false), ((left - 5) * UNIT, up(tick)), TICK.right())?;
        }
        let steps = self.levels.len().saturating_sub(1) as i32;
        let across = |level: usize| match steps {
            0 => (left + width / 2) * UNIT,
            steps => (left + PAD) * UNIT + level as i32 * (width - 2 * PAD) * UNIT / steps,
        };
        let room = if steps == 0 { width } else { (width - 2 * PAD) / steps.min(2) };
        let tick = |(at, name): (usize, &String)| (across(at) / UNIT, fitted(name, 10, room));
        write_ticks(area, bottom + 5, self.levels.iter().enumerate().map(tick))?;
        write(
            area,
            &fitted(&self.x_label, 12, width + Y_AXIS),
            (left + width / 2, bottom + 20),
            LABEL.centred(),
        )?;
        line(area, [(left, top), (left, bottom), (right, bottom)], GREY)?;
        for (value, colour) in &self.baselines {
            dotted(area, [(left * UNIT, up(*value)), (right * UNIT, up(*value))], *colour)?;
        }
        let plane = Plane { across: &across, up: &up };
        for item in &self.items {
            for run in runs(
                item.iter().enumerate().map(|(level, value)| Some(((plane.across)(level), up((*value)?)))),
            ) {
                match run[..] {
                    [at] => area.draw(&Circle::new(at, UNIT, INK.mix(0.22).filled()))?,
                    _ => thin(area, &run)?,
                }
            }
        }
        let middle = self.lines.len().saturating_sub(1) as i32 * BESIDE / 2;
        for (nth, one) in self.lines.iter().enumerate() {
            one.draw(area, &plane, (nth as i32 * BESIDE - middle) * UNIT)?;
        }
        Ok(())
    }
}

impl DoseLine {
    fn draw(&self, area: &Area<'_>, plane: &Plane<'_>, beside: i32) -> Result<(), Refusal> {
        let whisker = self.stroke.colour.mix(0.6).stroke_width(UNIT as u32 * 3 / 2);
        let points = || self.points.iter().enumerate();
        for (level, estimate) in points().filter_map(|(level, estimate)| Some((level, estimate.as_ref()?))) {
            if let Some(interval) = estimate.interval {
                let x = (plane.across)(level) + beside;
                area.draw(&PathElement::new(
                    [interval.low, interval.high].map(|end| (x, (plane.up)(end))),
                    whisker,
                ))?;
            }
        }
        let places: Vec<Option<(i32, i32)>> = points()
            .map(|(level, estimate)| {
                Some(((plane.across)(level) + beside, (plane.up)(estimate.as_ref()?.mean)))
            })
            .collect();
        marked_line(area, self.stroke, &places)
    }
}
