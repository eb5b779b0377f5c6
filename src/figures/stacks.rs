//! Bars that parts fill (SubtleMemory, figure 3), for pictures of counts that a benchmark has for itself. Every bar is as long as the
//! others, so that shares compare; the counts lie beside the picture as CSV.

use plotters::prelude::*;

use super::canvas::{Area, Head, LABEL, Refusal, TICK, filled, fitted, line, margin, svg, units, write};
use super::legend::Legend;
use super::rows::RowLayout;
use super::style::{GREY, GRID, LINEAR, UNIT};
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
pub(super) fn stacked(chart: &BarChart, origin: &str) -> Result<Figure, FigureError> {
    let BarChart { key: name, title, caption, parts, bars } = chart;
    let colour = |at: usize| COLOURS[at % COLOURS.len()];
    let texts: Vec<(&str, String)> = bars.iter().map(|bar| (bar.label.as_str(), bar.note.clone())).collect();
    let rows = RowLayout::of(&texts, LENGTH, STEP);
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
    let room = rows.width - 2 * margin();
    let entries = parts.iter().enumerate().map(|(at, part)| (colour(at), 20, fitted(part, 11, room - 22)));
    let legend = Legend::of(entries, LABEL.sized(11), [18, 17], room);
    let height = bottom + 28 + legend.height() + margin();
    let svg = svg(name, title, (rows.width, height), |area| {
        head.draw(area)?;
        for percent in [0, 25, 50, 75, 100] {
            let x = rows.left + rows.length * percent / 100;
            line(area, [(x, top + 8), (x, bottom)], GRID)?;
            write(area, &format!("{percent}%"), (x, bottom + 4), TICK.centred())?;
        }
        for (at, (bar, y)) in bars.iter().zip(&tops).enumerate() {
            if begins(at) {
                let group = fitted(&bar.group, 12, rows.width - 2 * margin());
                write(area, &group, (margin(), y - GROUP + 8), LABEL)?;
            }
            rows.words(area, &texts[at], *y)?;
            draw_bar(area, bar, &rows, y + rows.mark_top, &colour)?;
        }
        legend.draw(
            area,
            |_| margin(),
            bottom + 26,
            |colour, (x, y)| {
                let corners = [(x, y + 1), (x + 14, y + 13)];
                filled(area, corners, *colour)?;
                area.draw(&Rectangle::new(corners.map(units), GREY.stroke_width(1)))
            },
        )
    })?;
    let csv = csv(chart);
    Ok(Figure { name: name.clone(), title: title.clone(), caption: caption.clone(), svg, csv })
}

fn draw_bar(
    area: &Area<'_>,
    bar: &Bar,
    rows: &RowLayout,
    top: i32,
    colour: &impl Fn(usize) -> RGBColor,
) -> Result<(), Refusal> {
    let whole: usize = bar.counts.iter().sum();
    let end = |count: usize| {
        rows.left + (count as f64 / whole.max(1) as f64 * f64::from(rows.length)).round() as i32
    };
    let mut done = 0;
    for (at, count) in bar.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let corners = [(end(done), top), (end(done + count), top + BAR)];
        filled(area, corners, colour(at))?;
        area.draw(&Rectangle::new(corners.map(units), WHITE.stroke_width(UNIT as u32 / 2)))?;
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
