//! Numbers with their intervals, a line each, on one axis: dots, bars of 95%, and small dots for single units where there are too
//! few for an interval.

use plotters::prelude::*;

use super::axis::{round_ticks, write_value};
use super::canvas::{
    Area, Head, LABEL, NOTE, Refusal, TICK, fitted, line, margin, svg, text_width, units, wrapped, write,
};
use super::rows::RowLayout;
use super::style::{GREY, GRID, INK, UNIT};
use super::{Figure, FigureError};
use crate::ground::csv::CsvTable;
use crate::lens::band::Estimate;

/// A line: a number with its interval.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// Above the first of the lines that share it.
    pub group: String,
    pub label: String,
    /// The number; of 0 units where it is no mean.
    pub estimate: Estimate,
    pub colour: RGBColor,
    /// A mark of its own, such as what chance would give.
    pub mark: Option<f64>,
}

/// The picture.
#[derive(Debug, Clone, Default)]
pub(super) struct Intervals {
    pub name: String,
    pub title: String,
    pub origin: String,
    pub caption: String,
    pub axis: String,
    /// The meaning of a line's mark; empty where no line has one.
    pub mark: &'static str,
    /// Ends that the axis has at least.
    pub ends: (f64, f64),
    pub percent: bool,
    pub lines: Vec<Line>,
}

const GROUP: i32 = 24;
const LENGTH: i32 = 380;
/// Height of a line's mark.
const MARK: i32 = 22;

impl Intervals {
    /// The figure, with its numbers.
    pub fn figure(self) -> Result<Figure, FigureError> {
        let svg = self.draw()?;
        let csv = self.csv();
        Ok(Figure { name: self.name, title: self.title, caption: self.caption, svg, csv })
    }

    fn begins(&self, at: usize) -> bool {
        let group = |at: usize| self.lines.get(at).map(|line| line.group.as_str());
        group(at).is_some_and(|name| !name.is_empty()) && (at == 0 || group(at - 1) != group(at))
    }

    fn ends(&self) -> (f64, f64) {
        let values = self.lines.iter().flat_map(|line| {
            let Estimate { value, band, each, .. } = &line.estimate;
            let band = band.iter().flat_map(|(low, high)| [*low, *high]);
            value.iter().copied().chain(band).chain(each.iter().copied()).chain(line.mark).collect::<Vec<_>>()
        });
        let (low, high) =
            values.filter(|x| x.is_finite()).fold(self.ends, |(low, high), x| (low.min(x), high.max(x)));
        let pad = (high - low).max(1e-9) * 0.04;
        (if low < 0.0 { low - pad } else { low }, high + pad)
    }

    fn draw(&self) -> Result<String, FigureError> {
        let (low, high) = self.ends();
        let note = |line: &Line| note(line, self.percent, high - low);
        let texts: Vec<(&str, String)> =
            self.lines.iter().map(|line| (line.label.as_str(), note(line))).collect();
        let rows = RowLayout::of(&texts, LENGTH, MARK);
        let head = Head::of(&self.title, &self.origin, rows.width);
        let top = head.height() + 4;
        let mut y = top;
        let mut tops = Vec::new();
        for at in 0..self.lines.len() {
            y += if self.begins(at) { GROUP } else { 0 };
            tops.push(y);
            y += rows.step;
        }
        let bottom = y;
        let place =
            |value: f64| rows.left + ((value - low) / (high - low) * f64::from(rows.length)).round() as i32;
        let axis = wrapped(&self.axis, 12, rows.width - 2 * margin());
        let marked = if self.mark.is_empty() { 0 } else { 22 };
        let height = bottom + 20 + axis.len() as i32 * 15 + marked + margin();
        svg(&self.name, &self.title, (rows.width, height), |area| {
            head.draw(area)?;
            let mut free = i32::MIN;
            for tick in round_ticks(low, high) {
                let x = place(tick);
                line(area, [(x, top - 2), (x, bottom)], if tick == 0.0 { GREY } else { GRID })?;
                let written = write_value(tick, self.percent);
                let half = text_width(&written, 10) / 2 + 2;
                if x - half >= free {
                    write(area, &written, (x, bottom + 4), TICK.centred())?;
                    free = x + half;
                }
            }
            for (at, text) in axis.iter().enumerate() {
                let y = bottom + 19 + at as i32 * 15;
                let half = text_width(text, 12) / 2;
                let room = margin() + half..=rows.width - margin() - half;
                let x = (rows.left + rows.length / 2).clamp(*room.start(), (*room.end()).max(*room.start()));
                write(area, text, (x, y), LABEL.centred())?;
            }
            for (at, (one, &top)) in self.lines.iter().zip(&tops).enumerate() {
                if self.begins(at) {
                    let group = fitted(&one.group, 12, rows.width - 2 * margin());
                    write(area, &group, (margin(), top - GROUP + 6), LABEL)?;
                }
                rows.words(area, &texts[at], top)?;
                draw_line(area, one, top + rows.mark_top + MARK / 2 - 2, &place)?;
            }
            if !self.mark.is_empty() {
                let (x, y) = (rows.left, bottom + 20 + axis.len() as i32 * 15 + 8);
                draw_mark(area, (x, y))?;
                write(area, self.mark, (x + 10, y - 7), NOTE)?;
            }
            Ok(())
        })
    }

    /// A row a line.
    fn csv(&self) -> Vec<u8> {
        CsvTable::of(&self.lines)
            .column("group", |line| &line.group)
            .column("line", |line| &line.label)
            .column("n", |line| line.estimate.n)
            .optional("value", |line| line.estimate.value)
            .optional("low", |line| line.estimate.band.map(|(low, _)| low))
            .optional("high", |line| line.estimate.band.map(|(_, high)| high))
            .optional("mark", |line| line.mark)
            .bytes()
    }
}

fn draw_mark(area: &Area<'_>, (x, y): (i32, i32)) -> Result<(), Refusal> {
    let upright = [(x, y - 8), (x, y + 8)].map(units);
    area.draw(&PathElement::new(upright, INK.stroke_width(UNIT as u32 * 3 / 2)))
}

fn draw_line(area: &Area<'_>, line: &Line, y: i32, place: &impl Fn(f64) -> i32) -> Result<(), Refusal> {
    let Estimate { value, band, each, .. } = &line.estimate;
    if let Some(mark) = line.mark {
        draw_mark(area, (place(mark), y))?;
    }
    if let Some((low, high)) = band {
        let bar = [(place(*low), y), (place(*high), y)].map(units);
        area.draw(&PathElement::new(bar, line.colour.stroke_width(UNIT as u32 * 2)))?;
    }
    for value in each {
        area.draw(&Circle::new(units((place(*value), y)), UNIT * 2, line.colour.mix(0.45).filled()))?;
    }
    if let Some(value) = value {
        area.draw(&Circle::new(units((place(*value), y)), UNIT * 4, line.colour.filled()))?;
    }
    Ok(())
}

/// The number in words, with what it rests on; to a hundredth of the axis' length, or finer.
fn note(line: &Line, percent: bool, length: f64) -> String {
    let Estimate { n, value, band, .. } = &line.estimate;
    let digits = (2.0 - length.max(1e-9).log10().ceil()).clamp(2.0, 6.0) as usize;
    // A number that rounds to 0 has no sign.
    let write = |x: f64| match percent {
        true => format!("{:.0}%", 100.0 * x),
        false => format!("{:.digits$}", if x.abs() < 0.5 * 10f64.powi(-(digits as i32)) { 0.0 } else { x }),
    };
    match (value, band) {
        (Some(value), Some((low, high))) => {
            format!("{} [{}, {}]  n = {n}", write(*value), write(*low), write(*high))
        }
        (Some(value), None) if *n == 0 => write(*value),
        (Some(value), None) => format!("{}  n = {n}", write(*value)),
        (None, _) => "none".to_owned(),
    }
}
