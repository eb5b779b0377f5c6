//! Maps of two axes of names: a number in each cell, in two colours around the value that says nothing.
//!
//! Called by [`super::dose`]: the update effect over a grid of two factors, and attention by layer and level; and by [`super::head_map`].

use super::FigureError;
use super::axis::write_value;
use super::canvas::{
    Area, Head, LABEL, NOTE, Refusal, TICK, Tiling, filled, fitted, is_sized, margin, outlined, svg,
    text_width, units, write, write_axis, write_middle,
};
use super::style::{GREY, GRID, diverging};

/// A map: rows from below, columns from the left.
#[derive(Debug, Clone)]
pub(super) struct ValueMap {
    pub title: String,
    pub x_label: String,
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    pub values: Vec<Vec<Option<f64>>>,
}

/// Maps of one scale of colours.
#[derive(Debug, Clone)]
pub(super) struct ValueMaps {
    pub title: String,
    pub origin: String,
    pub y_label: String,
    pub maps: Vec<ValueMap>,
    pub unit: String,
    pub middle: f64,
    /// Least size of a cell; one that is [`WRITTEN`] has its number in it.
    pub cell: (i32, i32),
}

const LEFT: i32 = 62;
const TITLE: i32 = 22;
const FOOT: i32 = 48;
const BETWEEN: i32 = 26;
const BAR: i32 = 84;
/// A cell with a number.
pub(super) const WRITTEN: (i32, i32) = (48, 30);
/// A cell without one: a layer by a level, and a layer by a head.
pub(super) const OF_LEVEL: (i32, i32) = (38, 10);
pub(super) const OF_HEAD: (i32, i32) = (14, 14);
/// Height of a map without numbers, between these.
const HEIGHT: (i32, i32) = (120, 420);

impl ValueMaps {
    /// The picture.
    pub fn draw(&self, name: &str) -> Result<String, FigureError> {
        let most =
            |of: &dyn Fn(&ValueMap) -> usize| self.maps.iter().map(of).max().unwrap_or(1).max(1) as i32;
        let (columns, lines) = (most(&|map| map.columns.len()), most(&|map| map.rows.len()));
        let map_height = match self.cell {
            WRITTEN => lines * WRITTEN.1,
            (_, height) => (lines * height).clamp(HEIGHT.0, HEIGHT.1),
        };
        let natural = (columns * self.cell.0).clamp(150, 420);
        let across = |columns: i32, map: i32| 2 * margin() + LEFT + columns * (map + BETWEEN) + BAR;
        let least = if is_sized() { natural.min(120) } else { natural };
        let tiling = Tiling::of(self.maps.len(), [least, natural], across);
        let map_width = natural.min(tiling.panel - BETWEEN).max(60);
        let row_height = TITLE + map_height + FOOT;
        let head = Head::of(&self.title, &self.origin, tiling.width);
        let top = head.height();
        let height = top + tiling.rows * row_height + margin();
        let all = self.maps.iter().flat_map(|map| map.values.iter().flatten().flatten());
        let reach = all.map(|value| (value - self.middle).abs()).fold(0.0, f64::max).max(1e-9);
        svg(name, &self.title, (tiling.width, height), |area| {
            head.draw(area)?;
            for (place, map) in self.maps.iter().enumerate() {
                let (column, row) = tiling.place(place);
                let left = margin() + LEFT + column * (map_width + BETWEEN);
                let top = top + row * row_height + TITLE;
                let size = (map_width, map_height);
                write(area, &fitted(&map.title, 11, map_width + BETWEEN - 4), (left, top - 18), NOTE)?;
                self.cells(area, map, (left, top), size, reach)?;
                map.ticks(area, (left, top), size, column == 0)?;
                if column == 0 {
                    write_axis(area, &self.y_label, top + map_height / 2)?;
                }
            }
            let left = margin() + LEFT + tiling.columns * (map_width + BETWEEN);
            write(area, &fitted(&self.unit, 11, BAR), (left, top + TITLE - 18), NOTE)?;
            bar(area, (left, top + TITLE), map_height, (self.middle, reach))
        })
    }

    fn cells(
        &self,
        area: &Area<'_>,
        map: &ValueMap,
        (left, top): (i32, i32),
        (width, height): (i32, i32),
        reach: f64,
    ) -> Result<(), Refusal> {
        let edge = |at: usize, count: usize, length: i32| at as i32 * length / count.max(1) as i32;
        let (rows, columns) = (map.rows.len(), map.columns.len());
        for (row, values) in map.values.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                let x = (left + edge(column, columns, width), left + edge(column + 1, columns, width));
                let y = (top + height - edge(row + 1, rows, height), top + height - edge(row, rows, height));
                let at = value.map(|value| (value - self.middle) / reach);
                filled(area, [(x.0, y.0), (x.1, y.1)], at.map_or(GRID, diverging))?;
                if let (true, Some(value)) = (self.cell == WRITTEN, value) {
                    let middle = units(((x.0 + x.1) / 2, (y.0 + y.1) / 2));
                    write_middle(area, &format!("{value:.2}"), middle, LABEL.sized(11).centred())?;
                }
            }
        }
        outlined(area, [(left, top), (left + width, top + height)], GREY)
    }
}

impl ValueMap {
    fn ticks(
        &self,
        area: &Area<'_>,
        (left, top): (i32, i32),
        (width, height): (i32, i32),
        rows_too: bool,
    ) -> Result<(), Refusal> {
        let middle =
            |at: usize, count: usize, length: i32| (at as i32 * 2 + 1) * length / (count.max(1) as i32 * 2);
        let widest = self.columns.iter().map(|name| text_width(name, 10) + 4).max().unwrap_or(0);
        let every = (self.columns.len() as i32 * widest / width.max(1) + 1).max(1) as usize;
        for (at, name) in self.columns.iter().enumerate().step_by(every) {
            let x = left + middle(at, self.columns.len(), width);
            write(area, name, (x, top + height + 6), TICK.centred())?;
        }
        write(
            area,
            &fitted(&self.x_label, 12, width + BETWEEN),
            (left + width / 2, top + height + 22),
            LABEL.centred(),
        )?;
        let every = (self.rows.len() as i32 * 14 / height.max(1) + 1).max(1) as usize;
        for (at, name) in self.rows.iter().enumerate().step_by(every).filter(|_| rows_too) {
            let y = top + height - middle(at, self.rows.len(), height);
            write_middle(area, &fitted(name, 10, LEFT - 24), units((left - 6, y)), TICK.right())?;
        }
        Ok(())
    }
}

/// The scale of colours with its ends and its middle.
fn bar(
    area: &Area<'_>,
    (left, top): (i32, i32),
    height: i32,
    (middle, reach): (f64, f64),
) -> Result<(), Refusal> {
    const STEPS: i32 = 40;
    for step in 0..STEPS {
        let y = (top + height - (step + 1) * height / STEPS, top + height - step * height / STEPS);
        let at = (f64::from(step) + 0.5) / f64::from(STEPS) * 2.0 - 1.0;
        filled(area, [(left, y.0), (left + 12, y.1)], diverging(at))?;
    }
    outlined(area, [(left, top), (left + 12, top + height)], GREY)?;
    for (value, y) in [(middle - reach, top + height), (middle, top + height / 2), (middle + reach, top)] {
        write(area, &write_value(value, false), (left + 17, y - 7), TICK)?;
    }
    Ok(())
}
