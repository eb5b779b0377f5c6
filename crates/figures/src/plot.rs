//! Contents of a panel: curves with bands, single cases and clipping marks; bars, lines, dots and words. [`super::sheet`] owns the axes
//! and the legend, [`super::map`] the cells of maps.

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
    /// Two corners.
    Bar([(f64, f64); 2], Ink),
    Path(Vec<(f64, f64)>, Plain),
    /// A line with markers, interrupted at missing points.
    Line(Stroke, Vec<Option<(f64, f64)>>),
    /// Radius in units.
    Dot((f64, f64), i32, Ink),
    /// Words above a position; omitted if wider than so much of the x axis.
    Words((f64, f64), String, f64),
}

/// A line without markers; width in units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plain {
    pub ink: Ink,
    pub width: i32,
    pub dash: Option<Dash>,
}

const BAND: f64 = 0.20;
const CASE: f64 = 0.55;
/// Half the width of a lone layer's bar.
const BAR: i32 = 4 * UNIT;
const MARKERS: usize = 12;

pub(super) const LINEAR_LEGEND: &str = "linear layer: share of |weight|";

/// Legend entries of what is drawn of these series besides their lines.
pub(super) fn explained(drawn: &[(&Series, &Range)], units: &str) -> Vec<(Sample, String)> {
    let points = || drawn.iter().flat_map(|(one, y)| one.points.iter().map(move |point| (*one, point, *y)));
    let any =
        |is: &dyn Fn(&Series, &Point, &Range) -> bool| points().any(|(one, point, y)| is(one, point, y));
    let noise = |one: &Series| matches!(one.statistic, Statistic::Mean(_, Target::Noise));
    let zero = |_: &Series, point: &Point, y: &Range| {
        point.value.iter().chain(single_cases(point)).any(|value| y.is_zero(*value))
    };
    let linear = Stroke::solid(GREY, Marker::Circle).linear();
    let dotted = Stroke::solid(GREY, Marker::None).noise();
    let single = format!("single {units} (n < 5: no band)");
    let entries = [
        (
            any(&|one, point, y| noise(one) && point.value.is_some_and(|value| y.shows(value))),
            Sample::Line(dotted),
            "dotted: noise baseline of the line of its colour",
        ),
        (any(&|_, point, _| point.layer.is_linear()), Sample::Line(linear), LINEAR_LEGEND),
        (any(&|_, point, y| shown_band(point, y).is_some()), Sample::Band(BAND), "95% band"),
        (any(&|_, point, _| !single_cases(point).is_empty()), Sample::Cases, &single),
        (any(&zero), Sample::Zero, "exactly 0"),
        (any(&|_, point, y| beyond(point, y) != (false, false)), Sample::Cut, "goes on beyond the axis"),
    ];
    let shown = entries.into_iter().filter(|(shown, ..)| *shown);
    shown.map(|(_, sample, text)| (sample, text.to_owned())).collect()
}

/// The band, if it lies on the axis.
fn shown_band(point: &Point, y: &Range) -> Option<(f64, f64)> {
    point.band.filter(|band| y.shows(band.1) && point.value.is_some_and(|value| y.shows(value)))
}

/// True if a band or single case is clipped below; true if clipped above.
fn beyond(point: &Point, y: &Range) -> (bool, bool) {
    let cases = single_cases(point).iter();
    let ends =
        || shown_band(point, y).into_iter().flat_map(|(low, high)| [low, high]).chain(cases.clone().copied());
    // 0 has its own position.
    (ends().any(|end| end < y.low && !y.is_zero(end)), ends().any(|end| end > y.high))
}

/// Plot area in units, with its axes.
pub(super) struct Plane<'a> {
    pub corners: [Place; 2],
    pub x: (f64, f64),
    pub y: &'a Range,
    /// Part of a row's height for its marks; its words stand above them.
    pub share: f64,
}

/// A series at layers of one kind: number `at` of the `of` lines with markers, with about `most` markers.
struct Curve<'a> {
    stroke: Stroke,
    kind: LayerKind,
    points: Vec<&'a Point>,
    at: usize,
    of: usize,
    most: usize,
}

impl Curve<'_> {
    /// Beside the markers of the other lines, in units.
    fn beside(&self) -> i32 {
        (2 * self.at as i32 - self.of.saturating_sub(1) as i32) * UNIT * 3 / 4
    }
}

/// Marker period and offset of line `at` of `of`: keeps markers of deep models and of several lines apart.
fn markers(points: usize, (at, of): (usize, usize), most: usize) -> (usize, usize) {
    let every = points.div_ceil(most.max(1)).max(1);
    let every = if points >= 3 * of { every.max(of) } else { every };
    (every, at * every / of.max(1))
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
        let level = self.y.clamp(value);
        let level = if self.share < 1.0 { level.floor() + level.fract() * self.share } else { level };
        (self.across(x), self.up(level))
    }

    fn at(&self, point: &Point, value: f64) -> Place {
        self.place((point.layer.index as f64, value))
    }

    pub fn mark(&self, area: &mut Drawing, mark: &Mark) {
        match mark {
            Mark::Bar(corners, ink) => {
                area.fill(Form::Rectangle(corners.map(|corner| self.place(corner))), *ink);
            }
            Mark::Path(places, look) => {
                let places: Vec<Place> = places.iter().map(|at| self.place(*at)).collect();
                area.dashed(places, look.ink, look.width, look.dash);
            }
            Mark::Line(stroke, places) => {
                let places = || places.iter().map(|at| at.map(|at| self.place(at)));
                runs(places()).into_iter().for_each(|run| stretch(area, *stroke, run));
                places().flatten().for_each(|at| marker(area, *stroke, at));
            }
            Mark::Dot(at, radius, ink) => area.fill(Form::Circle(self.place(*at), *radius), *ink),
            Mark::Words(at, text, room) => {
                let (style, (x, y)) = (LABEL.sized(9).centred(), self.place(*at));
                if text_width(text, style.size) * UNIT <= self.across(at.0 + room) - x {
                    write(area, text, (x / UNIT, y / UNIT - 12), style);
                }
            }
        }
    }

    /// Bands of all lines, then single cases and clipping marks, then the lines; softmax layers on top.
    pub fn curves(&self, area: &mut Drawing, lines: &[(Stroke, Series)]) {
        let [(left, _), (right, _)] = self.corners;
        let most = ((right - left) / UNIT / 24).clamp(3, 12) as usize;
        let marked = lines.iter().filter(|(stroke, _)| !stroke.is_noise()).count().max(1);
        let mut curves = Vec::new();
        for kind in [LayerKind::Linear, LayerKind::Windowed, LayerKind::Softmax] {
            let mut before = 0;
            for (stroke, series) in lines {
                let (at, of) = if stroke.is_noise() { (0, 1) } else { (before, marked) };
                before += usize::from(!stroke.is_noise());
                let points = series.points.iter().filter(|point| point.layer.kind == kind).collect();
                curves.push(Curve { stroke: *stroke, kind, points, at, of, most });
            }
        }
        curves.iter().for_each(|curve| self.band(area, curve));
        curves.iter().for_each(|curve| self.cases_and_cuts(area, curve));
        curves.iter().for_each(|curve| self.curve(area, curve));
    }

    fn band(&self, area: &mut Drawing, curve: &Curve<'_>) {
        let points = curve.points.iter().map(|point| {
            let (low, high) = shown_band(point, self.y)?;
            Some((self.at(point, low), self.at(point, high)))
        });
        // linear layers are more numerous, and on grey
        let share = if curve.kind == LayerKind::Linear { BAND * 0.6 } else { BAND };
        let ink = curve.stroke.colour.mix(share);
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

    /// Single cases, and triangles where bands or cases are clipped.
    fn cases_and_cuts(&self, area: &mut Drawing, curve: &Curve<'_>) {
        let colour = curve.stroke.colour;
        let mut since = usize::MAX;
        let every = curve.points.len().div_ceil(MARKERS).max(1);
        for point in &curve.points {
            let placed = |value: &&f64| self.y.holds(**value) || self.y.is_zero(**value);
            for value in single_cases(point).iter().filter(placed) {
                let (x, y) = self.at(point, *value);
                area.fill(Form::Circle((x + curve.beside(), y), UNIT * 3 / 2), colour.mix(CASE));
            }
            let (below, above) = beyond(point, self.y);
            since = if below || above { since.wrapping_add(1) } else { usize::MAX };
            if since % every != 0 {
                continue;
            }
            let marks = [(below, self.y.low, 1), (above, self.y.high, -1)];
            for (_, edge, side) in marks.into_iter().filter(|(cut, ..)| *cut) {
                cut_mark(area, self.at(point, edge), side, colour);
            }
        }
    }

    /// Zeros interrupt a curve and get a hollow mark at the axis foot.
    fn curve(&self, area: &mut Drawing, curve: &Curve<'_>) {
        let of_kind = &curve.points;
        let stroke = if curve.kind == LayerKind::Linear { curve.stroke.linear() } else { curve.stroke };
        let shown = |point: &Point| point.value.filter(|value| self.y.shows(*value));
        let points = of_kind.iter().enumerate().map(|(at, p)| shown(p).map(|value| (at, self.at(p, value))));
        let (every, first) = markers(of_kind.len(), (curve.at, curve.of), curve.most);
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
            zero_mark(area, (x + curve.beside(), y), stroke.colour);
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

/// A layer's kind beside its row of a map: open for linear, filled for softmax, narrow for windowed.
pub(super) fn kind_mark(area: &mut Drawing, [(left, top), (right, bottom)]: [Place; 2], kind: LayerKind) {
    let left = if kind == LayerKind::Windowed { right - (right - left) / 3 } else { left };
    let corners = [(left, top), (right, bottom)];
    area.fill(Form::Rectangle(corners), if kind == LayerKind::Linear { LINEAR } else { GREY });
    area.outline(corners, GREY);
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
    /// Rows of a map at such layers.
    Rows(LayerKind),
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
        Sample::Rows(kind) => kind_mark(area, [around(-3, -6), around(3, 6)], kind),
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
                let (every, first) = markers(points, (at, lines), MARKERS);
                (0..points).filter(|point| point % every == first).collect::<Vec<_>>()
            };
            let all: Vec<usize> = (0..lines).flat_map(stand).collect();
            let apart: std::collections::BTreeSet<&usize> = all.iter().collect();
            assert_eq!(apart.len(), all.len(), "{points} points, {lines} lines");
            assert!((0..lines).all(|at| (2..=MARKERS).contains(&stand(at).len())), "{points}, {lines}");
        }
        assert_eq!(markers(5, (1, 3), MARKERS).0, 1);
    }
}
