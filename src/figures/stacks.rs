//! Bars that parts fill (SubtleMemory, figure 3), for pictures of counts that a benchmark has for itself. Every bar is as long as the
//! others, so that shares compare; the counts lie beside the picture as CSV.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::canvas::{Head, Refusal, fitted, flowed, margin, svg, text_width, write};
use super::rows::Rows;
use super::style::{GREY, GRID, INK, LINEAR, UNIT};
use super::{Figure, FigureError};
use crate::benchmarks::{Bar, BarChart};
use crate::ground::csv::CsvTable;

const BAR: i32 = 15;
const STEP: i32 = 21;
/// Above the bars of a group.
const GROUP: i32 = 26;
/// Length of a bar in pixels.
const LENGTH: i32 = 420;
/// From the left: dark parts first, so that the order shows without colour, too. An order's own scale, no meaning of lines.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x00, 0x44, 0x88),
    RGBColor(0x33, 0x88, 0xbb),
    RGBColor(0x88, 0xc0, 0xd8),
    RGBColor(0xd8, 0xb3, 0x65),
    LINEAR,
];

/// The chart as a figure. `origin` says where the numbers come from.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub(super) fn stacked(chart: &BarChart, origin: &str) -> Result<Figure, FigureError> {
    let BarChart { key: name, title, caption, parts, bars } = chart;
    let colour = |at: usize| COLOURS[at % COLOURS.len()];
    let texts: Vec<(&str, String)> = bars.iter().map(|bar| (bar.label.as_str(), bar.note.clone())).collect();
    let rows = Rows::of(&texts, LENGTH, STEP);
    let head = Head::of(title, origin, rows.width);
    let begins =
        |at: usize| at == 0 || bars.get(at - 1).map(|bar| &bar.group) != bars.get(at).map(|bar| &bar.group);
    let top = head.height();
    let mut tops = Vec::with_capacity(bars.len());
    let mut y = top;
    for at in 0..bars.len() {
        y += if begins(at) { GROUP } else { 0 };
        tops.push(y);
        y += rows.step;
    }
    let bottom = y;
    let entries = parts.iter().enumerate().map(|(at, part)| {
        let part = fitted(part, 11, rows.width - 2 * margin() - 22);
        (20 + text_width(&part, 11) + 18, (at, part))
    });
    let legend = flowed(entries, rows.width - 2 * margin());
    let height = bottom + 28 + legend.len() as i32 * 17 + margin();
    let svg = svg(name, title, (rows.width, height), |area| {
        head.draw(area)?;
        for percent in [0, 25, 50, 75, 100] {
            let x = rows.left + rows.length * percent / 100;
            let line = [(x * UNIT, (top + 8) * UNIT), (x * UNIT, bottom * UNIT)];
            area.draw(&PathElement::new(line, GRID.stroke_width(UNIT as u32)))?;
            write(area, &format!("{percent}%"), (x, bottom + 4), 10, GREY, HPos::Center)?;
        }
        for (at, (bar, y)) in bars.iter().zip(&tops).enumerate() {
            if begins(at) {
                let group = fitted(&bar.group, 12, rows.width - 2 * margin());
                write(area, &group, (margin(), y - GROUP + 8), 12, INK, HPos::Left)?;
            }
            rows.words(area, &texts[at], *y)?;
            draw_bar(area, bar, &rows, y + rows.mark_top, &colour)?;
        }
        for (line, items) in legend.iter().enumerate() {
            let (mut x, y) = (margin(), bottom + 26 + line as i32 * 17);
            for (need, (at, part)) in items {
                let corners = [(x * UNIT, (y + 1) * UNIT), ((x + 14) * UNIT, (y + 13) * UNIT)];
                area.draw(&Rectangle::new(corners, colour(*at).filled()))?;
                area.draw(&Rectangle::new(corners, GREY.stroke_width(1)))?;
                write(area, part, (x + 20, y), 11, INK, HPos::Left)?;
                x += need;
            }
        }
        Ok(())
    })?;
    let csv = csv(chart);
    Ok(Figure { name: name.clone(), title: title.clone(), caption: caption.clone(), svg, csv })
}

fn draw_bar(
    area: &super::canvas::Area<'_>,
    bar: &Bar,
    rows: &Rows,
    top: i32,
    colour: &impl Fn(usize) -> RGBColor,
) -> Result<(), Refusal> {
    let whole: usize = bar.counts.iter().sum();
    let end = |count: usize| {
        rows.left + (count as f64 / whole.max(1) as f64 * f64::from(rows.length)).round() as i32
    };
    let mut done = 0;
    for (at, count) in bar.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let corners = [(end(done) * UNIT, top * UNIT), (end(done + count) * UNIT, (top + BAR) * UNIT)];
        area.draw(&Rectangle::new(corners, colour(at).filled()))?;
        area.draw(&Rectangle::new(corners, WHITE.stroke_width(UNIT as u32 / 2)))?;
        done += count;
    }
    Ok(())
}

/// A row a part of a bar.
fn csv(chart: &BarChart) -> Vec<u8> {
    let rows = chart
        .bars
        .iter()
        .flat_map(|bar| chart.parts.iter().zip(&bar.counts).map(move |(part, count)| (bar, part, count)));
    CsvTable::of(rows)
        .column("group", |(bar, ..)| &bar.group)
        .column("bar", |(bar, ..)| &bar.label)
        .column("part", |(_, part, _)| part)
        .column("count", |(.., count)| count)
        .bytes()
}
