//! Charts of counts and shares: bars per label value (STALE, figure 5), stacked shares (SubtleMemory, figure 3), and lines over named levels
//! with 95% intervals as whiskers (MemoryRewardBench, figures 6, 19 and 20), which doses have too ([`super::dose`]).

use super::Figure;
use super::curves::n_of;
use super::meaning::{Meaning, Named};
use super::rows::{LENGTH, panels};
use super::sheet::{Across, Mark, Panel, Plain, Sample, Sheet, ValueAxis};
use super::style::{Colour, GREY, LINEAR, Stroke, UNIT, shortened};
use palimpsest_analysis::lens::band::LEAST;
use palimpsest_data::benchmarks::{Bar, BarChart, TrendChart, TrendPanel};
use palimpsest_data::case::labels::{LabelCounts, ValueCount};
use palimpsest_data::case::lengths::{Placement, SplitLengths};
use palimpsest_data::ground::csv::CsvTable;

/// Sequential scale from dark to light, readable without colour.
const PARTS: [Colour; 5] =
    [Colour::of(0x004488), Colour::of(0x3388bb), Colour::of(0x88c0d8), Colour::of(0xd8b365), LINEAR];

/// Parts of a bar, one after the other.
fn stacked(parts: impl IntoIterator<Item = (f64, Colour)>, y: f64) -> Vec<Mark> {
    let bars = parts.into_iter().filter(|(length, _)| *length > 0.0).scan(0.0, |done, (length, colour)| {
        let from = *done;
        *done += length;
        Some(Mark::Bar([(from, y + 0.34), (*done, y - 0.34)], colour.into()))
    });
    bars.collect()
}

/// One bar per value, most frequent first, stacked by the split if there is one. Called by `palimpsest data stats --by LABEL --figure DIR`.
pub fn distribution(counts: &LabelCounts, origin: &str) -> Figure {
    let splits = counts.splits();
    let colour = |at: usize| Meaning::Group(at).colour();
    let labelled = counts.cases - counts.without;
    let marks = |value: &ValueCount, y: f64| {
        let of = |split: &&str| value.by_split.get(*split).copied().unwrap_or(0);
        let parted: usize = value.by_split.values().sum();
        let parts = splits.iter().enumerate().map(|(at, split)| (of(split) as f64, colour(at)));
        stacked(parts.chain([((value.cases - parted) as f64, GREY)]), y)
    };
    let words = |value: &ValueCount| {
        let note = format!("{} ({:.1}%)", value.cases, 100.0 * value.cases as f64 / labelled as f64);
        [String::new(), shortened(&value.value, 44), note]
    };
    // Ticks of fewer than two cases would be fractions.
    let most = counts.values.iter().map(|value| value.cases).max().unwrap_or(0).max(2);
    let parts = splits.iter().enumerate().map(|(at, split)| (Sample::Bar(colour(at)), (*split).to_owned()));
    let sheet = Sheet {
        title: format!("Cases by {}", shortened(&counts.label, 40)),
        origin: origin.to_owned(),
        rows: panels(&counts.values, (0.0, most as f64), "", words, marks),
        // Bars that are named by their one part need no legend.
        legend: parts
            .filter(|_| counts.values.iter().any(|one| one.by_split.keys().ne([&one.value])))
            .collect(),
        panel: LENGTH,
        ..Sheet::default()
    };
    let without = match counts.without {
        0 => String::new(),
        n => format!(" {n} of {} cases have no such label and are left out.", counts.cases),
    };
    let caption = format!(
        "Cases by their label {}: {labelled} cases, {} values. Percentages are of the cases that have the label.{without}",
        counts.label,
        counts.values.len()
    );
    let table = CsvTable::of(&counts.values)
        .column("label", |_| &counts.label)
        .column("value", |value| &value.value)
        .column("cases", |value| value.cases);
    let of_split = |table: CsvTable<_>, split: &&str| {
        table.column(split, |value: &ValueCount| value.by_split.get(*split).copied().unwrap_or(0))
    };
    let csv = splits.iter().fold(table, of_split).bytes();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = counts.label.chars().take(40).map(plain).collect();
    sheet.figure(format!("distribution-{name}"), caption, csv)
}

/// Depth of the new session against its distance from the old one, a point a case, in sessions and in tokens; a colour for each file. Called
/// by `palimpsest data stats --placement DIR`.
pub fn placement(files: &[(String, Vec<SplitLengths>)], origin: &str) -> Figure {
    let points: Vec<(&str, Stroke, &SplitLengths, Placement)> = (files.iter().enumerate())
        .flat_map(|(at, (name, cases))| cases.iter().map(move |case| (at, name, case)))
        .filter_map(|(at, name, case)| {
            Some((name.as_str(), Meaning::Group(at).stroke(), case, case.placement?))
        })
        .collect();
    type Of = fn(&Placement) -> (f64, f64);
    let units: [(&str, Of); 2] = [
        ("sessions", |of| (of.distance, of.new_at)),
        ("tokens", |of| (of.distance_tokens, of.new_at_tokens)),
    ];
    let most = |pick: &dyn Fn(&Placement) -> f64| {
        points.iter().map(|point| pick(&point.3)).fold(1.0, f64::max) * 1.05
    };
    let panel = |(axis, (unit, of)): (usize, (&str, Of))| Panel {
        title: unit.to_owned(),
        marks: points
            .iter()
            .map(|point| Mark::Dot(of(&point.3), UNIT * 2, point.1.colour.mix(0.7)))
            .collect(),
        x: Across::Linear(0.0, most(&|one| of(one).0)),
        x_label: format!("{unit} from old to new"),
        axis,
        ..Panel::default()
    };
    let legend = files
        .iter()
        .enumerate()
        .map(|(at, (name, _))| (Sample::Dot(Meaning::Group(at).stroke().colour), shortened(name, 44)));
    let sheet = Sheet {
        title: "Depth of the new session against its distance from the old one".to_owned(),
        origin: origin.to_owned(),
        y_label: "before the new session".to_owned(),
        rows: vec![units.into_iter().enumerate().map(panel).collect()],
        legend: legend.collect(),
        panel: (300, 260),
        axes: units
            .map(|(_, of)| ValueAxis { reference: None, linear: Some((0.0, most(&|one| of(one).1))) })
            .into(),
        ..Sheet::default()
    };
    let caption = format!(
        "Sessions and tokens (contents of turns) before the new session against those from the old session to the new one, of {} cases. A \
         distance of sessions is the difference of both places; one of tokens is what stands between.",
        points.len()
    );
    let csv = CsvTable::of(&points)
        .column("file", |point| point.0)
        .column("case", |point| &point.2.split)
        .column("new_at", |point| point.3.new_at)
        .column("distance", |point| point.3.distance)
        .column("tail", |point| point.3.tail)
        .column("new_at_tokens", |point| point.3.new_at_tokens)
        .column("distance_tokens", |point| point.3.distance_tokens)
        .column("tail_tokens", |point| point.3.tail_tokens)
        .bytes();
    sheet.figure("placement", caption, csv)
}

/// Stacked bars of equal length, so that shares compare; the CSV has the counts.
pub(super) fn of_parts(chart: &BarChart, origin: &str) -> Figure {
    let colour = |at: usize| PARTS[at % PARTS.len()];
    let marks = |bar: &Bar, y: f64| {
        let whole = bar.counts.iter().sum::<usize>().max(1) as f64;
        stacked(bar.counts.iter().enumerate().map(|(at, count)| (*count as f64 / whole, colour(at))), y)
    };
    let words = |bar: &Bar| [bar.group.clone(), bar.label.clone(), bar.note.clone()];
    let parts = chart.parts.iter().enumerate().map(|(at, part)| (Sample::Bar(colour(at)), part.clone()));
    let sheet = Sheet {
        title: chart.title.clone(),
        origin: origin.to_owned(),
        percent: true,
        rows: panels(&chart.bars, (0.0, 1.0), "", words, marks),
        legend: parts.collect(),
        panel: LENGTH,
        ..Sheet::default()
    };
    let counts = chart
        .bars
        .iter()
        .flat_map(|bar| chart.parts.iter().zip(&bar.counts).map(move |(part, count)| (bar, part, count)));
    let csv = CsvTable::of(counts)
        .column("group", |(bar, ..)| &bar.group)
        .column("bar", |(bar, ..)| &bar.label)
        .column("part", |(_, part, _)| part)
        .column("count", |(.., count)| count)
        .bytes();
    sheet.figure(chart.key.clone(), chart.caption.clone(), csv)
}

/// Value and interval.
pub(super) type LevelPoint = (f64, Option<(f64, f64)>);

/// Lines over levels, interrupted at missing values and offset slightly so that whiskers do not overlap.
pub(super) fn marks(lines: &[(Stroke, Vec<Option<LevelPoint>>)]) -> Vec<Mark> {
    // Apart, and within the level's part of the axis.
    let beside = 0.72 / lines.len().max(6) as f64;
    let middle = lines.len().saturating_sub(1) as f64 / 2.0;
    let of_line = |(nth, (stroke, points)): (usize, &(Stroke, Vec<Option<LevelPoint>>))| {
        let place = |level: usize| level as f64 + (nth as f64 - middle) * beside;
        let look = Plain { ink: stroke.colour.mix(0.6), width: UNIT * 3 / 2, dash: None };
        let whiskers = points.iter().enumerate().filter_map(|(level, point)| {
            let (low, high) = point.and_then(|(_, interval)| interval)?;
            Some(Mark::Path(vec![(place(level), low), (place(level), high)], look))
        });
        let places = points.iter().enumerate().map(|(level, point)| Some((place(level), point.as_ref()?.0)));
        whiskers.chain([Mark::Line(*stroke, places.collect())]).collect::<Vec<_>>()
    };
    lines.iter().enumerate().flat_map(of_line).collect()
}

/// A benchmark's chart on a shared 0 to 100% axis; equal names have equal strokes. A panel has the places it has counts at. As in all
/// figures, intervals are drawn from [`LEAST`] on: Wilson's of one answer spans four fifths of the axis. The CSV has all counts.
pub(super) fn trends(chart: &TrendChart, origin: &str) -> Figure {
    let all = || chart.rows.iter().flatten();
    let strokes = Named::of(all().flat_map(|panel| &panel.lines).map(|line| line.name.as_str()));
    let panel = |panel: &TrendPanel| {
        let counted = |at: usize| panel.lines.iter().filter_map(move |line| line.points.get(at));
        let places: Vec<usize> =
            (0..chart.places.len()).filter(|at| counted(*at).any(|point| point.of > 0)).collect();
        let lines = panel.lines.iter().map(|line| {
            let points = places.iter().map(|at| {
                let point = line.points.get(*at)?;
                let interval = point.interval().filter(|_| point.of >= LEAST);
                Some((point.share()?, interval.map(|interval| (interval.low, interval.high))))
            });
            (strokes.stroke(&line.name), points.collect())
        });
        let counts = places.iter().flat_map(|at| counted(*at)).map(|point| point.of);
        (!places.is_empty()).then(|| Panel {
            title: panel.title.clone(),
            legend: vec![(None, n_of(counts))],
            marks: marks(&lines.collect::<Vec<_>>()),
            x: Across::Names(places.iter().map(|at| chart.places[*at].clone()).collect()),
            x_label: chart.axis.clone(),
            ..Panel::default()
        })
    };
    let legend = strokes.0.iter().map(|(name, stroke)| (Sample::Line(*stroke), (*name).to_owned()));
    let sheet = Sheet {
        title: chart.title.clone(),
        origin: origin.to_owned(),
        percent: true,
        rows: chart.rows.iter().map(|row| row.iter().filter_map(panel).collect()).collect(),
        legend: legend.collect(),
        panel: (190, 110),
        // Room for markers at 0 and 100%.
        axes: vec![ValueAxis { reference: None, linear: Some((-0.04, 1.04)) }],
        ..Sheet::default()
    };
    let lines = all().flat_map(|panel| panel.lines.iter().map(move |line| (panel, line)));
    let points = lines.flat_map(|(panel, line)| {
        chart.places.iter().zip(&line.points).map(move |(place, point)| (panel, line, place, point))
    });
    let csv = CsvTable::of(points)
        .column("panel", |(panel, ..)| &panel.title)
        .column("line", |(_, line, ..)| &line.name)
        .column("place", |(_, _, place, _)| place)
        .column("count", |(.., point)| point.count)
        .column("of", |(.., point)| point.of)
        .optional("low", |(.., point)| point.interval().map(|interval| format!("{:.6}", interval.low)))
        .optional("high", |(.., point)| point.interval().map(|interval| format!("{:.6}", interval.high)))
        .bytes();
    let caption = format!(
        "{} A whisker needs {LEAST} answers; n is the number of answers that a point stands for. The figure's CSV has all.",
        chart.caption
    );
    sheet.figure(chart.key.clone(), caption, csv)
}
