//! Small multiples: a grid of panels with curves over layers, on shared axes.
//!
//! Every panel of a sheet has the same axes, so that heights compare across panels; where columns show different numbers, every
//! panel of a column. The value axis is logarithmic: masses span decades, and a ratio of 2 is as far from 1 as one of 1/2. Zeros
//! have no place on it: a curve is interrupted there. A column of its own may have a linear axis.
//! The layer axis is a panel's own, since panels may show different models.
//!
//! A curve of a model with linear layers is drawn as two lines, since its values there are of another kind: through the
//! softmax layers with filled markers, through the linear ones thinner and with hollow markers, on a grey band. The sheet
//! sees to that itself, and to the legend's entries for it and for bands, single cases and what lies beyond the axis, so that
//! no figure can forget them.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::FigureError;
use super::axis::{Range, layer_ticks, linear_stretches, write_value};
use super::canvas::{Area, MARGIN, Refusal, head, more_origins, svg, text_width, wide_enough, write};
use super::plot::{Axes, BAND, Drawn, NOISE_BAND, Plane, SAMPLE, Sample, sample};
use super::style::{self, GREY, GRID, INK, LINEAR, Marker, Stroke, UNIT};
use crate::lens::{Layer, LayerKind, Series};

/// A grid of panels.
#[derive(Debug, Clone)]
pub struct Sheet {
    /// Top left, large.
    pub title: String,
    /// Below it: where the numbers come from, a line a run.
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
    /// What single points are, of those too few for a band: `cases`, `questions`.
    pub units: &'static str,
    /// By column, the axes of sheets whose columns show different numbers; empty where all share one.
    pub axes: Vec<ColumnAxis>,
}

/// The value axis of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColumnAxis {
    /// A value with a line across its panels.
    pub reference: Option<f64>,
    /// The ends of a linear axis; `None` for a logarithmic one.
    pub linear: Option<(f64, f64)>,
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
        let width = wide_enough(2 * MARGIN + 18 + columns * cell.0, &self.title, &self.origin);
        let ranges = self.ranges();
        let legend_lines = self.legend_lines(width - 2 * MARGIN, &ranges);
        let top = HEAD + more_origins(&self.origin);
        let height = top
            + count * cell.1
            + 20
            + legend_lines.len() as i32 * FOOT
            + if legend_lines.is_empty() { 6 } else { 12 };
        svg(name, &self.title, (width, height), |area| {
            head(area, &self.title, &self.origin, width)?;
            for (row, panels) in self.rows.iter().enumerate() {
                for (column, panel) in panels.iter().enumerate() {
                    let Some(panel) = panel else { continue };
                    let left = MARGIN + 18 + column as i32 * cell.0;
                    let (y, reference) = range_of(&ranges, column);
                    self.panel(area, panel, (left, top + row as i32 * cell.1), (y, reference))?;
                }
            }
            let bottom = top + count * cell.1;
            write(
                area,
                "layer",
                (MARGIN + 18 + Y_AXIS + (columns * cell.0 - Y_AXIS - GAP) / 2, bottom - 8),
                12,
                INK,
                HPos::Center,
            )?;
            let middle = top + (bottom - top) / 2;
            let vertical = style::text(12, INK)
                .transform(FontTransform::Rotate270)
                .pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(self.y_label.clone(), (MARGIN * UNIT - UNIT * 4, middle * UNIT), vertical))?;
            for (line, items) in legend_lines.iter().enumerate() {
                let y = bottom + 18 + line as i32 * FOOT;
                let total: i32 = items.iter().map(|(_, text)| legend_width(text)).sum();
                let mut x = ((width - total) / 2).max(MARGIN);
                for (shown, text) in items {
                    sample(area, *shown, (x, y + 7))?;
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
        (y, reference): (&Range, Option<f64>),
    ) -> Result<(), Refusal> {
        let (width, height) = self.panel;
        // A longer one would run into its neighbour's.
        let title =
            style::shortened(&panel.title, (f64::from(width + GAP + Y_AXIS / 2) / (13.0 * 0.5)) as usize);
        write(area, &title, (left + Y_AXIS, top), 13, INK, HPos::Left)?;
        let mut at = left + Y_AXIS;
        for (stroke, text) in &panel.legend {
            if let Some(stroke) = stroke {
                sample(area, Sample::Line(*stroke), (at, top + 26))?;
                at += 33;
            }
            write(area, text, (at, top + 19), 11, GREY, HPos::Left)?;
            at += text_width(text, 11) + 14;
        }
        let layers = layers(panel.lines.iter().map(|(_, series)| series));
        let indices: Vec<usize> = layers.iter().map(|layer| layer.index).collect();
        let (first, last) =
            (indices.first().copied().unwrap_or(0) as f64, indices.last().copied().unwrap_or(0) as f64);
        let pad = ((last - first) * 0.02).max(0.25);
        let (x0, y0) = ((left + Y_AXIS) * UNIT, (top + PANEL_HEAD) * UNIT);
        let (x1, y1) = (x0 + width * UNIT, y0 + height * UNIT);
        let plane = area.clone().apply_coord_spec(Axes::new(
            first - pad..last + pad,
            y.place(y.low)..y.place(y.high),
            (x0..x1, y1..y0),
        ));
        for (from, to) in linear_stretches(&layers) {
            let (from, to) = (from.max(first - pad), to.min(last + pad));
            let corners = [(from, y.place(y.low)), (to, y.place(y.high))];
            plane.draw(&Rectangle::new(corners, LINEAR.filled()))?;
        }
        for tick in &y.ticks {
            let level = y.place(*tick);
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
            let at = plane.map_coordinate(&(tick as f64, y.place(y.low))).0;
            area.draw(&PathElement::new([(at, y1), (at, y1 + 3 * UNIT)], GREY.stroke_width(UNIT as u32)))?;
            let style = style::text(10, GREY).pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(tick.to_string(), (at, y1 + 5 * UNIT), style))?;
        }
        area.draw(&PathElement::new([(x0, y0), (x0, y1), (x1, y1)], GREY.stroke_width(UNIT as u32)))?;
        if let Some(reference) = reference.filter(|r| (y.low..=y.high).contains(r)) {
            let line = [(first - pad, y.place(reference)), (last + pad, y.place(reference))];
            plane.draw(&PathElement::new(line, GREY.stroke_width(UNIT as u32)))?;
        }
        let plane = Plane { area, axes: plane, y };
        let kinds = [LayerKind::Linear, LayerKind::Windowed, LayerKind::Softmax];
        let lines = || kinds.into_iter().flat_map(|kind| panel.lines.iter().map(move |line| (kind, line)));
        for (kind, (stroke, series)) in lines() {
            plane.band(*stroke, series, kind)?;
        }
        for (kind, (stroke, series)) in lines() {
            plane.cases_and_cuts(*stroke, series, kind)?;
        }
        for (kind, (stroke, series)) in lines() {
            plane.curve(*stroke, series, kind)?;
        }
        Ok(())
    }

    /// Whether some value of a linear layer lies beyond the value axis, so that it is drawn at its edge.
    pub fn cuts_linear_layers(&self) -> bool {
        let ranges = self.ranges();
        let columns = || self.rows.iter().flat_map(|row| row.iter().enumerate());
        let mut series = columns().filter_map(|(column, panel)| Some((column, panel.as_ref()?)));
        series.any(|(column, panel)| {
            let (y, _) = range_of(&ranges, column);
            let points = panel.lines.iter().flat_map(|(_, series)| &series.points);
            let mut values = points.filter(|point| point.layer.is_linear()).filter_map(|point| point.value);
            values.any(|value| y.shows(value) && !y.holds(value))
        })
    }

    /// The value axis of all columns, or of each, with its line.
    fn ranges(&self) -> Vec<(Range, Option<f64>)> {
        if self.axes.is_empty() {
            let all: Vec<&Series> = self.series().collect();
            return vec![(Range::of(&all, self.reference, self.reach), self.reference)];
        }
        let of_column = |(column, axis): (usize, &ColumnAxis)| {
            let all = self.series_of(column);
            let range = match axis.linear {
                Some(ends) => Range::linear(&all, ends),
                None => Range::of(&all, axis.reference, self.reach),
            };
            (range, axis.reference)
        };
        self.axes.iter().enumerate().map(of_column).collect()
    }

    fn series_of(&self, column: usize) -> Vec<&Series> {
        let panels = self.rows.iter().filter_map(|row| row.get(column)?.as_ref());
        panels.flat_map(|panel| panel.lines.iter().map(|(_, series)| series)).collect()
    }

    fn series(&self) -> impl Iterator<Item = &Series> {
        self.rows.iter().flatten().flatten().flat_map(|panel| panel.lines.iter().map(|(_, series)| series))
    }

    /// The entries below the panels, as lines that fit a width.
    fn legend_lines(&self, width: i32, ranges: &[(Range, Option<f64>)]) -> Vec<Vec<(Sample, String)>> {
        let mut lines: Vec<Vec<(Sample, String)>> = Vec::new();
        let mut used = i32::MAX;
        let grey = Stroke::solid(GREY, Marker::Circle);
        let layers = layers(self.series());
        let linear = layers.iter().any(|layer| layer.is_linear());
        let windowed = layers.iter().any(|layer| layer.kind == LayerKind::Windowed);
        let mut drawn = Drawn::default();
        match ranges {
            [(y, _)] if self.axes.is_empty() => drawn.add(&self.series().collect::<Vec<_>>(), y),
            _ => {
                for (column, (y, _)) in ranges.iter().enumerate() {
                    drawn.add(&self.series_of(column), y);
                }
            }
        }
        let single = format!("single {} (n < 5: no band)", self.units);
        let marks = [
            (windowed, Sample::Line(grey.windowed()), WINDOWED_LEGEND),
            (linear, Sample::Line(grey.linear()), LINEAR_LEGEND),
            (drawn.bands, Sample::Band(BAND), "95% band"),
            (drawn.noise_bands, Sample::Band(NOISE_BAND), "band of a noise baseline"),
            (drawn.cases, Sample::Cases, single.as_str()),
            (drawn.cut, Sample::Cut, "goes on beyond the axis"),
        ];
        let marks = marks.into_iter().filter(|(shown, ..)| *shown);
        let lines_of = self.legend.iter().map(|(stroke, text)| (Sample::Line(*stroke), text.clone()));
        for item in lines_of.chain(marks.map(|(_, shown, text)| (shown, text.to_owned()))) {
            let need = legend_width(&item.1);
            if used.saturating_add(need) > width {
                lines.push(Vec::new());
                used = 0;
            }
            used += need;
            if let Some(line) = lines.last_mut() {
                line.push(item);
            }
        }
        lines
    }
}

/// The axis of a column: its own, or that of all.
fn range_of(ranges: &[(Range, Option<f64>)], column: usize) -> (&Range, Option<f64>) {
    let (range, reference) = ranges.get(column).unwrap_or(&ranges[0]);
    (range, *reference)
}

/// The layers of some series, ascending.
fn layers<'a>(series: impl Iterator<Item = &'a Series>) -> Vec<Layer> {
    let mut layers: Vec<Layer> = series.flat_map(|one| one.points.iter().map(|point| point.layer)).collect();
    layers.sort_unstable();
    layers.dedup();
    layers
}

fn legend_width(text: &str) -> i32 {
    SAMPLE + 7 + text_width(text, 12) + 22
}
