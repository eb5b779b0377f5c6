//! Pictures of one answer as SVG: layers by sessions, and one number per session. Used by `palimpsest view`, whose canvases show the same
//! numbers.

pub use super::columns::Column;
use super::map::{map, numbered, of_layers, values, width_of};
use super::meaning::Meaning;
use super::rows::{Intervals, Line};
use super::shades::Shades;
use super::sheet::Sheet;
use palimpsest_analysis::lens::band::Estimate;
use palimpsest_analysis::lens::{Layer, Scale};

/// Map of the attention of `rows` on sessions, one column each. `head`: title and source of the numbers.
pub fn map_svg(
    head: (String, String),
    rows: String,
    segment: &str,
    sessions: Vec<Column>,
    (layers, scale): (&[Layer], Scale),
) -> String {
    let note = format!("{} {segment}s", sessions.len());
    let maps = vec![map(rows, note, numbered(segment), sessions)];
    let (shades, width) = (Shades::of(&values(&maps), scale), width_of(&maps));
    svg(head, of_layers(maps, shades, layers, width))
}

#[derive(Debug, Clone, PartialEq)]
pub struct SessionNumber {
    pub measure: String,
    pub label: String,
    pub role: Option<String>,
    pub value: f64,
    pub baseline: Option<f64>,
}

/// A row per session and measure. `head`: title and source of the numbers.
pub fn strip_svg(head: (String, String), axis: String, numbers: Vec<SessionNumber>) -> String {
    let line = |number: SessionNumber| {
        let role = number.role.as_deref();
        Line {
            group: number.measure,
            label: [number.label.as_str()].into_iter().chain(role).collect::<Vec<_>>().join(" · "),
            estimate: Estimate { n: 0, value: Some(number.value), band: None, each: Vec::new() },
            colour: role.and_then(Meaning::of_role).unwrap_or(Meaning::Others).colour(),
            mark: number.baseline,
        }
    };
    let lines: Vec<Line> = numbers.into_iter().map(line).collect();
    let controls = lines.iter().any(|line| line.mark.is_some());
    let mark = if controls { "control of the same length" } else { "" };
    svg(head, Intervals { axis, mark, lines, ..Intervals::default() }.sheet())
}

fn svg((title, origin): (String, String), sheet: Sheet) -> String {
    Sheet { title, origin, ..sheet }.figure("", String::new(), Vec::new()).svg
}
