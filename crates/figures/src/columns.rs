//! Columns of a map: cells in shades, roles above, names and numbers below.

use super::canvas::{Frame, LABEL, TICK, text_width, units, widest, write, write_middle, write_upright};
use super::drawing::{Drawing, Form};
use super::shades::Shades;
use super::style::{GRID, INK, UNIT, WHITE};

#[derive(Debug, Clone, Default)]
pub struct Column {
    /// Below the column; may be empty.
    pub label: String,
    /// Below the label: number of cases.
    pub n: Option<usize>,
    pub role: Option<String>,
    /// By row from the bottom, NaN if undefined, for example outside a layer's window; `None` for omitted columns, drawn as a gap.
    pub cells: Option<Vec<f64>>,
}

/// Gap width relative to a column.
const GAP: f64 = 0.55;
/// Minimum width of a numbered column.
const LEAST: i32 = 11;
/// Height of the roles.
const ROLES: i32 = 34;

/// Edge of cell `at` of `count`, in whole pixels, so that cells leave no seams.
pub(super) fn edge(at: usize, count: usize, length: i32) -> i32 {
    (at as i64 * i64::from(length) / count.max(1) as i64) as i32
}

/// Edges of all columns; gaps are narrower.
fn edges(columns: &[Column], length: i32) -> Vec<i32> {
    let width = |column: &Column| if column.cells.is_some() { 1.0 } else { GAP };
    let all: f64 = columns.iter().map(width).sum();
    let ends = columns.iter().scan(0.0, |at, column| {
        *at += width(column);
        Some((*at / all * f64::from(length)).round() as i32)
    });
    [0].into_iter().chain(ends).collect()
}

/// Height above a map for the roles of its columns.
pub(super) fn above(columns: &[Column]) -> i32 {
    if columns.iter().any(|column| column.role.is_some()) { ROLES } else { 0 }
}

/// Names and numbers below columns.
pub(super) struct Below {
    names: Vec<String>,
    numbers: Vec<String>,
    /// Vertical, if space is short.
    upright: bool,
    /// Heights.
    of_names: i32,
    of_numbers: i32,
}

impl Below {
    pub fn of(columns: &[Column], width: i32) -> Self {
        let names = thinned(columns, width);
        let number = |column: &Column| column.n.map(|n| n.to_string()).unwrap_or_default();
        let numbers: Vec<String> = columns.iter().map(number).collect();
        // A name may extend over unnamed neighbours.
        let mut free = i32::MIN;
        let mut fits = |((name, number), sides): ((&String, &String), &[i32])| {
            let (middle, half) = ((sides[0] + sides[1]) / 2, text_width(name, TICK.size) / 2 + 1);
            let fits = name.is_empty() || middle - half >= free;
            free = if name.is_empty() { free } else { middle + half };
            fits && text_width(number, TICK.size) <= sides[1] - sides[0]
        };
        let upright = !names.iter().zip(&numbers).zip(edges(columns, width).windows(2)).all(&mut fits);
        let of_names = if upright { widest(&names, TICK.size) + 5 } else { 15 };
        let of_numbers = match widest(&numbers, TICK.size) {
            0 => 0,
            wide => {
                if upright {
                    wide + 4
                } else {
                    13
                }
            }
        };
        Below { names, numbers, upright, of_names, of_numbers }
    }

    pub fn height(&self) -> i32 {
        6 + self.of_names + self.of_numbers
    }
}

/// Thins column numbers to those that fit; evidence keeps its numbers, which replace its neighbours'.
fn thinned(columns: &[Column], width: i32) -> Vec<String> {
    let every = (LEAST * columns.len() as i32 / width.max(1) + 1).max(1) as usize;
    let role = |at: usize| columns.get(at).is_some_and(|column| column.role.is_some());
    let label = |(at, Column { label, .. }): (usize, &Column)| {
        let wanted = every == 1 || at.is_multiple_of(every) || label.parse::<usize>().is_err();
        let replaced = every > 1 && (role(at + 1) || role(at.wrapping_sub(1)));
        if role(at) || (wanted && !replaced) { label.clone() } else { String::new() }
    };
    columns.iter().enumerate().map(label).collect()
}

pub(super) fn draw(area: &mut Drawing, columns: &[Column], frame: Frame, shades: &Shades) {
    let below = Below::of(columns, frame.width);
    let edges = edges(columns, frame.width);
    let sides = |at: usize| (frame.left + edges[at], frame.left + edges[at + 1]);
    for (at, column) in columns.iter().enumerate() {
        column.cells.iter().for_each(|values| cells(area, values, sides(at), (frame, shades)));
    }
    let (top, bottom) = (frame.top, frame.bottom());
    let mut last_role = i32::MIN;
    for (at, column) in columns.iter().enumerate() {
        let (x0, x1) = sides(at);
        let middle = (x0 + x1) / 2;
        if let Some(role) = &column.role {
            // Dark with a light edge, visible on any shade.
            let (y0, y1) = (top - 3, bottom + 3);
            let corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)].map(units);
            area.line(corners, WHITE, UNIT * 4);
            area.line(corners, INK, UNIT * 2);
            // adjacent roles are stacked
            let half = text_width(role, LABEL.size) / 2 + 2;
            let raised = middle - half < last_role;
            write(area, role, (middle, top - if raised { 31 } else { 19 }), LABEL.centred());
            last_role = if raised { i32::MIN } else { middle + half };
        }
        let mut put = |text: &str, y: i32| match below.upright {
            true => write_upright(area, text, (middle, y)),
            false => write(area, text, (middle, y), TICK.centred()),
        };
        put(&below.names[at], bottom + 6);
        put(&below.numbers[at], bottom + 6 + below.of_names);
    }
    if below.of_numbers > 0 {
        write(area, "n", (frame.left - 6, bottom + 6 + below.of_names), TICK.right());
    }
}

/// A column; equal neighbours are merged.
fn cells(area: &mut Drawing, values: &[f64], (x0, x1): (i32, i32), (frame, shades): (Frame, &Shades)) {
    let y = |at: usize| frame.bottom() - edge(at, values.len(), frame.height);
    let steps: Vec<Option<i32>> =
        values.iter().map(|value| (!value.is_nan()).then(|| shades.step(*value))).collect();
    let mut from = 0;
    for run in steps.chunk_by(|a, b| a == b) {
        let to = from + run.len();
        let colour = run[0].map_or(GRID, |step| shades.colour(step));
        area.fill(Form::Rectangle([(x0, y(to)), (x1, y(from))].map(units)), colour);
        from = to;
    }
    for (at, value) in values.iter().enumerate().filter(|(_, value)| shades.numbers && !value.is_nan()) {
        let middle = units(((x0 + x1) / 2, (y(at) + y(at + 1)) / 2));
        write_middle(area, &format!("{value:.2}"), middle, LABEL.sized(11).centred());
    }
}
