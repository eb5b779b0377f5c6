//! A benchmark's measures over layers: one column per measure, one row per group and condition, one line per group. Paired measures have
//! their own figure. The benchmark defines the groups ([`palimpsest_data::benchmarks::Grouping`]).

use std::collections::{BTreeMap, BTreeSet};

use super::curves::{bands, titled};
use super::meaning::{self, Meaning};
use super::plot::Sample;
use super::sheet::{ColumnAxis, Panel, Sheet};
use super::style::Stroke;
use super::{Figure, Origin, captions};
use palimpsest_analysis::lens::study::EVIDENCE_LIFT;
use palimpsest_analysis::lens::{MeasureLine, MeasureRow, Study, table};
use palimpsest_data::benchmarks::{Axis, Grouping, Measure, Scale, Unit};
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::label;

/// One figure per grouping, separately for per-condition and paired measures. Omits empty figures; rows with the same measures share one,
/// which avoids gaps.
pub fn of_study(study: &Study, origin: &Origin, scale: Scale) -> Vec<Figure> {
    let mut figures = Vec::new();
    for grouping in study.groupings() {
        for paired in [true, false] {
            let wanted =
                |measure: &&Measure| measure.is_paired() == paired && measure.scales.contains(&scale);
            let measured = study.measures().into_iter().filter(wanted);
            let measured = measured.map(|measure| (measure, study.rows(measure, grouping, scale)));
            let measured: Measured<'_> = measured.filter(|(_, rows)| !rows.is_empty()).collect();
            let kind = if paired { "paired" } else { "measures" };
            for (at, part) in alike(measured).into_iter().enumerate() {
                let number = if at == 0 { String::new() } else { format!("-{}", at + 1) };
                let name = format!("{kind}-{}{number}-{}", grouping.key, scale.key());
                figures.push(draw(study, origin, (grouping, paired, scale), name, &part));
            }
        }
    }
    figures
}

type Measured<'a> = Vec<(&'a Measure, Vec<MeasureRow>)>;

/// Partitions rows with the same measures, in first-seen order.
fn alike(measured: Measured<'_>) -> Vec<Measured<'_>> {
    let mut words: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for (measure, rows) in &measured {
        for word in unique(rows.iter().map(|row| &row.row)) {
            words.entry(word.clone()).or_default().push(measure.key);
        }
    }
    let part = |set: &Vec<&'static str>| -> Measured<'_> {
        let of_set = measured.iter().filter(|(measure, _)| set.contains(&measure.key));
        let rows = |rows: &[MeasureRow]| {
            rows.iter().filter(|row| words.get(&row.row) == Some(set)).cloned().collect::<Vec<_>>()
        };
        of_set.map(|(measure, all)| (*measure, rows(all))).collect()
    };
    unique(words.values()).into_iter().map(part).collect()
}

fn draw(
    study: &Study,
    origin: &Origin,
    (grouping, paired, scale): (&Grouping, bool, Scale),
    name: String,
    measured: &[(&Measure, Vec<MeasureRow>)],
) -> Figure {
    let all = measured.iter().flat_map(|(_, rows)| rows).flat_map(|row| &row.lines);
    let lines: BTreeSet<&str> = all.map(|line| line.word.as_str()).collect();
    let strokes = meaning::of_words(lines.iter().copied());
    let stroke_of = |line: &str| {
        let at = lines.iter().position(|other| *other == line).unwrap_or(0);
        strokes.get(at).copied().unwrap_or_else(|| Meaning::Query.stroke())
    };
    let places = places(study, measured);
    let by_condition = unique(places.iter().map(|(_, condition)| condition)).len() > 1;
    let rows = places.iter().map(|place| {
        let panels = measured.iter().map(|(measure, rows)| {
            let row = rows.iter().find(|row| (&row.row, &row.condition) == (&place.0, &place.1))?;
            let mut words = vec![place.0.clone()];
            words.extend(place.1.as_deref().filter(|_| by_condition).map(|name| label(name).to_owned()));
            words.retain(|word| !word.is_empty());
            Some(panel(measure, row, &words.join(" · "), stroke_of))
        });
        panels.collect()
    });
    let rows: Vec<Vec<Option<Panel>>> = rows.collect();
    let axes = measured.iter().map(|(measure, _)| axis_of(measure)).collect();
    let legend = lines.iter().map(|line| (Sample::Line(stroke_of(line)), (*line).to_owned())).collect();
    let what = match paired {
        true => format!("Measures over both orders by layer, for each {}", grouping.label),
        false => format!("Measures by layer, for each {}", grouping.label),
    };
    let sheet = Sheet {
        title: origin.titled(titled(&what, scale)),
        origin: origin.line.clone(),
        rows,
        legend,
        panel: if measured.len() > 3 { (230, 150) } else { (270, 170) },
        reach: 10.0,
        units: study.benchmark.unit.many(),
        axes,
        ..Sheet::default()
    };
    let tables = measured.iter().map(|(measure, rows)| table_of(grouping.key, measure, scale, rows));
    let csv = table::measures_csv(&name, "grouping", &tables.collect::<Vec<_>>());
    let caption = caption(study, grouping, measured, scale);
    sheet.figure(name, caption, csv)
}

fn table_of<'a>(
    grouping: &'a str,
    measure: &Measure,
    scale: Scale,
    rows: &'a [MeasureRow],
) -> table::MeasureTable<'a> {
    table::MeasureTable { grouping, measure: measure.key, scale, paired: measure.paired, rows }
}

/// Panel rows by label and condition: labels sorted, numerically if they start with a number; conditions in the run's order.
fn places(study: &Study, measured: &[(&Measure, Vec<MeasureRow>)]) -> Vec<(String, Option<String>)> {
    let order = |condition: &Option<String>| {
        study.conditions.iter().position(|known| Some(&known.name) == condition.as_ref()).unwrap_or(0)
    };
    let rows = measured.iter().flat_map(|(_, rows)| rows);
    let found: BTreeSet<(u64, String, usize, Option<String>)> = rows
        .map(|row| (leading_number(&row.row), row.row.clone(), order(&row.condition), row.condition.clone()))
        .collect();
    found.into_iter().map(|(_, row, _, condition)| (row, condition)).collect()
}

/// Parses `8k`; labels without a number sort last.
fn leading_number(word: &str) -> u64 {
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    word.get(..digits).and_then(|digits| digits.parse().ok()).unwrap_or(u64::MAX)
}

fn panel(measure: &Measure, row: &MeasureRow, note: &str, stroke_of: impl Fn(&str) -> Stroke) -> Panel {
    let mut legend = Vec::new();
    if !note.is_empty() {
        legend.push((None, note.to_owned()));
    }
    for line in &row.lines {
        legend.push(match &row.lines[..] {
            [_] => (None, format!("n = {}", cases(line))),
            _ => (Some(stroke_of(&line.word)), cases(line)),
        });
    }
    let lines = row.lines.iter().map(|line| (stroke_of(&line.word), line.series.clone()));
    Panel::of_layers(measure.label.to_owned(), legend, lines.collect())
}

/// Number of cases, with the number of examples in brackets if larger.
fn cases(line: &MeasureLine) -> String {
    match (line.series.n, line.examples) {
        (n, examples) if n == examples => n.to_string(),
        (n, examples) => format!("{n} ({examples})"),
    }
}

fn axis_of(measure: &Measure) -> ColumnAxis {
    let linear = match measure.axis {
        Axis::Logarithmic => None,
        Axis::Linear(from, to) => Some((from, to)),
    };
    ColumnAxis { reference: measure.reference, linear }
}

fn caption(
    study: &Study,
    grouping: &Grouping,
    measured: &[(&Measure, Vec<MeasureRow>)],
    scale: Scale,
) -> String {
    let each: Vec<String> = measured
        .iter()
        .map(|(measure, _)| format!("{}: {}.", captions::capital(measure.label), measure.about))
        .collect();
    let of_lifts = measured.iter().any(|(measure, _)| measure.axis == Axis::Logarithmic);
    let lens = study.measured().next().map(|(_, lens)| lens);
    let unit = study.benchmark.unit;
    format!(
        "{} {} Lines: {}; the numbers above a panel are {}. {}{}{}{}{}",
        each.join(" "),
        of_scale(scale, study.segment()),
        grouping.label,
        match unit {
            Unit::Case => "cases, in brackets their examples where a case has several",
            Unit::Probe => unit.many(),
        },
        bands(unit),
        if of_lifts { " Lifts have a logarithmic axis." } else { "" },
        lens.map(captions::baseline).unwrap_or_default(),
        without(study),
        captions::of_study(study),
    )
}

fn of_scale(scale: Scale, segment: &str) -> String {
    match scale {
        Scale::Mass => format!(
            "What a {segment} gets is its mass: the share of a row token's attention, averaged over rows and heads."
        ),
        Scale::Density => format!(
            "What a {segment} gets is its density: its mass over what uniform attention would pay it, so that long ones do not \
             win by length."
        ),
    }
}

fn without(study: &Study) -> String {
    let missing = study.conditions.iter().filter(|condition| condition.lens.is_none());
    let missing = missing.filter(|condition| !study.selection.unmeasured.contains(&condition.name));
    let names: Vec<&str> = missing.map(|condition| label(&condition.name)).collect();
    if names.is_empty() { String::new() } else { format!(" Not measured: {}.", names.join(", ")) }
}

/// Lift of the evidence in several benchmarks by one model: one panel per run, one line per condition, on one axis.
pub fn lifts(studies: &[(&Study, &Origin)], scale: Scale) -> Figure {
    const COLUMNS: usize = 4;
    let name = format!("evidence-lift-{}", scale.key());
    let (mut panels, mut tables, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    let found: Vec<Vec<MeasureRow>> =
        studies.iter().map(|(study, _)| study.overall(&EVIDENCE_LIFT, scale)).collect();
    for ((study, origin), rows) in studies.iter().zip(&found) {
        let (mut legend, mut lines) = (Vec::new(), Vec::new());
        for row in rows {
            let condition = row.condition.as_deref().filter(|_| study.selection.several);
            let condition = condition.map(label).unwrap_or_default();
            for line in &row.lines {
                let stroke = Meaning::Group(lines.len()).stroke();
                legend
                    .push((Some(stroke), format!("{condition} n = {}", cases(line)).trim_start().to_owned()));
                lines.push((stroke, line.series.clone()));
            }
        }
        let title = study.benchmark.title;
        if lines.is_empty() {
            empty.push(title);
            continue;
        }
        let same = studies.iter().filter(|(other, _)| other.benchmark.name == study.benchmark.name);
        let title = if same.count() > 1 { format!("{title} · {}", origin.model) } else { title.to_owned() };
        panels.push(Some(Panel::of_layers(title, legend, lines)));
        tables.push(table_of(study.benchmark.name, &EVIDENCE_LIFT, scale, rows));
    }
    let rows: Vec<Vec<Option<Panel>>> = panels.chunks(COLUMNS).map(<[_]>::to_vec).collect();
    let sheet = Sheet {
        title: titled("What the evidence gets over what stands beside it, by layer", scale),
        origin: studies.iter().map(|(_, origin)| origin.line.as_str()).collect::<Vec<_>>().join("\n"),
        y_label: format!("attention {} of evidence / of its neighbours", scale.key()),
        reference: Some(1.0),
        rows,
        panel: (300, 210),
        reach: 10.0,
        units: "values",
        ..Sheet::default()
    };
    let csv = table::measures_csv(&name, "benchmark", &tables);
    let empty = match empty.is_empty() {
        true => String::new(),
        false => format!(" Left out, having no evidence with a baseline: {}.", empty.join(", ")),
    };
    let of_each = studies.iter().map(|(study, _)| {
        let said = study.measured().next().map(|(_, lens)| captions::baseline(lens)).unwrap_or_default();
        format!(" {}:{said}", study.benchmark.title)
    });
    let by_question: Vec<&str> = (studies.iter().map(|(study, _)| study.benchmark))
        .filter(|benchmark| benchmark.unit == Unit::Probe)
        .map(|benchmark| benchmark.title)
        .collect();
    let of_questions = match by_question[..] {
        [] => String::new(),
        _ => format!(", but questions stand for cases in {}", by_question.join(" and ")),
    };
    let caption = format!(
        "{}: {}. At 1 it gets as much as what stands beside it. One logarithmic axis for all. {} n is the number of cases, in brackets of their examples; \
         the probes of a case are averaged first{of_questions}.{}{empty}",
        captions::capital(EVIDENCE_LIFT.label),
        EVIDENCE_LIFT.about,
        bands(Unit::Case),
        of_each.collect::<String>(),
    );
    sheet.figure(name, caption, csv)
}
