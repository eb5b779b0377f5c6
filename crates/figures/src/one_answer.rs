//! Pictures of one answer: layers by sessions, and one number per session. Used by `palimpsest view`, whose canvases show the same numbers.

use super::Figure;
use super::columns::Column;
use super::map::{map, numbered, of_layers, values, width_of};
use super::meaning::Meaning;
use super::rows::{Intervals, Line};
use super::shades::Shades;
use super::sheet::Sheet;
use palimpsest_analysis::lens::band::Estimate;
use palimpsest_analysis::lens::{Layer, Scale};
use palimpsest_data::ground::csv::CsvTable;

#[derive(Debug, Clone, PartialEq)]
pub struct AnswerSession {
    pub label: String,
    /// Role of the session or of evidence inside it.
    pub role: Option<String>,
    /// By layer; NaN outside a layer's window.
    pub layers: Vec<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AnswerMap {
    pub title: String,
    /// Source of the numbers, below the title.
    pub origin: String,
    pub rows: String,
    pub segment: String,
    pub layers: Vec<Layer>,
    pub sessions: Vec<AnswerSession>,
    pub scale: Scale,
}

impl AnswerMap {
    pub fn figure(&self) -> Figure {
        let columns = self.sessions.iter().map(|session| Column {
            label: session.label.clone(),
            n: None,
            role: session.role.clone(),
            cells: Some(session.layers.clone()),
        });
        let note = format!("{} {}s", self.sessions.len(), self.segment);
        let maps = vec![map(self.rows.clone(), note, numbered(&self.segment), columns.collect())];
        let shades = Shades::of(&values(&maps), self.scale);
        let cells = self.sessions.iter().flat_map(|session| {
            self.layers.iter().zip(&session.layers).map(move |(layer, value)| (session, layer, *value))
        });
        let csv = CsvTable::of(cells)
            .column(&self.segment, |(session, ..)| &session.label)
            .optional("role", |(session, ..)| session.role.as_ref())
            .column("scale", |_| self.scale.key())
            .column("layer", |(_, layer, _)| layer.index)
            .optional("value", |(.., value)| Some(value).filter(|value| !value.is_nan()))
            .bytes();
        let caption = shades.in_words().trim().to_owned();
        let width = width_of(&maps);
        let (title, origin) = (self.title.clone(), self.origin.clone());
        let sheet = Sheet { title, origin, ..of_layers(maps, shades, &self.layers, width) };
        sheet.figure(format!("map-{}", self.scale.key()), caption, csv)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct SessionNumber {
    pub measure: String,
    pub label: String,
    pub role: Option<String>,
    pub value: f64,
    pub baseline: Option<f64>,
}

pub fn strip(title: String, origin: String, axis: String, numbers: &[SessionNumber]) -> Figure {
    let line = |number: &SessionNumber| Line {
        group: number.measure.clone(),
        label: match &number.role {
            Some(role) => format!("{} · {role}", number.label),
            None => number.label.clone(),
        },
        estimate: Estimate { n: 0, value: Some(number.value), band: None, each: Vec::new() },
        colour: number.role.as_deref().and_then(Meaning::of_role).unwrap_or(Meaning::Others).colour(),
        mark: number.baseline,
    };
    let baselines = numbers.iter().any(|number| number.baseline.is_some());
    let intervals = Intervals {
        axis,
        mark: if baselines { "control of the same length" } else { "" },
        lines: numbers.iter().map(line).collect(),
        ..Intervals::default()
    };
    let csv = CsvTable::of(numbers.iter())
        .column("measure", |number| &number.measure)
        .column("session", |number| &number.label)
        .optional("role", |number| number.role.as_ref())
        .column("value", |number| number.value)
        .optional("baseline", |number| number.baseline)
        .bytes();
    Sheet { title, origin, ..intervals.sheet() }.figure("strip", String::new(), csv)
}
