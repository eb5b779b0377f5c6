//! Lines of shares over lengths or densities (MemoryRewardBench, figures 6, 19 and 20), for pictures that a benchmark has for itself.
//!
//! All panels run from 0 to 100%, so that heights compare. Every point has its 95% interval as a whisker; lines of one name look the
//! same in all panels, and stand a little beside each other so that whiskers do not hide each other. The counts lie beside the picture as
//! CSV.

use plotters::prelude::*;

use super::canvas::{
    Area, Head, LABEL, Refusal, fitted, is_sized, line, margin, percent_lines, room, svg, width_for, write,
    write_ticks,
};
use super::legend::Legend;
use super::meaning::{self, Meaning};
use super::plot::{SAMPLE, Sample, marked_line, sample};
use super::sheet::arrange;
use super::style::{GREY, Stroke, UNIT};
use super::{Figure, FigureError};
use crate::benchmarks::{TrendChart, TrendLine, TrendPanel};
use crate::ground::csv::CsvTable;
use crate::ground::order::unique;

const PANEL_HEAD: i32 = 22;
/// Size of a panel's plot in pixels.
const PANEL: (i32, i32) = (190, 110);
const X_AXIS: i32 = 24;
const Y_AXIS: i32 = 40;
const GAP: i32 = 12;
const FOOT: i32 = 22;
/// Between the first and the last place and the panel's edges, in pixels.
const PAD: i32 = 16;
/// The distance between lines of one panel, in pixels.
const BESIDE: i32 = 4;
/// The narrowest plot, where a width is stated.
const LEAST: i32 = 105;

/// The chart as a figure. `origin` says where the numbers come from.
pub(super) fn trends(chart: &TrendChart, origin: &str) -> Result<Figure, FigureError> {
    let TrendChart { key: name, title, caption, axis, places, rows } = chart;
    let lines = rows.iter().flatten().flat_map(|panel| &panel.lines);
    let names = unique(lines.map(|line| line.name.as_str()));
    let strokes = meaning::of_words(names.iter().copied());
    let across = |columns: i32, plot: i32| 2 * margin() + columns * (plot + Y_AXIS + GAP) + 8;
    let least = if is_sized() { LEAST } else { PANEL.0 };
    let most = (1..=24).take_while(|columns| across(*columns, least) <= room()).count();
    // A panel without a point shows nothing.
    let shown = |panel: &'_ TrendPanel| {
        panel.lines.iter().any(|line| line.points.iter().any(|p| p.share().is_some()))
    };
    let with_data = |row: &Vec<TrendPanel>| -> Vec<Option<TrendPanel>> {
        row.iter().map(|panel| shown(panel).then(|| panel.clone())).collect()
    };
    let rows = arrange(rows.iter().map(with_data).collect(), most);
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1).max(1) as i32;
    let width = width_for(across(columns, PANEL.0));
    let fitting = (width - across(columns, 0)) / columns;
    let plot = (if is_sized() { fitting } else { PANEL.0.min(fitting) }, PANEL.1);
    let cell = (plot.0 + Y_AXIS + GAP, PANEL_HEAD + plot.1 + X_AXIS + GAP);
    let look = |at: usize| strokes.get(at).copied().unwrap_or_else(|| Meaning::Group(at).stroke());
    let (room, indent) = (width - 2 * margin(), SAMPLE + 7);
    let entry = |(at, name): (usize, &&str)| (look(at), indent, fitted(name, 12, room - indent));
    let legend = Legend::of(names.iter().enumerate().map(entry), LABEL, [22, FOOT], room);
    let head = Head::of(title, origin, width);
    let top = head.height();
    let bottom = top + rows.len() as i32 * cell.1;
    let height = bottom + 12 + legend.height() + margin();
    let svg = svg(name, title, (width, height), |area| {
        head.draw(area)?;
        for (row, panels) in rows.iter().enumerate() {
            for (column, panel) in panels.iter().enumerate() {
                let corner = (margin() + column as i32 * cell.0, top + row as i32 * cell.1);
                draw_panel(area, panel, (&names, places), (corner, plot), &look)?;
            }
        }
        write(area, axis, (margin() + (columns * cell.0 + Y_AXIS) / 2, bottom - 10), LABEL.centred())?;
        let draw = |stroke: &Stroke, (x, y)| sample(area, Sample::Line(*stroke), (x, y + 7));
        legend.draw(area, |_| margin(), bottom + 12, draw)
    })?;
    let csv = csv(chart);
    Ok(Figure { name: name.clone(), title: title.clone(), caption: caption.clone(), svg, csv })
}

fn draw_panel(
    area: &Area<'_>,
    panel: &TrendPanel,
    (names, places): (&[&str], &[String]),
    ((left, top), (width, height)): ((i32, i32), (i32, i32)),
    look: &impl Fn(usize) -> Stroke,
) -> Result<(), Refusal> {
    write(area, &fitted(&panel.title, 12, width + GAP), (left + Y_AXIS, top), LABEL)?;
    let (x0, y0) = (left + Y_AXIS, top + PANEL_HEAD);
    let (x1, y1) = (x0 + width, y0 + height);
    let level = |share: f64| y1 - (share * f64::from(height)).round() as i32;
    percent_lines(area, (x0, x1), level)?;
    let step = (width - 2 * PAD) / (places.len() as i32 - 1).max(1);
    let place = |at: usize| x0 + PAD + at as i32 * step;
    write_ticks(area, y1 + 5, places.iter().enumerate().map(|(at, name)| (place(at), name.clone())))?;
    line(area, [(x0, y0), (x0, y1), (x1, y1)], GREY)?;
    let middle = panel.lines.len().saturating_sub(1) as i32 * BESIDE / 2;
    for (nth, trend) in panel.lines.iter().enumerate() {
        let beside = nth as i32 * BESIDE - middle;
        let at = names.iter().position(|name| *name == trend.name).unwrap_or(nth);
        draw_line(area, trend, look(at), |at, share| {
            ((place(at) + beside) * UNIT, (level(share) * UNIT).clamp(y0 * UNIT, y1 * UNIT))
        })?;
    }
    Ok(())
}

fn draw_line(
    area: &Area<'_>,
    line: &TrendLine,
    stroke: Stroke,
    corner: impl Fn(usize, f64) -> (i32, i32),
) -> Result<(), Refusal> {
    let thin = stroke.colour.mix(0.5).stroke_width(UNIT as u32);
    for (at, point) in line.points.iter().enumerate() {
        if let Some(interval) = point.interval() {
            area.draw(&PathElement::new([corner(at, interval.low), corner(at, interval.high)], thin))?;
        }
    }
    let points: Vec<Option<(i32, i32)>> =
        line.points.iter().enumerate().map(|(at, point)| Some(corner(at, point.share()?))).collect();
    // A place without pairs interrupts the line.
    marked_line(area, stroke, &points)
}

/// A row a point, with the ends of its 95% interval as shares.
fn csv(chart: &TrendChart) -> Vec<u8> {
    let lines =
        chart.rows.iter().flatten().flat_map(|panel| panel.lines.iter().map(move |line| (panel, line)));
    let points = lines.flat_map(|(panel, line)| {
        chart.places.iter().zip(&line.points).map(move |(place, point)| (panel, line, place, point))
    });
    CsvTable::of(points)
        .column("panel", |(panel, ..)| &panel.title)
        .column("line", |(_, line, ..)| &line.name)
        .column("place", |(_, _, place, _)| place)
        .column("count", |(.., point)| point.count)
        .column("of", |(.., point)| point.of)
        .optional("low", |(.., point)| point.interval().map(|interval| format!("{:.6}", interval.low)))
        .optional("high", |(.., point)| point.interval().map(|interval| format!("{:.6}", interval.high)))
        .bytes()
}
