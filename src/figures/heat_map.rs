//! Heat maps of the query's attention: layers by segments, with the evidence marked. Beside the rows of a model with linear
//! or windowed layers stands what each layer is: a dark mark at softmax layers, an open one at linear layers, a narrow one at windowed layers.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::curves::titled;
use super::sheet::{Area, LINEAR_LEGEND, Refusal, fitting, svg, text_width, write};
use super::style::{GREY, INK, UNIT};
use super::{Figure, FigureError, Origin};
use crate::lens::strip::Place;
use crate::lens::{Correctness, Group, Layer, LayerKind, Lens, Scale, table};

/// A map: columns of segments or places, each with a value a layer.
struct Map {
    title: String,
    note: String,
    columns: Vec<Column>,
}

struct Column {
    label: String,
    /// Whether the label is written: a long history has room for some only.
    labelled: bool,
    evidence: bool,
    /// By layer; `None` is drawn as a gap.
    values: Option<Vec<f64>>,
}

/// The mean over cases, aligned at the evidence: one map a probe.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn mean(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let name = format!("strip-mean-{}", scale.key());
    let (mut maps, mut strips, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    let anchors = lens.benchmark.anchors();
    for probe in super::panel_probes(lens) {
        let group = Group { probe, kind: None, correctness: Correctness::All };
        let strip = lens.strip(&group, scale);
        if strip.n == 0 {
            empty.push(group);
            continue;
        }
        let columns = strip.cells.iter().map(|(place, _, values)| Column {
            label: place_label(*place, anchors).to_owned(),
            labelled: true,
            evidence: matches!(place, Place::Anchor(_)),
            values: values.clone(),
        });
        maps.push(Map {
            title: group.probe.clone().unwrap_or_else(|| "all probes".to_owned()),
            note: format!("n = {}", strip.n),
            columns: columns.collect(),
        });
        strips.push(strip);
    }
    let segment = lens.benchmark.segment();
    let title = titled("The query's attention over the history, mean over cases", scale);
    let caption = format!(
        "{} Histories are aligned at their evidence: {}, the {segment}s just before and after each (−1, +1), and thirds \
         of the stretches before, between and after; a place's value is the mean over the {segment}s there, then over cases. A \
         struck-out column has no {segment} in any case. n is the number of cases.{}{}",
        what_is_shown(lens, scale),
        anchors.join(", "),
        super::about_layer_kinds(lens, super::LINEAR_ROWS),
        super::left_out(lens, &empty)
    );
    let csv = table::strip_csv(&name, &strips, lens)
        .map_err(|source| FigureError::Table { figure: name.clone(), source })?;
    let svg = draw(&name, &title, origin, lens, &maps, scale)?;
    Ok(Figure { name, title, caption, svg, csv })
}

/// The first case that was measured on every probe (or on most), session by session: one map a probe.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn first_case(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let name = format!("strip-case-{}", scale.key());
    let of_case = |case: &str| lens.examples.iter().filter(|e| e.case == case).count();
    let most = lens.examples.iter().map(|e| of_case(&e.case)).max().unwrap_or(0);
    let case =
        lens.examples.iter().map(|e| e.case.as_str()).find(|case| of_case(case) == most).unwrap_or_default();
    let segment = lens.benchmark.segment();
    let mut maps = Vec::new();
    let mut csv = csv::Writer::from_writer(Vec::new());
    let failed = |source| FigureError::Table { figure: name.clone(), source };
    let kinds = lens.has_kinds();
    let linear = lens.has_linear_layers();
    let mut head = vec![
        "figure",
        "case",
        "probe",
        lens.benchmark.segment(),
        "role",
        "tokens",
        "scale",
        "layer",
        "value",
    ];
    head.extend(kinds.then_some("layer_kind"));
    head.extend((linear && scale == Scale::Mass).then_some("signed"));
    csv.write_record(head).map_err(failed)?;
    let probes = super::panel_probes(lens);
    let shown = lens.examples.iter().filter(|e| e.case == case).take(probes.len().max(1));
    for example in shown {
        let every = example.segments.len().div_ceil(12).max(1);
        let mut columns = Vec::new();
        for (place, mass) in example.segments.iter().enumerate() {
            let role = mass.role.as_deref().or(mass.holds.as_deref()).unwrap_or_default();
            let values = match scale {
                Scale::Mass => &mass.mass,
                Scale::Density => &mass.density,
            };
            for ((layer, value), signed) in lens.layers.iter().zip(values).zip(&mass.signed) {
                let mut row = vec![
                    name.clone(),
                    case.to_owned(),
                    example.probe.clone(),
                    mass.index.to_string(),
                    role.to_owned(),
                    mass.tokens.to_string(),
                    scale.key().to_owned(),
                    layer.index.to_string(),
                    if value.is_nan() { String::new() } else { value.to_string() },
                ];
                row.extend(kinds.then(|| layer.kind.key().to_owned()));
                row.extend(
                    (linear && scale == Scale::Mass)
                        .then(|| signed.map(|sum| sum.to_string()).unwrap_or_default()),
                );
                csv.write_record(row).map_err(failed)?;
            }
            columns.push(Column {
                label: if role.is_empty() { mass.index.to_string() } else { role.to_owned() },
                labelled: place % every == 0,
                evidence: !role.is_empty(),
                values: Some(values.clone()),
            });
        }
        maps.push(Map {
            title: example.probe.clone(),
            note: format!("{} {segment}s, {} tokens", example.segments.len(), example.prompt_tokens),
            columns,
        });
    }
    let title = titled(
        &format!("The query's attention over one history: case {}", super::style::shortened(case, 40)),
        scale,
    );
    let caption = format!(
        "{} {}s in the order of the prompt, numbered as in the data file; numbers that are missing were dropped to fit \
         the context. The first case of the run that was measured on every probe.{}",
        what_is_shown(lens, scale),
        capital(segment),
        super::about_layer_kinds(lens, super::LINEAR_ROWS)
    );
    let csv = csv.into_inner().map_err(|e| failed(std::io::Error::from(e.error().kind()).into()))?;
    let svg = draw(&name, &title, origin, lens, &maps, scale)?;
    Ok(Figure { name, title, caption, svg, csv })
}

fn what_is_shown(lens: &Lens, scale: Scale) -> String {
    let segment = lens.benchmark.segment();
    let framed = match lens.benchmark.anchors() {
        [] => "The evidence is".to_owned(),
        [one] => format!("{} is", capital(one)),
        several => format!("{} are", capital(&several.join(" and "))),
    };
    match scale {
        Scale::Mass => format!(
            "Each cell: the share of a query token's attention that falls on the {segment} at the layer, averaged over heads; \
             darker is more, on a logarithmic scale. {framed} framed."
        ),
        Scale::Density => format!(
            "Each cell: the query's attention to the {segment} at the layer over what uniform attention would pay to a {segment} \
             of its length, averaged over heads; darker is more, on a logarithmic scale. {framed} framed."
        ),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn place_label(place: Place, anchors: &[&'static str]) -> &'static str {
    match place {
        Place::Stretch { before: 0, third: 1 } => "before",
        Place::Stretch { before, third: 1 } if before == anchors.len() => "after",
        Place::Stretch { third: 1, .. } => "between",
        Place::Stretch { .. } => "",
        Place::Before(_) => "−1",
        Place::After(_) => "+1",
        Place::Anchor(at) => anchors.get(at).copied().unwrap_or_default(),
    }
}

/// A logarithmic scale of shades in steps, so that equal shades can be drawn as one.
struct Shades {
    low: f64,
    high: f64,
}

impl Shades {
    const STEPS: i32 = 40;

    fn of(maps: &[Map]) -> Self {
        let values =
            || maps.iter().flat_map(|m| &m.columns).filter_map(|c| c.values.as_ref()).flatten().copied();
        let high = values().fold(0.0, f64::max).max(1e-9);
        let low = values().filter(|v| *v > 0.0).fold(high, f64::min);
        // more than three decades would leave no contrast where the attention is
        let low = low.max(high / 1000.0);
        Shades { low: if low < high { low } else { high / 10.0 }, high }
    }

    fn step(&self, value: f64) -> i32 {
        let share = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        (share.clamp(0.0, 1.0) * f64::from(Self::STEPS)).round() as i32
    }

    /// From near white over blue to near black: lightness falls all the way, so that it reads in grey.
    fn colour(step: i32) -> RGBColor {
        const STOPS: [[f64; 3]; 5] = [
            [250.0, 251.0, 253.0],
            [198.0, 219.0, 239.0],
            [92.0, 160.0, 206.0],
            [16.0, 88.0, 158.0],
            [6.0, 32.0, 78.0],
        ];
        let at = f64::from(step) / f64::from(Self::STEPS) * (STOPS.len() - 1) as f64;
        let below = (at.floor() as usize).min(STOPS.len() - 2);
        let mix = |c: usize| {
            (STOPS[below][c] + (STOPS[below + 1][c] - STOPS[below][c]) * (at - below as f64)).round() as u8
        };
        RGBColor(mix(0), mix(1), mix(2))
    }
}

const MARGIN: i32 = 14;
const HEAD: i32 = 54;
const LEFT: i32 = 44;
const MAP_HEAD: i32 = 56;
const MAP_WIDTH: i32 = 288;
const MAP_HEIGHT: i32 = 210;
const FOOT: i32 = 58;
const BAR: i32 = 74;
/// Width of what marks a layer's kind.
const MARK: i32 = 6;
/// Room for what the marks mean.
const LEGEND: i32 = 16;

fn draw(
    name: &str,
    title: &str,
    origin: &Origin,
    lens: &Lens,
    maps: &[Map],
    scale: Scale,
) -> Result<String, FigureError> {
    let layers = &lens.layers;
    let marked = lens.has_kinds();
    let shades = Shades::of(maps);
    let width = (2 * MARGIN + LEFT + maps.len() as i32 * (MAP_WIDTH + 18) + BAR).max(620);
    let height = HEAD + MAP_HEAD + MAP_HEIGHT + FOOT + if marked { LEGEND } else { 0 };
    svg(name, title, (width, height), |area| {
        write(area, title, (MARGIN, 10), 16, INK, HPos::Left)?;
        write(area, &fitting(&origin.line, width), (MARGIN, 32), 11, GREY, HPos::Left)?;
        let top = HEAD + MAP_HEAD;
        for (place, map) in maps.iter().enumerate() {
            let left = MARGIN + LEFT + place as i32 * (MAP_WIDTH + 18);
            draw_map(area, map, (left, top), lens, &shades)?;
            if place == 0 {
                layer_axis(area, (left, top), layers)?;
            }
        }
        if marked {
            legend(area, (MARGIN + LEFT, top + MAP_HEIGHT + FOOT - 8), layers)?;
        }
        let left = MARGIN + LEFT + maps.len() as i32 * (MAP_WIDTH + 18);
        bar(area, (left, top), &shades, scale)
    })
}

/// The edge of cell `at` of `count` over `length` pixels: whole pixels, so that neighbouring cells leave no seam.
fn edge(at: usize, count: usize, length: i32) -> i32 {
    (at as i64 * i64::from(length) / count.max(1) as i64) as i32
}

fn draw_map(
    area: &Area<'_>,
    map: &Map,
    (left, top): (i32, i32),
    lens: &Lens,
    shades: &Shades,
) -> Result<(), Refusal> {
    let layers = &lens.layers;
    write(area, &map.title, (left, top - MAP_HEAD), 13, INK, HPos::Left)?;
    write(area, &map.note, (left, top - MAP_HEAD + 18), 11, GREY, HPos::Left)?;
    let rect = |x0: i32, y0: i32, x1: i32, y1: i32| [(x0 * UNIT, y0 * UNIT), (x1 * UNIT, y1 * UNIT)];
    let columns = map.columns.len();
    for (at, column) in map.columns.iter().enumerate() {
        let (x0, x1) = (left + edge(at, columns, MAP_WIDTH), left + edge(at + 1, columns, MAP_WIDTH));
        let Some(values) = &column.values else {
            let diagonal = [(x0 * UNIT, (top + MAP_HEIGHT) * UNIT), (x1 * UNIT, top * UNIT)];
            area.draw(&PathElement::new(diagonal, super::style::GRID.stroke_width(UNIT as u32)))?;
            continue;
        };
        // layer 0 at the bottom, as a value axis would have it; equal neighbours are one rectangle
        let steps: Vec<i32> = values.iter().map(|v| shades.step(*v)).collect();
        let mut from = 0;
        for run in steps.chunk_by(|a, b| a == b) {
            let to = from + run.len();
            let (y0, y1) = (edge(to, layers.len(), MAP_HEIGHT), edge(from, layers.len(), MAP_HEIGHT));
            let colour = Shades::colour(run.first().copied().unwrap_or(0));
            area.draw(&Rectangle::new(
                rect(x0, top + MAP_HEIGHT - y0, x1, top + MAP_HEIGHT - y1),
                colour.filled(),
            ))?;
            from = to;
        }
    }
    let bottom = top + MAP_HEIGHT;
    if lens.has_kinds() {
        let mut from = 0;
        for run in layers.chunk_by(|a, b| a.kind == b.kind) {
            let to = from + run.len();
            let (y0, y1) = (edge(to, layers.len(), MAP_HEIGHT), edge(from, layers.len(), MAP_HEIGHT));
            let kind = run.first().map_or(LayerKind::Softmax, |layer| layer.kind);
            mark(area, (left - MARK - 4, bottom - y0), (left - 4, bottom - y1), kind)?;
            from = to;
        }
    }
    area.draw(&Rectangle::new(rect(left, top, left + MAP_WIDTH, bottom), GREY.stroke_width(UNIT as u32)))?;
    for (at, column) in map.columns.iter().enumerate() {
        let (x0, x1) = (left + edge(at, columns, MAP_WIDTH), left + edge(at + 1, columns, MAP_WIDTH));
        let middle = (x0 + x1) / 2;
        if column.evidence {
            frame(area, (x0, top - 3), (x1, bottom + 3))?;
            write(area, &column.label, (middle, top - 18), 12, INK, HPos::Center)?;
        } else if column.labelled {
            write(area, &column.label, (middle, bottom + 6), 10, GREY, HPos::Center)?;
        }
    }
    write(area, lens.benchmark.segment(), (left + MAP_WIDTH / 2, bottom + 24), 12, INK, HPos::Center)
}

/// A dark frame: the backend gives rectangles no stroke width, so it is drawn as a path.
fn frame(area: &Area<'_>, (x0, y0): (i32, i32), (x1, y1): (i32, i32)) -> Result<(), Refusal> {
    let corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)].map(|(x, y)| (x * UNIT, y * UNIT));
    area.draw(&PathElement::new(corners, super::style::VERMILLION.stroke_width(UNIT as u32 * 2)))
}

/// What a layer is: an open box for linear layers, a dark one for softmax layers, a narrow dark one for windowed layers.
fn mark(area: &Area<'_>, (x0, y0): (i32, i32), (x1, y1): (i32, i32), kind: LayerKind) -> Result<(), Refusal> {
    let x0 = if kind == LayerKind::Windowed { x1 - MARK / 3 } else { x0 };
    let corners = [(x0 * UNIT, y0 * UNIT), (x1 * UNIT, y1 * UNIT)];
    if kind != LayerKind::Linear {
        return area.draw(&Rectangle::new(corners, GREY.filled()));
    }
    area.draw(&Rectangle::new(corners, super::style::LINEAR.filled()))?;
    area.draw(&Rectangle::new(corners, GREY.stroke_width(UNIT as u32)))
}

/// What the marks mean: the kinds that the model has.
fn legend(area: &Area<'_>, (left, top): (i32, i32), layers: &[Layer]) -> Result<(), Refusal> {
    let mut at = left;
    let kinds = [
        (LayerKind::Linear, LINEAR_LEGEND),
        (LayerKind::Softmax, "softmax layer: share of attention"),
        (LayerKind::Windowed, "windowed layer: the same, within its window"),
    ];
    for (kind, text) in kinds {
        if layers.iter().any(|layer| layer.kind == kind) {
            mark(area, (at, top + 1), (at + MARK, top + 13), kind)?;
            write(area, text, (at + MARK + 6, top), 12, INK, HPos::Left)?;
            at += MARK + 6 + text_width(text, 12) + 22;
        }
    }
    Ok(())
}

fn layer_axis(area: &Area<'_>, (left, top): (i32, i32), layers: &[Layer]) -> Result<(), Refusal> {
    use plotters::style::text_anchor::{Pos, VPos};
    // rows are labelled by the layers they show: a model's measured layers may skip some
    let every = layers.len().div_ceil(8).max(1);
    let marked = layers.iter().any(|layer| layer.kind != LayerKind::Softmax);
    let left = if marked { left - MARK - 3 } else { left };
    for (at, layer) in layers.iter().enumerate().step_by(every) {
        let y0 = edge(at, layers.len(), MAP_HEIGHT);
        let y1 = edge(at + 1, layers.len(), MAP_HEIGHT);
        let y = top + MAP_HEIGHT - (y0 + y1) / 2;
        let style = super::style::text(10, GREY).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(layer.index.to_string(), ((left - 6) * UNIT, y * UNIT), style))?;
    }
    let style = super::style::text(12, INK)
        .transform(FontTransform::Rotate270)
        .pos(Pos::new(HPos::Center, VPos::Top));
    area.draw(&Text::new("layer".to_owned(), ((MARGIN - 2) * UNIT, (top + MAP_HEIGHT / 2) * UNIT), style))
}

/// The scale of shades, with its ends and decades written.
fn bar(area: &Area<'_>, (left, top): (i32, i32), shades: &Shades, scale: Scale) -> Result<(), Refusal> {
    let at = |step: i32| top + MAP_HEIGHT - edge(step as usize, Shades::STEPS as usize + 1, MAP_HEIGHT);
    for step in 0..=Shades::STEPS {
        let cell = [(left * UNIT, at(step + 1) * UNIT), ((left + 12) * UNIT, at(step) * UNIT)];
        area.draw(&Rectangle::new(cell, Shades::colour(step).filled()))?;
    }
    let outline = [(left * UNIT, top * UNIT), ((left + 12) * UNIT, (top + MAP_HEIGHT) * UNIT)];
    area.draw(&Rectangle::new(outline, GREY.stroke_width(UNIT as u32)))?;
    for tick in super::sheet::value_ticks(shades.low, shades.high) {
        let y = at(shades.step(tick)) - 7;
        let text = super::sheet::write_value(tick, scale == Scale::Mass);
        write(area, &text, (left + 17, y - 4), 10, GREY, HPos::Left)?;
    }
    let label = match scale {
        Scale::Mass => ["share of", "attention"],
        Scale::Density => ["times", "uniform"],
    };
    write(area, label[0], (left, top - 34), 10, INK, HPos::Left)?;
    write(area, label[1], (left, top - 21), 10, INK, HPos::Left)
}
