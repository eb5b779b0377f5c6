//! Layers by heads: a measure of each head, as the mean over units, in two colours around the value that says nothing.
//!
//! For effects of either sign, as that of a position: heads of one colour look more at what comes first, those of the other at what
//! comes last.

use plotters::style::RGBColor;

use super::axis::write_value;
use super::canvas::{
    Area, Head, LABEL, NOTE, Refusal, TICK, Tiling, filled, fitted, is_sized, margin, outlined, svg,
    text_width, units, write, write_axis, write_middle,
};
use super::style::{GREY, GRID, diverging};
use super::{Figure, FigureError, Origin};
use crate::benchmarks::{Measure, Unit};
use crate::ground::csv::CsvTable;
use crate::lens::selection::joined;
use crate::lens::{HeadMap, Study};
use crate::run::condition::label;

const LEFT: i32 = 40;
const TITLE: i32 = 22;
const FOOT: i32 = 50;
const BETWEEN: i32 = 26;
const BAR: i32 = 64;
/// Height and width of a map are between these, in pixels.
const SIZES: (i32, i32) = (120, 420);
/// A cell that is neither squeezed nor stretched, in pixels.
const CELL: i32 = 14;

/// The maps of every measure that is kept by head, a figure each.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn of_study(study: &Study, origin: &Origin) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    for measure in study.measures().into_iter().filter(|measure| measure.heads) {
        let maps = study.heads(measure);
        if !maps.is_empty() {
            figures.push(figure(measure, &maps, study.benchmark.unit, origin)?);
        }
    }
    Ok(figures)
}

fn figure(measure: &Measure, maps: &[HeadMap], unit: Unit, origin: &Origin) -> Result<Figure, FigureError> {
    let many = unit.many();
    let name = format!("heads-{}-mass", measure.key.replace('_', "-"));
    let title = origin.titled(format!("By layer and head: {}", measure.label));
    let middle = measure.reference.unwrap_or(0.0);
    let all = || maps.iter().flat_map(|map| map.mean.iter().copied()).filter(|value| value.is_finite());
    let reach = all().map(|value| (value - middle).abs()).fold(0.0, f64::max).max(1e-9);
    let (layers, heads) = maps.first().map_or((1, 1), |map| map.mean.dim());
    let size = |count: usize| (count as i32 * CELL).clamp(SIZES.0, SIZES.1);
    let map_height = size(layers);
    let several = maps.len() > 1;
    let across = |columns: i32, map: i32| 2 * margin() + LEFT + columns * (map + BETWEEN) + BAR;
    let least = if is_sized() { SIZES.0.min(size(heads)) } else { size(heads) };
    let tiling = Tiling::of(maps.len(), [least, size(heads)], across);
    let (width, rows) = (tiling.width, tiling.rows);
    let map_width = size(heads).min(tiling.panel);
    let cell = TITLE + map_height + FOOT;
    let head = Head::of(&title, &origin.line, width);
    let top = head.height();
    let height = top + rows * cell + margin();
    let drawn = svg(&name, &title, (width, height), |area| {
        head.draw(area)?;
        for (place, map) in maps.iter().enumerate() {
            let (column, row) = tiling.place(place);
            let left = margin() + LEFT + column * (map_width + BETWEEN);
            let top = top + row * cell + TITLE;
            let note = match &map.condition {
                Some(condition) if several => format!("{}, n = {}", label(condition), map.n),
                _ => format!("n = {}", map.n),
            };
            write(area, &fitted(&note, 11, map_width + BETWEEN - 4), (left, top - 18), NOTE)?;
            cells(area, map, (left, top), (map_width, map_height), |value| {
                diverging((value - middle) / reach)
            })?;
            ticks(area, heads, map_width, |x| (left + x, top + map_height + 6))?;
            write(area, "head", (left + map_width / 2, top + map_height + 22), LABEL.centred())?;
            if column > 0 {
                continue;
            }
            for (at, layer) in map_labels(maps) {
                let y = top + map_height - (at * 2 + 1) * map_height / (layers as i32 * 2);
                write_middle(area, &layer.to_string(), units((left - 6, y)), TICK.right())?;
            }
            write_axis(area, "layer", top + map_height / 2)?;
        }
        let left = margin() + LEFT + tiling.columns * (map_width + BETWEEN);
        bar(area, (left, top + TITLE), map_height, (middle, reach))
    })?;
    let caption = format!(
        "{}: {}. Each cell: a head's own value, of masses, as the mean over {many}; white is {}, darker is farther from it, blue \
         above and orange below; the scale ends at the farthest head. Grey: no {} has a value. n is the number of {many}. Layers \
         with softmax attention only.",
        measure.label,
        measure.about,
        write_value(middle, false),
        unit.one(),
    );
    let csv = csv(&name, measure, maps);
    Ok(Figure { name, title, caption, svg: drawn, csv })
}

/// The layers that are labelled, with their places from below: about eight, and the last.
fn map_labels(maps: &[HeadMap]) -> Vec<(i32, usize)> {
    let Some(map) = maps.first() else { return Vec::new() };
    let every = map.layers.len().div_ceil(8).max(1);
    let last = map.layers.len().saturating_sub(1);
    let shown = |at: usize| at == last || at.is_multiple_of(every) && (last - at) * 2 > every;
    map.layers
        .iter()
        .enumerate()
        .filter(|(at, _)| shown(*at))
        .map(|(at, layer)| (at as i32, *layer))
        .collect()
}

fn ticks(
    area: &Area<'_>,
    heads: usize,
    width: i32,
    place: impl Fn(i32) -> (i32, i32),
) -> Result<(), Refusal> {
    // Numbers have room beside each other.
    let room = (width / (text_width("00", 10) + 5)).clamp(1, 8) as usize;
    let every = heads.div_ceil(room).max(1);
    for at in (0..heads).step_by(every) {
        let x = (at as i32 * 2 + 1) * width / (heads as i32 * 2);
        write(area, &at.to_string(), place(x), TICK.centred())?;
    }
    Ok(())
}

fn cells(
    area: &Area<'_>,
    map: &HeadMap,
    (left, top): (i32, i32),
    (width, height): (i32, i32),
    colour: impl Fn(f64) -> RGBColor,
) -> Result<(), Refusal> {
    let (layers, heads) = map.mean.dim();
    let edge = |at: usize, count: usize, length: i32| at as i32 * length / count.max(1) as i32;
    for ((layer, head), value) in map.mean.indexed_iter() {
        let x = (left + edge(head, heads, width), left + edge(head + 1, heads, width));
        // layer 0 lies below, as in all figures
        let y = (top + height - edge(layer + 1, layers, height), top + height - edge(layer, layers, height));
        let fill = if value.is_finite() { colour(*value) } else { GRID };
        filled(area, [(x.0, y.0), (x.1, y.1)], fill)?;
    }
    outlined(area, [(left, top), (left + width, top + height)], GREY)
}

/// The scale of colours with its ends and its middle.
pub(super) fn bar(
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

/// A row a condition, layer and head.
fn csv(figure: &str, measure: &Measure, maps: &[HeadMap]) -> Vec<u8> {
    let cells = maps.iter().flat_map(|map| map.mean.indexed_iter().map(move |(at, value)| (map, at, *value)));
    CsvTable::of(cells)
        .column("figure", |_| figure)
        .column("measure", |_| measure.key)
        .column("condition", |(map, ..)| match &map.condition {
            None => joined(measure.paired),
            Some(name) => joined(&[name]),
        })
        .column("layer", |(map, (layer, _), _)| map.layers.get(layer).copied().unwrap_or(layer))
        .column("head", |(_, (_, head), _)| head)
        .column("n", |(map, ..)| map.n)
        .optional("mean", |(.., value)| Some(value).filter(|value| value.is_finite()))
        .bytes()
}
