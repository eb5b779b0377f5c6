//! Attention over layers: by type and correctness (STALE, figure 6) and by type (figure 7).

use plotters::style::RGBColor;

use super::sheet::{Panel, Sheet};
use super::style::{BLUE, GREEN, GREY, Marker, Stroke, VERMILLION};
use super::{Figure, FigureError, Origin};
use crate::benchmarks::QUERY;
use crate::lens::{Correctness, Group, Lens, Part, Scale, Series, Statistic, table};

/// The value axis of a scale.
fn axis(scale: Scale) -> &'static str {
    match scale {
        Scale::Mass => "attention mass (share of a row token's attention)",
        Scale::Density => "attention density (1 = uniform attention)",
    }
}

fn how_to_read(lens: &Lens, scale: Scale) -> String {
    let segment = lens.benchmark.segment();
    let rows: Vec<&str> = lens.curves.iter().map(|curve| curve.from).filter(|from| *from != QUERY).collect();
    let mut rows_said = "query".to_owned();
    for (_, row) in rows.iter().enumerate().filter(|(at, row)| !rows[..*at].contains(row)) {
        rows_said += &match *row {
            "last" => ", or of the prompt's last token".to_owned(),
            "answer" => ", or of the answer".to_owned(),
            row => format!(", or of the {row} {segment}"),
        };
    }
    match scale {
        Scale::Mass => format!(
            "Mass: the share of a token's attention that falls on the whole {segment}, averaged over the row tokens (of the \
             {rows_said}) and over heads."
        ),
        Scale::Density => format!(
            "Density: the mass over what uniform attention would pay to a {segment} of that length from the same tokens, so \
             that long {segment}s do not win by length; 1 is no preference."
        ),
    }
}

fn noise(lens: &Lens) -> String {
    let segment = lens.benchmark.segment();
    format!(
        "Dashed: the noise baseline, the same with the evidence {segment} replaced by its immediate neighbour {segment}s."
    )
}

const BAND: &str = "Bands: 95% bootstrap over cases; none for a single case. Logarithmic value axis.";

/// One legend entry for the baselines of all curves.
fn noise_entry() -> (Stroke, String) {
    let stroke = Stroke::solid(GREY, Marker::None).noise();
    (stroke, "noise baseline of the same colour".to_owned())
}

/// By the curve's place among those of the run.
fn stroke(at: usize) -> Stroke {
    const COLOURS: [RGBColor; 4] = [GREEN, VERMILLION, BLUE, GREY];
    const MARKERS: [Marker; 3] = [Marker::Triangle, Marker::Square, Marker::Circle];
    let stroke = Stroke::solid(COLOURS[at % COLOURS.len()], MARKERS[at % MARKERS.len()]);
    // Twelve curves differ; more of them would not be told apart anyhow.
    if (at / COLOURS.len()).is_multiple_of(2) { stroke } else { stroke.dashed() }
}

/// One panel a probe, type and verdict: three curves with their baselines.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn by_split(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let name = format!("curves-by-split-{}", scale.key());
    let (mut rows, mut all, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for probe in super::panel_probes(lens) {
        let mut row = Vec::new();
        for kind in super::panel_kinds(lens) {
            for &correctness in lens.splits() {
                let group = Group { probe: probe.clone(), kind: kind.clone(), correctness };
                if lens.cases(&group) == 0 {
                    empty.push(group);
                    row.push(None);
                    continue;
                }
                let lines = lines(lens, &group, scale);
                all.extend(lines.iter().map(|(_, series)| series.clone()));
                let n = lens.cases(&group);
                row.push(Some(Panel {
                    title: lens.label(&group),
                    legend: vec![(None, format!("n = {n}"))],
                    lines,
                }));
            }
        }
        rows.push(row);
    }
    let rows = super::sheet::without_empty(rows);
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1);
    let mut legend: Vec<_> =
        lens.curves.iter().enumerate().map(|(at, curve)| (stroke(at), curve.label())).collect();
    legend.push(noise_entry());
    let (split, probe) = (lens.benchmark.split(), lens.benchmark.dimension().name());
    let what = match lens.splits() {
        [_, _, ..] => format!("Attention by layer, for each {split}, {probe} and verdict"),
        _ => format!("Attention by layer, for each {split} and {probe}"),
    };
    let title = titled(&what, scale);
    let sheet = Sheet {
        title: title.clone(),
        origin: origin.line.clone(),
        y_label: axis(scale).to_owned(),
        percent: scale == Scale::Mass,
        reference: (scale == Scale::Density).then_some(1.0),
        rows,
        legend,
        panel: (if columns > 2 { 190 } else { 300 }, 130),
        reach: 1000.0,
    };
    let caption = format!(
        "{} {} {BAND} n is the number of cases.{}{}{}",
        how_to_read(lens, scale),
        noise(lens),
        super::about_layer_kinds(lens, super::LINEAR_CURVES),
        super::left_out(lens, &empty),
        super::without_verdicts(lens)
    );
    figure(name, title, caption, &sheet, &all)
}

/// One panel a curve: a line a type, over all probes.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn by_type(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let name = format!("curves-by-type-{}", scale.key());
    let strokes = [
        Stroke::solid(BLUE, Marker::Circle),
        Stroke::solid(VERMILLION, Marker::Square),
        Stroke::solid(GREEN, Marker::Triangle),
    ];
    let groups = super::panel_kinds(lens).into_iter().map(|kind| Group {
        probe: None,
        kind,
        correctness: Correctness::All,
    });
    let (present, empty): (Vec<Group>, Vec<Group>) = groups.partition(|group| lens.cases(group) > 0);
    let (mut row, mut all) = (Vec::new(), Vec::new());
    for &curve in &lens.curves {
        let (mut lines, mut legend) = (Vec::new(), Vec::new());
        for (group, stroke) in present.iter().zip(strokes.iter().cycle()) {
            let signal = lens.series(group, Statistic::Mean(curve, Part::Signal), scale);
            let noise = lens.series(group, Statistic::Mean(curve, Part::Noise), scale);
            let kind = group.kind.as_deref().unwrap_or("all");
            if signal.n > 0 {
                legend.push((Some(*stroke), format!("{kind} (n = {})", signal.n)));
            }
            all.extend([signal.clone(), noise.clone()]);
            lines.extend([(stroke.noise(), noise), (*stroke, signal)]);
        }
        row.push(Some(Panel { title: curve.label(), legend, lines }));
    }
    let title = titled(&format!("Attention by layer, for each {}", lens.benchmark.split()), scale);
    let sheet = Sheet {
        title: title.clone(),
        origin: origin.line.clone(),
        y_label: axis(scale).to_owned(),
        percent: scale == Scale::Mass,
        reference: (scale == Scale::Density).then_some(1.0),
        rows: vec![row],
        legend: vec![noise_entry()],
        panel: (260, 210),
        reach: 1000.0,
    };
    let caption = format!(
        "Means over all probes: the probes of a case are averaged first, so that a case counts once. {} {} {BAND} n is \
         the number of cases.{}{}",
        how_to_read(lens, scale),
        noise(lens),
        super::about_layer_kinds(lens, super::LINEAR_CURVES),
        super::left_out(lens, &empty)
    );
    figure(name, title, caption, &sheet, &all)
}

fn lines(lens: &Lens, group: &Group, scale: Scale) -> Vec<(Stroke, Series)> {
    let of = |curve, part| lens.series(group, Statistic::Mean(curve, part), scale);
    let curves = || lens.curves.iter().enumerate();
    let noise = curves().map(|(at, &curve)| (stroke(at).noise(), of(curve, Part::Noise)));
    let signal = curves().map(|(at, &curve)| (stroke(at), of(curve, Part::Signal)));
    noise.chain(signal).collect()
}

/// A title that says when it is about density.
pub(super) fn titled(what: &str, scale: Scale) -> String {
    match scale {
        Scale::Mass => what.to_owned(),
        Scale::Density => format!("{what} (density)"),
    }
}

/// Draws a sheet and sets its table beside it.
pub(super) fn figure(
    name: String,
    title: String,
    caption: String,
    sheet: &Sheet,
    series: &[Series],
) -> Result<Figure, FigureError> {
    let svg = sheet.draw(&name)?;
    let cut = " Values of linear layers beyond the axis are drawn at its edge; the table has them.";
    let caption = if sheet.cuts_linear_layers() { caption + cut } else { caption };
    let csv = table::series_csv(&name, series)
        .map_err(|source| FigureError::Table { figure: name.clone(), source })?;
    Ok(Figure { name, title, caption, svg, csv })
}
