//! Numbers with 95% intervals, one per row; single units as dots if too few for an interval.

use super::Figure;
use super::axis::{round_ticks, write_value};
use super::plot::Sample;
use super::rows::{Row, RowMark, Rows};
use super::style::Colour;
use palimpsest_analysis::lens::band::Estimate;
use palimpsest_data::ground::csv::CsvTable;

#[derive(Debug, Clone)]
pub(super) struct Line {
    pub group: String,
    pub label: String,
    /// With n = 0, the number is no mean.
    pub estimate: Estimate,
    pub colour: Colour,
    /// Extra mark, such as chance level.
    pub mark: Option<f64>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Intervals {
    pub axis: String,
    pub mark: &'static str,
    pub ends: (f64, f64),
    pub percent: bool,
    pub lines: Vec<Line>,
}

impl Intervals {
    pub fn figure(self, name: &str, (title, origin): (String, &str), caption: String) -> Figure {
        let csv = self.csv();
        self.rows(title, origin.to_owned()).figure(name, caption, csv)
    }

    pub fn rows(self, title: String, origin: String) -> Rows {
        let (low, high) = self.ends();
        let row = |line: &Line| Row {
            group: line.group.clone(),
            label: line.label.clone(),
            note: note(line, self.percent, high - low),
            marks: marks(line),
        };
        let ticks = round_ticks(low, high).into_iter().map(|tick| (tick, write_value(tick, self.percent)));
        let legend = (!self.mark.is_empty()).then(|| (Sample::Upright, self.mark.to_owned()));
        Rows {
            title,
            origin,
            ends: (low, high),
            ticks: ticks.collect(),
            rows: self.lines.iter().map(row).collect(),
            legend: legend.into_iter().collect(),
            axis: self.axis,
        }
    }

    fn ends(&self) -> (f64, f64) {
        let values = self.lines.iter().flat_map(|line| {
            let Estimate { value, band, each, .. } = &line.estimate;
            let band = band.iter().flat_map(|(low, high)| [*low, *high]);
            value.iter().copied().chain(band).chain(each.iter().copied()).chain(line.mark).collect::<Vec<_>>()
        });
        let (low, high) =
            values.filter(|x| x.is_finite()).fold(self.ends, |(low, high), x| (low.min(x), high.max(x)));
        let pad = (high - low).max(1e-9) * 0.04;
        (if low < 0.0 { low - pad } else { low }, high + pad)
    }

    fn csv(&self) -> Vec<u8> {
        CsvTable::of(&self.lines)
            .column("group", |line| &line.group)
            .column("line", |line| &line.label)
            .column("n", |line| line.estimate.n)
            .optional("value", |line| line.estimate.value)
            .optional("low", |line| line.estimate.band.map(|(low, _)| low))
            .optional("high", |line| line.estimate.band.map(|(_, high)| high))
            .optional("mark", |line| line.mark)
            .bytes()
    }
}

fn marks(line: &Line) -> Vec<RowMark> {
    let Estimate { value, band, each, .. } = &line.estimate;
    let mark = line.mark.map(RowMark::Upright);
    let band = band.map(|(low, high)| RowMark::Interval([low, high], line.colour));
    let each = each.iter().map(|value| RowMark::Dot(*value, 2, line.colour.mix(0.45)));
    let value = value.map(|value| RowMark::Dot(value, 4, line.colour.into()));
    mark.into_iter().chain(band).chain(each).chain(value).collect()
}

/// Number and sample size as text, rounded to a hundredth of the axis length or finer.
fn note(line: &Line, percent: bool, length: f64) -> String {
    let Estimate { n, value, band, .. } = &line.estimate;
    let digits = (2.0 - length.max(1e-9).log10().ceil()).clamp(2.0, 6.0) as usize;
    // Drop the sign of a rounded zero.
    let write = |x: f64| match percent {
        true => format!("{:.0}%", 100.0 * x),
        false => format!("{:.digits$}", if x.abs() < 0.5 * 10f64.powi(-(digits as i32)) { 0.0 } else { x }),
    };
    match (value, band) {
        (Some(value), Some((low, high))) => {
            format!("{} [{}, {}]  n = {n}", write(*value), write(*low), write(*high))
        }
        (Some(value), None) if *n == 0 => write(*value),
        (Some(value), None) => format!("{}  n = {n}", write(*value)),
        (None, _) => "none".to_owned(),
    }
}
