//! A benchmark's measures over layers: one column per measure, one row per group and condition, one line per group. Paired measures have
//! their own figure. The benchmark defines the groups ([`palimpsest_data::benchmarks::Grouping`]).

use std::collections::{BTreeMap, BTreeSet};

use super::canvas::{NOTE, text_width};
use super::curves::{bands, n_of, titled};
use super::meaning::{Meaning, Named};
use super::plot::SAMPLE;
use super::sheet::{Panel, Sample, Sheet, ValueAxis};
use super::{Figure, Origin, captions, look};
use palimpsest_analysis::lens::study::EVIDENCE_LIFT;
use palimpsest_analysis::lens::table::{MeasureTable, measures_csv};
use palimpsest_analysis::lens::{MeasureLine, MeasureRow, Study};
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
                figures.extend(draw(study, origin, (grouping, paired, scale), name, &part));
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

/// Most panels of a figure, unless measures are named ([`look::Look`]): those of the first measures; the table has all.
const MOST: usize = 12;

/// `None` without a measure that is wanted.
fn draw(
    study: &Study,
    origin: &Origin,
    (grouping, paired, scale): (&Grouping, bool, Scale),
    name: String,
    measured: &[(&Measure, Vec<MeasureRow>)],
) -> Option<Figure> {
    let mut shown = across(measured);
    let places: Vec<(String, Option<String>)> = places(study, &shown);
    let look = look::current();
    match look.measures.is_empty() {
        true => shown.truncate((MOST / places.len().max(1)).max(1)),
        false => shown.retain(|(measure, _)| look.measures.iter().any(|key| key == measure.key)),
    }
    let width = if shown.len() > 3 { 230 } else { 270 };
    let lines = || shown.iter().flat_map(|(_, rows)| rows).flat_map(|row| &row.lines);
    let words: BTreeSet<(u64, &str)> =
        lines().map(|line| (leading_number(&line.word), line.word.as_str())).collect();
    let strokes = Named::of(words.into_iter().map(|(_, word)| word));
    // A panel names its lines if their names fit into a line.
    let names =
        strokes.0.iter().map(|(word, _)| text_width(&format!("{word} (n = 00)"), NOTE.size) + SAMPLE + 18);
    let has_names = names.sum::<i32>() <= width;
    let by_condition = unique(places.iter().map(|(_, condition)| condition)).len() > 1;
    let panels = |(row, condition): &(String, Option<String>)| {
        let condition_name = condition.as_deref().filter(|_| by_condition).map(label);
        let note: Vec<&str> =
            [&**row].into_iter().chain(condition_name).filter(|word| !word.is_empty()).collect();
        let note = note.join(" · ");
        let panel = |(axis, (measure, rows)): (usize, &(&Measure, Vec<MeasureRow>))| {
            let row = rows.iter().find(|one| (&one.row, &one.condition) == (row, condition))?;
            Some(Panel { axis, ..panel(measure, row, &note, (&strokes, has_names)) })
        };
        shown.iter().enumerate().filter_map(panel).collect()
    };
    let axis = |(measure, _): &(&Measure, _)| ValueAxis {
        reference: measure.reference,
        linear: match measure.axis {
            Axis::Logarithmic => None,
            Axis::Linear(from, to) => Some((from, to)),
        },
    };
    let legend = strokes.0.iter().map(|(word, stroke)| (Sample::Line(*stroke), (*word).to_owned()));
    let over = if paired { " over both orders" } else { "" };
    let title = titled(&format!("Measures{over} by layer, for each {}", grouping.label), scale);
    let sheet = Sheet {
        rows: places.iter().map(panels).collect(),
        legend: legend.filter(|_| !has_names).collect(),
        panel: (width, if width == 230 { 150 } else { 170 }),
        reach: 10.0,
        units: study.benchmark.unit.many(),
        axes: shown.iter().map(axis).collect(),
        ..Sheet::default()
    };
    let tables = measured.iter().map(|(measure, rows)| table_of(grouping.key, measure, scale, rows));
    let csv = measures_csv(&name, "grouping", &tables.collect::<Vec<_>>());
    let others = measured.iter().map(|(measure, _)| measure.key);
    let others = others.filter(|key| shown.iter().all(|(measure, _)| measure.key != *key));
    let others = captions::naming("In the table alone, drawn with --measures", others);
    let caption = caption(study, grouping, &shown, scale) + &others;
    (!shown.is_empty()).then(|| sheet.headed(origin, title).figure(name, caption, csv))
}

/// With one word in several rows, the rows become the lines of one panel: a panel of one line compares nothing.
fn across<'a>(measured: &[(&'a Measure, Vec<MeasureRow>)]) -> Measured<'a> {
    let rows = || measured.iter().flat_map(|(_, rows)| rows);
    let words = unique(rows().flat_map(|row| &row.lines).map(|line| &line.word));
    if words.len() != 1 || unique(rows().map(|row| &row.row)).len() == 1 {
        return measured.to_vec();
    }
    let turned = |rows: &Vec<MeasureRow>| {
        let mut turned: Vec<MeasureRow> = Vec::new();
        for MeasureRow { row, condition, lines } in rows {
            let lines = lines.iter().map(|line| MeasureLine { word: row.clone(), ..line.clone() });
            match turned.iter_mut().find(|one| one.condition == *condition) {
                Some(one) => one.lines.extend(lines),
                None => {
                    let (row, condition) = (words[0].clone(), condition.clone());
                    turned.push(MeasureRow { row, condition, lines: lines.collect() });
                }
            }
        }
        turned
    };
    measured.iter().map(|(measure, rows)| (*measure, turned(rows))).collect()
}

fn table_of<'a>(
    grouping: &'a str,
    measure: &Measure,
    scale: Scale,
    rows: &'a [MeasureRow],
) -> MeasureTable<'a> {
    MeasureTable { grouping, measure: measure.key, scale, paired: measure.paired, rows }
}

/// Panel rows by label and condition: labels sorted, numerically if they start with a number; conditions in the run's order.
fn places(study: &Study, measured: &[(&Measure, Vec<MeasureRow>)]) -> Vec<(String, Option<String>)> {
    let order = |row: &MeasureRow| {
        study.conditions.iter().position(|known| Some(&known.name) == row.condition.as_ref()).unwrap_or(0)
    };
    let rows = measured.iter().flat_map(|(_, rows)| rows);
    let found: BTreeSet<_> =
        rows.map(|row| (leading_number(&row.row), &row.row, order(row), &row.condition)).collect();
    found.into_iter().map(|(_, row, _, condition)| (row.clone(), condition.clone())).collect()
}

/// Parses `8k`; labels without a number sort last.
fn leading_number(word: &str) -> u64 {
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    word.get(..digits).and_then(|digits| digits.parse().ok()).unwrap_or(u64::MAX)
}

fn panel(measure: &Measure, row: &MeasureRow, note: &str, (strokes, has_names): (&Named<'_>, bool)) -> Panel {
    let named = |line: &MeasureLine| {
        (Some(strokes.stroke(&line.word)), format!("{} (n = {})", line.word, cases(line)))
    };
    let counts: Vec<_> = match (&row.lines[..], has_names) {
        (lines, true) => lines.iter().map(named).collect(),
        ([line], false) => vec![(None, format!("n = {}", cases(line)))],
        (lines, false) => vec![(None, n_of(lines.iter().map(|line| line.series.n)))],
    };
    let lines = row.lines.iter().map(|line| (strokes.stroke(&line.word), line.series.clone()));
    let legend = [(None, note.to_owned())].into_iter().filter(|_| !note.is_empty()).chain(counts).collect();
    Panel::of_layers(measure.label.to_owned(), legend, lines.collect())
}

/// Number of cases, and of examples if larger.
fn cases(line: &MeasureLine) -> String {
    match (line.series.n, line.examples) {
        (n, examples) if n == examples => n.to_string(),
        (n, examples) => format!("{n}; {examples} examples"),
    }
}

fn caption(
    study: &Study,
    grouping: &Grouping,
    measured: &[(&Measure, Vec<MeasureRow>)],
    scale: Scale,
) -> String {
    let each = measured
        .iter()
        .map(|(measure, _)| format!("{}: {}. ", captions::capital(measure.label), measure.about))
        .collect::<String>();
    let of_lifts = measured.iter().any(|(measure, _)| measure.axis == Axis::Logarithmic);
    let lifts = if of_lifts { " Lifts have a logarithmic axis." } else { "" };
    let baseline = study.measured().next().map(|(_, lens)| captions::baseline(lens)).unwrap_or_default();
    let (what, label, bands) =
        (of_scale(scale, study.segment()), grouping.label, bands(study.benchmark.unit));
    let numbers = match study.benchmark.unit {
        Unit::Case => "cases, with their examples where a case has several",
        Unit::Probe => study.benchmark.unit.many(),
    };
    let (without, common) = (without(study), captions::of_study(study));
    format!(
        "{each}{what} Lines: {label}; n is the number of {numbers}. {bands}{lifts}{baseline}{without}{common}"
    )
}

fn of_scale(scale: Scale, segment: &str) -> String {
    match scale {
        Scale::Mass => format!(
            "What a {segment} gets is its mass: the share of a row token's attention, averaged over rows and heads."
        ),
        Scale::Density => format!(
            "What a {segment} gets is its density: its mass over that of uniform attention, so that long ones do not \
             win by length."
        ),
    }
}

fn without(study: &Study) -> String {
    let missing = study.conditions.iter().filter(|condition| condition.lens.is_none());
    let missing = missing.filter(|condition| !study.selection.unmeasured.contains(&condition.name));
    captions::naming("Not measured", missing.map(|condition| label(&condition.name)))
}

/// Lift of the evidence in several benchmarks by one model: one panel per run, one line per condition, on one axis.
pub fn lifts(studies: &[(&Study, &Origin)], scale: Scale) -> Figure {
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
                legend.push((
                    Some(stroke),
                    format!("{condition} (n = {})", cases(line)).trim_start().to_owned(),
                ));
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
        panels.push(Panel::of_layers(title, legend, lines));
        tables.push(table_of(study.benchmark.name, &EVIDENCE_LIFT, scale, rows));
    }
    let sheet = Sheet {
        title: titled("Attention to the evidence over that to its neighbours, by layer", scale),
        origin: studies.iter().map(|(_, origin)| origin.line.as_str()).collect::<Vec<_>>().join("\n"),
        y_label: format!("attention {} of evidence / of its neighbours", scale.key()),
        axes: vec![ValueAxis { reference: Some(1.0), linear: None }],
        rows: vec![panels],
        panel: (300, 210),
        reach: 10.0,
        units: "values",
        ..Sheet::default()
    };
    let csv = measures_csv(&name, "benchmark", &tables);
    let empty = captions::naming("Left out, having no evidence with a baseline", empty);
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
        _ => format!(", but each question counts by itself in {}", by_question.join(" and ")),
    };
    let caption = format!(
        "{}: {}. At 1 it gets as much as its neighbours. One logarithmic axis for all. {} n is the number of cases, with their examples; \
         the questions of a case are averaged first{of_questions}.{}{empty}",
        captions::capital(EVIDENCE_LIFT.label),
        EVIDENCE_LIFT.about,
        bands(Unit::Case),
        of_each.collect::<String>(),
    );
    sheet.figure(name, caption, csv)
}
