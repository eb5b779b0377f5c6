//! Paired differences between conditions: both sides on one axis, and the change.

use super::curves::{around_zero, bands, of_attention, titled};
use super::meaning::Meaning;
use super::sheet::{Panel, Sheet};
use super::{Figure, Origin, captions};
use palimpsest_analysis::lens::difference::{Difference, differences_csv};
use palimpsest_analysis::lens::{Lens, Scale, Study};
use palimpsest_data::benchmarks::Unit;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::label;

/// Figures by mass and by density; empty with a single condition.
pub(super) fn of_study(study: &Study, origin: &Origin) -> Vec<Figure> {
    let Some((_, lens)) = study.measured().next() else { return Vec::new() };
    let found = Scale::ALL.into_iter().map(|scale| (scale, study.differences(scale)));
    let found = found.filter(|(_, all)| !all.is_empty());
    let figures = found.flat_map(|(scale, all)| {
        let common = captions::about_layer_kinds(lens, captions::LINEAR_CURVES) + &captions::drawn(lens);
        [sides(lens, scale, &all), differences(lens, scale, &all)].map(|(name, title, caption, sheet)| {
            let sheet = sheet.headed(origin, titled(&title, scale));
            sheet.figure(format!("{name}-{}", scale.key()), caption + &common, differences_csv(&all))
        })
    });
    figures.collect()
}

/// Name, title, caption, panels.
type Drawn = (&'static str, String, String, Sheet);

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
        Panel::of_layers(one.curve.label(), legend, lines)
    };
    let sheet = Sheet {
        rows: by_pair(all).into_iter().map(|pair| pair.iter().map(panel).collect()).collect(),
        panel: (300, 190),
        ..of_attention(lens, scale)
    };
    let title = "Attention by layer, the same questions under two conditions".to_owned();
    let caption = format!(
        "Each panel: a curve under both conditions of a pair, over those questions alone that were measured under both. {} Logarithmic value \
         axis. n is the number of {}.{}",
        bands(lens.unit()),
        lens.unit().many(),
        captions::zeros(all.iter().flat_map(|one| &one.sides)),
    );
    ("against", title, caption, sheet)
}

/// Change under each second condition: one line per pair, one panel per curve, on one linear axis.
fn differences(lens: &Lens, scale: Scale, all: &[Difference]) -> Drawn {
    let pairs = by_pair(all);
    let panel = |curve| {
        let (mut legend, mut lines) = (Vec::new(), Vec::new());
        for (at, pair) in pairs.iter().enumerate() {
            let Some(one) = pair.iter().find(|one| one.curve == curve) else { continue };
            let stroke = Meaning::Group(at + 1).stroke();
            legend.push((Some(stroke), format!("{} (n = {})", names(one)[1], one.difference.n)));
            lines.push((stroke, one.difference.clone()));
        }
        Panel::of_layers(curve.label(), legend, lines)
    };
    let firsts: Vec<&Difference> = pairs.iter().filter_map(|pair| pair.first()).collect();
    let base = firsts.first().map_or("plain", |one| names(one)[0]);
    let title = match firsts[..] {
        [one] => format!("Attention by layer under {}, minus that under {base}", names(one)[1]),
        _ => format!("Attention by layer under each condition, minus that under {base}"),
    };
    // Legend entries share a panel's width.
    let longest = firsts.iter().map(|one| names(one)[1].chars().count() + 16).sum::<usize>();
    let y_label = match scale {
        Scale::Mass => "difference in attention mass (percentage points)",
        Scale::Density => "difference in attention density",
    };
    let sheet = Sheet {
        y_label: y_label.to_owned(),
        rows: vec![unique(all.iter().map(|one| one.curve)).into_iter().map(panel).collect()],
        panel: ((longest.min(80) as i32 * 6).max(300), 190),
        reach: 10.0,
        axes: vec![around_zero(all.iter().flat_map(|one| &one.difference.points))],
        ..of_attention(lens, scale)
    };
    let questions = firsts.iter().map(|one| format!("{} of {}", one.questions, names(one)[1]));
    let caption = format!(
        "The difference, condition less {base}: of each question that was measured under both, at each layer, as the mean over {many}{first}. \
         Above 0 the condition attends more. {} They are of the difference: {many} count with both of their sides. n is the number of {many}. Questions in pairs: {}. Linear value axis.",
        bands(lens.unit()),
        questions.collect::<Vec<_>>().join(", "),
        many = lens.unit().many(),
        first = match lens.unit() {
            Unit::Case => "; the questions of a case are averaged first",
            Unit::Probe => "",
        },
    );
    ("difference", title, caption, sheet)
}
