//! Drawing of heat maps: layers by columns in shades of one scale, with a bar that says what the shades are.
//!
//! Called by [`super::heat_map`] and [`super::cause_maps`], which say what the columns are. Beside the rows of a model with linear or windowed layers
//! stands what each layer is: a dark mark at softmax layers, an open one at linear layers, a narrow one at windowed layers.

use plotters::prelude::*;

use super::FigureError;
use super::axis::{value_ticks, write_value};
use super::canvas::{
    Area, Head, LABEL, NOTE, Refusal, TICK, Tiling, filled, fitted, is_sized, margin, outlined, room, svg,
    text_width, units, write, write_axis, write_middle, write_upright,
};
use super::legend::Legend;
use super::sheet::LINEAR_LEGEND;
use super::style::{self, GREY, INK, UNIT};
use crate::lens::{Layer, LayerKind, Scale};

/// A map: columns of segments or places, each with a value a layer.
pub(super) struct Map {
    pub title: String,
    pub note: String,
    pub columns: Vec<Column>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Column {
    /// Below it; empty where there is no room.
    pub label: String,
    /// Below the label: how many cases it is a mean of.
    pub n: Option<usize>,
    /// Above it: the part that it plays, which frames it.
    pub role: Option<String>,
    pub cells: Cells,
}

/// The content of a column.
#[derive(Debug, Clone, Default)]
pub(super) enum Cells {
    /// By layer; NaN where the layer's window hides it.
    Values(Vec<f64>),
    /// Something was left out here: the map is open.
    #[default]
    Gap,
}

pub(super) struct Layout {
    /// Width in pixels that a map's columns ask for.
    pub width: i32,
    pub axis: String,
}

/// The scale of shades of maps, in steps, so that equal shades can be drawn as one.
pub(super) struct Shades {
    of: Values,
    /// Cells, those that lie beyond the ends (of attention, below the lower), and of those the ones that are 0.
    cells: (usize, usize, usize),
}

#[derive(Clone, Copy)]
enum Values {
    /// Attention, on a logarithmic scale: dark is much.
    Attention { low: f64, high: f64, scale: Scale },
    /// Effects, by differences: white is none, and either sign has a colour.
    Effects { reach: f64 },
}

impl Shades {
    const STEPS: i32 = 40;

    /// The shades of maps of attention.
    pub fn of(maps: &[Map], scale: Scale) -> Self {
        let values = values(maps);
        let high = values.iter().copied().fold(0.0, f64::max).max(1e-9);
        let low = values.iter().copied().filter(|v| *v > 0.0).fold(high, f64::min);
        // more than three decades would leave no contrast where the attention is
        let low = low.max(high / 1000.0);
        let low = if low < high { low } else { high / 10.0 };
        let below = values.iter().filter(|value| **value < low).count();
        let zero = values.iter().filter(|value| **value == 0.0).count();
        Shades { of: Values::Attention { low, high, scale }, cells: (values.len(), below, zero) }
    }

    /// The shades of maps of effects: the scale ends where all but one cell in a hundred lie within.
    pub fn of_effects(maps: &[Map]) -> Self {
        let mut sizes: Vec<f64> = values(maps).into_iter().map(f64::abs).collect();
        sizes.sort_by(f64::total_cmp);
        let reach = sizes.len().checked_sub(1 + sizes.len() / 100).and_then(|at| sizes.get(at));
        let reach = reach.copied().unwrap_or(0.0).max(1e-9);
        let beyond = sizes.iter().filter(|size| **size > reach).count();
        Shades { of: Values::Effects { reach }, cells: (sizes.len(), beyond, 0) }
    }

    /// The ends of the scale, and the number of cells beyond.
    pub fn in_words(&self) -> String {
        let (all, beyond, zero) = self.cells;
        let [low, high] = self.ends().map(|value| self.written(value));
        match self.of {
            Values::Attention { .. } if beyond == 0 => {
                format!(" Shades from {low}, the least cell, to {high}, the greatest.")
            }
            Values::Attention { .. } => {
                let zero = match zero {
                    0 => String::new(),
                    zero => format!(", {zero} of them 0"),
                };
                format!(
                    " Shades from {low} to {high}, the greatest cell; {beyond} of {all} cells lie below and have the lightest shade{zero}."
                )
            }
            Values::Effects { .. } => {
                let beyond = match beyond {
                    0 => String::new(),
                    beyond => format!("; {beyond} of {all} cells lie beyond and have the darkest shade"),
                };
                format!(
                    " White is 0, blue above and orange below, darker the farther; the scale ends at {high}{beyond}."
                )
            }
        }
    }

    fn ends(&self) -> [f64; 2] {
        match self.of {
            Values::Attention { low, high, .. } => [low, high],
            Values::Effects { reach } => [-reach, reach],
        }
    }

    fn written(&self, value: f64) -> String {
        write_value(value, matches!(self.of, Values::Attention { scale: Scale::Mass, .. }))
    }

    /// The unit above the scale.
    fn unit(&self) -> [&'static str; 2] {
        match self.of {
            Values::Attention { scale: Scale::Mass, .. } => ["share of", "attention"],
            Values::Attention { scale: Scale::Density, .. } => ["times", "uniform"],
            Values::Effects { .. } => ["log p lost", "per token"],
        }
    }

    /// Values between the ends that the scale names.
    fn ticks(&self) -> Vec<f64> {
        match self.of {
            Values::Attention { low, high, .. } => value_ticks(low, high),
            Values::Effects { reach } => vec![-reach / 2.0, 0.0, reach / 2.0],
        }
    }

    fn step(&self, value: f64) -> i32 {
        let share = match self.of {
            Values::Attention { low, high, .. } => (value.max(low) / low).ln() / (high / low).ln(),
            Values::Effects { reach } => (value / reach + 1.0) / 2.0,
        };
        (share.clamp(0.0, 1.0) * f64::from(Self::STEPS)).round() as i32
    }

    fn colour(&self, step: i32) -> RGBColor {
        let share = f64::from(step) / f64::from(Self::STEPS);
        match self.of {
            Values::Attention { .. } => darkening(share),
            Values::Effects { .. } => style::diverging(2.0 * share - 1.0),
        }
    }

    fn is_of_attention(&self) -> bool {
        matches!(self.of, Values::Attention { .. })
    }
}

fn values(maps: &[Map]) -> Vec<f64> {
    let columns = maps.iter().flat_map(|map| &map.columns).filter_map(|column| match &column.cells {
        Cells::Values(values) => Some(values),
        Cells::Gap => None,
    });
    columns.flatten().copied().filter(|value| !value.is_nan()).collect()
}

/// From near white over blue to near black: lightness falls all the way, so that it reads in grey.
fn darkening(share: f64) -> RGBColor {
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
    RGBColor(mix(0), mix(1), mix(2))
}

/// Cells that a layer's window hides.
const HIDDEN: RGBColor = style::GRID;

const LEFT: i32 = 40;
const MAP_HEAD: i32 = 56;
const MAP_HEIGHT: i32 = 210;
const BETWEEN: i32 = 18;
const BAR: i32 = 76;
/// Width of what marks a layer's kind.
const MARK: i32 = 6;
/// A line of what the marks mean.
const LEGEND: i32 = 18;
/// Width of a gap, of that of a column.
const GAP: f64 = 0.55;
/// The narrowest map that stands beside another, where a width is stated, and the least width of a column that has a number.
const LEAST: (i32, i32) = (130, 11);

/// Maps on one scale of shades.
pub(super) struct Grid<'a> {
    pub maps: &'a [Map],
    pub shades: &'a Shades,
    pub layout: &'a Layout,
    pub layers: &'a [Layer],
}

/// The layout of the words below a map's columns.
struct Below {
    /// Read from below, for want of room.
    upright: bool,
    /// Height of the columns' names, and of the numbers below them.
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
        // A name may stand over its neighbours that have none, as those of stretches do.
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

    /// From the map's lower edge to the axis' name.
    fn height(&self) -> i32 {
        6 + self.names + self.numbers
    }
}

/// The maps as SVG.
pub(super) fn draw(name: &str, title: &str, origin: &str, grid: &Grid<'_>) -> Result<String, FigureError> {
    let Grid { maps, shades, layout, layers } = *grid;
    let across = |maps: i32, width: i32| 2 * margin() + LEFT + maps * (width + BETWEEN) + BAR;
    // Those that need the whole width stand below each other.
    let least = if is_sized() { layout.width.min(LEAST.0) } else { layout.width.min(room() - across(1, 0)) };
    let tiling = Tiling::of(maps.len(), [least, layout.width], across);
    let (width, fitting) = (tiling.width, tiling.panel);
    let map_width = if is_sized() { fitting } else { layout.width.min(fitting) };
    let maps: Vec<Map> = maps.iter().map(|map| labelled(map, map_width)).collect();
    let below = Below::of(&maps, map_width);
    let map_height = MAP_HEAD + MAP_HEIGHT + below.height() + 26;
    let head = Head::of(title, origin, width);
    let top = head.height();
    let kinds = kinds(layers, shades, width);
    let bottom = top + tiling.rows * map_height;
    let height = bottom + kinds.height() + margin();
    svg(name, title, (width, height), |area| {
        head.draw(area)?;
        for (place, map) in maps.iter().enumerate() {
            let (column, row) = tiling.place(place);
            let left = margin() + LEFT + column * (map_width + BETWEEN);
            let top = top + MAP_HEAD + row * map_height;
            draw_map(area, map, (left, top, map_width), layers, shades, &below)?;
            let axis = fitted(&layout.axis, 12, map_width + BETWEEN);
            let lower = top + MAP_HEIGHT + below.height();
            write(area, &axis, (left + map_width / 2, lower), LABEL.centred())?;
            if column == 0 {
                layer_axis(area, (left, top), layers)?;
            }
        }
        let draw = |kind: &LayerKind, (x, y)| mark(area, (x, y + 1), (x + MARK, y + 13), *kind);
        kinds.draw(area, |_| margin() + LEFT, bottom, draw)?;
        let left = margin() + LEFT + tiling.columns * (map_width + BETWEEN);
        bar(area, (left, top + MAP_HEAD), shades)
    })
}

/// A map without the numbers that have no room: where columns are narrow only every so many has one, and those of the evidence.
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
    // The number of a piece of evidence stands over its neighbours'.
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
    Map { title: map.title.clone(), note: map.note.clone(), columns }
}

/// The edge of cell `at` of `count` over `length` pixels: whole pixels, so that neighbouring cells leave no seam.
fn edge(at: usize, count: usize, length: i32) -> i32 {
    (at as i64 * i64::from(length) / count.max(1) as i64) as i32
}

/// The edges of all columns over `length` pixels, one more than there are columns; gaps are narrower.
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

fn draw_map(
    area: &Area<'_>,
    map: &Map,
    (left, top, width): (i32, i32, i32),
    layers: &[Layer],
    shades: &Shades,
    below: &Below,
) -> Result<(), Refusal> {
    write(area, &fitted(&map.title, 12, width), (left, top - MAP_HEAD), LABEL)?;
    write(area, &fitted(&map.note, 11, width + BETWEEN), (left, top - MAP_HEAD + 16), NOTE)?;
    let bottom = top + MAP_HEIGHT;
    let edges: Vec<i32> = edges(&map.columns, width).into_iter().map(|x| left + x).collect();
    let sides = |at: usize| (edges[at], edges[at + 1]);
    for (at, column) in map.columns.iter().enumerate() {
        match &column.cells {
            Cells::Gap => {}
            Cells::Values(values) => cells(area, values, sides(at), top, shades)?,
        }
    }
    if has_kinds(layers) {
        let mut from = 0;
        for run in layers.chunk_by(|a, b| a.kind == b.kind) {
            let to = from + run.len();
            let (y0, y1) = (edge(to, layers.len(), MAP_HEIGHT), edge(from, layers.len(), MAP_HEIGHT));
            let kind = run.first().map_or(LayerKind::Softmax, |layer| layer.kind);
            mark(area, (left - MARK - 4, bottom - y0), (left - 4, bottom - y1), kind)?;
            from = to;
        }
    }
    // a map is open where something was left out
    let mut from = 0;
    for block in map.columns.chunk_by(|a, b| matches!(a.cells, Cells::Gap) == matches!(b.cells, Cells::Gap)) {
        let to = from + block.len();
        if !matches!(block[0].cells, Cells::Gap) {
            outlined(area, [(edges[from], top), (edges[to], bottom)], GREY)?;
        }
        from = to;
    }
    let mut last_role = i32::MIN;
    for (at, column) in map.columns.iter().enumerate() {
        let (x0, x1) = sides(at);
        let middle = (x0 + x1) / 2;
        if let Some(role) = &column.role {
            frame(area, (x0, top - 3), (x1, bottom + 3))?;
            // two roles side by side stand one above the other
            let half = text_width(role, 12) / 2 + 2;
            let raised = middle - half < last_role;
            write(area, role, (middle, top - if raised { 31 } else { 19 }), LABEL.centred())?;
            last_role = if raised { i32::MIN } else { middle + half };
        }
        let n = column.n.map(|n| n.to_string()).unwrap_or_default();
        if below.upright {
            write_upright(area, &column.label, (middle, bottom + 6))?;
            write_upright(area, &n, (middle, bottom + 6 + below.names))?;
        } else {
            write(area, &column.label, (middle, bottom + 6), TICK.centred())?;
            write(area, &n, (middle, bottom + 6 + below.names), TICK.centred())?;
        }
    }
    if below.numbers > 0 {
        write(area, "n", (left - 6, bottom + 6 + below.names), TICK.right())?;
    }
    Ok(())
}

/// The cells of a column, layer 0 at the bottom, as a value axis would have it; equal neighbours are one rectangle.
fn cells(
    area: &Area<'_>,
    values: &[f64],
    (x0, x1): (i32, i32),
    top: i32,
    shades: &Shades,
) -> Result<(), Refusal> {
    let shade = |value: &f64| (!value.is_nan()).then(|| shades.step(*value));
    let steps: Vec<Option<i32>> = values.iter().map(shade).collect();
    let mut from = 0;
    for run in steps.chunk_by(|a, b| a == b) {
        let to = from + run.len();
        let (y0, y1) = (edge(to, values.len(), MAP_HEIGHT), edge(from, values.len(), MAP_HEIGHT));
        let colour = run.first().copied().flatten().map_or(HIDDEN, |step| shades.colour(step));
        filled(area, [(x0, top + MAP_HEIGHT - y0), (x1, top + MAP_HEIGHT - y1)], colour)?;
        from = to;
    }
    Ok(())
}

/// A frame, dark with a light edge, so that it stands out from every shade. The backend gives rectangles no stroke width, so it is
/// drawn as a path.
fn frame(area: &Area<'_>, (x0, y0): (i32, i32), (x1, y1): (i32, i32)) -> Result<(), Refusal> {
    let corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)].map(units);
    area.draw(&PathElement::new(corners, WHITE.stroke_width(UNIT as u32 * 4)))?;
    area.draw(&PathElement::new(corners, INK.stroke_width(UNIT as u32 * 2)))
}

/// The mark of a layer's kind: an open box for linear layers, a dark one for softmax layers, a narrow dark one for windowed layers.
fn mark(area: &Area<'_>, (x0, y0): (i32, i32), (x1, y1): (i32, i32), kind: LayerKind) -> Result<(), Refusal> {
    let x0 = if kind == LayerKind::Windowed { x1 - MARK / 3 } else { x0 };
    let corners = [(x0, y0), (x1, y1)];
    if kind != LayerKind::Linear {
        return filled(area, corners, GREY);
    }
    filled(area, corners, style::LINEAR)?;
    outlined(area, corners, GREY)
}

/// The marks of the kinds that the model has; none of a model of one kind.
fn kinds(layers: &[Layer], shades: &Shades, width: i32) -> Legend<LayerKind> {
    let [softmax, windowed] = match shades.is_of_attention() {
        true => ["softmax layer: share of attention", "windowed layer: the same, within its window"],
        false => ["layer that sees the whole prompt", "windowed layer"],
    };
    let kinds =
        [(LayerKind::Linear, LINEAR_LEGEND), (LayerKind::Softmax, softmax), (LayerKind::Windowed, windowed)];
    let present = |kind| has_kinds(layers) && layers.iter().any(|layer| layer.kind == kind);
    let entries = kinds.into_iter().filter(|(kind, _)| present(*kind));
    let entries = entries.map(|(kind, text)| (kind, MARK + 6, text.to_owned()));
    Legend::of(entries, LABEL, [22, LEGEND], width - 2 * margin() - LEFT)
}

/// Rows are labelled by the layers they show, the last one always: a model's measured layers may skip some.
fn layer_axis(area: &Area<'_>, (left, top): (i32, i32), layers: &[Layer]) -> Result<(), Refusal> {
    let every = layers.len().div_ceil(8).max(1);
    let left = if has_kinds(layers) { left - MARK - 3 } else { left };
    let last = layers.len().saturating_sub(1);
    for (at, layer) in layers.iter().enumerate() {
        // a label just below the last one would touch it
        let regular = at % every == 0 && (last - at) * 2 > every;
        if !regular && at != last {
            continue;
        }
        let y0 = edge(at, layers.len(), MAP_HEIGHT);
        let y1 = edge(at + 1, layers.len(), MAP_HEIGHT);
        let y = top + MAP_HEIGHT - (y0 + y1) / 2;
        write_middle(area, &layer.index.to_string(), units((left - 6, y)), TICK.right())?;
    }
    write_axis(area, "layer", top + MAP_HEIGHT / 2)
}

/// The scale of shades, with its ends and what lies between them written.
fn bar(area: &Area<'_>, (left, top): (i32, i32), shades: &Shades) -> Result<(), Refusal> {
    let at = |step: i32| top + MAP_HEIGHT - edge(step as usize, Shades::STEPS as usize + 1, MAP_HEIGHT);
    for step in 0..=Shades::STEPS {
        filled(area, [(left, at(step + 1)), (left + 12, at(step))], shades.colour(step))?;
    }
    outlined(area, [(left, top), (left + 12, top + MAP_HEIGHT)], GREY)?;
    let label = |text: &str, middle: i32| write(area, text, (left + 17, middle - 7), TICK);
    let (low, high) = (top + MAP_HEIGHT, top);
    let beyond = shades.cells.1 > 0;
    let [less, more] = match shades.is_of_attention() {
        true => [if beyond { "≤ " } else { "" }, ""],
        false => [if beyond { "≤ " } else { "" }, if beyond { "≥ " } else { "" }],
    };
    let [least, greatest] = shades.ends().map(|value| shades.written(value));
    label(&format!("{less}{least}"), low)?;
    label(&format!("{more}{greatest}"), high)?;
    for tick in shades.ticks() {
        let middle = (at(shades.step(tick)) + at(shades.step(tick) + 1)) / 2;
        if middle - high >= 14 && low - middle >= 14 {
            label(&shades.written(tick), middle)?;
        }
    }
    let [above, below] = shades.unit();
    write(area, above, (left, top - 33), LABEL.sized(10))?;
    write(area, below, (left, top - 21), LABEL.sized(10))
}

fn has_kinds(layers: &[Layer]) -> bool {
    layers.iter().any(|layer| layer.kind != LayerKind::Softmax)
}
