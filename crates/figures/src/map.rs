//! Maps: rows by columns in shades of one scale, with a colour bar.
//!
//! Callers define the columns ([`super::heat_map`], [`super::cause_maps`], [`super::head_map`], [`super::dose`]). For mixed models a mark
//! beside each row shows the layer kind: filled for softmax, open for linear, narrow for windowed.

use super::Figure;
use super::axis::{value_ticks, write_value};
use super::canvas::{
    Head, LABEL, NOTE, TICK, Tiling, filled, fitted, is_sized, margin, outlined, room, text_width, units,
    write, write_axis, write_middle, write_upright,
};
use super::drawing::Drawing;
use super::legend::Legend;
use super::sheet::LINEAR_LEGEND;
use super::style::{self, Colour, GREY, INK, UNIT, WHITE};
use palimpsest_analysis::lens::{Layer, LayerKind, Scale};

/// Columns from the left, rows from the bottom.
#[derive(Debug, Clone, Default)]
pub(super) struct Map {
    pub title: String,
    pub note: String,
    pub axis: String,
    pub columns: Vec<Column>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Column {
    /// Below the column; may be empty.
    pub label: String,
    /// Below the label: number of cases.
    pub n: Option<usize>,
    pub role: Option<String>,
    pub cells: Cells,
}

#[derive(Debug, Clone, Default)]
pub(super) enum Cells {
    /// By row; NaN if undefined, for example outside a layer's window.
    Values(Vec<f64>),
    /// Omitted columns, drawn as a gap.
    #[default]
    Gap,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RowAxis {
    /// For example `layer`.
    pub axis: String,
    pub names: Vec<String>,
    /// Empty unless rows are layers.
    pub kinds: Vec<LayerKind>,
}

impl RowAxis {
    pub fn of_layers(layers: &[Layer]) -> Self {
        RowAxis {
            axis: "layer".to_owned(),
            names: layers.iter().map(|layer| layer.index.to_string()).collect(),
            kinds: layers.iter().map(|layer| layer.kind).collect(),
        }
    }

    fn has_kinds(&self) -> bool {
        self.kinds.iter().any(|kind| *kind != LayerKind::Softmax)
    }
}

/// Discrete colour scale, so that equal cells merge.
pub(super) struct Shades {
    /// True for attention: logarithmic, dark is high. False: linear and diverging around white.
    of_attention: bool,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    percent: bool,
    /// Above the scale.
    unit: [&'static str; 2],
    /// Counts: all cells; cells beyond the ends (attention: below); zeros among those.
    cells: (usize, usize, usize),
}

impl Shades {
    const STEPS: i32 = 40;

    pub fn of(maps: &[Map], scale: Scale) -> Self {
        let values = values(maps);
        let high = values.iter().copied().fold(0.0, f64::max).max(1e-9);
        let low = values.iter().copied().filter(|v| *v > 0.0).fold(high, f64::min);
        // more than three decades would leave no contrast at high attention
        let low = low.max(high / 1000.0);
        let low = if low < high { low } else { high / 10.0 };
        let below = values.iter().filter(|value| **value < low).count();
        let zero = values.iter().filter(|value| **value == 0.0).count();
        Shades {
            of_attention: true,
            low,
            high,
            ticks: value_ticks(low, high),
            percent: scale == Scale::Mass,
            unit: match scale {
                Scale::Mass => ["share of", "attention"],
                Scale::Density => ["times", "uniform"],
            },
            cells: (values.len(), below, zero),
        }
    }

    /// Shades of effects; the range covers all but one in a hundred cells.
    pub fn of_effects(maps: &[Map]) -> Self {
        Shades::around(maps, 0.0, ["log p lost", "per token"], 100)
    }

    /// Diverging scale; the range covers all but one in `most` cells.
    pub fn around(maps: &[Map], middle: f64, unit: [&'static str; 2], most: usize) -> Self {
        let mut sizes: Vec<f64> = values(maps).into_iter().map(|value| (value - middle).abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let reach = sizes.len().checked_sub(1 + sizes.len() / most).and_then(|at| sizes.get(at));
        let reach = reach.copied().unwrap_or(0.0).max(1e-9);
        let beyond = sizes.iter().filter(|size| **size > reach).count();
        Shades {
            of_attention: false,
            low: middle - reach,
            high: middle + reach,
            ticks: vec![middle - reach / 2.0, middle, middle + reach / 2.0],
            percent: false,
            unit,
            cells: (sizes.len(), beyond, 0),
        }
    }

    pub fn in_words(&self) -> String {
        let (all, beyond, zero) = self.cells;
        let [low, high] = [self.low, self.high].map(|value| self.written(value));
        let beyond_it = match beyond {
            0 => String::new(),
            _ => format!("; {beyond} of {all} cells lie beyond and have the darkest shade"),
        };
        let zero = if zero == 0 { String::new() } else { format!(", {zero} of them 0") };
        match (self.of_attention, beyond) {
            (true, 0) => format!(" Shades from {low}, the least cell, to {high}, the greatest."),
            (true, _) => format!(
                " Shades from {low} to {high}, the greatest cell; {beyond} of {all} cells lie below and have the lightest shade{zero}."
            ),
            (false, _) => format!(
                " White is 0, blue above and orange below, darker the farther; the scale ends at {high}{beyond_it}."
            ),
        }
    }

    fn written(&self, value: f64) -> String {
        write_value(value, self.percent)
    }

    fn step(&self, value: f64) -> i32 {
        let Shades { low, high, .. } = *self;
        let share = match self.of_attention {
            true => (value.max(low) / low).ln() / (high / low).ln(),
            false => (value - low) / (high - low),
        };
        (share.clamp(0.0, 1.0) * f64::from(Self::STEPS)).round() as i32
    }

    fn colour(&self, step: i32) -> Colour {
        let share = f64::from(step) / f64::from(Self::STEPS);
        if self.of_attention { darkening(share) } else { style::diverging(2.0 * share - 1.0) }
    }
}

fn values(maps: &[Map]) -> Vec<f64> {
    let columns = maps.iter().flat_map(|map| &map.columns).filter_map(|column| match &column.cells {
        Cells::Values(values) => Some(values),
        Cells::Gap => None,
    });
    columns.flatten().copied().filter(|value| !value.is_nan()).collect()
}

/// Near white to blue to near black; lightness falls monotonically, so it works in greyscale.
fn darkening(share: f64) -> Colour {
    const STOPS: [[f64; 3]; 5] = [
        [250.0, 251.0, 253.0],
        [198.0, 219.0, 239.0],
        [92.0, 160.0, 206.0],
        [16.0, 88.0, 158.0],
        [6.0, 32.0, 78.0],
    ];
    let at = share * (STOPS.len() - 1) as f64;
    let below = (at.floor() as usize).min(STOPS.len() - 2);
    let mix = |c: usize| {
        (STOPS[below][c] + (STOPS[below + 1][c] - STOPS[below][c]) * (at - below as f64)).round() as u8
    };
    Colour(mix(0), mix(1), mix(2))
}

const HIDDEN: Colour = style::GRID;

/// Left margin for row names and their axis name.
const LEFT: (i32, i32) = (40, 96);
const TITLE: i32 = 20;
const NOTED: i32 = 36;
const MAP_HEAD: i32 = 56;
const MAP_HEIGHT: i32 = 210;
const BETWEEN: i32 = 18;
const BAR: i32 = 76;
const MARK: i32 = 6;
/// Line height of the marks' legend.
const LEGEND: i32 = 18;
/// Gap width relative to a column.
const GAP: f64 = 0.55;
/// Minimum width of a map beside another, with a stated width; minimum width of a numbered column.
const LEAST: (i32, i32) = (130, 11);

pub(super) struct Grid {
    pub maps: Vec<Map>,
    pub shades: Shades,
    pub rows: RowAxis,
    /// Natural size of a map in pixels.
    pub size: (i32, i32),
    pub written: bool,
}

impl Grid {
    /// Maps of layers, sized by their columns.
    pub fn of_layers(maps: Vec<Map>, shades: Shades, layers: &[Layer], width: i32) -> Self {
        Grid { maps, shades, rows: RowAxis::of_layers(layers), size: (width, MAP_HEIGHT), written: false }
    }

    pub fn figure(
        self,
        name: impl Into<String>,
        (title, origin): (String, &str),
        caption: String,
        csv: Vec<u8>,
    ) -> Figure {
        let drawing = self.draw(&title, origin);
        Figure::of(name, title, caption, drawing, csv)
    }
}

struct Below {
    /// Vertical, if space is short.
    upright: bool,
    /// Heights of column names and of the numbers below.
    names: i32,
    numbers: i32,
}

impl Below {
    fn of(maps: &[Map], width: i32) -> Self {
        let columns = || maps.iter().flat_map(|map| map.columns.iter().map(move |column| (map, column)));
        let widest = |text: &dyn Fn(&Column) -> String| {
            columns().map(|(_, column)| text_width(&text(column), 10)).max().unwrap_or(0)
        };
        let number = |column: &Column| column.n.map(|n| n.to_string()).unwrap_or_default();
        // A name may extend over unnamed neighbours.
        let fits = maps.iter().all(|map| {
            let edges = edges(&map.columns, width);
            let mut free = i32::MIN;
            map.columns.iter().zip(edges.windows(2)).all(|(column, sides)| {
                let (middle, half) = ((sides[0] + sides[1]) / 2, text_width(&column.label, 10) / 2 + 1);
                let fits = column.label.is_empty() || middle - half >= free;
                free = if column.label.is_empty() { free } else { middle + half };
                fits && text_width(&number(column), 10) <= sides[1] - sides[0]
            })
        });
        let numbered = columns().any(|(_, column)| column.n.is_some());
        match fits {
            true => Below { upright: false, names: 15, numbers: if numbered { 13 } else { 0 } },
            false => Below {
                upright: true,
                names: widest(&|column| column.label.clone()) + 5,
                numbers: if numbered { widest(&number) + 4 } else { 0 },
            },
        }
    }

    fn height(&self) -> i32 {
        6 + self.names + self.numbers
    }
}

impl Grid {
    fn draw(&self, title: &str, origin: &str) -> Drawing {
        let (natural, height) = self.size;
        let widest = self.rows.names.iter().map(|name| text_width(name, 10)).max().unwrap_or(0);
        let beside = (widest + 28).clamp(LEFT.0, LEFT.1);
        let across = |maps: i32, width: i32| 2 * margin() + beside + maps * (width + BETWEEN) + BAR;
        // Full-width maps are stacked vertically.
        let least = if is_sized() { natural.min(LEAST.0) } else { natural.min(room() - across(1, 0)) };
        let tiling = Tiling::of(self.maps.len(), [least, natural], across);
        let (width, fitting) = (tiling.width, tiling.panel);
        let map_width = if is_sized() { fitting } else { natural.min(fitting) };
        let maps: Vec<Map> = self.maps.iter().map(|map| labelled(map, map_width)).collect();
        let below = Below::of(&maps, map_width);
        let above = match maps.iter().flat_map(|map| &map.columns).any(|column| column.role.is_some()) {
            true => MAP_HEAD,
            false if maps.iter().all(|map| map.note.is_empty()) && self.shades.unit == ["", ""] => TITLE,
            false => NOTED,
        };
        let row_height = above + height + below.height() + 26;
        let head = Head::of(title, origin, width);
        let kinds = kinds(&self.rows, &self.shades, width - beside);
        let bottom = head.height() + tiling.rows * row_height;
        let mut area = Drawing::of((width, bottom + kinds.height() + margin()));
        head.draw(&mut area);
        for (at, map) in maps.iter().enumerate() {
            let (column, row) = tiling.place(at);
            let left = margin() + beside + column * (map_width + BETWEEN);
            let top = head.height() + above + row * row_height;
            let place = Place { left, top, width: map_width, height };
            self.map(&mut area, map, place, above, &below);
            let axis = fitted(&map.axis, 12, map_width + BETWEEN);
            write(&mut area, &axis, (left + map_width / 2, place.bottom() + below.height()), LABEL.centred());
            if column == 0 {
                self.row_axis(&mut area, place, beside);
            }
        }
        kinds.draw(
            &mut area,
            |_| margin() + beside,
            bottom,
            |area, kind, (x, y)| {
                mark(area, (x, y + 1), (x + MARK, y + 13), *kind);
            },
        );
        let left = margin() + beside + tiling.columns * (map_width + BETWEEN);
        bar(&mut area, Place { left, top: head.height() + above, width: 12, height }, &self.shades);
        area
    }
}

/// In pixels.
#[derive(Clone, Copy)]
struct Place {
    left: i32,
    top: i32,
    width: i32,
    height: i32,
}

impl Place {
    fn bottom(self) -> i32 {
        self.top + self.height
    }
}

/// Thins column numbers to those that fit; evidence keeps its numbers.
fn labelled(map: &Map, width: i32) -> Map {
    let columns = map.columns.len().max(1) as i32;
    let every = (LEAST.1 * columns / width.max(1) + 1).max(1) as usize;
    let wanted = |place: usize, column: &Column| {
        every == 1
            || place.is_multiple_of(every)
            || column.role.is_some()
            || column.label.parse::<usize>().is_err()
    };
    let columns = map.columns.iter().enumerate().map(|(place, column)| {
        let label = if wanted(place, column) { column.label.clone() } else { String::new() };
        Column { label, ..column.clone() }
    });
    // Evidence numbers replace their neighbours'.
    let mut columns: Vec<Column> = columns.collect();
    for at in 0..columns.len() {
        if every > 1 && columns[at].role.is_some() {
            for near in [at.wrapping_sub(1), at + 1] {
                if let Some(column) = columns.get_mut(near).filter(|column| column.role.is_none()) {
                    column.label.clear();
                }
            }
        }
    }
    Map { columns, ..map.clone() }
}

/// Edge of cell `at` of `count`, in whole pixels, so that cells leave no seams.
fn edge(at: usize, count: usize, length: i32) -> i32 {
    (at as i64 * i64::from(length) / count.max(1) as i64) as i32
}

/// Edges of all columns; gaps are narrower.
fn edges(columns: &[Column], length: i32) -> Vec<i32> {
    let width = |column: &Column| if matches!(column.cells, Cells::Gap) { GAP } else { 1.0 };
    let all: f64 = columns.iter().map(width).sum();
    let mut at = 0.0;
    let mut edges = vec![0];
    for column in columns {
        at += width(column);
        edges.push((at / all * f64::from(length)).round() as i32);
    }
    edges
}

impl Grid {
    fn map(&self, area: &mut Drawing, map: &Map, place: Place, above: i32, below: &Below) {
        let Place { left, top, width, height } = place;
        write(area, &fitted(&map.title, 12, width), (left, top - above), LABEL);
        write(area, &fitted(&map.note, 11, width + BETWEEN), (left, top - above + 16), NOTE);
        let bottom = place.bottom();
        let edges: Vec<i32> = edges(&map.columns, width).into_iter().map(|x| left + x).collect();
        let sides = |at: usize| (edges[at], edges[at + 1]);
        for (at, column) in map.columns.iter().enumerate() {
            match &column.cells {
                Cells::Gap => {}
                Cells::Values(values) => self.cells(area, values, sides(at), place),
            }
        }
        if self.rows.has_kinds() {
            let kinds = &self.rows.kinds;
            let mut from = 0;
            for run in kinds.chunk_by(|a, b| a == b) {
                let to = from + run.len();
                let (y0, y1) = (edge(to, kinds.len(), height), edge(from, kinds.len(), height));
                mark(area, (left - MARK - 4, bottom - y0), (left - 4, bottom - y1), run[0]);
                from = to;
            }
        }
        // the frame is open at gaps
        let is_gap = |column: &Column| matches!(column.cells, Cells::Gap);
        let mut from = 0;
        for block in map.columns.chunk_by(|a, b| is_gap(a) == is_gap(b)) {
            let to = from + block.len();
            if !is_gap(&block[0]) {
                outlined(area, [(edges[from], top), (edges[to], bottom)], GREY);
            }
            from = to;
        }
        let mut last_role = i32::MIN;
        for (at, column) in map.columns.iter().enumerate() {
            let (x0, x1) = sides(at);
            let middle = (x0 + x1) / 2;
            if let Some(role) = &column.role {
                frame(area, (x0, top - 3), (x1, bottom + 3));
                // adjacent roles are stacked
                let half = text_width(role, 12) / 2 + 2;
                let raised = middle - half < last_role;
                write(area, role, (middle, top - if raised { 31 } else { 19 }), LABEL.centred());
                last_role = if raised { i32::MIN } else { middle + half };
            }
            let n = column.n.map(|n| n.to_string()).unwrap_or_default();
            if below.upright {
                write_upright(area, &column.label, (middle, bottom + 6));
                write_upright(area, &n, (middle, bottom + 6 + below.names));
            } else {
                write(area, &column.label, (middle, bottom + 6), TICK.centred());
                write(area, &n, (middle, bottom + 6 + below.names), TICK.centred());
            }
        }
        if below.numbers > 0 {
            write(area, "n", (left - 6, bottom + 6 + below.names), TICK.right());
        }
    }

    /// Draws a column, row 0 at the bottom; equal neighbours are merged.
    fn cells(&self, area: &mut Drawing, values: &[f64], (x0, x1): (i32, i32), place: Place) {
        let y = |at: usize| place.bottom() - edge(at, values.len(), place.height);
        let shade = |value: &f64| (!value.is_nan()).then(|| self.shades.step(*value));
        let steps: Vec<Option<i32>> = values.iter().map(shade).collect();
        let mut from = 0;
        for run in steps.chunk_by(|a, b| a == b) {
            let to = from + run.len();
            let colour = run[0].map_or(HIDDEN, |step| self.shades.colour(step));
            filled(area, [(x0, y(to)), (x1, y(from))], colour);
            from = to;
        }
        for (at, value) in values.iter().enumerate().filter(|(_, value)| self.written && !value.is_nan()) {
            let middle = units(((x0 + x1) / 2, (y(at) + y(at + 1)) / 2));
            write_middle(area, &format!("{value:.2}"), middle, LABEL.sized(11).centred());
        }
    }

    /// Labels rows that fit, and always the last: measured layers may skip some.
    fn row_axis(&self, area: &mut Drawing, place: Place, beside: i32) {
        let names = &self.rows.names;
        let every = names.len().div_ceil((place.height / 26).max(1) as usize).max(1);
        let left = if self.rows.has_kinds() { place.left - MARK - 3 } else { place.left };
        let last = names.len().saturating_sub(1);
        for (at, name) in names.iter().enumerate() {
            // skip a label that would touch the last one
            let regular = at % every == 0 && (last - at) * 2 > every;
            if !regular && at != last {
                continue;
            }
            let edges = edge(at, names.len(), place.height) + edge(at + 1, names.len(), place.height);
            let middle = units((left - 6, place.bottom() - edges / 2));
            write_middle(area, &fitted(name, 10, beside - 24), middle, TICK.right());
        }
        write_axis(area, &self.rows.axis, place.top + place.height / 2);
    }
}

/// Dark with a light edge, visible on any shade.
fn frame(area: &mut Drawing, (x0, y0): (i32, i32), (x1, y1): (i32, i32)) {
    let corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)].map(units);
    area.line(corners, WHITE, UNIT * 4);
    area.line(corners, INK, UNIT * 2);
}

/// Layer kind: open for linear, filled for softmax, narrow for windowed.
fn mark(area: &mut Drawing, (x0, y0): (i32, i32), (x1, y1): (i32, i32), kind: LayerKind) {
    let x0 = if kind == LayerKind::Windowed { x1 - MARK / 3 } else { x0 };
    let corners = [(x0, y0), (x1, y1)];
    if kind != LayerKind::Linear {
        return filled(area, corners, GREY);
    }
    filled(area, corners, style::LINEAR);
    outlined(area, corners, GREY);
}

/// Legend of the layer kinds; empty for a single kind.
fn kinds(rows: &RowAxis, shades: &Shades, width: i32) -> Legend<LayerKind> {
    let [softmax, windowed] = match shades.of_attention {
        true => ["softmax layer: share of attention", "windowed layer: the same, within its window"],
        false => ["layer that sees the whole prompt", "windowed layer"],
    };
    let kinds =
        [(LayerKind::Linear, LINEAR_LEGEND), (LayerKind::Softmax, softmax), (LayerKind::Windowed, windowed)];
    let entries = kinds.into_iter().filter(|(kind, _)| rows.has_kinds() && rows.kinds.contains(kind));
    let entries = entries.map(|(kind, text)| (kind, MARK + 6, text.to_owned()));
    Legend::of(entries, LABEL, [22, LEGEND], width - 2 * margin())
}

fn bar(area: &mut Drawing, place: Place, shades: &Shades) {
    let Place { left, top, width, height } = place;
    let (low, high) = (place.bottom(), top);
    let at = |step: i32| low - edge(step as usize, Shades::STEPS as usize + 1, height);
    for step in 0..=Shades::STEPS {
        filled(area, [(left, at(step + 1)), (left + width, at(step))], shades.colour(step));
    }
    outlined(area, [(left, high), (left + width, low)], GREY);
    let beyond = shades.cells.1 > 0;
    let less = if beyond { "≤ " } else { "" };
    let more = if beyond && !shades.of_attention { "≥ " } else { "" };
    let [least, greatest] = [shades.low, shades.high].map(|value| shades.written(value));
    let mut label = |text: &str, middle: i32| write(area, text, (left + 17, middle - 7), TICK);
    label(&format!("{less}{least}"), low);
    label(&format!("{more}{greatest}"), high);
    for tick in &shades.ticks {
        let step = shades.step(*tick);
        let middle = (at(step) + at(step + 1)) / 2;
        if middle - high >= 14 && low - middle >= 14 {
            label(&shades.written(*tick), middle);
        }
    }
    let [above, below] = shades.unit;
    write(area, above, (left, top - 33), LABEL.sized(10));
    write(area, below, (left, top - 21), LABEL.sized(10));
}
