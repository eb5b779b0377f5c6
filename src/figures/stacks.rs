//! Bars that parts fill (SubtleMemory, figure 3), for pictures of counts that a benchmark has for itself. Every bar is as long as the
//! others, so that shares compare; the counts lie beside the picture as CSV.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::canvas::{MARGIN, Refusal, head, more_origins, svg, text_width, write};
use super::style::{BLUE, GREEN, GREY, GRID, INK, LINEAR, UNIT, VERMILLION, shortened};
use super::{Figure, FigureError};
use crate::benchmarks::{Bar, BarChart};

const HEAD: i32 = 58;
const BAR: i32 = 15;
const STEP: i32 = 21;
/// Above the bars of a group.
const GROUP: i32 = 26;
/// Length of a bar in pixels.
const LENGTH: i32 = 420;
const FOOT: i32 = 66;
/// Characters of a group's and of a bar's name.
const NAME: usize = 70;
/// From the left: dark parts first, so that the order shows without colour, too.
const COLOURS: [RGBColor; 5] = [GREEN, BLUE, VERMILLION, GREY, LINEAR];

/// The chart as a figure. `origin` says where the numbers come from.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub(super) fn stacked(chart: &BarChart, origin: &str) -> Result<Figure, FigureError> {
    let BarChart { key: name, title, caption, parts, bars } = chart;
    let colour = |at: usize| COLOURS[at % COLOURS.len()];
    let widest = |texts: &mut dyn Iterator<Item = &str>, size: i32| {
        texts.map(|text| text_width(&shortened(text, NAME), size)).max().unwrap_or(0)
    };
    let left = MARGIN + widest(&mut bars.iter().map(|bar| bar.label.as_str()), 12) + 12;
    let notes = widest(&mut bars.iter().map(|bar| bar.note.as_str()), 11);
    let legend: i32 = parts.iter().map(|part| 20 + text_width(part, 11) + 18).sum();
    let groups = widest(&mut bars.iter().map(|bar| bar.group.as_str()), 12);
    let width =
        [left + LENGTH + notes + 24, left + legend, MARGIN + groups, 620].into_iter().max().unwrap_or(620);
    let begins =
        |at: usize| at == 0 || bars.get(at - 1).map(|bar| &bar.group) != bars.get(at).map(|bar| &bar.group);
    let top = HEAD + more_origins(origin);
    let mut tops = Vec::with_capacity(bars.len());
    let mut y = top;
    for at in 0..bars.len() {
        y += if begins(at) { GROUP } else { 0 };
        tops.push(y);
        y += STEP;
    }
    let bottom = y;
    let svg = svg(name, title, (width, bottom + FOOT), |area| {
        head(area, title, origin, width)?;
        for percent in [0, 25, 50, 75, 100] {
            let x = left + LENGTH * percent / 100;
            let line = [(x * UNIT, (top + 8) * UNIT), (x * UNIT, bottom * UNIT)];
            area.draw(&PathElement::new(line, GRID.stroke_width(UNIT as u32)))?;
            write(area, &format!("{percent}%"), (x, bottom + 4), 10, GREY, HPos::Center)?;
        }
        for (at, (bar, y)) in bars.iter().zip(&tops).enumerate() {
            if begins(at) {
                write(area, &shortened(&bar.group, NAME), (MARGIN, y - GROUP + 8), 12, INK, HPos::Left)?;
            }
            draw_bar(area, bar, (left, *y), &colour)?;
        }
        let mut x = left;
        for (at, part) in parts.iter().enumerate() {
            let corners = [(x * UNIT, (bottom + 30) * UNIT), ((x + 14) * UNIT, (bottom + 42) * UNIT)];
            area.draw(&Rectangle::new(corners, colour(at).filled()))?;
            area.draw(&Rectangle::new(corners, GREY.stroke_width(1)))?;
            write(area, part, (x + 20, bottom + 30), 11, INK, HPos::Left)?;
            x += 20 + text_width(part, 11) + 18;
        }
        Ok(())
    })?;
    let csv = csv(chart).map_err(|source| FigureError::Table { figure: name.clone(), source })?;
    Ok(Figure { name: name.clone(), title: title.clone(), caption: caption.clone(), svg, csv })
}

fn draw_bar(
    area: &super::canvas::Area<'_>,
    bar: &Bar,
    (left, top): (i32, i32),
    colour: &impl Fn(usize) -> RGBColor,
) -> Result<(), Refusal> {
    write(area, &shortened(&bar.label, NAME), (left - 8, top + 1), 12, INK, HPos::Right)?;
    let whole: usize = bar.counts.iter().sum();
    let end = |count: usize| left + (count as f64 / whole.max(1) as f64 * f64::from(LENGTH)).round() as i32;
    let mut done = 0;
    for (at, count) in bar.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let corners = [(end(done) * UNIT, top * UNIT), (end(done + count) * UNIT, (top + BAR) * UNIT)];
        area.draw(&Rectangle::new(corners, colour(at).filled()))?;
        area.draw(&Rectangle::new(corners, WHITE.stroke_width(UNIT as u32 / 2)))?;
        done += count;
    }
    write(area, &bar.note, (left + LENGTH + 10, top + 2), 11, GREY, HPos::Left)
}

/// Rows of `group,bar,part,count`.
fn csv(chart: &BarChart) -> Result<Vec<u8>, csv::Error> {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(["group", "bar", "part", "count"])?;
    for bar in &chart.bars {
        for (part, count) in chart.parts.iter().zip(&bar.counts) {
            table.write_record([&bar.group, &bar.label, part, &count.to_string()])?;
        }
    }
    table.into_inner().map_err(|e| csv::Error::from(std::io::Error::from(e.error().kind())))
}
