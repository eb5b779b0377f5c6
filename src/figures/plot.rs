//! A series in a panel: line, markers, band, single cases, and marks where a band goes beyond the axis.
//!
//! Called by [`super::sheet`], which owns the axes and the legend.

use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use super::axis::{Range, single_cases};
use super::canvas::{Area, Refusal};
use super::style::{GREY, LINEAR, Marker, Stroke, UNIT};
use crate::lens::{LayerKind, Point, Series, Statistic, Target};

/// Runs of neighbouring points that have a place.
pub(super) fn runs<T>(points: impl Iterator<Item = Option<T>>) -> Vec<Vec<T>> {
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

/// A panel to draw in: where a layer and a value lie, on the whole picture.
pub(super) struct Plane<'a, 'b> {
    pub area: &'a Area<'b>,
    pub axes: DrawingArea<SVGBackend<'b>, Axes>,
    pub y: &'a Range,
}

/// Layers by values or their logarithms.
pub(super) type Axes = Cartesian2d<RangedCoordf64, RangedCoordf64>;

/// Of the fill of a band.
pub(super) const BAND: f64 = 0.20;
/// Of the fill of a noise baseline's band.
pub(super) const NOISE_BAND: f64 = 0.10;
/// Of a single case's point.
const CASE: f64 = 0.55;

/// The marks that a legend must explain besides the curves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    pub bands: bool,
    pub noise_bands: bool,
    pub cases: bool,
    /// A band or a single case lies beyond the axis.
    pub cut: bool,
    /// Something is exactly 0, below a logarithmic axis.
    pub zeros: bool,
}

impl Drawn {
    /// Adds what is drawn of some series on an axis.
    pub fn add(&mut self, series: &[&Series], y: &Range) {
        for one in series {
            let noise = matches!(one.statistic, Statistic::Mean(_, Target::Noise));
            for point in &one.points {
                let band = shown_band(point, y);
                self.bands |= band.is_some() && !noise;
                self.noise_bands |= band.is_some() && noise;
                self.cases |= !single_cases(one, point).is_empty();
                self.cut |= beyond(one, point, y) != (false, false);
                let mut drawn = point.value.iter().chain(single_cases(one, point));
                self.zeros |= drawn.any(|value| y.is_zero(*value));
            }
        }
    }
}

/// The band of a point that has a place on the axis itself.
fn shown_band(point: &Point, y: &Range) -> Option<(f64, f64)> {
    point.band.filter(|band| y.shows(band.1) && point.value.is_some_and(|value| y.shows(value)))
}

/// True if a band or a single case at a layer lies below the axis, and true if one lies above it.
fn beyond(series: &Series, point: &Point, y: &Range) -> (bool, bool) {
    let cases = single_cases(series, point).iter();
    let ends =
        || shown_band(point, y).into_iter().flat_map(|(low, high)| [low, high]).chain(cases.clone().copied());
    // 0 has a place of its own.
    (ends().any(|end| end < y.low && !y.is_zero(end)), ends().any(|end| end > y.high))
}

/// A line of a panel and its place among the panel's lines, by which its markers stand apart from theirs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nth {
    pub at: usize,
    pub of: usize,
    /// Markers that have room on a line.
    pub most: usize,
}

impl Nth {
    /// Every how many points a marker stands, and from which on: a deep model's would merge into a thick line, and those of several
    /// lines would cover each other.
    fn markers(self, points: usize) -> (usize, usize) {
        let every = points.div_ceil(self.most.max(1)).max(1);
        let every = if points >= 3 * self.of { every.max(self.of) } else { every };
        (every, self.at * every / self.of.max(1))
    }

    /// The offset of its single cases from the layer, in units.
    fn beside(self) -> i32 {
        (2 * self.at as i32 - self.of.saturating_sub(1) as i32) * UNIT * 3 / 4
    }
}

impl Plane<'_, '_> {
    /// The place of a layer and a value in units of the picture.
    fn at(&self, layer: usize, value: f64) -> (i32, i32) {
        self.axes.map_coordinate(&(layer as f64, self.y.clamp(value)))
    }

    /// The band of a series at layers of one kind.
    pub fn band(&self, stroke: Stroke, series: &Series, kind: LayerKind) -> Result<(), Refusal> {
        let points = series.points.iter().filter(|p| p.layer.kind == kind).map(|p| {
            let (low, high) = shown_band(p, self.y)?;
            Some((self.at(p.layer.index, low), self.at(p.layer.index, high)))
        });
        let share = if stroke.is_noise() { NOISE_BAND } else { BAND };
        // there are more of them, and on grey
        let share = if kind == LayerKind::Linear { share * 0.6 } else { share };
        let fill = stroke.colour.mix(share).filled();
        for run in runs(points) {
            if let [((x, low), (_, high))] = run[..] {
                // a lone layer has a bar
                let corners = [(x - BAR, high), (x + BAR, low)];
                self.area.draw(&Rectangle::new(corners, fill))?;
                continue;
            }
            let upper = run.iter().map(|(_, high)| *high);
            let lower = run.iter().rev().map(|(low, _)| *low);
            self.area.draw(&Polygon::new(upper.chain(lower).collect::<Vec<_>>(), fill))?;
        }
        Ok(())
    }

    /// The single cases of a series at layers of one kind, and small triangles at the edges of the axis beyond which its bands
    /// or cases go.
    pub fn cases_and_cuts(
        &self,
        stroke: Stroke,
        series: &Series,
        kind: LayerKind,
        nth: Nth,
    ) -> Result<(), Refusal> {
        let mut since = usize::MAX;
        let of_kind: Vec<&Point> = series.points.iter().filter(|p| p.layer.kind == kind).collect();
        let every = of_kind.len().div_ceil(MARKERS).max(1);
        for point in of_kind {
            let placed = |value: &&f64| self.y.holds(**value) || self.y.is_zero(**value);
            for value in single_cases(series, point).iter().filter(placed) {
                let (x, y) = self.at(point.layer.index, *value);
                let dot = Circle::new((x + nth.beside(), y), UNIT * 3 / 2, stroke.colour.mix(CASE).filled());
                self.area.draw(&dot)?;
            }
            let (below, above) = beyond(series, point, self.y);
            since = if below || above { since.wrapping_add(1) } else { usize::MAX };
            if since % every != 0 {
                continue;
            }
            let marks = [(below, self.y.low, 1), (above, self.y.high, -1)];
            for (_, edge, side) in marks.into_iter().filter(|(cut, ..)| *cut) {
                cut_mark(self.area, self.at(point.layer.index, edge), side, stroke.colour)?;
            }
        }
        Ok(())
    }

    /// The curve of a series at layers of one kind. Where a value is 0 the line is interrupted and a hollow mark stands at the axis'
    /// foot.
    pub fn curve(&self, stroke: Stroke, series: &Series, kind: LayerKind, nth: Nth) -> Result<(), Refusal> {
        let stroke = if kind == LayerKind::Linear { stroke.linear() } else { stroke };
        let of_kind: Vec<&Point> = series.points.iter().filter(|p| p.layer.kind == kind).collect();
        let points = of_kind
            .iter()
            .enumerate()
            .map(|(at, p)| p.value.filter(|v| self.y.shows(*v)).map(|v| (at, self.at(p.layer.index, v))));
        let line = stroke.colour.stroke_width(stroke.width());
        let (every, first) = nth.markers(of_kind.len());
        for run in runs(points) {
            let path: Vec<(i32, i32)> = run.iter().map(|(_, point)| *point).collect();
            stretch(self.area, stroke, path.clone())?;
            // a lone point has no line: its marker shows it, and a baseline without markers gets a short dash
            if let ([(x, level)], true) = (path.as_slice(), stroke.is_noise()) {
                self.area.draw(&PathElement::new([(x - BAR, *level), (x + BAR, *level)], line))?;
            }
            let alone = run.len() == 1;
            for (_, point) in run.iter().filter(|(at, _)| alone || at % every == first) {
                marker(self.area, stroke, *point)?;
            }
        }
        for point in of_kind.iter().filter(|p| p.value.is_some_and(|value| self.y.is_zero(value))) {
            let (x, y) = self.at(point.layer.index, 0.0);
            zero_mark(self.area, (x + nth.beside(), y), stroke.colour)?;
        }
        Ok(())
    }
}

/// A stretch of a line without interruption, through places of the picture, in units.
fn stretch(area: &Area<'_>, stroke: Stroke, places: Vec<(i32, i32)>) -> Result<(), Refusal> {
    let line = stroke.colour.stroke_width(stroke.width());
    match stroke.dashes() {
        Some((dash, space)) => area.draw(&DashedPathElement::new(places, dash * UNIT, space * UNIT, line)),
        None => area.draw(&PathElement::new(places, line)),
    }
}

/// A line with a marker at each of its places, in units; a missing one interrupts it.
pub(super) fn marked_line(
    area: &Area<'_>,
    stroke: Stroke,
    places: &[Option<(i32, i32)>],
) -> Result<(), Refusal> {
    for run in runs(places.iter().copied()) {
        stretch(area, stroke, run)?;
    }
    places.iter().flatten().try_for_each(|at| marker(area, stroke, *at))
}

/// A value that is exactly 0: a hollow ring.
fn zero_mark(area: &Area<'_>, at: (i32, i32), colour: RGBColor) -> Result<(), Refusal> {
    let ring = Mark { kind: Marker::Circle, colour, size: 9 * UNIT / 4 };
    area.draw(&(EmptyElement::at(at) + ring.inside() + ring.outline()))
}

/// Half the width of what stands for a lone layer.
const BAR: i32 = 4 * UNIT;
/// Most markers of a curve.
const MARKERS: usize = 12;

/// A small triangle at an edge of the axis, which points down (1) or up (-1).
fn cut_mark(area: &Area<'_>, (x, y): (i32, i32), side: i32, colour: RGBColor) -> Result<(), Refusal> {
    let (half, height) = (5 * UNIT / 2, 5 * UNIT * side);
    let corners = vec![(x - half, y - height), (x + half, y - height), (x, y)];
    area.draw(&Polygon::new(corners, colour.filled()))
}

/// The marker of a line at a place of the picture, in units.
pub(super) fn marker(area: &Area<'_>, stroke: Stroke, at: (i32, i32)) -> Result<(), Refusal> {
    let mark = Mark::of(stroke);
    if stroke.hollow {
        return area.draw(&(EmptyElement::at(at) + mark.inside() + mark.outline()));
    }
    area.draw(&(EmptyElement::at(at) + mark.element()))
}

/// A marker's shape around the origin.
struct Mark {
    kind: Marker,
    colour: RGBColor,
    size: i32,
}

impl Mark {
    fn of(stroke: Stroke) -> Self {
        Mark { kind: stroke.marker, colour: stroke.colour, size: 11 * UNIT / 4 }
    }

    fn element(&self) -> Polygon<(i32, i32)> {
        Polygon::new(self.points(), self.colour.filled())
    }

    /// Hides the line within a hollow marker.
    fn inside(&self) -> Polygon<(i32, i32)> {
        Polygon::new(self.points(), WHITE.filled())
    }

    fn outline(&self) -> PathElement<(i32, i32)> {
        let mut points = self.points();
        points.extend(points.first().copied());
        PathElement::new(points, self.colour.stroke_width(UNIT as u32 * 5 / 4))
    }

    fn points(&self) -> Vec<(i32, i32)> {
        let s = self.size;
        match self.kind {
            Marker::None => Vec::new(),
            Marker::Square => vec![(-s, -s), (s, -s), (s, s), (-s, s)],
            Marker::Triangle => vec![(0, -s * 5 / 4), (s * 5 / 4, s), (-s * 5 / 4, s)],
            Marker::Down => vec![(0, s * 5 / 4), (s * 5 / 4, -s), (-s * 5 / 4, -s)],
            Marker::Diamond => vec![(0, -s * 3 / 2), (s * 3 / 2, 0), (0, s * 3 / 2), (-s * 3 / 2, 0)],
            Marker::Circle => (0..16)
                .map(|i| {
                    let (sin, cos) = (f64::from(i) * std::f64::consts::TAU / 16.0).sin_cos();
                    ((f64::from(s) * cos).round() as i32, (f64::from(s) * sin).round() as i32)
                })
                .collect(),
        }
    }
}

/// The swatch of a legend's entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Sample {
    Line(Stroke),
    Band(f64),
    Cases,
    Cut,
    Zero,
}

/// Width of a sample in pixels.
pub(super) const SAMPLE: i32 = 27;

/// A sample at (left, middle), in pixels.
pub(super) fn sample(area: &Area<'_>, sample: Sample, (x, y): (i32, i32)) -> Result<(), Refusal> {
    let middle = ((x * 2 + SAMPLE) * UNIT / 2, y * UNIT);
    match sample {
        Sample::Line(stroke) => line_sample(area, stroke, (x, y), middle),
        Sample::Band(share) => {
            let corners = [(x * UNIT, (y - 6) * UNIT), ((x + SAMPLE) * UNIT, (y + 6) * UNIT)];
            area.draw(&Rectangle::new(corners, GREY.mix(share * 1.5).filled()))
        }
        Sample::Cases => {
            for (dx, dy) in [(-7, 2), (-1, -3), (6, 1)] {
                let at = (middle.0 + dx * UNIT, middle.1 + dy * UNIT);
                area.draw(&Circle::new(at, UNIT * 3 / 2, GREY.mix(CASE).filled()))?;
            }
            Ok(())
        }
        Sample::Zero => zero_mark(area, middle, GREY),
        Sample::Cut => {
            let down = (middle.0 - 5 * UNIT, middle.1 + 3 * UNIT);
            cut_mark(area, down, 1, GREY)?;
            cut_mark(area, (middle.0 + 5 * UNIT, middle.1 - 3 * UNIT), -1, GREY)
        }
    }
}

fn line_sample(
    area: &Area<'_>,
    stroke: Stroke,
    (x, y): (i32, i32),
    middle: (i32, i32),
) -> Result<(), Refusal> {
    let ends = [(x * UNIT, y * UNIT), ((x + SAMPLE) * UNIT, y * UNIT)];
    if stroke.linear {
        let corners = [((x - 2) * UNIT, (y - 8) * UNIT), ((x + SAMPLE + 2) * UNIT, (y + 8) * UNIT)];
        area.draw(&Rectangle::new(corners, LINEAR.filled()))?;
    }
    stretch(area, stroke, ends.to_vec())?;
    marker(area, stroke, middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_of_several_lines_never_stand_at_the_same_layer() {
        for (points, lines) in [(30, 3), (64, 6), (12, 2), (9, 3), (200, 5)] {
            let stand = |at: usize| {
                let (every, first) = Nth { at, of: lines, most: MARKERS }.markers(points);
                (0..points).filter(|point| point % every == first).collect::<Vec<_>>()
            };
            let all: Vec<usize> = (0..lines).flat_map(stand).collect();
            let apart: std::collections::BTreeSet<&usize> = all.iter().collect();
            assert_eq!(apart.len(), all.len(), "{points} points, {lines} lines");
            assert!((0..lines).all(|at| (2..=MARKERS).contains(&stand(at).len())), "{points}, {lines}");
        }
        // Few points all have theirs.
        assert_eq!(Nth { at: 1, of: 3, most: MARKERS }.markers(5).0, 1);
    }
}
