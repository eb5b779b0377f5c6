//! Rows of marks on one axis with a label at the left and a note at the right, or both above if space is short.

use super::Figure;
use super::canvas::{
    Head, LABEL, NOTE, TICK, dot, filled, fitted, is_sized, line, margin, outlined, room, text_width, units,
    width_for, wrapped, write,
};
use super::drawing::Drawing;
use super::legend::Legend;
use super::plot::{SAMPLE, Sample, sample};
use super::style::{Colour, GREY, GRID, INK, Ink, UNIT, WHITE};

#[derive(Debug, Clone, Default)]
pub(super) struct Rows {
    pub title: String,
    pub origin: String,
    pub axis: String,
    pub ends: (f64, f64),
    pub ticks: Vec<(f64, String)>,
    pub rows: Vec<Row>,
    pub legend: Vec<(Sample, String)>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    pub group: String,
    pub label: String,
    pub note: String,
    pub marks: Vec<RowMark>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum RowMark {
    Bar([f64; 2], Colour),
    Interval([f64; 2], Colour),
    /// Value, radius in pixels, colour.
    Dot(f64, i32, Ink),
    Upright(f64),
}

const GROUP: i32 = 24;
/// Height of a row's marks and of a bar, in pixels.
const MARK: i32 = 22;
const BAR: i32 = 15;
/// Preferred and minimum axis length in pixels.
const LENGTH: i32 = 380;
const LEAST: i32 = 170;

struct Layout {
    width: i32,
    /// Left edge and maximum length of marks.
    left: i32,
    length: i32,
    step: i32,
    /// From a row's top to its marks; 0 if words stand beside them.
    mark_top: i32,
}

impl Layout {
    fn of(rows: &[Row]) -> Self {
        let label = rows.iter().map(|row| text_width(&row.label, 12)).max().unwrap_or(0);
        let note = rows.iter().map(|row| text_width(&row.note, 11)).max().unwrap_or(0);
        let words = label + note + 22 + 2 * margin();
        let width = width_for(words + LENGTH);
        if words + LEAST <= width {
            let length = if is_sized() { width - words } else { LENGTH.min(width - words) };
            return Layout { width, left: margin() + label + 10, length, step: MARK, mark_top: 0 };
        }
        // End tick labels extend beyond the axis.
        let side = margin() + 12;
        let length = (room().min(width) - 2 * side).max(40);
        Layout { width, left: side, length, step: MARK + 17, mark_top: 15 }
    }

    fn words(&self, area: &mut Drawing, row: &Row, top: i32) {
        if self.mark_top == 0 {
            write(area, &row.label, (self.left - 10, top + 1), LABEL.right());
            write(area, &row.note, (self.left + self.length + 12, top + 2), NOTE);
            return;
        }
        let right = self.width - margin();
        let taken = text_width(&row.note, 11) + 8;
        write(area, &fitted(&row.label, 12, right - margin() - taken), (margin(), top), LABEL);
        write(area, &row.note, (right, top + 1), NOTE.right());
    }
}

impl Rows {
    pub fn figure(self, name: impl Into<String>, caption: String, csv: Vec<u8>) -> Figure {
        let drawing = self.draw();
        Figure::of(name, self.title, caption, drawing, csv)
    }

    fn begins(&self, at: usize) -> bool {
        let group = |at: usize| self.rows.get(at).map(|row| row.group.as_str());
        group(at).is_some_and(|name| !name.is_empty()) && (at == 0 || group(at - 1) != group(at))
    }

    fn draw(&self) -> Drawing {
        let layout = Layout::of(&self.rows);
        let room = layout.width - 2 * margin();
        let head = Head::of(&self.title, &self.origin, layout.width);
        let top = head.height() + 4;
        let mut bottom = top;
        let mut tops = Vec::new();
        for at in 0..self.rows.len() {
            bottom += if self.begins(at) { GROUP } else { 0 };
            tops.push(bottom);
            bottom += layout.step;
        }
        let axis = if self.axis.is_empty() { Vec::new() } else { wrapped(&self.axis, 12, room) };
        let indent = SAMPLE + 7;
        let entries =
            self.legend.iter().map(|(shown, text)| (*shown, indent, fitted(text, 12, room - indent)));
        let legend = Legend::of(entries, LABEL, [22, 18], room);
        let below = bottom + 22 + axis.len() as i32 * 15;
        let mut area = Drawing::of((layout.width, below + legend.height() + margin()));
        head.draw(&mut area);
        let (low, high) = self.ends;
        let place = |value: f64| {
            layout.left + ((value - low) / (high - low) * f64::from(layout.length)).round() as i32
        };
        let mut free = i32::MIN;
        for (tick, name) in &self.ticks {
            let x = place(*tick);
            line(&mut area, [(x, top - 2), (x, bottom)], if *tick == 0.0 { GREY } else { GRID });
            let half = text_width(name, 10) / 2 + 2;
            if x - half >= free {
                write(&mut area, name, (x, bottom + 4), TICK.centred());
                free = x + half;
            }
        }
        for (at, text) in axis.iter().enumerate() {
            let half = text_width(text, 12) / 2;
            let (least, most) = (margin() + half, layout.width - margin() - half);
            let x = (layout.left + layout.length / 2).clamp(least, most.max(least));
            write(&mut area, text, (x, bottom + 19 + at as i32 * 15), LABEL.centred());
        }
        for (at, (row, &top)) in self.rows.iter().zip(&tops).enumerate() {
            if self.begins(at) {
                write(&mut area, &fitted(&row.group, 12, room), (margin(), top - GROUP + 6), LABEL);
            }
            layout.words(&mut area, row, top);
            let top = top + layout.mark_top;
            row.marks.iter().for_each(|mark| mark.draw(&mut area, top, place));
        }
        let left = |total: i32| ((layout.width - total) / 2).max(margin());
        legend.draw(&mut area, left, below, |area, shown, (x, y)| sample(area, *shown, (x, y + 7)));
        area
    }
}

impl RowMark {
    fn draw(self, area: &mut Drawing, top: i32, place: impl Fn(f64) -> i32) {
        let middle = top + MARK / 2 - 2;
        match self {
            RowMark::Bar(ends, colour) => {
                let [from, to] = ends.map(place);
                let corners = [(from, top), (to, top + BAR)];
                filled(area, corners, colour);
                outlined(area, corners, WHITE);
            }
            RowMark::Interval(ends, colour) => {
                let ends = ends.map(|end| units((place(end), middle)));
                area.line(ends, colour, UNIT * 2);
            }
            RowMark::Dot(at, radius, ink) => dot(area, (place(at), middle), UNIT * radius, ink),
            RowMark::Upright(at) => {
                let (x, y) = units((place(at), middle));
                area.line([(x, y - 8 * UNIT), (x, y + 8 * UNIT)], INK, UNIT * 3 / 2);
            }
        }
    }
}
