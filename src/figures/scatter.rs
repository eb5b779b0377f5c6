//! Points: how one number of each session goes with another.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::FigureError;
use super::axis::{round_ticks, value_ticks, write_value};
use super::canvas::{Area, MARGIN, Refusal, head, more_origins, svg, text_width, wide_enough, write};
use super::style::{self, GREY, GRID, INK, UNIT};

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

const HEAD: i32 = 54;
const SIZE: (i32, i32) = (330, 250);
const Y_AXIS: i32 = 52;
const GAP: i32 = 16;
const FOOT: i32 = 66;

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
    ///
    /// # Errors
    /// [`FigureError::Draw`] with the figure's name.
    pub fn draw(&self, name: &str) -> Result<String, FigureError> {
        let columns = self.panels.len().max(1) as i32;
        let width =
            wide_enough(2 * MARGIN + 16 + columns * (SIZE.0 + Y_AXIS + GAP), &self.title, &self.origin);
        let top = HEAD + more_origins(&self.origin);
        let height = top + 24 + SIZE.1 + FOOT + 18;
        let mut values: Vec<f64> =
            self.panels.iter().flat_map(|panel| panel.points.iter().map(|p| p.2)).collect();
        let y_ends = if values.is_empty() { (-1.0, 1.0) } else { ends(&mut values) };
        svg(name, &self.title, (width, height), |area| {
            head(area, &self.title, &self.origin, width)?;
            for (at, panel) in self.panels.iter().enumerate() {
                let left = MARGIN + 16 + at as i32 * (SIZE.0 + Y_AXIS + GAP) + Y_AXIS;
                self.panel(area, panel, (left, top + 22), y_ends)?;
            }
            let vertical = style::text(12, INK)
                .transform(FontTransform::Rotate270)
                .pos(Pos::new(HPos::Center, VPos::Top));
            let middle = top + 22 + SIZE.1 / 2;
            area.draw(&Text::new(self.y_label.clone(), (MARGIN * UNIT - UNIT * 4, middle * UNIT), vertical))?;
            let (mut x, y) = (MARGIN + 16 + Y_AXIS, top + 22 + SIZE.1 + 46);
            for (colour, text) in &self.kinds {
                area.draw(&Circle::new(((x + 5) * UNIT, (y + 7) * UNIT), UNIT * 3, colour.filled()))?;
                write(area, text, (x + 15, y), 12, INK, HPos::Left)?;
                x += 15 + text_width(text, 12) + 20;
            }
            if let Some((_, text)) = &self.level {
                let line = [(x * UNIT, (y + 7) * UNIT), ((x + 22) * UNIT, (y + 7) * UNIT)];
                area.draw(&PathElement::new(line, INK.stroke_width(UNIT as u32)))?;
                write(area, text, (x + 28, y), 12, INK, HPos::Left)?;
            }
            Ok(())
        })
    }

    fn panel(
        &self,
        area: &Area<'_>,
        panel: &Cloud,
        (left, top): (i32, i32),
        (y_low, y_high): (f64, f64),
    ) -> Result<(), Refusal> {
        let (width, height) = SIZE;
        write(area, &panel.title, (left, top - 20), 13, INK, HPos::Left)?;
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
            let style = style::text(10, GREY).pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(write_value(tick, false), (left * UNIT - 5 * UNIT, level), style))?;
        }
        for tick in value_ticks(low, high) {
            let x = across(tick);
            area.draw(&PathElement::new([(x, top * UNIT), (x, bottom)], GRID.stroke_width(UNIT as u32 / 2)))?;
            let style = style::text(10, GREY).pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(write_value(tick, false), (x, bottom + 5 * UNIT), style))?;
        }
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
        write(area, &panel.x_label, (left + width / 2, top + height + 22), 12, INK, HPos::Center)
    }
}
