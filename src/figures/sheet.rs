//! Small multiples: a grid of panels with curves over layers, on shared axes.
//!
//! Every panel of a sheet has the same axes, so that heights compare across panels. The value axis is logarithmic: masses
//! span decades, and a ratio of 2 is as far from 1 as one of 1/2. Zeros have no place on it: a curve is interrupted there.
//!
//! A curve of a model with linear layers is drawn as two lines, since its values there are of another kind: through the
//! softmax layers with filled markers, through the linear ones thinner and with hollow markers, on a grey band. The sheet
//! sees to that itself, and to the legend's entry, so that no figure can forget it.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::FigureError;
use super::style::{self, GREY, GRID, INK, LINEAR, Marker, Stroke, UNIT};
use crate::lens::{Layer, LayerKind, Series};

/// A drawing area in units of a quarter pixel.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What the drawing library says when it refuses.
pub type Refusal = DrawingAreaErrorKind<std::io::Error>;

type Axes = Cartesian2d<RangedCoordf64, RangedCoordf64>;

/// A grid of panels.
#[derive(Debug, Clone)]
pub struct Sheet {
    /// Top left, large.
    pub title: String,
    /// Below it: where the numbers come from.
    pub origin: String,
    /// The value axis.
    pub y_label: String,
    /// Whether values are shares and written as percentages.
    pub percent: bool,
    /// A value with a line across every panel.
    pub reference: Option<f64>,
    /// Row by row; `None` leaves the place empty.
    pub rows: Vec<Vec<Option<Panel>>>,
    /// Below the panels: what holds for all of them.
    pub legend: Vec<(Stroke, String)>,
    /// Size of one panel's plot in pixels.
    pub panel: (i32, i32),
    /// How many times beyond the values of softmax layers the value axis may go for those of linear layers. A linear layer
    /// may have forgotten a session altogether: the axis of such a share would leave no height for the other layers.
    pub reach: f64,
}

/// One panel.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Above the panel.
    pub title: String,
    /// Under the title: the panel's own curves, or a note such as `n = 12`.
    pub legend: Vec<(Option<Stroke>, String)>,
    /// Drawn in this order.
    pub lines: Vec<(Stroke, Series)>,
}

/// The rows and columns that hold a panel; a place without one stays empty where its row and its column have others.
pub(super) fn without_empty(mut rows: Vec<Vec<Option<Panel>>>) -> Vec<Vec<Option<Panel>>> {
    rows.retain(|row| row.iter().any(Option::is_some));
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let kept: Vec<bool> =
        (0..columns).map(|c| rows.iter().any(|row| matches!(row.get(c), Some(Some(_))))).collect();
    for row in &mut rows {
        let mut column = kept.iter();
        row.retain(|_| column.next().copied().unwrap_or(false));
    }
    rows
}

const MARGIN: i32 = 14;
const HEAD: i32 = 52;
const PANEL_HEAD: i32 = 38;
const X_AXIS: i32 = 22;
const Y_AXIS: i32 = 46;
const GAP: i32 = 14;
const FOOT: i32 = 22;

/// What a legend calls the linear layers.
pub(super) const LINEAR_LEGEND: &str = "linear layer: share of |weight|";
/// The legend of windowed layers.
const WINDOWED_LEGEND: &str = "windowed layer (thinner)";

impl Sheet {
    /// The sheet as SVG.
    ///
    /// # Errors
    /// [`FigureError::Draw`] with the figure's name.
    pub fn draw(&self, name: &str) -> Result<String, FigureError> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0).max(1) as i32;
        let count = self.rows.len() as i32;
        let (panel_width, panel_height) = self.panel;
        let cell = (panel_width + Y_AXIS + GAP, PANEL_HEAD + panel_height + X_AXIS + GAP);
        // a title or an origin line of its own may be wider than one panel
        let width = (2 * MARGIN + 18 + columns * cell.0).max(620);
        let legend_lines = self.legend_lines(width - 2 * MARGIN);
        let height = HEAD
            + count * cell.1
            + 20
            + legend_lines.len() as i32 * FOOT
            + if legend_lines.is_empty() { 6 } else { 12 };
        svg(name, &self.title, (width, height), |area| {
            write(area, &self.title, (MARGIN, 10), 16, INK, HPos::Left)?;
            write(area, &fitting(&self.origin, width), (MARGIN, 32), 11, GREY, HPos::Left)?;
            let y = Range::of(self);
            let layers = self.layers();
            for (row, panels) in self.rows.iter().enumerate() {
                for (column, panel) in panels.iter().enumerate() {
                    let Some(panel) = panel else { continue };
                    let left = MARGIN + 18 + column as i32 * cell.0;
                    let top = HEAD + row as i32 * cell.1;
                    self.panel(area, panel, (left, top), &layers, &y)?;
                }
            }
            let bottom = HEAD + count * cell.1;
            write(
                area,
                "layer",
                (MARGIN + 18 + Y_AXIS + (columns * cell.0 - Y_AXIS - GAP) / 2, bottom - 8),
                12,
                INK,
                HPos::Center,
            )?;
            let middle = HEAD + (bottom - HEAD) / 2;
            let vertical = style::text(12, INK)
                .transform(FontTransform::Rotate270)
                .pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(self.y_label.clone(), (MARGIN * UNIT - UNIT * 4, middle * UNIT), vertical))?;
            for (line, items) in legend_lines.iter().enumerate() {
                let y = bottom + 18 + line as i32 * FOOT;
                let total: i32 = items.iter().map(|(_, text)| legend_width(text)).sum();
                let mut x = ((width - total) / 2).max(MARGIN);
                for (stroke, text) in items {
                    sample(area, *stroke, (x, y + 7))?;
                    write(area, text, (x + 34, y), 12, INK, HPos::Left)?;
                    x += legend_width(text);
                }
            }
            Ok(())
        })
    }

    fn panel(
        &self,
        area: &Area<'_>,
        panel: &Panel,
        (left, top): (i32, i32),
        layers: &[Layer],
        y: &Range,
    ) -> Result<(), Refusal> {
        let (width, height) = self.panel;
        write(area, &panel.title, (left + Y_AXIS, top), 13, INK, HPos::Left)?;
        let mut at = left + Y_AXIS;
        for (stroke, text) in &panel.legend {
            if let Some(stroke) = stroke {
                sample(area, *stroke, (at, top + 26))?;
                at += 33;
            }
            write(area, text, (at, top + 19), 11, GREY, HPos::Left)?;
            at += text_width(text, 11) + 14;
        }
        let indices: Vec<usize> = layers.iter().map(|layer| layer.index).collect();
        let (first, last) =
            (indices.first().copied().unwrap_or(0) as f64, indices.last().copied().unwrap_or(0) as f64);
        let pad = ((last - first) * 0.02).max(0.25);
        let (x0, y0) = ((left + Y_AXIS) * UNIT, (top + PANEL_HEAD) * UNIT);
        let (x1, y1) = (x0 + width * UNIT, y0 + height * UNIT);
        let plane = area.clone().apply_coord_spec(Axes::new(
            first - pad..last + pad,
            y.low.log10()..y.high.log10(),
            (x0..x1, y1..y0),
        ));
        for (from, to) in linear_stretches(layers) {
            let (from, to) = (from.max(first - pad), to.min(last + pad));
            let corners = [(from, y.low.log10()), (to, y.high.log10())];
            plane.draw(&Rectangle::new(corners, LINEAR.filled()))?;
        }
        for tick in &y.ticks {
            let level = tick.log10();
            plane.draw(&PathElement::new(
                [(first - pad, level), (last + pad, level)],
                GRID.stroke_width(UNIT as u32 * 3 / 4),
            ))?;
            let style = style::text(10, GREY).pos(Pos::new(HPos::Right, VPos::Center));
            let at = plane.map_coordinate(&(first, level)).1;
            area.draw(&PathElement::new([(x0 - 3 * UNIT, at), (x0, at)], GREY.stroke_width(UNIT as u32)))?;
            area.draw(&Text::new(write_value(*tick, self.percent), (x0 - 5 * UNIT, at), style))?;
        }
        for tick in layer_ticks(&indices) {
            let at = plane.map_coordinate(&(tick, y.low.log10())).0;
            area.draw(&PathElement::new([(at, y1), (at, y1 + 3 * UNIT)], GREY.stroke_width(UNIT as u32)))?;
            let style = style::text(10, GREY).pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(format!("{tick:.0}"), (at, y1 + 5 * UNIT), style))?;
        }
        area.draw(&PathElement::new([(x0, y0), (x0, y1), (x1, y1)], GREY.stroke_width(UNIT as u32)))?;
        if let Some(reference) = self.reference.filter(|r| (y.low..=y.high).contains(r)) {
            let line = [(first - pad, reference.log10()), (last + pad, reference.log10())];
            plane.draw(&PathElement::new(line, GREY.stroke_width(UNIT as u32)))?;
        }
        let kinds = [LayerKind::Linear, LayerKind::Windowed, LayerKind::Softmax];
        for kind in kinds {
            for (stroke, series) in &panel.lines {
                band(&plane, *stroke, series, kind, y)?;
            }
        }
        for kind in kinds {
            for (stroke, series) in &panel.lines {
                curve(&plane, *stroke, series, kind, y)?;
            }
        }
        Ok(())
    }

    /// Whether some value of a linear layer lies beyond the value axis, so that it is drawn at its edge.
    pub fn cuts_linear_layers(&self) -> bool {
        let y = Range::of(self);
        let points = self.series().flat_map(|series| &series.points).filter(|point| point.layer.is_linear());
        let mut values = points.filter_map(|point| point.value).filter(|value| *value > 0.0);
        values.any(|value| !(y.low..=y.high).contains(&value))
    }

    fn series(&self) -> impl Iterator<Item = &Series> {
        self.rows.iter().flatten().flatten().flat_map(|panel| panel.lines.iter().map(|(_, series)| series))
    }

    fn layers(&self) -> Vec<Layer> {
        let mut layers: Vec<Layer> = self.series().flat_map(|s| s.points.iter().map(|p| p.layer)).collect();
        layers.sort_unstable();
        layers.dedup();
        layers
    }

    fn legend_lines(&self, width: i32) -> Vec<Vec<(Stroke, String)>> {
        let mut lines: Vec<Vec<(Stroke, String)>> = Vec::new();
        let mut used = i32::MAX;
        let linear = self.layers().iter().any(|layer| layer.is_linear());
        let sample = Stroke::solid(GREY, Marker::Circle).linear();
        let linear = linear.then(|| (sample, LINEAR_LEGEND.to_owned()));
        let windowed = self.layers().iter().any(|layer| layer.kind == LayerKind::Windowed);
        let sample = Stroke::solid(GREY, Marker::Circle).windowed();
        let windowed = windowed.then(|| (sample, WINDOWED_LEGEND.to_owned()));
        for item in self.legend.iter().chain(&windowed).chain(&linear) {
            let need = legend_width(&item.1);
            if used.saturating_add(need) > width {
                lines.push(Vec::new());
                used = 0;
            }
            used += need;
            if let Some(line) = lines.last_mut() {
                line.push(item.clone());
            }
        }
        lines
    }
}

/// The shared value axis.
struct Range {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Range {
    fn of(sheet: &Sheet) -> Self {
        let positive = |v: &f64| *v > 0.0 && v.is_finite();
        let all = || sheet.series().flat_map(|series| &series.points);
        let softmax = all().filter(|p| !p.layer.is_linear()).filter_map(|p| p.value).any(|v| positive(&v));
        // what sets the axis: softmax layers, linear ones where there are no others
        let points = || all().filter(|p| !(softmax && p.layer.is_linear()));
        let means = || points().filter_map(|p| p.value).filter(positive).chain(sheet.reference);
        let bands = || points().filter_map(|p| p.band);
        let most = means().chain(bands().map(|b| b.1)).filter(positive).fold(f64::MIN_POSITIVE, f64::max);
        let least = means().fold(f64::INFINITY, f64::min);
        if !least.is_finite() {
            return Range { low: 0.1, high: 10.0, ticks: vec![0.1, 1.0, 10.0] };
        }
        // bands may reach towards zero, which is infinitely far down: they are cut half a decade below the curves
        let lowest_band = bands().map(|b| b.0).filter(positive).fold(f64::INFINITY, f64::min);
        let low = least.min(lowest_band.max(least / 3.0)).max(most * 1e-6);
        let most = most.min(means().fold(f64::MIN_POSITIVE, f64::max) * 10.0);
        let linear =
            || all().filter(|p| softmax && p.layer.is_linear()).filter_map(|p| p.value).filter(positive);
        let (low, most) = (
            linear().fold(low, f64::min).max(low / sheet.reach),
            linear().fold(most, f64::max).min(most * sheet.reach),
        );
        let room = (most / low).powf(0.05).max(1.05);
        let (low, high) = (low / room, most * room);
        Range { low, high, ticks: value_ticks(low, high) }
    }

    fn clamp(&self, value: f64) -> f64 {
        value.clamp(self.low, self.high).log10()
    }
}

/// A tick's value, as a percentage where it is a share.
pub(super) fn write_value(value: f64, percent: bool) -> String {
    let value = if percent { value * 100.0 } else { value };
    // the tick came through a logarithm: three digits bring it back
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if percent { format!("{text}%") } else { text.to_owned() }
}

/// Ticks of a logarithmic axis: decades where there are enough of them, finer steps where not.
pub(super) fn value_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let series: [&[f64]; 4] = [&[1.0], &[1.0, 3.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]];
    for steps in series {
        let all = decades.clone().flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
        let ticks: Vec<f64> = all.filter(|t| (low..=high).contains(t)).collect();
        if ticks.len() >= 4 {
            let every = ticks.len().div_ceil(7);
            return ticks.into_iter().step_by(every).collect();
        }
    }
    // less than a factor of about two: even steps
    let rough = (high - low) / 4.0;
    let scale = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * scale).find(|s| *s >= rough).unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    (first..first + 8).map(|i| i as f64 * step).filter(|t| (low..=high).contains(t)).collect()
}

/// Ticks of the layer axis: every layer of a shallow model, round numbers of a deep one.
fn layer_ticks(layers: &[usize]) -> Vec<f64> {
    let (Some(&first), Some(&last)) = (layers.first(), layers.last()) else { return Vec::new() };
    let step = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 100].into_iter().find(|step| (last - first) / step < 8);
    let step = step.unwrap_or(last - first);
    (first.div_ceil(step) * step..=last).step_by(step).map(|layer| layer as f64).collect()
}

/// Where linear layers lie on the axis, half a layer to either side: neighbours in one stretch.
fn linear_stretches(layers: &[Layer]) -> Vec<(f64, f64)> {
    let together = |a: &Layer, b: &Layer| a.kind == b.kind && a.index + 1 == b.index;
    let stretch = |run: &[Layer]| match run {
        [first, ..] if !first.is_linear() => None,
        [first, .., last] => Some((first.index as f64 - 0.5, last.index as f64 + 0.5)),
        [one] => Some((one.index as f64 - 0.5, one.index as f64 + 0.5)),
        [] => None,
    };
    layers.chunk_by(together).filter_map(stretch).collect()
}

/// Runs of neighbouring points that have a place on the axis.
fn runs<T>(points: impl Iterator<Item = Option<T>>) -> Vec<Vec<T>> {
    let mut runs = vec![Vec::new()];
    for point in points {
        match (point, runs.last_mut()) {
            (Some(point), Some(run)) => run.push(point),
            _ => runs.push(Vec::new()),
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

fn band(
    plane: &DrawingArea<SVGBackend<'_>, Axes>,
    stroke: Stroke,
    series: &Series,
    kind: LayerKind,
    y: &Range,
) -> Result<(), Refusal> {
    let points = series.points.iter().filter(|p| p.layer.kind == kind).map(|p| {
        let (low, high) = p.band.filter(|b| b.1 > 0.0 && p.value.is_some_and(|v| v > 0.0))?;
        Some((p.layer.index as f64, y.clamp(low), y.clamp(high)))
    });
    let share = if stroke.is_noise() { 0.10 } else { 0.20 };
    // there are more of them, and on grey
    let share = if kind == LayerKind::Linear { share * 0.6 } else { share };
    let fill = stroke.colour.mix(share).filled();
    for run in runs(points) {
        let upper = run.iter().map(|(x, _, high)| (*x, *high));
        let lower = run.iter().rev().map(|(x, low, _)| (*x, *low));
        plane.draw(&Polygon::new(upper.chain(lower).collect::<Vec<_>>(), fill))?;
    }
    Ok(())
}

fn curve(
    plane: &DrawingArea<SVGBackend<'_>, Axes>,
    stroke: Stroke,
    series: &Series,
    kind: LayerKind,
    y: &Range,
) -> Result<(), Refusal> {
    let stroke = match kind {
        LayerKind::Softmax => stroke,
        LayerKind::Windowed => stroke.windowed(),
        LayerKind::Linear => stroke.linear(),
    };
    let of_kind = || series.points.iter().filter(|p| p.layer.kind == kind);
    let points = of_kind().map(|p| p.value.filter(|v| *v > 0.0).map(|v| (p.layer.index as f64, y.clamp(v))));
    let noise = stroke.is_noise();
    let line = stroke.colour.stroke_width(stroke.width());
    // a deep model's markers would merge into a thick line
    let every = of_kind().count().div_ceil(12).max(1);
    for run in runs(points) {
        if let Some((dash, space)) = stroke.dashes() {
            plane.draw(&DashedPathElement::new(run.iter().copied(), dash * UNIT, space * UNIT, line))?;
        } else {
            plane.draw(&PathElement::new(run.clone(), line))?;
        }
        // a lone point has no line: its marker shows it, and a baseline without markers gets a short dash
        if let ([(x, level)], true) = (run.as_slice(), noise) {
            plane.draw(&PathElement::new([(x - 0.1, *level), (x + 0.1, *level)], line))?;
        }
        for point in run.iter().step_by(every) {
            if stroke.linear {
                plane.draw(
                    &(EmptyElement::at(*point) + Mark::of(stroke).inside() + Mark::of(stroke).outline()),
                )?;
            } else {
                plane.draw(&(EmptyElement::at(*point) + Mark::of(stroke).element()))?;
            }
        }
    }
    Ok(())
}

/// A marker's shape around the origin.
struct Mark {
    kind: Marker,
    colour: RGBColor,
}

impl Mark {
    fn of(stroke: Stroke) -> Self {
        Mark { kind: stroke.marker, colour: stroke.colour }
    }

    fn element(&self) -> Polygon<(i32, i32)> {
        Polygon::new(self.points(), self.colour.filled())
    }

    /// What hides the line within a hollow marker.
    fn inside(&self) -> Polygon<(i32, i32)> {
        Polygon::new(self.points(), WHITE.filled())
    }

    fn outline(&self) -> PathElement<(i32, i32)> {
        let mut points = self.points();
        points.extend(points.first().copied());
        PathElement::new(points, self.colour.stroke_width(UNIT as u32 * 5 / 4))
    }

    fn points(&self) -> Vec<(i32, i32)> {
        let s = 13 * UNIT / 4;
        match self.kind {
            Marker::None => Vec::new(),
            Marker::Square => vec![(-s, -s), (s, -s), (s, s), (-s, s)],
            Marker::Triangle => vec![(0, -s * 5 / 4), (s * 5 / 4, s), (-s * 5 / 4, s)],
            Marker::Circle => (0..16)
                .map(|i| {
                    let (sin, cos) = (f64::from(i) * std::f64::consts::TAU / 16.0).sin_cos();
                    ((f64::from(s) * cos).round() as i32, (f64::from(s) * sin).round() as i32)
                })
                .collect(),
        }
    }
}

/// A short piece of a curve at (left, middle), in pixels.
fn sample(area: &Area<'_>, stroke: Stroke, (x, y): (i32, i32)) -> Result<(), Refusal> {
    let ends = [(x * UNIT, y * UNIT), ((x + 27) * UNIT, y * UNIT)];
    if stroke.linear {
        let corners = [((x - 2) * UNIT, (y - 8) * UNIT), ((x + 29) * UNIT, (y + 8) * UNIT)];
        area.draw(&Rectangle::new(corners, LINEAR.filled()))?;
    }
    let line = stroke.colour.stroke_width(stroke.width());
    if let Some((dash, space)) = stroke.dashes() {
        area.draw(&DashedPathElement::new(ends, dash * UNIT, space * UNIT, line))?;
    } else {
        area.draw(&PathElement::new(ends, line))?;
    }
    let middle = ((x * 2 + 27) * UNIT / 2, y * UNIT);
    if stroke.linear {
        return area
            .draw(&(EmptyElement::at(middle) + Mark::of(stroke).inside() + Mark::of(stroke).outline()));
    }
    area.draw(&(EmptyElement::at(middle) + Mark::of(stroke).element()))
}

fn legend_width(text: &str) -> i32 {
    34 + text_width(text, 12) + 22
}

/// An estimate of a text's width in pixels, with a little room for viewers that use another font.
pub(super) fn text_width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * 0.53).ceil() as i32
}

/// An origin line, shortened to fit a picture of a width.
pub(super) fn fitting(line: &str, width: i32) -> String {
    style::shortened(line, ((width - 2 * MARGIN) / 6).max(20) as usize)
}

/// Text at a place in pixels, its top there.
pub(super) fn write(
    area: &Area<'_>,
    text: &str,
    (x, y): (i32, i32),
    size: i32,
    colour: RGBColor,
    side: HPos,
) -> Result<(), Refusal> {
    let style = style::text(size, colour).pos(Pos::new(side, VPos::Top));
    area.draw(&Text::new(text.to_owned(), (x * UNIT, y * UNIT), style))
}

/// A white picture of a size in pixels, drawn by `draw` in units, as SVG with a title for those who cannot see it.
pub(super) fn svg(
    name: &str,
    title: &str,
    (width, height): (i32, i32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Refusal>,
) -> Result<String, FigureError> {
    style::ensure_font();
    let fail = |refusal: Refusal| FigureError::Draw { figure: name.to_owned(), reason: refusal.to_string() };
    let units = |pixels: i32| (pixels * UNIT) as u32;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (units(width), units(height))).into_drawing_area();
        area.fill(&WHITE).map_err(fail)?;
        draw(&area).map_err(fail)?;
        area.present().map_err(fail)?;
    }
    // the backend sizes the picture in units; its view box stays in units, its size becomes pixels
    // no control character of a name may make it invalid XML
    text.retain(|c| c == '\n' || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')));
    let body = text.split_once('>').map(|(_, body)| body).unwrap_or_default();
    let title: String = title.chars().filter(|c| !c.is_control()).collect();
    let label = minijinja::HtmlEscape(&title);
    Ok(format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {} {}\" xmlns=\"http://www.w3.org/2000/svg\" \
         role=\"img\" aria-label=\"{label}\">\n<title>{label}</title>{body}",
        units(width),
        units(height),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lens::{Group, Point, Scale, Statistic};

    #[test]
    fn bands_lie_behind_linear_layers_only() {
        let layer = |index, linear: bool| {
            let kind = if linear { LayerKind::Linear } else { LayerKind::Softmax };
            Layer { index, kind }
        };
        let hybrid: Vec<Layer> = (0..8).map(|i| layer(i, i % 4 != 3)).collect();
        assert_eq!(linear_stretches(&hybrid), vec![(-0.5, 2.5), (3.5, 6.5)]);
        // a layer that was not measured has no band
        assert_eq!(
            linear_stretches(&[layer(1, true), layer(4, true), layer(5, true)]),
            vec![(0.5, 1.5), (3.5, 5.5)]
        );
        assert!(linear_stretches(&[layer(0, false), layer(1, false)]).is_empty());
    }

    #[test]
    fn linear_layers_do_not_push_the_others_off_the_axis() {
        let point = |index: usize, kind, value| Point {
            layer: Layer { index, kind },
            n: 1,
            undefined: 0,
            value: Some(value),
            band: None,
            signed: None,
        };
        let sheet = |points: Vec<Point>| {
            let (statistic, scale) = (Statistic::RatioOfMeans, Scale::Mass);
            let series = Series { group: Group::all(), statistic, scale, n: 1, points };
            let lines = vec![(Stroke::solid(GREY, Marker::Circle), series)];
            Sheet {
                title: String::new(),
                origin: String::new(),
                y_label: String::new(),
                percent: false,
                reference: Some(1.0),
                rows: vec![vec![Some(Panel { title: String::new(), legend: Vec::new(), lines })]],
                legend: Vec::new(),
                panel: (300, 150),
                reach: 10.0,
            }
        };
        let (softmax, linear) = (LayerKind::Softmax, LayerKind::Linear);
        let far = sheet(vec![point(0, linear, 1e8), point(1, linear, 1e-8), point(2, softmax, 2.0)]);
        let y = Range::of(&far);
        assert!((0.05..0.1).contains(&y.low) && (20.0..40.0).contains(&y.high), "{} to {}", y.low, y.high);
        assert!(far.cuts_linear_layers());
        let near = sheet(vec![point(0, linear, 5.0), point(1, softmax, 2.0)]);
        assert!(!near.cuts_linear_layers() && Range::of(&near).high < 7.0);
        let only = sheet(vec![point(0, linear, 1e3)]);
        assert!(!only.cuts_linear_layers());
    }

    #[test]
    fn layer_ticks_suit_shallow_and_deep_models() {
        assert_eq!(layer_ticks(&[0, 1, 2]), vec![0.0, 1.0, 2.0]);
        let deep: Vec<usize> = (0..64).collect();
        assert_eq!(layer_ticks(&deep), vec![0.0, 8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0]);
        assert_eq!(layer_ticks(&[5]), vec![5.0]);
        assert!(layer_ticks(&[]).is_empty());
    }

    #[test]
    fn an_axis_has_at_least_two_and_at_most_eight_ticks_at_any_span() {
        for (low, high) in
            [(1e-6, 0.5), (0.01, 0.2), (0.5, 2.0), (0.9, 1.1), (0.98, 1.01), (3.0, 4.0), (1e-4, 2e-4)]
        {
            let ticks = value_ticks(low, high);
            assert!((2..=8).contains(&ticks.len()), "[{low}, {high}]: {ticks:?}");
            assert!(ticks.iter().all(|t| (low..=high).contains(t)));
        }
    }
}
