//! Layout of all figures: a sheet of panels on shared axes, with title, axis names and legend.
//!
//! Panels share value axes, logarithmic by default: masses span decades, and ratios 2 and 1/2 are symmetric. Zeros interrupt a curve and
//! get a ring at the axis foot. Layer axes are per panel, since models may differ.
//!
//! Linear layers form a second line, thinner with hollow markers, on a grey band; windowed layers get a panel of their own. The sheet adds
//! these and the legend entries for bands, single cases and clipping by itself. It also drops empty panels and breaks wide rows.

use super::Figure;
use super::axis::{Range, linear_stretches, write_value};
use super::canvas::{
    AxisName, Frame, Head, LABEL, NOTE, TICK, fitted, is_sized, margin, room, text_width, units, widest,
    width_for, wrapped, write, write_middle,
};
use super::columns::{self, Below, edge};
use super::drawing::{Drawing, Form};
use super::legend::Legend;
use super::panel::BETWEEN;
pub use super::panel::{Across, Panel, Rows};
pub use super::plot::{Mark, Plain, Sample};
use super::plot::{Plane, explained, kind_mark};
use super::shades::Shades;
use super::style::{GREY, GRID, LINEAR, UNIT, WHITE};
use palimpsest_analysis::lens::Series;
use palimpsest_data::ground::order::sorted_unique;

#[derive(Debug, Clone, Default)]
pub struct Sheet {
    pub title: String,
    pub origin: String,
    pub y_label: String,
    /// Values are shares, written as percentages.
    pub percent: bool,
    pub rows: Vec<Vec<Panel>>,
    /// Shared legend, below the panels.
    pub legend: Vec<(Sample, String)>,
    /// Plot size of a panel in pixels, unless a width is stated.
    pub panel: (i32, i32),
    /// Maximum factor by which linear layers may extend the value axis beyond softmax layers. A linear layer may have almost no share,
    /// which would flatten all others.
    pub reach: f64,
    pub units: &'static str,
    pub axes: Vec<ValueAxis>,
    /// Colour scale of maps.
    pub shades: Option<Shades>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ValueAxis {
    /// Line in every panel.
    pub reference: Option<f64>,
    /// Ends of a linear axis; `None` for logarithmic.
    pub linear: Option<(f64, f64)>,
}

/// Height of the ticks of the x axis.
const X_AXIS: i32 = 20;
/// Width of the value ticks.
const Y_AXIS: i32 = 42;
const GAP: i32 = 14;
const TITLE: i32 = 17;
const LINE: i32 = 17;
/// Minimum plot width, with a stated width; with notes beside the plot.
const LEAST: (i32, i32) = (105, 170);
/// Height of a row of marks, and of its words above them.
const ROW: (i32, i32) = (22, 17);
/// Width of the colour bar with its numbers.
const BAR: i32 = 76;
/// Width of the mark of a layer's kind.
const KIND: i32 = 6;

/// Arranges panels into rows of at most `most` without holes: unchanged if possible, else each row broken evenly, else all reflowed. A
/// single column is reflowed side by side.
fn arrange<T: Clone>(rows: Vec<Vec<T>>, most: usize) -> Vec<Vec<T>> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let whole = rows.iter().all(|row| row.len() == columns);
    let each = columns_for(columns, most);
    let broken = |panels: &Vec<T>, each: usize| panels.chunks(each).map(<[T]>::to_vec).collect::<Vec<_>>();
    if whole && columns > 1 && (columns <= most || columns.is_multiple_of(each)) {
        return rows.iter().flat_map(|row| broken(row, each)).collect();
    }
    let all = rows.concat();
    broken(&all, columns_for(all.len(), most))
}

/// Number of columns, at most `most`: fewest empty cells, then most columns, but more than half of `most` from three on: a sheet of two
/// columns would be longer than a page.
fn columns_for(count: usize, most: usize) -> usize {
    let most = most.clamp(1, count.max(1));
    // With many rows, the last may be incomplete.
    if count > 3 * most {
        return most;
    }
    let empty = |columns: &usize| count.div_ceil(*columns) * columns - count;
    ((most / 2 + usize::from(most > 2)).max(1)..=most).rev().min_by_key(empty).unwrap_or(1)
}

/// A row of the sheet, with its heights in pixels.
struct Placed {
    panels: Vec<Panel>,
    /// Of the highest title.
    titles: i32,
    head: i32,
    plot: i32,
    foot: i32,
}

impl Placed {
    fn height(&self) -> i32 {
        self.head + self.plot + self.foot
    }
}

/// Sizes in pixels.
struct Plan {
    rows: Vec<Placed>,
    /// Widths of a plot and of what stands at its left and right.
    plot: i32,
    beside: i32,
    after: i32,
    /// Words of rows stand above their marks.
    stacked: bool,
    width: i32,
    /// Shared name of the x axis; `None` if panels differ.
    x_label: Option<String>,
}

impl Plan {
    fn cell(&self) -> i32 {
        self.plot + self.beside + self.after
    }
}

impl Sheet {
    pub fn figure(self, name: impl Into<String>, caption: String, csv: Vec<u8>) -> Figure {
        let drawing = self.draw();
        Figure { name: name.into(), svg: drawing.svg(&self.title), title: self.title, caption, csv, drawing }
    }

    fn draw(&self) -> Drawing {
        let plan = self.plan();
        let width = plan.width;
        let head = Head::of(&self.title, &self.origin, width);
        if plan.rows.is_empty() {
            return nothing(&head, width);
        }
        let ranges = self.ranges();
        let height = plan.rows.iter().map(Placed::height).sum::<i32>();
        let y_label = AxisName::of(&self.y_label, height - GAP, width);
        let legend = self.legend(&ranges, width - 2 * margin());
        let top = head.height() + y_label.above();
        let bottom = top + height;
        let left = margin() + AxisName::beside(&self.y_label);
        let x_label = wrapped(plan.x_label.as_deref().unwrap_or_default(), LABEL.size, width - 2 * margin());
        let named = bottom + LINE * (x_label.len() as i32 - 1).max(0);
        let area = &mut Drawing::of((width, named + 12 + legend.height() + margin()));
        head.draw(area);
        y_label.draw(area, head.height(), top + height / 2);
        let mut y = top;
        for row in &plan.rows {
            for (column, panel) in (0..).zip(&row.panels) {
                let left = left + column * plan.cell();
                self.panel(area, panel, (left, y), (&plan, row), &ranges[panel.axis]);
                if plan.x_label.is_none() {
                    let name = fitted(&panel.x_label, LABEL.size, plan.cell());
                    let middle = left + plan.beside + plan.plot / 2;
                    write(area, &name, (middle, y + row.height() - GAP - LINE), LABEL.centred());
                }
            }
            y += row.height();
        }
        let columns = plan.rows.iter().map(|row| row.panels.len()).max().unwrap_or(1) as i32;
        if let (Some(shades), Some(row)) = (&self.shades, plan.rows.first()) {
            shades.draw(area, (left + columns * plan.cell(), top + row.head), row.plot);
        }
        let middle = left + (columns * plan.cell() + plan.beside - plan.after) / 2;
        for (at, line) in (0..).zip(&x_label) {
            // Under the panels, unless it is so wide that it would leave the picture.
            let half = text_width(line, LABEL.size) / 2 + margin();
            let middle = middle.clamp(half.min(width / 2), (width - half).max(width / 2));
            write(area, line, (middle, bottom - 11 + at * LINE), LABEL.centred());
        }
        legend.draw(area, |total| ((width - total) / 2).max(margin()), named + 10);
        std::mem::take(area)
    }

    fn plan(&self) -> Plan {
        let of_rows =
            |of: fn(&Rows) -> &Vec<String>| self.rows.iter().flatten().flat_map(move |one| of(&one.rows));
        let (names, notes) = (of_rows(|rows| &rows.names), of_rows(|rows| &rows.notes));
        let noted = notes.clone().next().is_some();
        let (mut beside, mut after) = match (noted, names.clone().next()) {
            (false, None) => (Y_AXIS, GAP),
            (false, Some(_)) => (widest(names, TICK.size).min(68) + KIND + 13, GAP),
            (true, _) => (widest(names, LABEL.size) + 10, widest(notes, NOTE.size) + 12 + GAP),
        };
        let stacked = noted && 2 * margin() + beside + LEAST.1 + after > room();
        if stacked {
            // End tick labels extend beyond the axis.
            (beside, after) = (12, 12 + GAP);
        }
        let across = |columns: i32, plot: i32| {
            let bar = if self.shades.is_some() { BAR } else { 0 };
            let panels = columns * (plot + beside + after) - (GAP - BETWEEN);
            2 * margin() + AxisName::beside(&self.y_label) + panels + bar
        };
        let natural = self.panel.0;
        let narrowest = natural.min(match (is_sized(), noted) {
            (false, _) => room() - across(1, 0),
            (true, false) => LEAST.0,
            // Words above marks need the width of a picture.
            (true, true) if stacked => natural,
            (true, true) => LEAST.1,
        });
        let most = (1..=24).take_while(|columns| across(*columns, narrowest) <= room()).count();
        // Windowed layers have a row below that of the others.
        let parts = self.rows.iter().flat_map(|row| {
            let parts: Vec<_> = row.iter().map(Panel::by_reach).collect();
            [0, 1].map(|reach| parts.iter().filter_map(|part| part[reach].clone()).collect::<Vec<_>>())
        });
        let rows = arrange(parts.filter(|row| !row.is_empty()).collect(), most);
        let columns = rows.iter().map(Vec::len).max().unwrap_or(1) as i32;
        let width = width_for(across(columns, natural));
        let fitting = (width - across(columns, 0)) / columns;
        // A map fills its page; wide curves would be flat.
        let plot = if is_sized() && self.shades.is_none() { fitting.min(2 * natural) } else { fitting };
        let mut height = self.panel.1;
        if is_sized() && self.shades.is_none() {
            // Narrow panels keep some height; wide ones do not fill the page.
            let ratio = f64::from(height) / f64::from(natural.max(1));
            let ratio = match plot {
                ..130 => 0.9,
                130..160 => 0.75,
                _ => ratio.min(0.6),
            };
            height = ((f64::from(plot) * ratio).round() as i32).clamp(80, height.max(80));
        }
        let labels = sorted_unique(rows.iter().flatten().map(|panel| panel.x_label.clone()));
        let x_label = <[String; 1]>::try_from(labels).ok().map(|[label]| label);
        let placed = |panels: Vec<Panel>| {
            let most = |of: &dyn Fn(&Panel) -> i32| panels.iter().map(of).max().unwrap_or(0);
            let titles = most(&|panel| panel.titles(plot).len() as i32);
            let titles = if titles > 0 { TITLE + (titles - 1) * 15 } else { 0 };
            let head = titles + most(&|panel| panel.legend(plot).height() + columns::above(panel.columns()));
            let noted = most(&|panel| panel.rows.notes.len() as i32);
            let step = if stacked { ROW.0 + ROW.1 } else { ROW.0 };
            let foot = most(&|panel| match panel.columns() {
                [] => X_AXIS,
                columns => Below::of(columns, plot).height(),
            });
            Placed {
                titles,
                head: head + 5,
                plot: if noted > 0 { noted * step } else { height },
                foot: foot + GAP + if x_label.is_none() { LINE } else { 0 },
                panels,
            }
        };
        Plan { rows: rows.into_iter().map(placed).collect(), plot, beside, after, stacked, width, x_label }
    }

    fn panel(
        &self,
        area: &mut Drawing,
        panel: &Panel,
        (left, top): (i32, i32),
        (plan, row): (&Plan, &Placed),
        (y, reference): &(Range, Option<f64>),
    ) {
        let (left, width) = (left + plan.beside, plan.plot);
        for (line, text) in panel.titles(width).iter().enumerate() {
            write(area, text, (left, top + line as i32 * 15), LABEL);
        }
        // Notes of a row's panels stand in line, whatever follows them.
        panel.legend(width).draw(area, |_| left, top + row.titles);
        let frame = Frame { left, top: top + row.head, width, height: row.plot };
        let rows = Range::over(0.0, panel.rows.names.len() as f64);
        let y = if panel.rows.names.is_empty() { y } else { &rows };
        let corners = [(frame.left, frame.top), (frame.right(), frame.bottom())].map(units);
        let [(x0, y0), (x1, y1)] = corners;
        let (x, ticks) = panel.span(width, self.percent);
        let share = if plan.stacked { f64::from(ROW.0) / f64::from(ROW.0 + ROW.1) } else { 1.0 };
        let plane = Plane { corners, x, y, share };
        for (from, to) in linear_stretches(&panel.layers()) {
            let (from, to) = (plane.across(from.max(x.0)), plane.across(to.min(x.1)));
            area.fill(Form::Rectangle([(from, y0), (to, y1)]), LINEAR);
        }
        let zero = y.zero.map(|zero| (zero, "0".to_owned()));
        let values = y.ticks.iter().map(|tick| (*tick, write_value(*tick, self.percent)));
        let values = zero.into_iter().chain(values).filter(|_| panel.rows.names.is_empty());
        for (tick, written) in values {
            let at = plane.up(y.place(tick));
            area.line([(x0, at), (x1, at)], GRID, UNIT * 3 / 4);
            area.line([(x0 - 3 * UNIT, at), (x0, at)], GREY, UNIT);
            write_middle(area, &written, (x0 - 5 * UNIT, at), TICK.right());
        }
        let mut free = i32::MIN;
        // The last tick is always labelled; an earlier one that would touch it is not.
        let half = |name: &str| (text_width(name, TICK.size) * UNIT) / 2 + UNIT;
        let end = ticks.last().map_or(i32::MAX, |(last, name)| plane.across(*last) - half(name));
        for (nth, (tick, name)) in ticks.iter().enumerate() {
            let at = plane.across(*tick);
            if matches!(panel.x, Across::Log(..) | Across::Linear(..)) {
                let ink = if *tick == 0.0 && matches!(panel.x, Across::Linear(..)) { GREY } else { GRID };
                area.line([(at, y0), (at, y1)], ink, UNIT * 3 / 4);
            }
            area.line([(at, y1), (at, y1 + 3 * UNIT)], GREY, UNIT);
            let is_last = nth + 1 == ticks.len();
            if is_last || (at - half(name) >= free && at + half(name) <= end) {
                write(area, name, (at / UNIT, y1 / UNIT + 5), TICK.centred());
                free = at + half(name);
            }
        }
        area.line([(x0, y0), (x0, y1), (x1, y1)], GREY, UNIT);
        if !panel.rows.names.is_empty() {
            row_names(area, &panel.rows, frame, plan);
        }
        if let Some(reference) = reference.filter(|r| (y.low..=y.high).contains(r)) {
            let at = plane.up(y.place(reference));
            area.line([(x0, at), (x1, at)], GREY, UNIT);
        }
        if let Some(shades) = &self.shades {
            columns::draw(area, panel.columns(), frame, shades);
        }
        panel.marks.iter().for_each(|mark| plane.mark(area, mark));
        plane.curves(area, &panel.lines);
    }

    pub fn cuts_linear_layers(&self) -> bool {
        let ranges = self.ranges();
        self.rows.iter().flatten().any(|panel| {
            let (y, _) = &ranges[panel.axis];
            let points = panel.lines.iter().flat_map(|(_, series)| &series.points);
            let mut values = points.filter(|point| point.layer.is_linear()).filter_map(|point| point.value);
            values.any(|value| y.shows(value) && !y.holds(value))
        })
    }

    /// The value axes with their reference lines; one without reference where the sheet names none.
    fn ranges(&self) -> Vec<(Range, Option<f64>)> {
        let of_axis = |(at, axis): (usize, &ValueAxis)| {
            let panels = self.rows.iter().flatten().filter(|panel| panel.axis == at);
            let all: Vec<&Series> = panels.flat_map(|panel| panel.lines.iter().map(|(_, one)| one)).collect();
            let range = match axis.linear {
                Some(ends) => Range::linear(&all, ends),
                None => Range::of(&all, axis.reference, self.reach),
            };
            (range, axis.reference)
        };
        let plain = [ValueAxis::default()];
        let axes = if self.axes.is_empty() { &plain[..] } else { &self.axes };
        axes.iter().enumerate().map(of_axis).collect()
    }

    fn legend(&self, ranges: &[(Range, Option<f64>)], room: i32) -> Legend {
        let drawn = self
            .rows
            .iter()
            .flatten()
            .flat_map(|panel| panel.lines.iter().map(|(_, series)| (series, &ranges[panel.axis].0)));
        let explained = explained(&drawn.collect::<Vec<_>>(), self.units);
        Legend::of_sheet(self.legend.iter().cloned().chain(explained), room)
    }
}

fn nothing(head: &Head, width: i32) -> Drawing {
    let lines = wrapped("There is nothing to draw; the caption says why.", 12, width - 2 * margin());
    let top = head.height() + margin();
    let mut area = Drawing::of((width, top + lines.len() as i32 * 15 + margin()));
    head.draw(&mut area);
    for (at, line) in lines.iter().enumerate() {
        write(&mut area, line, (margin(), top + at as i32 * 15), LABEL);
    }
    area
}

/// Names and notes of rows: beside the plot, or above their marks. Of a map those that fit, and always the last: measured layers may skip
/// some.
fn row_names(area: &mut Drawing, rows: &Rows, frame: Frame, plan: &Plan) {
    let Rows { names, notes, kinds } = rows;
    let up = |at: usize| frame.bottom() - edge(at, names.len(), frame.height);
    let mut from = 0;
    for run in kinds.chunk_by(|a, b| a == b) {
        let to = from + run.len();
        let corners = [(frame.left - KIND - 4, up(to)), (frame.left - 4, up(from))];
        kind_mark(area, corners.map(units), run[0]);
        from = to;
    }
    let every = if notes.is_empty() { names.len().div_ceil((frame.height / 26).max(1) as usize) } else { 1 };
    let last = names.len().saturating_sub(1);
    let left = if kinds.is_empty() { frame.left - 6 } else { frame.left - KIND - 9 };
    for (at, name) in names.iter().enumerate() {
        let middle = (up(at) + up(at + 1)) / 2;
        match notes.get(at) {
            Some(note) if plan.stacked => {
                let (right, top) = (frame.right() + 12, up(at + 1));
                let room = plan.cell() - GAP - text_width(note, NOTE.size) - 24;
                let name = fitted(name, LABEL.size, room);
                // Lines of the axis do not go through words.
                let widths = [text_width(&name, LABEL.size), text_width(note, NOTE.size)];
                for (from, wide) in [(frame.left + 4, widths[0]), (right - widths[1], widths[1])] {
                    let corners = [(from - 1, top + 1), (from + wide + 1, top + 15)];
                    area.fill(Form::Rectangle(corners.map(units)), WHITE);
                }
                write(area, &name, (frame.left + 4, top), LABEL);
                write(area, note, (right, top + 1), NOTE.right());
            }
            Some(note) => {
                write_middle(area, name, units((frame.left - 10, middle)), LABEL.right());
                write_middle(area, note, units((frame.right() + 12, middle)), NOTE);
            }
            // A name that would touch the last one is left out.
            None if at == last || (at % every == 0 && (last - at) * 2 > every) => {
                let name = fitted(name, TICK.size, plan.beside - KIND - 11);
                write_middle(area, &name, units((left, middle)), TICK.right());
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_no_holes_and_are_no_wider_than_there_is_room() {
        let laid = |text: &str, most: usize| -> String {
            let rows = text.lines().map(|line| line.chars().collect()).collect();
            arrange(rows, most).iter().map(String::from_iter).collect::<Vec<_>>().join(" ")
        };
        for (rows, most, wanted) in [
            ("abc\ndef", 4, "abc def"),
            ("abcd\nefgh", 3, "ab cd ef gh"),
            ("abcde\nfghij", 3, "abc def ghi j"),
            ("abcd\negh\n", 4, "abcd egh"),
            ("a\nb", 4, "ab"),
            ("abc", 1, "a b c"),
            ("a\nb\nc\nd\ne", 3, "abc de"),
            ("", 3, ""),
        ] {
            assert_eq!(laid(rows, most), wanted, "{rows}");
        }
        // As few empty places as may be.
        let cases = [(3, 2, 1), (4, 3, 2), (5, 3, 3), (6, 4, 3), (7, 4, 4), (10, 3, 3), (8, 3, 2), (4, 9, 4)];
        for (count, most, columns) in cases {
            assert_eq!(columns_for(count, most), columns, "{count} panels, room for {most}");
        }
    }
}
