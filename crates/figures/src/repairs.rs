//! Share of a session's effect that repaired caches keep, over the rows that were read again.

use super::axis::{padded, spanning};
use super::meaning::Meaning;
use super::sheet::{Across, Mark, Panel, Plain, Sample, Sheet, ValueAxis};
use super::style::UNIT;
use super::{Figure, Origin};
use palimpsest_analysis::lens::causes::Residues;
use palimpsest_analysis::lens::causes::repairs::RepairPoint;
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_data::ground::order::unique;

/// Ends of drawn intervals: a share whose denominator is small may have any.
const DRAWN: (f64, f64) = (-0.5, 1.5);

/// A line per role; `None` without repairs.
pub(super) fn left(residues: &Residues, segment: &str, origin: &Origin) -> Option<Figure> {
    let points = residues.repairs();
    let at = |point: &RepairPoint| Some((point.rows.value?.max(1.0).log10(), point.left.value?));
    let rows = points.iter().filter_map(|point| point.rows.value).map(|rows| rows.max(1.0));
    let (low, high) = rows.fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
    let roles = unique(points.iter().map(|point| point.role.as_str()));
    let (mut marks, mut legend) = (Vec::new(), Vec::new());
    for (nth, role) in roles.into_iter().enumerate() {
        let stroke = Meaning::of_role(role).unwrap_or(Meaning::Group(nth)).stroke();
        let look = Plain { ink: stroke.colour.mix(0.6), width: UNIT * 3 / 2, dash: None };
        let own: Vec<&RepairPoint> = points.iter().filter(|point| point.role == role).collect();
        marks.extend(own.iter().filter_map(|point| {
            let ((x, _), (low, high)) = (at(point)?, point.left.band?);
            let end = |share: f64| share.clamp(DRAWN.0, DRAWN.1);
            Some(Mark::Path(vec![(x, end(low)), (x, end(high))], look))
        }));
        marks.push(Mark::Line(stroke, own.iter().map(|point| at(point)).collect()));
        let n = own.iter().map(|point| point.left.n).max().unwrap_or(0);
        legend.push((Sample::Line(stroke), format!("{role} (n = {n})")));
    }
    let values = points.iter().flat_map(|point| {
        let band = point.left.band.iter().flat_map(|(low, high)| [*low, *high]);
        point.left.value.into_iter().chain(band.map(|share| share.clamp(DRAWN.0, DRAWN.1)))
    });
    let ends = spanning((0.0, 1.0), values);
    let panel = Panel {
        marks,
        x: Across::Log(low / 1.2, high * 1.2),
        x_label: "rows read again (mean)".to_owned(),
        ..Panel::default()
    };
    let sheet = Sheet {
        y_label: format!("share left of the {segment}'s effect"),
        axes: vec![ValueAxis { reference: Some(0.0), linear: Some(padded(ends)) }],
        rows: vec![vec![panel]],
        legend,
        panel: (520, 230),
        ..Sheet::default()
    };
    let caption = format!(
        "After a {segment} was replaced by neutral text of equal length, its rows of the cache are read again, and with them so many later rows: \
         those that attended most to it. Left is the share of the effect of an exact prefill that such a repair lacks: 0 is that prefill, 100% \
         a cache that nobody repaired. The first point reads the {segment} alone. Whiskers are Fieller's 95% intervals over cases, drawn from \
         -0.5 to 1.5; n is the number of cases."
    );
    let table = CsvTable::of(&points)
        .column("role", |point| &point.role)
        .column("later_rows", |point| point.later)
        .optional("rows", |point| point.rows.value)
        .column("n", |point| point.left.n)
        .optional("lost", |point| point.lost.value)
        .optional("left", |point| point.left.value)
        .optional("low", |point| point.left.band.map(|(low, _)| low))
        .optional("high", |point| point.left.band.map(|(_, high)| high));
    let title = format!("Effect of a {segment} that is left in a repaired cache");
    let figure = || sheet.headed(origin, title).figure("causes-repaired", caption, table.bytes());
    (!points.is_empty()).then(figure)
}
