//! Layout of a sheet: a grid of panels on shared axes, with title, axis names and legend. Panels hold curves over layers, or marks over
//! named levels or a logarithmic axis.
//!
//! All panels (or all panels of a column) share a value axis, logarithmic by default: masses span decades, and ratios 2 and 1/2 are
//! symmetric. Zeros interrupt a curve and get a ring at the axis foot. Layer axes are per panel, since models may differ.
//!
//! Linear layers form a second line, thinner with hollow markers, on a grey band; windowed layers get a panel of their own. The sheet adds
//! these and the legend entries for bands, single cases and clipping by itself. It also drops empty panels and breaks wide rows.

use super::Figure;
use super::axis::{Range, layer_ticks, linear_stretches, value_ticks, write_value};
use super::canvas::{
    Head, LABEL, NOTE, TICK, ValueAxis, columns_for, fitted, is_sized, margin, room, text_width, width_for,
    wrapped, write, write_middle,
};
use super::drawing::{Drawing, Form};
use super::legend::Legend;
use super::plot::{BAND, Drawn, NOISE_BAND, Nth, Plane, SAMPLE, sample};
pub use super::plot::{Mark, Plain, Sample};
use super::style::{GREY, GRID, LINEAR, Marker, Stroke, UNIT};
use palimpsest_analysis::lens::{Layer, LayerKind, Point, Series};
use palimpsest_data::ground::order::sorted_unique;

#[derive(Debug, Clone, Default)]
pub struct Sheet {
    pub title: String,
    pub origin: String,
    pub y_label: String,
    /// Values are shares, written as percentages.
    pub percent: bool,
    /// Horizontal line in every panel.
    pub reference: Option<f64>,
    /// Row by row; `None` if empty, and the others close up.
    pub rows: Vec<Vec<Option<Panel>>>,
    /// Shared legend, below the panels.
    pub legend: Vec<(Sample, String)>,
    /// Plot size of a panel in pixels, unless a width is stated.
    pub panel: (i32, i32),
    /// Maximum factor by which linear layers may extend the value axis beyond softmax layers. A linear layer may have almost no share,
    /// which would flatten all others.
    pub reach: f64,
    pub units: &'static str,
    /// Per-column axes; empty if all share one.
    pub axes: Vec<ColumnAxis>,
    pub range: Option<Range>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColumnAxis {
    pub reference: Option<f64>,
    /// Ends of a linear axis; `None` for logarithmic.
    pub linear: Option<(f64, f64)>,
}

#[derive(Debug, Clone, Default)]
pub struct Panel {
    pub title: String,
    /// Under the title: the panel's curves, or a note such as `n = 12`.
    pub legend: Vec<(Option<Stroke>, String)>,
    /// Curves over layers, in drawing order.
    pub lines: Vec<(Stroke, Series)>,
    /// Drawn below the curves, in order.
    pub marks: Vec<Mark>,
    pub x: Across,
    /// Written once if shared by all panels.
    pub x_label: String,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub enum Across {
    #[default]
    Layers,
    /// Names at 0, 1, 2 ...
    Names(Vec<String>),
    /// Ends of a logarithmic axis; marks use log10 coordinates.
    Log(f64, f64),
}

struct Span {
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

impl Panel {
    pub fn of_layers(
        title: String,
        legend: Vec<(Option<Stroke>, String)>,
        lines: Vec<(Stroke, Series)>,
    ) -> Self {
        Panel { title, legend, lines, x_label: "layer".to_owned(), ..Panel::default() }
    }

    fn span(&self, layers: &[Layer], width: i32) -> Span {
        match &self.x {
            Across::Layers => {
                let indices: Vec<usize> = layers.iter().map(|layer| layer.index).collect();
                let end = |layer: Option<&usize>| layer.copied().unwrap_or(0) as f64;
                let (first, last) = (end(indices.first()), end(indices.last()));
                let pad = ((last - first) * 0.02).max(0.25);
                let ticks = layer_ticks(&indices).into_iter().map(|tick| (tick as f64, tick.to_string()));
                Span { low: first - pad, high: last + pad, ticks: ticks.collect() }
            }
            Across::Names(names) => {
                let room = if names.len() > 1 { width / 2 } else { width };
                let ticks = names.iter().enumerate().map(|(at, name)| (at as f64, fitted(name, 10, room)));
                Span { low: -0.5, high: names.len() as f64 - 0.5, ticks: ticks.collect() }
            }
            Across::Log(low, high) => {
                let ticks = value_ticks(*low, *high).into_iter();
                let ticks = ticks.map(|tick| (tick.log10(), write_value(tick, false))).collect();
                Span { low: low.log10(), high: high.log10(), ticks }
            }
        }
    }
}

/// Height of the layer ticks.
const X_AXIS: i32 = 20;
/// Width of the value ticks.
const Y_AXIS: i32 = 42;
const GAP: i32 = 14;
const TITLE: i32 = 17;
const LINE: i32 = 17;
/// Minimum plot width, with a stated width.
const LEAST: i32 = 105;

pub(super) const LINEAR_LEGEND: &str = "linear layer: share of |weight|";

type Placed = (usize, Panel);

/// Arranges panels into rows of at most `most` without holes: unchanged if possible, else each row broken evenly, else all reflowed. A
/// single column is reflowed side by side.
fn arrange<T>(rows: Vec<Vec<Option<T>>>, most: usize) -> Vec<Vec<T>> {
    let most = most.max(1);
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let whole = rows.iter().all(|row| row.len() == columns && row.iter().all(Option::is_some));
    let panels = |row: Vec<Option<T>>| row.into_iter().flatten().collect::<Vec<T>>();
    let balanced = |count: usize| columns_for(count, most);
    if whole && columns > 1 && (columns <= most || columns % balanced(columns) == 0) {
        let each = balanced(columns);
        return rows.into_iter().flat_map(|row| broken(panels(row), each)).collect();
    }
    let all: Vec<T> = rows.into_iter().flat_map(panels).collect();
    let each = balanced(all.len());
    broken(all, each)
}

fn broken<T>(panels: Vec<T>, each: usize) -> Vec<Vec<T>> {
    let mut rows: Vec<Vec<T>> = Vec::new();
    for panel in panels {
        match rows.last_mut() {
            Some(row) if row.len() < each => row.push(panel),
            _ => rows.push(vec![panel]),
        }
    }
    rows
}

/// Positions and sizes of panels, in pixels.
struct Plan {
    rows: Vec<Vec<Placed>>,
    heads: Vec<i32>,
    plot: (i32, i32),
    width: i32,
    /// Shared name of the x axis; `None` if panels differ.
    x_label: Option<String>,
}

impl Plan {
    fn cell(&self) -> i32 {
        self.plot.0 + Y_AXIS + GAP
    }

    fn row_height(&self, row: usize) -> i32 {
        let label = if self.x_label.is_none() { LINE } else { 0 };
        self.heads[row] + self.plot.1 + X_AXIS + GAP + label
    }

    fn height(&self) -> i32 {
        (0..self.rows.len()).map(|row| self.row_height(row)).sum()
    }
}

fn panel_title(panel: &Panel, width: i32) -> Vec<String> {
    if panel.title.is_empty() { Vec::new() } else { wrapped(&panel.title, 12, width + GAP) }
}

fn panel_legend(panel: &Panel, width: i32) -> Legend<Option<Stroke>> {
    let entries = panel.legend.iter().flat_map(|(stroke, text)| match stroke {
        Some(_) => vec![(*stroke, SAMPLE + 6, fitted(text, NOTE.size, width - SAMPLE - 6))],
        None => wrapped(text, NOTE.size, width).into_iter().map(|line| (None, 0, line)).collect(),
    });
    Legend::of(entries, NOTE, [12, 15], width + 12)
}

impl Sheet {
    pub fn figure(self, name: impl Into<String>, caption: String, csv: Vec<u8>) -> Figure {
        let drawing = self.draw();
        Figure::of(name, self.title, caption, drawing, csv)
    }

    fn draw(&self) -> Drawing {
        let plan = self.plan();
        if plan.rows.is_empty() {
            return self.nothing(plan.width);
        }
        let width = plan.width;
        let ranges = self.ranges();
        let head = Head::of(&self.title, &self.origin, width);
        let y_label = ValueAxis::of(&self.y_label, plan.height() - GAP, width);
        let legend = Legend::of(self.legend_items(&ranges), LABEL, [22, LINE], width - 2 * margin());
        let top = head.height() + y_label.above();
        let bottom = top + plan.height();
        let left = margin() + ValueAxis::beside(&self.y_label);
        let area = &mut Drawing::of((width, bottom + 12 + legend.height() + margin()));
        head.draw(area);
        y_label.draw(area, head.height(), top + plan.height() / 2);
        let mut y = top;
        for (row, panels) in plan.rows.iter().enumerate() {
            for (column, (axis, panel)) in panels.iter().enumerate() {
                let at = (left + column as i32 * plan.cell(), y);
                self.panel(area, panel, (at, plan.heads[row], plan.plot), range_of(&ranges, *axis));
                if plan.x_label.is_none() {
                    let (middle, below) = (at.0 + Y_AXIS + plan.plot.0 / 2, y + plan.row_height(row));
                    let name = fitted(&panel.x_label, LABEL.size, plan.cell());
                    write(area, &name, (middle, below - GAP - LINE), LABEL.centred());
                }
            }
            y += plan.row_height(row);
        }
        let columns = plan.rows.iter().map(Vec::len).max().unwrap_or(1) as i32;
        let middle = left + (columns * plan.cell() + Y_AXIS - GAP) / 2;
        let x_label = plan.x_label.as_deref().unwrap_or_default();
        write(area, x_label, (middle, bottom - 11), LABEL.centred());
        let centred = |total: i32| ((width - total) / 2).max(margin());
        legend.draw(area, centred, bottom + 10, |area, shown, (x, y)| sample(area, *shown, (x, y + 7)));
        std::mem::take(area)
    }

    fn nothing(&self, width: i32) -> Drawing {
        let head = Head::of(&self.title, &self.origin, width);
        let lines = wrapped("There is nothing to draw; the caption says why.", 12, width - 2 * margin());
        let top = head.height() + margin();
        let mut area = Drawing::of((width, top + lines.len() as i32 * 15 + margin()));
        head.draw(&mut area);
        for (at, line) in lines.iter().enumerate() {
            write(&mut area, line, (margin(), top + at as i32 * 15), LABEL);
        }
        area
    }

    fn plan(&self) -> Plan {
        let across = |columns: i32, plot: i32| {
            2 * margin() + ValueAxis::beside(&self.y_label) + columns * (plot + Y_AXIS + GAP)
                - if columns > 0 { GAP - 8 } else { 0 }
        };
        let natural = self.panel.0;
        let narrowest = if is_sized() { LEAST.min(natural) } else { natural };
        let most = (1..=24).take_while(|columns| across(*columns, narrowest) <= room()).count();
        let placed = |row: &Vec<Option<Panel>>| -> Vec<Option<Placed>> {
            row.iter()
                .enumerate()
                .flat_map(|(column, panel)| match panel {
                    Some(panel) => match by_reach(panel) {
                        none if none.is_empty() => vec![None],
                        parts => parts.into_iter().map(|one| Some((column, one))).collect(),
                    },
                    None => vec![None],
                })
                .collect()
        };
        let rows = arrange(self.rows.iter().map(placed).collect(), most);
        let columns = rows.iter().map(Vec::len).max().unwrap_or(1).max(1) as i32;
        let width = width_for(across(columns, natural));
        let fitting = (width - across(columns, 0)) / columns;
        let plot = if is_sized() { fitting.min(2 * natural) } else { natural.min(fitting) };
        let ratio = f64::from(self.panel.1) / f64::from(natural.max(1));
        // Narrow panels keep some height; wide ones do not fill the page.
        let ratio = if plot < 160 { 0.75 } else { ratio.min(0.6) };
        let high = (f64::from(plot) * ratio).round() as i32;
        let plot = (plot, if is_sized() { high.clamp(80, self.panel.1) } else { self.panel.1 });
        let head = |row: &Vec<Placed>| {
            let legend = row.iter().map(|(_, panel)| panel_legend(panel, plot.0).height()).max().unwrap_or(0);
            let titles = row.iter().map(|(_, panel)| panel_title(panel, plot.0).len() as i32).max();
            let titles = titles.filter(|lines| *lines > 0).map_or(0, |lines| TITLE + (lines - 1) * 15);
            legend + titles + 5
        };
        let heads = rows.iter().map(head).collect();
        let labels = sorted_unique(rows.iter().flatten().map(|(_, panel)| panel.x_label.clone()));
        let x_label = <[String; 1]>::try_from(labels).ok().map(|[label]| label);
        Plan { rows, heads, plot, width, x_label }
    }

    fn panel(
        &self,
        area: &mut Drawing,
        panel: &Panel,
        ((left, top), head, (width, height)): ((i32, i32), i32, (i32, i32)),
        (y, reference): (&Range, Option<f64>),
    ) {
        let left = left + Y_AXIS;
        for (line, text) in panel_title(panel, width).iter().enumerate() {
            write(area, text, (left, top + line as i32 * 15), LABEL);
        }
        let legend = panel_legend(panel, width);
        let above = top + head - 5 - legend.height();
        legend.draw(
            area,
            |_| left,
            above,
            |area, stroke, (x, y)| {
                if let Some(stroke) = stroke {
                    sample(area, Sample::Line(*stroke), (x, y + 7));
                }
            },
        );
        let layers = layers(panel.lines.iter().map(|(_, series)| series));
        let Span { low, high, ticks } = panel.span(&layers, width);
        let (x0, y0) = (left * UNIT, (top + head) * UNIT);
        let (x1, y1) = (x0 + width * UNIT, y0 + height * UNIT);
        let plane = Plane { corners: [(x0, y0), (x1, y1)], x: (low, high), y };
        for (from, to) in linear_stretches(&layers) {
            let (from, to) = (plane.across(from.max(low)), plane.across(to.min(high)));
            area.fill(Form::Rectangle([(from, y0), (to, y1)]), LINEAR);
        }
        let zero = y.zero.map(|zero| (zero, "0".to_owned()));
        let values = y.ticks.iter().map(|tick| (*tick, write_value(*tick, self.percent)));
        for (tick, written) in zero.into_iter().chain(values) {
            let at = plane.up(y.place(tick));
            area.line([(x0, at), (x1, at)], GRID, UNIT * 3 / 4);
            area.line([(x0 - 3 * UNIT, at), (x0, at)], GREY, UNIT);
            write_middle(area, &written, (x0 - 5 * UNIT, at), TICK.right());
        }
        let mut free = i32::MIN;
        // The last tick is always labelled; an earlier one that would touch it is not.
        let half = |name: &str| (text_width(name, 10) * UNIT) / 2 + UNIT;
        let end = ticks.last().map_or(i32::MAX, |(last, name)| plane.across(*last) - half(name));
        for (nth, (tick, name)) in ticks.iter().enumerate() {
            let at = plane.across(*tick);
            if matches!(panel.x, Across::Log(..)) {
                area.line([(at, y0), (at, y1)], GRID, UNIT * 3 / 4);
            }
            area.line([(at, y1), (at, y1 + 3 * UNIT)], GREY, UNIT);
            let is_last = nth + 1 == ticks.len();
            if is_last || (at - half(name) >= free && at + half(name) <= end) {
                write(area, name, (at / UNIT, y1 / UNIT + 5), TICK.centred());
                free = at + half(name);
            }
        }
        area.line([(x0, y0), (x0, y1), (x1, y1)], GREY, UNIT);
        if let Some(reference) = reference.filter(|r| (y.low..=y.high).contains(r)) {
            let at = plane.up(y.place(reference));
            area.line([(x0, at), (x1, at)], GREY, UNIT);
        }
        panel.marks.iter().for_each(|mark| plane.mark(area, mark));
        let kinds = [LayerKind::Linear, LayerKind::Windowed, LayerKind::Softmax];
        let marked = panel.lines.iter().filter(|(stroke, _)| !stroke.is_noise()).count();
        let mut before = 0;
        let nth: Vec<Nth> = (panel.lines.iter())
            .map(|(stroke, _)| {
                let most = (width / 24).clamp(3, 12) as usize;
                let nth = Nth { at: before, of: marked.max(1), most };
                before += usize::from(!stroke.is_noise());
                if stroke.is_noise() { Nth { at: 0, of: 1, ..nth } } else { nth }
            })
            .collect();
        let lines = || {
            let of_kind = |kind| panel.lines.iter().zip(&nth).map(move |(line, nth)| (kind, line, *nth));
            kinds.into_iter().flat_map(of_kind)
        };
        for (kind, (stroke, series), _) in lines() {
            plane.band(area, *stroke, series, kind);
        }
        for (kind, (stroke, series), nth) in lines() {
            plane.cases_and_cuts(area, *stroke, series, kind, nth);
        }
        for (kind, (stroke, series), nth) in lines() {
            plane.curve(area, *stroke, series, kind, nth);
        }
    }

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

    /// Value axis and reference line, shared or per column.
    fn ranges(&self) -> Vec<(Range, Option<f64>)> {
        if let Some(range) = &self.range {
            return vec![(range.clone(), self.reference)];
        }
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

    fn legend_items(&self, ranges: &[(Range, Option<f64>)]) -> Vec<(Sample, i32, String)> {
        let grey = Stroke::solid(GREY, Marker::Circle);
        let linear = layers(self.series()).iter().any(|layer| layer.is_linear());
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
            (linear, Sample::Line(grey.linear()), LINEAR_LEGEND),
            (drawn.bands, Sample::Band(BAND), "95% band"),
            (drawn.noise_bands, Sample::Band(NOISE_BAND), "band of a noise baseline"),
            (drawn.cases, Sample::Cases, single.as_str()),
            (drawn.zeros, Sample::Zero, "exactly 0"),
            (drawn.cut, Sample::Cut, "goes on beyond the axis"),
        ];
        let marks = marks.into_iter().filter(|(shown, ..)| *shown);
        let all = self.legend.iter().cloned().chain(marks.map(|(_, shown, text)| (shown, text.to_owned())));
        let most = room() - 2 * margin() - SAMPLE - 29;
        all.map(|(shown, text)| (shown, SAMPLE + 7, fitted(&text, LABEL.size, most))).collect()
    }
}

/// Splits a panel into windowed and full-attention layers, since lines through both would overlap; drops panels without values.
fn by_reach(panel: &Panel) -> Vec<Panel> {
    let layers = layers(panel.lines.iter().map(|(_, series)| series));
    let windowed = |kind: LayerKind| kind == LayerKind::Windowed;
    let (some, all) = (layers.iter().any(|l| windowed(l.kind)), layers.iter().all(|l| windowed(l.kind)));
    let with_data = |panel: &Panel| {
        let mut series = panel.lines.iter().map(|(_, series)| series);
        !panel.marks.is_empty()
            || series.any(|series| series.points.iter().any(|point| point.value.is_some()))
    };
    if !some || all {
        return if with_data(panel) { vec![panel.clone()] } else { Vec::new() };
    }
    let part = |name: &str, wanted: &dyn Fn(&Point) -> bool| {
        let lines = panel.lines.iter().map(|(stroke, series)| {
            let points = series.points.iter().filter(|point| wanted(point)).cloned().collect();
            (*stroke, Series { points, ..series.clone() })
        });
        let mut legend = panel.legend.clone();
        legend.insert(0, (None, name.to_owned()));
        Panel::of_layers(panel.title.clone(), legend, lines.collect())
    };
    let mut parts = vec![
        part("full layers", &|point| !windowed(point.layer.kind)),
        part("windowed layers", &|point| windowed(point.layer.kind)),
    ];
    parts.retain(with_data);
    parts
}

fn range_of(ranges: &[(Range, Option<f64>)], column: usize) -> (&Range, Option<f64>) {
    let (range, reference) = ranges.get(column).unwrap_or(&ranges[0]);
    (range, *reference)
}

fn layers<'a>(series: impl Iterator<Item = &'a Series>) -> Vec<Layer> {
    sorted_unique(series.flat_map(|one| one.points.iter().map(|point| point.layer)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_analysis::lens::{Group, Scale, Statistic};

    #[test]
    fn windowed_layers_have_a_panel_beside_the_others() {
        let points = |kinds: &[LayerKind]| -> Vec<Point> {
            let point = |(index, kind): (usize, &LayerKind)| Point {
                layer: Layer { index, kind: *kind },
                n: 1,
                undefined: 0,
                value: Some(1.0),
                band: None,
                cases: vec![1.0],
                signed: None,
            };
            kinds.iter().enumerate().map(point).collect()
        };
        let panel = |kinds: &[LayerKind]| {
            let (statistic, scale, probes) = (Statistic::RatioOfMeans, Scale::Mass, "all".to_owned());
            let points = points(kinds);
            let series = Series { group: Group::all(), probes, statistic, scale, n: 1, points };
            let lines = vec![(Stroke::solid(GREY, Marker::Circle), series)];
            Panel::of_layers("T1".to_owned(), Vec::new(), lines)
        };
        let (full, windowed) = (LayerKind::Softmax, LayerKind::Windowed);
        let layers = |panel: &Panel| -> Vec<usize> {
            panel.lines[0].1.points.iter().map(|point| point.layer.index).collect()
        };
        let parts = by_reach(&panel(&[windowed, windowed, full, windowed, full]));
        let names: Vec<&str> = parts.iter().map(|part| part.legend[0].1.as_str()).collect();
        assert_eq!(names, ["full layers", "windowed layers"]);
        let mut hidden = panel(&[windowed, full]);
        hidden.lines[0].1.points[0].value = None;
        assert_eq!(by_reach(&hidden).len(), 1, "a panel without a value is left out");
        assert_eq!(parts.iter().map(layers).collect::<Vec<_>>(), [vec![2, 4], vec![0, 1, 3]]);
        assert_eq!(by_reach(&panel(&[full, full])).len(), 1);
        assert_eq!(by_reach(&panel(&[windowed])).len(), 1);
    }

    #[test]
    fn rows_have_no_holes_and_are_no_wider_than_there_is_room() {
        let rows = |text: &str| -> Vec<Vec<Option<char>>> {
            text.lines().map(|line| line.chars().map(|c| (c != '.').then_some(c)).collect()).collect()
        };
        let laid = |text: &str, most: usize| -> String {
            arrange(rows(text), most)
                .iter()
                .map(|row| row.iter().collect::<String>())
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert_eq!(laid("abc\ndef", 4), "abc\ndef");
        assert_eq!(laid("abcd\nefgh", 3), "ab\ncd\nef\ngh");
        assert_eq!(laid("abcde\nfghij", 3), "abc\ndef\nghi\nj");
        assert_eq!(laid("abcd\ne.gh\n....", 4), "abcd\negh");
        assert_eq!(laid("a.\n.b", 4), "ab");
        assert_eq!(laid("abc", 1), "a\nb\nc");
        assert_eq!(laid("a\nb\nc\nd\ne", 3), "abc\nde");
        assert_eq!(laid("", 3), "");
    }
}
