//! Named rows on one axis: bars, or numbers with 95% intervals; single units as dots if too few for an interval.

use super::axis::{signed, spanning};
use super::sheet::{Across, Mark, Panel, Plain, Sample, Sheet};
use super::style::{Colour, INK, UNIT};
use super::{Figure, Origin};
use palimpsest_analysis::lens::band::Estimate;
use palimpsest_data::ground::csv::CsvTable;

/// A panel for each group of adjacent rows. `words`: a row's group, name and note; `marks` of a row at its middle.
pub(super) fn panels<T>(
    rows: &[T],
    (low, high): (f64, f64),
    x_label: &str,
    words: impl Fn(&T) -> [String; 3],
    marks: impl Fn(&T, f64) -> Vec<Mark>,
) -> Vec<Vec<Panel>> {
    let panel = |rows: &[T]| {
        let (x, x_label) = (Across::Linear(low, high), x_label.to_owned());
        let mut panel = Panel { x, x_label, ..Panel::default() };
        for (at, row) in rows.iter().rev().enumerate() {
            let [group, name, note] = words(row);
            panel.title = group;
            panel.rows.names.push(name);
            panel.rows.notes.push(note);
            panel.marks.extend(marks(row, at as f64 + 0.5));
        }
        panel
    };
    rows.chunk_by(|one, next| words(one)[0] == words(next)[0]).map(|group| vec![panel(group)]).collect()
}

/// Length of the axis in pixels.
pub(super) const LENGTH: (i32, i32) = (380, 0);

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
    /// With a table of the lines.
    pub fn figure(&self, name: &str, (title, origin): (String, &Origin), caption: String) -> Figure {
        let csv = CsvTable::of(&self.lines)
            .column("group", |line| &line.group)
            .column("line", |line| &line.label)
            .column("n", |line| line.estimate.n)
            .optional("value", |line| line.estimate.value)
            .optional("low", |line| line.estimate.band.map(|(low, _)| low))
            .optional("high", |line| line.estimate.band.map(|(_, high)| high))
            .optional("mark", |line| line.mark);
        self.sheet().headed(origin, title).figure(name, caption, csv.bytes())
    }

    pub fn sheet(&self) -> Sheet {
        let values = self.lines.iter().flat_map(|line| {
            let Estimate { value, band, each, .. } = &line.estimate;
            let band = band.iter().flat_map(|(low, high)| [*low, *high]);
            value.iter().copied().chain(band).chain(each.iter().copied()).chain(line.mark)
        });
        let (low, high) = spanning(self.ends, values);
        let pad = (high - low).max(1e-9) * 0.04;
        let ends = (if low < 0.0 { low - pad } else { low }, high + pad);
        let words = |line: &Line| {
            let note = note(&line.estimate, self.percent);
            [line.group.clone(), line.label.clone(), note]
        };
        Sheet {
            percent: self.percent,
            rows: panels(&self.lines, ends, &self.axis, words, Line::marks),
            legend: match self.mark {
                "" => Vec::new(),
                mark => vec![(Sample::Upright, mark.to_owned())],
            },
            panel: LENGTH,
            ..Sheet::default()
        }
    }
}

impl Line {
    /// Extra mark, interval, single units, number.
    fn marks(&self, y: f64) -> Vec<Mark> {
        let Estimate { value, band, each, .. } = &self.estimate;
        let line = |places, ink, width| Mark::Path(places, Plain { ink, width, dash: None });
        let mark = self.mark.map(|at| line(vec![(at, y - 0.36), (at, y + 0.36)], INK.into(), UNIT * 3 / 2));
        let band = band.map(|(low, high)| line(vec![(low, y), (high, y)], self.colour.into(), UNIT * 2));
        let each = each.iter().map(|value| Mark::Dot((*value, y), 2 * UNIT, self.colour.mix(0.45)));
        let value = value.map(|value| Mark::Dot((value, y), 4 * UNIT, self.colour.into()));
        mark.into_iter().chain(band).chain(each).chain(value).collect()
    }
}

/// Number and sample size as text, with two significant digits of the interval's length, else of the number, or more.
fn note(Estimate { n, value, band, .. }: &Estimate, percent: bool) -> String {
    let length = band.map(|(low, high)| high - low).filter(|length| *length > 0.0);
    let size = length.or(*value).unwrap_or(0.0).abs();
    // Nothing is left of smaller ones.
    let digits = if size < 5e-7 { 0 } else { (1.0 - size.log10().floor()).clamp(2.0, 6.0) as usize };
    // Drop the sign of a rounded zero.
    let write = |x: f64| match percent {
        true => signed(format!("{:.0}%", 100.0 * x)),
        false => {
            signed(format!("{:.digits$}", if x.abs() < 0.5 * 10f64.powi(-(digits as i32)) { 0.0 } else { x }))
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawing::Form;
    use crate::look::{Look, Size};

    #[test]
    fn small_numbers_have_two_significant_digits_of_their_interval() {
        let of = |n, value, band| note(&Estimate { n, value: Some(value), band, each: Vec::new() }, false);
        assert_eq!(of(10, 0.00523, Some((0.00241, 0.00862))), "0.0052 [0.0024, 0.0086]  n = 10");
        assert_eq!(of(10, 1.5, Some((-2.0, 5.0))), "1.50 [−2.00, 5.00]  n = 10");
        assert_eq!(of(0, 0.0836, None), "0.084");
        assert_eq!(of(3, -0.00004, Some((-0.3, 0.3))), "0.00 [−0.30, 0.30]  n = 3");
        assert_eq!([of(4, 0.0, None), of(0, -1e-9, None)], ["0  n = 4", "0"]);
        assert_eq!(of(5, 0.4, Some((0.4, 0.4))), "0.40 [0.40, 0.40]  n = 5");
    }

    #[test]
    fn rows_have_their_words_in_a_column_too() {
        let label = "new, control";
        let estimate = Estimate { n: 8, value: Some(0.1), band: Some((-0.2, 0.4)), each: Vec::new() };
        let line = |group: &str| Line {
            group: group.to_owned(),
            label: label.to_owned(),
            estimate: estimate.clone(),
            colour: INK,
            mark: Some(0.3),
        };
        let intervals = Intervals {
            axis: "effect".to_owned(),
            mark: "control",
            lines: ["right", "right", "wrong"].map(line).into(),
            ..Intervals::default()
        };
        for size in [None, Some(Size { width: 317.0, text: 10.7 })] {
            let _look = Look { size, ..Look::default() }.enter();
            let figure = intervals.sheet().figure("rows", String::new(), Vec::new());
            let words = figure.drawing.shapes.iter().filter_map(|shape| match &shape.form {
                Form::Words(words) => Some((&*words.text, words.at)),
                _ => None,
            });
            let within =
                |(_, at): &(&str, (i32, i32))| at.0 <= figure.drawing.view.0 && at.1 <= figure.drawing.view.1;
            let words: Vec<_> = words.filter(within).collect();
            let count = |text: &str| words.iter().filter(|(word, _)| *word == text).count();
            let found =
                [label, "0.10 [−0.20, 0.40]  n = 8", "right", "wrong", "effect", "control"].map(count);
            assert_eq!(found, [3, 3, 1, 1, 1, 1], "{words:?}");
        }
    }
}
