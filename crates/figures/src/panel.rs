//! A panel of a sheet: curves over layers, marks over named levels, numbers or rows, or the cells of a map.

use super::axis::{layer_ticks, round_ticks, value_ticks, write_value};
use super::canvas::{LABEL, fitted, wrapped};
use super::columns::Column;
use super::legend::Legend;
use super::plot::{Mark, Sample};
use super::style::Stroke;
use palimpsest_analysis::lens::{Layer, LayerKind, Point, Series};
use palimpsest_data::ground::order::sorted_unique;

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
    /// Place in the sheet's value axes.
    pub axis: usize,
    pub rows: Rows,
}

#[derive(Debug, Clone, Default)]
pub enum Across {
    #[default]
    Layers,
    /// Names at 0, 1, 2 ...
    Names(Vec<String>),
    /// Ends of a logarithmic axis; marks use log10 coordinates.
    Log(f64, f64),
    /// Ends of a linear axis.
    Linear(f64, f64),
    /// A map.
    Columns(Vec<Column>),
}

/// Named rows from the bottom in place of a value axis; row `at` extends from `at` to `at + 1`.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    pub names: Vec<String>,
    /// At the right of each row; none in a map.
    pub notes: Vec<String>,
    /// Layer kinds, for maps with more than one.
    pub kinds: Vec<LayerKind>,
}

/// Most lines of a panel with bands, and with single cases.
pub(super) const BANDS: usize = 3;
pub(super) const CASES: usize = 2;
/// Maximum width of a panel's text to the right of its plot: the last panel of a row has no more room.
pub(super) const BETWEEN: i32 = 8;

impl Panel {
    /// Curves over layers. Of many lines no bands and single cases are drawn, of baselines never: tables have them.
    pub fn of_layers(
        title: String,
        legend: Vec<(Option<Stroke>, String)>,
        mut lines: Vec<(Stroke, Series)>,
    ) -> Self {
        let marked = lines.iter().filter(|(stroke, _)| !stroke.is_noise()).count();
        for (stroke, series) in &mut lines {
            for point in &mut series.points {
                point.band = point.band.filter(|_| marked <= BANDS && !stroke.is_noise());
                if marked > CASES || stroke.is_noise() {
                    point.cases.clear();
                }
            }
        }
        Panel { title, legend, lines, x_label: "layer".to_owned(), ..Panel::default() }
    }

    pub(super) fn titles(&self, width: i32) -> Vec<String> {
        wrapped(&self.title, LABEL.size, width + BETWEEN)
    }

    pub(super) fn legend(&self, width: i32) -> Legend {
        let entries = self.legend.iter().map(|(stroke, text)| (stroke.map(Sample::Line), text.clone()));
        Legend::of_panel(entries, width)
    }

    /// Columns of a map; empty for other panels.
    pub fn columns(&self) -> &[Column] {
        if let Across::Columns(columns) = &self.x { columns } else { &[] }
    }

    pub fn columns_mut(&mut self) -> Option<&mut Vec<Column>> {
        if let Across::Columns(columns) = &mut self.x { Some(columns) } else { None }
    }

    pub(super) fn layers(&self) -> Vec<Layer> {
        sorted_unique(self.lines.iter().flat_map(|(_, one)| one.points.iter().map(|point| point.layer)))
    }

    fn is_empty(&self) -> bool {
        let values = |(_, one): &(Stroke, Series)| one.points.iter().any(|point| point.value.is_some());
        self.marks.is_empty() && self.rows.names.is_empty() && !self.lines.iter().any(values)
    }

    /// A panel of the full-attention layers, or of all, and one of the windowed layers where there are both, since lines through both would
    /// overlap; none without values.
    pub(super) fn by_reach(&self) -> [Option<Panel>; 2] {
        let windowed = |point: &Point| point.layer.kind == LayerKind::Windowed;
        let points = || self.lines.iter().flat_map(|(_, series)| &series.points);
        let part = |name: &str, of_windows: bool| {
            let mut part = self.clone();
            part.title = format!("{} · {name}", self.title).trim_start_matches(" · ").to_owned();
            for (_, series) in &mut part.lines {
                series.points.retain(|point| windowed(point) == of_windows);
            }
            part
        };
        let parts = match points().any(windowed) && !points().all(windowed) {
            true => [Some(part("full layers", false)), Some(part("windowed layers", true))],
            false => [Some(self.clone()), None],
        };
        parts.map(|part| part.filter(|part| !part.is_empty()))
    }

    /// Ends and ticks of the x axis.
    pub(super) fn span(&self, width: i32, percent: bool) -> ((f64, f64), Vec<(f64, String)>) {
        match &self.x {
            Across::Layers => {
                let indices: Vec<usize> = self.layers().iter().map(|layer| layer.index).collect();
                let end = |layer: Option<&usize>| layer.copied().unwrap_or(0) as f64;
                let (first, last) = (end(indices.first()), end(indices.last()));
                let pad = ((last - first) * 0.02).max(0.25);
                let ticks = layer_ticks(&indices).into_iter().map(|tick| (tick as f64, tick.to_string()));
                ((first - pad, last + pad), ticks.collect())
            }
            Across::Names(names) => {
                let room = if names.len() > 1 { width / 2 } else { width };
                let ticks = names.iter().enumerate().map(|(at, name)| (at as f64, fitted(name, 10, room)));
                ((-0.5, names.len() as f64 - 0.5), ticks.collect())
            }
            Across::Log(low, high) => {
                let ticks = value_ticks(*low, *high).into_iter();
                (
                    (low.log10(), high.log10()),
                    ticks.map(|at| (at.log10(), write_value(at, percent))).collect(),
                )
            }
            Across::Linear(low, high) => {
                let ticks = round_ticks(*low, *high).into_iter();
                ((*low, *high), ticks.map(|at| (at, write_value(at, percent))).collect())
            }
            Across::Columns(_) => ((0.0, 1.0), Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::{GREY, Marker};
    use palimpsest_analysis::lens::{Group, Scale, Statistic};

    #[test]
    fn windowed_layers_have_a_panel_beside_the_others() {
        let panel = |kinds: &[LayerKind]| {
            let point = |(index, kind): (usize, &LayerKind)| Point {
                layer: Layer { index, kind: *kind },
                n: 1,
                undefined: 0,
                value: Some(1.0),
                band: None,
                cases: vec![1.0],
                signed: None,
            };
            let points = kinds.iter().enumerate().map(point).collect();
            let (statistic, scale, probes) = (Statistic::RatioOfMeans, Scale::Mass, "all".to_owned());
            let series = Series { group: Group::all(), probes, statistic, scale, n: 1, points };
            let lines = vec![(Stroke::solid(GREY, Marker::Circle), series)];
            Panel::of_layers("T1".to_owned(), Vec::new(), lines)
        };
        let (full, windowed) = (LayerKind::Softmax, LayerKind::Windowed);
        let layers = |panel: &Panel| -> Vec<usize> { panel.layers().iter().map(|one| one.index).collect() };
        let by_reach = |panel: &Panel| panel.by_reach().into_iter().flatten().collect::<Vec<_>>();
        let parts = by_reach(&panel(&[windowed, windowed, full, windowed, full]));
        let names: Vec<&str> = parts.iter().map(|part| part.title.as_str()).collect();
        assert_eq!(names, ["T1 · full layers", "T1 · windowed layers"]);
        assert_eq!(parts.iter().map(layers).collect::<Vec<_>>(), [vec![2, 4], vec![0, 1, 3]]);
        let mut hidden = panel(&[windowed, full]);
        hidden.lines[0].1.points[0].value = None;
        assert_eq!(by_reach(&hidden).len(), 1, "a panel without a value is left out");
        assert_eq!(by_reach(&panel(&[full, full])).len(), 1);
        assert_eq!(by_reach(&panel(&[windowed])).len(), 1);
    }
}
