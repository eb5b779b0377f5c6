//! Lines of shares over lengths or densities (MemoryRewardBench, figures 6, 19 and 20), for pictures that a benchmark has for itself.
//!
//! All panels run from 0 to 100%, so that heights compare. Every point has its 95% interval as a whisker; lines of one name look the
//! same in all panels, and stand a little beside each other so that whiskers do not hide each other. The counts lie beside the picture as
//! CSV.

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::canvas::{Area, MARGIN, Refusal, head, more_origins, svg, text_width, wide_enough, write};
use super::plot::{SAMPLE, Sample, marker, sample};
use super::style::{self, BLUE, GREEN, GREY, GRID, INK, Marker, Stroke, UNIT, VERMILLION, shortened};
use super::{Figure, FigureError};
use crate::benchmarks::{TrendChart, TrendLine, TrendPanel};

const HEAD: i32 = 52;
const PANEL_HEAD: i32 = 22;
/// Size of a panel's plot in pixels.
const PANEL: (i32, i32) = (190, 110);
const X_AXIS: i32 = 24;
const Y_AXIS: i32 = 40;
const GAP: i32 = 12;
const FOOT: i32 = 22;
/// Between the first and the last place and the panel's edges, in pixels.
const PAD: i32 = 16;
/// How far lines of one panel stand beside each other, in pixels.
const BESIDE: i32 = 3;
/// Characters of a line's name.
const NAME: usize = 60;

/// The chart as a figure. `origin` says where the numbers come from.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub(super) fn trends(chart: &TrendChart, origin: &str) -> Result<Figure, FigureError> {
    let TrendChart { key: name, title, caption, axis, places, rows } = chart;
    let names = names(chart);
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0).max(1) as i32;
    let cell = (PANEL.0 + Y_AXIS + GAP, PANEL_HEAD + PANEL.1 + X_AXIS + GAP);
    let width = wide_enough(2 * MARGIN + columns * cell.0, title, origin);
    let legend = legend_lines(&names, width - 2 * MARGIN);
    let top = HEAD + more_origins(origin);
    let bottom = top + rows.len() as i32 * cell.1;
    let height = bottom + 26 + legend.len() as i32 * FOOT;
    let svg = svg(name, title, (width, height), |area| {
        head(area, title, origin, width)?;
        for (row, panels) in rows.iter().enumerate() {
            for (column, panel) in panels.iter().enumerate() {
                let corner = (MARGIN + column as i32 * cell.0, top + row as i32 * cell.1);
                draw_panel(area, panel, (&names, places), corner)?;
            }
        }
        write(area, axis, (MARGIN + columns * cell.0 / 2, bottom - 6), 12, INK, HPos::Center)?;
        for (line, items) in legend.iter().enumerate() {
            let y = bottom + 16 + line as i32 * FOOT;
            let mut x = MARGIN;
            for &at in items {
                let text = names.get(at).map_or(String::new(), |name| shortened(name, NAME));
                sample(area, Sample::Line(look(at)), (x, y + 7))?;
                write(area, &text, (x + SAMPLE + 7, y), 12, INK, HPos::Left)?;
                x += legend_width(&text);
            }
        }
        Ok(())
    })?;
    let csv = csv(chart).map_err(|source| FigureError::Table { figure: name.clone(), source })?;
    Ok(Figure { name: name.clone(), title: title.clone(), caption: caption.clone(), svg, csv })
}

/// The names of all lines, in order of first appearance.
fn names(chart: &TrendChart) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for line in chart.rows.iter().flatten().flat_map(|panel| &panel.lines) {
        if !names.contains(&line.name.as_str()) {
            names.push(&line.name);
        }
    }
    names
}

/// Colour and marker of the line at a place of the legend; from the fourth on dashed.
fn look(at: usize) -> Stroke {
    const LOOKS: [Stroke; 3] = [
        Stroke::solid(BLUE, Marker::Circle),
        Stroke::solid(VERMILLION, Marker::Square),
        Stroke::solid(GREEN, Marker::Triangle),
    ];
    let look = LOOKS[at % LOOKS.len()];
    if at / LOOKS.len() % 2 == 1 { look.dashed() } else { look }
}

fn legend_width(text: &str) -> i32 {
    SAMPLE + 7 + text_width(text, 12) + 22
}

/// The places of the legend's entries, as lines that fit a width.
fn legend_lines(names: &[&str], width: i32) -> Vec<Vec<usize>> {
    let mut lines: Vec<Vec<usize>> = Vec::new();
    let mut used = i32::MAX;
    for (at, name) in names.iter().enumerate() {
        let need = legend_width(&shortened(name, NAME));
        if used.saturating_add(need) > width {
            lines.push(Vec::new());
            used = 0;
        }
        used += need;
        if let Some(line) = lines.last_mut() {
            line.push(at);
        }
    }
    lines
}

fn draw_panel(
    area: &Area<'_>,
    panel: &TrendPanel,
    (names, places): (&[&str], &[String]),
    (left, top): (i32, i32),
) -> Result<(), Refusal> {
    write(area, &panel.title, (left + Y_AXIS, top), 13, INK, HPos::Left)?;
    let (x0, y0) = (left + Y_AXIS, top + PANEL_HEAD);
    let (x1, y1) = (x0 + PANEL.0, y0 + PANEL.1);
    let level = |share: f64| y1 - (share * f64::from(PANEL.1)).round() as i32;
    for percent in [0, 25, 50, 75, 100] {
        let y = level(f64::from(percent) / 100.0);
        area.draw(&PathElement::new(
            [(x0 * UNIT, y * UNIT), (x1 * UNIT, y * UNIT)],
            GRID.stroke_width(UNIT as u32 * 3 / 4),
        ))?;
        let style = style::text(10, GREY).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(format!("{percent}%"), ((x0 - 5) * UNIT, y * UNIT), style))?;
    }
    let step = (PANEL.0 - 2 * PAD) / (places.len() as i32 - 1).max(1);
    let place = |at: usize| x0 + PAD + at as i32 * step;
    for (at, name) in places.iter().enumerate() {
        write(area, name, (place(at), y1 + 5), 10, GREY, HPos::Center)?;
    }
    let frame = [(x0 * UNIT, y0 * UNIT), (x0 * UNIT, y1 * UNIT), (x1 * UNIT, y1 * UNIT)];
    area.draw(&PathElement::new(frame, GREY.stroke_width(UNIT as u32)))?;
    let middle = panel.lines.len().saturating_sub(1) as i32 * BESIDE / 2;
    for (nth, line) in panel.lines.iter().enumerate() {
        let beside = nth as i32 * BESIDE - middle;
        let at = names.iter().position(|name| *name == line.name).unwrap_or(nth);
        draw_line(area, line, look(at), |at, share| {
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
    let wide = stroke.colour.stroke_width(stroke.width());
    // A place without pairs interrupts the line.
    for run in points.split(Option::is_none) {
        let run: Vec<(i32, i32)> = run.iter().flatten().copied().collect();
        match stroke.dashes() {
            Some((dash, space)) => {
                area.draw(&DashedPathElement::new(run, dash * UNIT, space * UNIT, wide))?;
            }
            None => area.draw(&PathElement::new(run, wide))?,
        }
    }
    points.into_iter().flatten().try_for_each(|at| marker(area, stroke, at))
}

/// Rows of `panel,line,place,count,of,low,high`: the ends of the 95% interval as shares.
fn csv(chart: &TrendChart) -> Result<Vec<u8>, csv::Error> {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(["panel", "line", "place", "count", "of", "low", "high"])?;
    for panel in chart.rows.iter().flatten() {
        for line in &panel.lines {
            for (place, point) in chart.places.iter().zip(&line.points) {
                let ends = point.interval().map_or_else(
                    || [String::new(), String::new()],
                    |interval| [interval.low, interval.high].map(|end| format!("{end:.6}")),
                );
                let [low, high] = &ends;
                let (count, of) = (point.count.to_string(), point.of.to_string());
                table.write_record([&panel.title, &line.name, place, &count, &of, low, high])?;
            }
        }
    }
    table.into_inner().map_err(|e| csv::Error::from(std::io::Error::from(e.error().kind())))
}
