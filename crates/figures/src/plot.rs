//! Draws a panel: curves with bands, single cases and clipping marks, and generic marks (bars, lines, dots, words). [`super::sheet`] owns
//! the axes and the legend.

use super::axis::{Range, single_cases};
use super::canvas::{LABEL, text_width, write};
use super::drawing::{Drawing, Form, Place};
use super::style::{Colour, Dash, GREY, INK, Ink, LINEAR, Marker, Stroke, UNIT, WHITE};
use palimpsest_analysis::lens::{LayerKind, Point, Series, Statistic, Target};

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

/// A mark at axis positions (x, y).
#[derive(Debug, Clone)]
pub enum Mark {
    Bar {
        corners: [(f64, f64); 2],
        ink: Ink,
    },
    Path {
        places: Vec<(f64, f64)>,
        look: Plain,
    },
    /// A line with markers, interrupted at missing points.
    Line {
        stroke: Stroke,
        places: Vec<Option<(f64, f64)>>,
    },
    /// Radius in units.
    Dot {
        at: (f64, f64),
        radius: i32,
        ink: Ink,
    },
    /// Words above a position; omitted if wider than `room` on the x axis.
    Words {
        at: (f64, f64),
        text: String,
        room: f64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plain {
    pub ink: Ink,
    pub width: i32,
    pub dash: Option<Dash>,
}

pub(super) const BAND: f64 = 0.20;
pub(super) const NOISE_BAND: f64 = 0.10;
const CASE: f64 = 0.55;
/// Half the width of a lone layer's bar.
const BAR: i32 = 4 * UNIT;
const MARKERS: usize = 12;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    pub bands: bool,
    pub noise_bands: bool,
    pub cases: bool,
    pub cut: bool,
    /// Exact zeros on a logarithmic axis.
    pub zeros: bool,
}

impl Drawn {
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

/// The band, if it lies on the axis.
fn shown_band(point: &Point, y: &Range) -> Option<(f64, f64)> {
    point.band.filter(|band| y.shows(band.1) && point.value.is_some_and(|value| y.shows(value)))
}

/// True if a band or single case is clipped below; true if clipped above.
fn beyond(series: &Series, point: &Point, y: &Range) -> (bool, bool) {
    let cases = single_cases(series, point).iter();
    let ends =
        || shown_band(point, y).into_iter().flat_map(|(low, high)| [low, high]).chain(cases.clone().copied());
    // 0 has its own position.
    (ends().any(|end| end < y.low && !y.is_zero(end)), ends().any(|end| end > y.high))
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Nth {
    pub at: usize,
    pub of: usize,
    pub most: usize,
}

impl Nth {
    /// Marker period and offset: keeps markers of deep models and of several lines apart.
    fn markers(self, points: usize) -> (usize, usize) {
        let every = points.div_ceil(self.most.max(1)).max(1);
        let every = if points >= 3 * self.of { every.max(self.of) } else { every };
        (every, self.at * every / self.of.max(1))
    }

    fn beside(self) -> i32 {
        (2 * self.at as i32 - self.of.saturating_sub(1) as i32) * UNIT * 3 / 4
    }
}

/// Plot area in units, with its axes.
pub(super) struct Plane<'a> {
    pub corners: [Place; 2],
    pub x: (f64, f64),
    pub y: &'a Range,
}

fn points_of(series: &Series, kind: LayerKind) -> Vec<&Point> {
    series.points.iter().filter(|point| point.layer.kind == kind).collect()
}

impl Plane<'_> {
    pub fn across(&self, x: f64) -> i32 {
        let ((low, high), [(left, _), (right, _)]) = (self.x, self.corners);
        left + (f64::from(right - left) * (x - low) / (high - low) + 1e-3).floor() as i32
    }

    pub fn up(&self, level: f64) -> i32 {
        let (foot, head) = (self.y.place(self.y.foot()), self.y.place(self.y.high));
        let [(_, top), (_, bottom)] = self.corners;
        bottom - (f64::from(bottom - top) * (level - foot) / (head - foot) + 1e-3).floor() as i32
    }

    fn place(&self, (x, value): (f64, f64)) -> Place {
        (self.across(x), self.up(self.y.clamp(value)))
    }

    fn at(&self, point: &Point, value: f64) -> Place {
        self.place((point.layer.index as f64, value))
    }

    pub fn mark(&self, area: &mut Drawing, mark: &Mark) {
        match mark {
            Mark::Bar { corners, ink } => {
                area.fill(Form::Rectangle(corners.map(|corner| self.place(corner))), *ink);
            }
            Mark::Path { places, look } => {
                let places: Vec<Place> = places.iter().map(|at| self.place(*at)).collect();
                area.dashed(places, look.ink, look.width, look.dash);
            }
            Mark::Line { stroke, places } => {
                let places = || places.iter().map(|at| at.map(|at| self.place(at)));
                runs(places()).into_iter().for_each(|run| stretch(area, *stroke, run));
                places().flatten().for_each(|at| marker(area, *stroke, at));
            }
            Mark::Dot { at, radius, ink } => area.fill(Form::Circle(self.place(*at), *radius), *ink),
            Mark::Words { at, text, room } => {
                let (style, (x, y)) = (LABEL.sized(9).centred(), self.place(*at));
                if text_width(text, style.size) * UNIT <= self.across(at.0 + room) - x {
                    write(area, text, (x / UNIT, y / UNIT - 12), style);
                }
            }
        }
    }

    pub fn band(&self, area: &mut Drawing, stroke: Stroke, series: &Series, kind: LayerKind) {
        let of_kind = points_of(series, kind);
        let points = of_kind.iter().map(|point| {
            let (low, high) = shown_band(point, self.y)?;
            Some((self.at(point, low), self.at(point, high)))
        });
        let share = if stroke.is_noise() { NOISE_BAND } else { BAND };
        // linear layers are more numerous, and on grey
        let share = if kind == LayerKind::Linear { share * 0.6 } else { share };
        let ink = stroke.colour.mix(share);
        for run in runs(points) {
            if let [((x, low), (_, high))] = run[..] {
                area.fill(Form::Rectangle([(x - BAR, high), (x + BAR, low)]), ink);
                continue;
            }
            let upper = run.iter().map(|(_, high)| *high);
            let lower = run.iter().rev().map(|(low, _)| *low);
            area.fill(Form::Polygon(upper.chain(lower).collect()), ink);
        }
    }

    /// Single cases at layers of one kind, and triangles where bands or cases are clipped.
    pub fn cases_and_cuts(
        &self,
        area: &mut Drawing,
        stroke: Stroke,
        series: &Series,
        kind: LayerKind,
        nth: Nth,
    ) {
        let mut since = usize::MAX;
        let of_kind = points_of(series, kind);
        let every = of_kind.len().div_ceil(MARKERS).max(1);
        for point in of_kind {
            let placed = |value: &&f64| self.y.holds(**value) || self.y.is_zero(**value);
            for value in single_cases(series, point).iter().filter(placed) {
                let (x, y) = self.at(point, *value);
                area.fill(Form::Circle((x + nth.beside(), y), UNIT * 3 / 2), stroke.colour.mix(CASE));
            }
            let (below, above) = beyond(series, point, self.y);
            since = if below || above { since.wrapping_add(1) } else { usize::MAX };
            if since % every != 0 {
                continue;
            }
            let marks = [(below, self.y.low, 1), (above, self.y.high, -1)];
            for (_, edge, side) in marks.into_iter().filter(|(cut, ..)| *cut) {
                cut_mark(area, self.at(point, edge), side, stroke.colour);
            }
        }
    }

    /// Curve at layers of one kind. Zeros interrupt it and get a hollow mark at the axis foot.
    pub fn curve(&self, area: &mut Drawing, stroke: Stroke, series: &Series, kind: LayerKind, nth: Nth) {
        let stroke = if kind == LayerKind::Linear { stroke.linear() } else { stroke };
        let of_kind = points_of(series, kind);
        let points = of_kind
            .iter()
            .enumerate()
            .map(|(at, p)| p.value.filter(|v| self.y.shows(*v)).map(|v| (at, self.at(p, v))));
        let (every, first) = nth.markers(of_kind.len());
        for run in runs(points) {
            stretch(area, stroke, run.iter().map(|(_, point)| *point).collect());
            // a lone point is shown by its marker, or a short dash for baselines
            if let ([(_, (x, level))], true) = (run.as_slice(), stroke.is_noise()) {
                area.line([(x - BAR, *level), (x + BAR, *level)], stroke.colour, stroke.width());
            }
            let alone = run.len() == 1;
            for (_, point) in run.iter().filter(|(at, _)| alone || at % every == first) {
                marker(area, stroke, *point);
            }
        }
        for point in of_kind.iter().filter(|p| p.value.is_some_and(|value| self.y.is_zero(value))) {
            let (x, y) = self.at(point, 0.0);
            zero_mark(area, (x + nth.beside(), y), stroke.colour);
        }
    }
}

/// Uninterrupted line; places in units.
fn stretch(area: &mut Drawing, stroke: Stroke, places: Vec<Place>) {
    area.dashed(places, stroke.colour, stroke.width(), stroke.dashes());
}

fn zero_mark(area: &mut Drawing, at: Place, colour: Colour) {
    hollow(area, outline(Marker::Circle, 9 * UNIT / 4, at), colour);
}

/// Triangle at an axis edge, pointing down (1) or up (-1).
fn cut_mark(area: &mut Drawing, (x, y): Place, side: i32, colour: Colour) {
    let (half, height) = (5 * UNIT / 2, 5 * UNIT * side);
    area.fill(Form::Polygon(vec![(x - half, y - height), (x + half, y - height), (x, y)]), colour);
}

/// `at` in units.
fn marker(area: &mut Drawing, stroke: Stroke, at: Place) {
    let points = outline(stroke.marker, 11 * UNIT / 4, at);
    match stroke.hollow {
        _ if points.is_empty() => {}
        true => hollow(area, points, stroke.colour),
        false => area.fill(Form::Polygon(points), stroke.colour),
    }
}

/// Outline with a white interior.
fn hollow(area: &mut Drawing, mut points: Vec<Place>, colour: Colour) {
    area.fill(Form::Polygon(points.clone()), WHITE);
    points.extend(points.first().copied());
    area.line(points, colour, UNIT * 5 / 4);
}

fn outline(marker: Marker, s: i32, (x, y): Place) -> Vec<Place> {
    let corners = match marker {
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
    };
    corners.into_iter().map(|(dx, dy)| (x + dx, y + dy)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sample {
    Line(Stroke),
    Plain(Plain),
    Dot(Colour),
    Bar(Colour),
    Upright,
    Band(f64),
    Cases,
    Cut,
    Zero,
}

pub(super) const SAMPLE: i32 = 27;

/// A legend sample at (left, middle), in pixels.
pub(super) fn sample(area: &mut Drawing, sample: Sample, (x, y): (i32, i32)) {
    let middle = ((x * 2 + SAMPLE) * UNIT / 2, y * UNIT);
    let around = |dx: i32, dy: i32| (middle.0 + dx * UNIT, middle.1 + dy * UNIT);
    let ends = [(x * UNIT, y * UNIT), ((x + SAMPLE) * UNIT, y * UNIT)];
    let block = |wide: i32, high: i32| {
        let [(left, y), (right, _)] = ends;
        Form::Rectangle([(left - wide * UNIT, y - high * UNIT), (right + wide * UNIT, y + high * UNIT)])
    };
    match sample {
        Sample::Line(stroke) => {
            if stroke.linear {
                area.fill(block(2, 8), LINEAR);
            }
            stretch(area, stroke, ends.to_vec());
            marker(area, stroke, middle);
        }
        Sample::Plain(look) => area.dashed(ends, look.ink, look.width, look.dash),
        Sample::Dot(colour) => area.fill(Form::Circle(middle, UNIT * 3), colour),
        Sample::Bar(colour) => area.fill(Form::Rectangle([around(-7, -6), around(7, 6)]), colour),
        Sample::Upright => area.line([around(0, -8), around(0, 8)], INK, UNIT * 3 / 2),
        Sample::Band(share) => area.fill(block(0, 6), GREY.mix(share * 1.5)),
        Sample::Cases => {
            for (dx, dy) in [(-7, 2), (-1, -3), (6, 1)] {
                area.fill(Form::Circle(around(dx, dy), UNIT * 3 / 2), GREY.mix(CASE));
            }
        }
        Sample::Zero => zero_mark(area, middle, GREY),
        Sample::Cut => {
            cut_mark(area, around(-5, 3), 1, GREY);
            cut_mark(area, around(5, -3), -1, GREY);
        }
    }
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
        assert_eq!(Nth { at: 1, of: 3, most: MARKERS }.markers(5).0, 1);
    }
}
