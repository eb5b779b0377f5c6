//! Lines over named levels with 95% intervals as whiskers: shares over lengths or densities (MemoryRewardBench, figures 6, 19 and 20), and
//! means over a factor's levels ([`super::dose`]).

use super::Figure;
use super::meaning::Named;
use super::sheet::{Across, Mark, Panel, Plain, Sample, Sheet, ValueAxis};
use super::style::{Stroke, UNIT};
use palimpsest_data::benchmarks::{TrendChart, TrendPanel};
use palimpsest_data::ground::csv::CsvTable;

/// Value and interval.
pub(super) type LevelPoint = (f64, Option<(f64, f64)>);

/// Lines over levels, interrupted at missing values and offset slightly so that whiskers do not overlap.
pub(super) fn marks(lines: &[(Stroke, Vec<Option<LevelPoint>>)]) -> Vec<Mark> {
    const BESIDE: f64 = 0.06;
    let middle = lines.len().saturating_sub(1) as f64 / 2.0;
    let of_line = |(nth, (stroke, points)): (usize, &(Stroke, Vec<Option<LevelPoint>>))| {
        let place = |level: usize| level as f64 + (nth as f64 - middle) * BESIDE;
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

/// A benchmark's chart on a shared 0 to 100% axis; equal names have equal strokes. The CSV has the counts.
pub(super) fn trends(chart: &TrendChart, origin: &str) -> Figure {
    let panels = || chart.rows.iter().flatten();
    let strokes = Named::of(panels().flat_map(|panel| &panel.lines).map(|line| line.name.as_str()));
    let panel = |panel: &TrendPanel| {
        panel.lines.iter().flat_map(|line| &line.points).find_map(|point| point.share())?;
        let lines = panel.lines.iter().map(|line| {
            let points = line.points.iter().map(|point| {
                Some((point.share()?, point.interval().map(|interval| (interval.low, interval.high))))
            });
            (strokes.stroke(&line.name), points.collect())
        });
        Some(Panel {
            title: panel.title.clone(),
            marks: marks(&lines.collect::<Vec<_>>()),
            x: Across::Names(chart.places.clone()),
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
        axes: vec![ValueAxis { reference: None, linear: Some((0.0, 1.0)) }],
        ..Sheet::default()
    };
    let lines = panels().flat_map(|panel| panel.lines.iter().map(move |line| (panel, line)));
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
    sheet.figure(chart.key.clone(), chart.caption.clone(), csv)
}
