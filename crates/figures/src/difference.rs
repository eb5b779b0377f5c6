//! Paired differences between conditions: both sides on one axis, and the change.

use super::curves::{bands, ends, of_attention, titled};
use super::meaning::Meaning;
use super::sheet::{ColumnAxis, Panel, Sheet};
use super::{Figure, Origin, captions};
use palimpsest_analysis::lens::difference::{Difference, differences_csv};
use palimpsest_analysis::lens::{Lens, Scale, Study};
use palimpsest_data::benchmarks::Unit;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::label;

const COLUMNS: usize = 4;

/// Figures by mass and by density; empty with a single condition.
pub(super) fn of_study(study: &Study, origin: &Origin) -> Vec<Figure> {
    let Some((_, lens)) = study.measured().next() else { return Vec::new() };
    let found = Scale::ALL.into_iter().map(|scale| (scale, study.differences(scale)));
    let found = found.filter(|(_, all)| !all.is_empty());
    let figures = found.flat_map(|(scale, all)| {
        let common = captions::about_layer_kinds(lens, captions::LINEAR_CURVES) + &captions::drawn(lens);
        let drawn = [sides(lens, scale, &all), differences(lens, scale, &all)];
        drawn.map(|(name, caption, sheet)| {
            let sheet = Sheet { title: origin.titled(sheet.title), origin: origin.line.clone(), ..sheet };
            sheet.figure(format!("{name}-{}", scale.key()), caption + &common, differences_csv(&all))
        })
    });
    figures.collect()
}

type Drawn = (&'static str, String, Sheet);

fn by_pair(all: &[Difference]) -> Vec<&[Difference]> {
    all.chunk_by(|one, next| one.conditions == next.conditions).collect()
}

fn names(one: &Difference) -> [&str; 2] {
    [label(&one.conditions[0]), label(&one.conditions[1])]
}

/// Both conditions on one axis: one panel row per pair, one panel per curve.
fn sides(lens: &Lens, scale: Scale, all: &[Difference]) -> Drawn {
    let strokes = [0, 1].map(|at| Meaning::Group(at).stroke());
    let panel = |one: &Difference| {
        let named = strokes.iter().zip(names(one)).map(|(stroke, name)| (Some(*stroke), name.to_owned()));
        let legend = named.chain([(None, format!("n = {}", one.difference.n))]).collect();
        let lines = strokes.iter().zip(&one.sides).map(|(stroke, side)| (*stroke, side.clone())).collect();
        Some(Panel::of_layers(one.curve.label(), legend, lines))
    };
    let rows = by_pair(all).into_iter().flat_map(|pair| {
        let panels: Vec<Option<Panel>> = pair.iter().map(panel).collect();
        panels.chunks(COLUMNS).map(<[_]>::to_vec).collect::<Vec<_>>()
    });
    let sheet = Sheet {
        rows: rows.collect(),
        panel: (300, 190),
        ..of_attention("Attention by layer, the same questions under two conditions", lens, scale)
    };
    let series = all.iter().flat_map(|one| &one.sides);
    let caption = format!(
        "Each panel: a curve under both conditions of a pair, over those questions alone that were measured under both. {} Logarithmic value \
         axis. n is the number of {}.{}",
        bands(lens.unit()),
        lens.unit().many(),
        captions::zeros(series),
    );
    ("against", caption, sheet)
}

/// Change under each second condition: one line per pair, one panel per curve, on one linear axis.
fn differences(lens: &Lens, scale: Scale, all: &[Difference]) -> Drawn {
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
        panels.push(Some(Panel::of_layers(curve.label(), legend, lines)));
    }
    let base = all.first().map_or("plain", |one| names(one)[0]);
    let title = match &pairs[..] {
        [[one, ..]] => format!("What {} changes: attention by layer less that under {base}", names(one)[1]),
        _ => format!("What each condition changes: attention by layer less that under {base}"),
    };
    let ends = ends(all.iter().flat_map(|one| &one.difference.points));
    let rows: Vec<Vec<Option<Panel>>> = panels.chunks(COLUMNS).map(<[_]>::to_vec).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1);
    // Legend entries share a panel's width.
    let longest = pairs
        .iter()
        .flat_map(|pair| pair.first())
        .map(|one| names(one)[1].chars().count() + 16)
        .sum::<usize>();
    let sheet = Sheet {
        title: titled(&title, scale),
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
    ("difference", caption, sheet)
}
