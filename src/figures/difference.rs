//! Conditions against each other: the same questions under both on one axis, and what the second changes.

use super::curves::{axis, bands, ends, titled};
use super::meaning::Meaning;
use super::sheet::{ColumnAxis, Panel, Sheet};
use super::{Figure, FigureError, Origin, captions};
use crate::benchmarks::Unit;
use crate::ground::order::unique;
use crate::lens::difference::{Difference, differences_csv};
use crate::lens::{Lens, Scale, Study};
use crate::run::condition::label;

/// Panels beside each other.
const COLUMNS: usize = 4;

/// A figure of both sides and one of their differences, by mass and by density; nothing of a study of one condition.
pub(super) fn of_study(study: &Study, origin: &Origin) -> Result<Vec<Figure>, FigureError> {
    let Some((_, lens)) = study.measured().next() else { return Ok(Vec::new()) };
    let mut figures = Vec::new();
    for scale in Scale::ALL {
        let all = study.differences(scale);
        if !all.is_empty() {
            figures.push(sides(lens, origin, scale, &all)?);
            figures.push(differences(lens, origin, scale, &all)?);
        }
    }
    Ok(figures)
}

/// The differences of each pair of conditions, in their order.
fn by_pair(all: &[Difference]) -> Vec<&[Difference]> {
    all.chunk_by(|one, next| one.conditions == next.conditions).collect()
}

fn names(one: &Difference) -> [&str; 2] {
    [label(&one.conditions[0]), label(&one.conditions[1])]
}

/// Both conditions of each pair on one axis: rows of panels a pair, a panel a curve.
fn sides(lens: &Lens, origin: &Origin, scale: Scale, all: &[Difference]) -> Result<Figure, FigureError> {
    let strokes = [0, 1].map(|at| Meaning::Group(at).stroke());
    let panel = |one: &Difference| {
        let mut legend: Vec<_> =
            strokes.iter().zip(names(one)).map(|(stroke, name)| (Some(*stroke), name.to_owned())).collect();
        legend.push((None, format!("n = {}", one.difference.n)));
        let lines = strokes.iter().zip(&one.sides).map(|(stroke, side)| (*stroke, side.clone())).collect();
        Some(Panel { title: one.curve.label(), legend, lines })
    };
    let rows = by_pair(all).into_iter().flat_map(|pair| {
        let panels: Vec<Option<Panel>> = pair.iter().map(panel).collect();
        panels.chunks(COLUMNS).map(<[_]>::to_vec).collect::<Vec<_>>()
    });
    let sheet = Sheet {
        title: origin.titled(titled("Attention by layer, the same questions under two conditions", scale)),
        origin: origin.line.clone(),
        y_label: axis(scale).to_owned(),
        percent: scale == Scale::Mass,
        reference: (scale == Scale::Density).then_some(1.0),
        rows: rows.collect(),
        panel: (300, 190),
        reach: 1000.0,
        units: lens.unit().many(),
        ..Sheet::default()
    };
    let series = all.iter().flat_map(|one| &one.sides);
    let caption = format!(
        "Each panel: a curve under both conditions of a pair, over those questions alone that were measured under both. {} Logarithmic value \
         axis. n is the number of {}.{}",
        bands(lens.unit()),
        lens.unit().many(),
        captions::zeros(series),
    );
    figure(format!("against-{}", scale.key()), caption, lens, &sheet, all)
}

/// The change under each second condition, a line a pair and a panel a curve, on one linear axis.
fn differences(
    lens: &Lens,
    origin: &Origin,
    scale: Scale,
    all: &[Difference],
) -> Result<Figure, FigureError> {
    let pairs = by_pair(all);
    let mut panels: Vec<Option<Panel>> = Vec::new();
    for curve in unique(all.iter().map(|one| one.curve)) {
        let of_curve = pairs.iter().enumerate().filter_map(|(at, pair)| {
            let one = pair.iter().find(|one| one.curve == curve)?;
            Some((Meaning::Group(at + 1).stroke(), one))
        });
        let (mut legend, mut lines) = (Vec::new(), Vec::new());
        for (stroke, one) in of_curve {
            let [_, second] = names(one);
            legend.push((Some(stroke), format!("{second} (n = {})", one.difference.n)));
            lines.push((stroke, one.difference.clone()));
        }
        panels.push(Some(Panel { title: curve.label(), legend, lines }));
    }
    let base = all.first().map_or("plain", |one| names(one)[0]);
    let title = match &pairs[..] {
        [[one, ..]] => format!("What {} changes: attention by layer less that under {base}", names(one)[1]),
        _ => format!("What each condition changes: attention by layer less that under {base}"),
    };
    // The ends of all panels, so that heights compare.
    let ends = ends(all.iter().flat_map(|one| &one.difference.points));
    let rows: Vec<Vec<Option<Panel>>> = panels.chunks(COLUMNS).map(<[_]>::to_vec).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1);
    // Legends stand beside each other in a panel's width.
    let longest = pairs
        .iter()
        .flat_map(|pair| pair.first())
        .map(|one| names(one)[1].chars().count() + 16)
        .sum::<usize>();
    let sheet = Sheet {
        title: origin.titled(titled(&title, scale)),
        origin: origin.line.clone(),
        y_label: match scale {
            Scale::Mass => "difference in attention mass (percentage points)".to_owned(),
            Scale::Density => "difference in attention density".to_owned(),
        },
        percent: scale == Scale::Mass,
        rows,
        panel: ((longest.min(80) as i32 * 6).max(300), 190),
        reach: 10.0,
        units: lens.unit().many(),
        axes: vec![ColumnAxis { reference: Some(0.0), linear: Some(ends) }; columns],
        ..Sheet::default()
    };
    let questions = pairs.iter().flat_map(|pair| pair.first());
    let questions: Vec<String> =
        questions.map(|one| format!("{} of {}", one.questions, names(one)[1])).collect();
    let caption = format!(
        "The difference, condition less {base}: of each question that was measured under both, at each layer, as the mean over {many}{first}. \
         Above 0 the condition attends more. {} They are of the difference: {many} count with both of their sides. n is the number of {many}. Questions in pairs: {}. Linear value axis.",
        bands(lens.unit()),
        questions.join(", "),
        many = lens.unit().many(),
        first = match lens.unit() {
            Unit::Case => "; the questions of a case are averaged first",
            Unit::Probe => "",
        },
    );
    figure(format!("difference-{}", scale.key()), caption, lens, &sheet, all)
}

fn figure(
    name: String,
    caption: String,
    lens: &Lens,
    sheet: &Sheet,
    all: &[Difference],
) -> Result<Figure, FigureError> {
    let svg = sheet.draw(&name)?;
    let caption =
        caption + &captions::about_layer_kinds(lens, captions::LINEAR_CURVES) + &captions::drawn(lens);
    let csv = differences_csv(all);
    Ok(Figure { name, title: sheet.title.clone(), caption, svg, csv })
}
