//! Points: how one number of each session goes with another.

use plotters::prelude::*;

use super::FigureError;
use super::axis::{round_ticks, value_ticks, write_value};
use super::canvas::{
    Area, Head, LABEL, Refusal, TICK, Tiling, ValueAxis, is_sized, line, margin, svg, units, write,
    write_middle, write_ticks,
};
use super::legend::Legend;
use super::style::{GREY, GRID, INK, UNIT};

/// A panel of points.
#[derive(Debug, Clone)]
pub(super) struct Cloud {
    pub title: String,
    /// Below the axis, which is logarithmic: points at 0 or below lie at its left edge.
    pub x_label: String,
    /// (kind, x, y)
    pub points: Vec<(usize, f64, f64)>,
}

/// Panels beside each other, on one value axis.
#[derive(Debug, Clone)]
pub(super) struct Scatter {
    pub title: String,
    pub origin: String,
    pub y_label: String,
    pub panels: Vec<Cloud>,
    /// A kind of point each: those drawn first lie below the others.
    pub kinds: Vec<(RGBColor, String)>,
    /// A line across: what nothing of interest comes to.
    pub level: Option<(f64, String)>,
}

const SIZE: (i32, i32) = (330, 250);
const Y_AXIS: i32 = 46;
const GAP: i32 = 16;
/// Below a plot: its ticks and its axis' name.
const X_AXIS: i32 = 46;
/// The narrowest plot that stands beside another, where a width is stated.
const LEAST: i32 = 150;

/// The ends of the middle part of some numbers, in which all but the farthest of a thousand lie, and 0.
fn ends(values: &mut [f64]) -> (f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    let at = |q: f64| crate::ground::numbers::quantile(values, q);
    let (low, high) = (at(0.001).min(0.0), at(0.999).max(0.0));
    let pad = (high - low).max(1e-6) * 0.06;
    (low - pad, high + pad)
}

impl Scatter {
    /// The picture.
    pub fn draw(&self, name: &str) -> Result<String, FigureError> {
        let across = |columns: i32, plot: i32| {
            2 * margin() + ValueAxis::beside(&self.y_label) + columns * (plot + Y_AXIS + GAP)
        };
        let least = if is_sized() { LEAST } else { SIZE.0 };
        let tiling = Tiling::of(self.panels.len(), [least, SIZE.0], across);
        let (rows, width) = (tiling.rows, tiling.width);
        let plot = SIZE.0.min(tiling.panel).max(60);
        let size = (plot, (plot * SIZE.1 / SIZE.0).max(120));
        let cell = 22 + size.1 + X_AXIS;
        let head = Head::of(&self.title, &self.origin, width);
        let y_label = ValueAxis::of(&self.y_label, rows * cell, width);
        let top = head.height() + y_label.above();
        let bottom = top + rows * cell;
        let kinds = self.kinds.iter().map(|(colour, text)| (Some(*colour), 15, text.clone()));
        let level = self.level.iter().map(|(_, text)| (None, 28, text.clone()));
        let legend = Legend::of(kinds.chain(level), LABEL, [20, 18], width - 2 * margin());
        let height = bottom + 6 + legend.height() + margin();
        let mut values: Vec<f64> =
            self.panels.iter().flat_map(|panel| panel.points.iter().map(|p| p.2)).collect();
        let y_ends = if values.is_empty() { (-1.0, 1.0) } else { ends(&mut values) };
        svg(name, &self.title, (width, height), |area| {
            head.draw(area)?;
            y_label.draw(area, head.height(), top + rows * cell / 2)?;
            for (at, panel) in self.panels.iter().enumerate() {
                let (column, row) = tiling.place(at);
                let beside = ValueAxis::beside(&self.y_label);
                let left = margin() + beside + column * (size.0 + Y_AXIS + GAP) + Y_AXIS;
                self.panel(area, panel, (left, top + row * cell + 22), size, y_ends)?;
            }
            legend.draw(
                area,
                |_| margin(),
                bottom + 6,
                |colour, (x, y)| match colour {
                    Some(colour) => area.draw(&Circle::new(units((x + 5, y + 7)), UNIT * 3, colour.filled())),
                    None => line(area, [(x, y + 7), (x + 22, y + 7)], INK),
                },
            )
        })
    }

    fn panel(
        &self,
        area: &Area<'_>,
        panel: &Cloud,
        (left, top): (i32, i32),
        (width, height): (i32, i32),
        (y_low, y_high): (f64, f64),
    ) -> Result<(), Refusal> {
        write(area, &panel.title, (left, top - 20), LABEL)?;
        let positive = || panel.points.iter().map(|point| point.1).filter(|x| *x > 0.0 && x.is_finite());
        let (low, high) =
            positive().fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
        // No axis spans more than five decades: what is smaller lies at its edge.
        let (low, high) =
            if low.is_finite() { (low.max(high * 1e-5) / 1.2, high * 1.2) } else { (0.1, 10.0) };
        let across = |x: f64| {
            let share = (x.max(low).log10() - low.log10()) / (high.log10() - low.log10());
            left * UNIT + (share * f64::from(width * UNIT)).round() as i32
        };
        let up = |y: f64| {
            let share = (y.clamp(y_low, y_high) - y_low) / (y_high - y_low);
            (top + height) * UNIT - (share * f64::from(height * UNIT)).round() as i32
        };
        let (right, bottom) = ((left + width) * UNIT, (top + height) * UNIT);
        for tick in round_ticks(y_low, y_high) {
            let level = up(tick);
            let colour = if tick == 0.0 { GREY } else { GRID };
            area.draw(&PathElement::new(
                [(left * UNIT, level), (right, level)],
                colour.stroke_width(UNIT as u32),
            ))?;
            write_middle(area, &write_value(tick, false), ((left - 5) * UNIT, level), TICK.right())?;
        }
        let ticks = value_ticks(low, high);
        for tick in &ticks {
            let x = across(*tick);
            area.draw(&PathElement::new([(x, top * UNIT), (x, bottom)], GRID.stroke_width(UNIT as u32 / 2)))?;
        }
        let named = ticks.into_iter().map(|tick| (across(tick) / UNIT, write_value(tick, false)));
        write_ticks(area, top + height + 5, named)?;
        let frame = [(left * UNIT, top * UNIT), (left * UNIT, bottom), (right, bottom)];
        area.draw(&PathElement::new(frame, GREY.stroke_width(UNIT as u32)))?;
        if let Some((level, _)) = self.level {
            let line = [(left * UNIT, up(level)), (right, up(level))];
            area.draw(&PathElement::new(line, INK.stroke_width(UNIT as u32)))?;
        }
        for (kind, (colour, _)) in self.kinds.iter().enumerate() {
            for (_, x, y) in panel.points.iter().filter(|point| point.0 == kind) {
                area.draw(&Circle::new((across(*x), up(*y)), UNIT * 5 / 2, colour.mix(0.6).filled()))?;
            }
        }
        write(area, &panel.x_label, (left + width / 2, top + height + 22), LABEL.centred())
    }
}
