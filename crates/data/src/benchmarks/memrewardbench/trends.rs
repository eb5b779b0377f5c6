//! Accuracy and consistency by context length and constraint density: figures 5, 6, 19 and 20.

use super::counts::{Counted, Share};
use super::orders::{Order, Variant};
use super::tables::{DENSITIES, Wanted, at, both_orders, each_asked, of_generation, settings, tasks};
use super::terms::{Length, Source};
use crate::benchmarks::{Chart, TrendChart, TrendLine, TrendPanel};

const BESIDE: usize = 5;

/// Draws the first repetition, so whiskers are those of single answers.
pub(super) fn charts(counted: &[Counted<'_>]) -> Vec<Chart> {
    let first: Vec<Counted<'_>> = counted.iter().filter(|counted| counted.repetition == 0).cloned().collect();
    let repeats = if first.len() < counted.len() { " Of repetitions the first is drawn." } else { "" };
    let by_task = ("length", "Accuracy and consistency by length (figure 6)");
    let by_setting = ("length-by-setting", "Accuracy and consistency of each setting by length (figure 19)");
    let charts =
        [by_length(&first, by_task, tasks), by_length(&first, by_setting, settings), density(&first)];
    let charts = charts.into_iter().filter(|chart| !chart.rows.is_empty());
    charts.map(|chart| Chart::Trends(TrendChart { caption: chart.caption + repeats, ..chart })).collect()
}

fn line<K>(
    all: &[Counted<'_>],
    counted: &Counted<'_>,
    asked: &str,
    places: impl IntoIterator<Item = K>,
    share: impl Fn(K) -> Share,
) -> TrendLine {
    let run = all.iter().any(|other| other.run != counted.run).then_some(counted.run);
    let parts = [run, counted.judge, Some(asked).filter(|asked| !asked.is_empty())];
    let name = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    TrendLine { name, points: places.into_iter().map(share).collect() }
}

fn panel(title: String, lines: impl Iterator<Item = TrendLine>) -> Option<TrendPanel> {
    let lines: Vec<TrendLine> = lines.filter(|line| line.points.iter().any(|point| point.of > 0)).collect();
    (!lines.is_empty()).then_some(TrendPanel { title, lines })
}

fn rows(panels: Vec<TrendPanel>, beside: usize) -> impl Iterator<Item = Vec<TrendPanel>> {
    panels.chunks(beside).map(<[TrendPanel]>::to_vec).collect::<Vec<_>>().into_iter()
}

/// Accuracy, and consistency if both orders were asked, by setting (figure 19) or task (figure 6).
fn by_length(
    all: &[Counted<'_>],
    (key, title): (&str, &str),
    parts: fn() -> Vec<(&'static str, Wanted)>,
) -> TrendChart {
    let accuracy = parts().into_iter().filter_map(|(part, wanted)| {
        let asked = each_asked(all).filter(|(_, (_, variant), _)| *variant == Variant::Plain);
        let lines = asked.map(|(counted, asked, condition)| {
            let share = |length| counted.accuracy(asked, at(length, &wanted));
            line(all, counted, &condition, Length::ALL, share)
        });
        panel(format!("{part}: accuracy"), lines)
    });
    let consistency = parts().into_iter().filter_map(|(part, wanted)| {
        let asked = both_orders(all).filter(|(_, variant, _)| *variant == Variant::Plain);
        let lines = asked.map(|(counted, variant, _)| {
            let found = |length| counted.consistency(variant, at(length, &wanted)).unwrap_or_default();
            line(all, counted, "both orders", Length::ALL, |length| found(length).stable_right)
        });
        panel(format!("{part}: consistency"), lines)
    });
    let caption = "Share of pairs by the length of the context that they were made from. Accuracy: the chosen trajectory preferred, in the \
                   order named. Consistency: the chosen one preferred in both orders. Unreadable verdicts and prompts that do not fit \
                   the context count as wrong. Whiskers: 95% intervals (Wilson).";
    TrendChart {
        key: key.to_owned(),
        title: title.to_owned(),
        caption: caption.to_owned(),
        axis: "length of the context".to_owned(),
        places: Length::ALL.map(|length| length.name().to_owned()).into(),
        rows: rows(accuracy.collect(), BESIDE).chain(rows(consistency.collect(), BESIDE)).collect(),
    }
}

fn density(all: &[Counted<'_>]) -> TrendChart {
    let mut parts = of_generation();
    parts.rotate_right(1);
    let panels = parts.into_iter().filter_map(|(part, wanted)| {
        let asked = all.iter().flat_map(|counted| Order::ALL.map(|order| (counted, order)));
        let lines = asked.map(|(counted, order)| {
            let share = |percent| counted.accuracy((order, Variant::Density(percent)), &wanted);
            line(all, counted, order.name(), DENSITIES, share)
        });
        panel(part.to_owned(), lines)
    });
    let caption = "Share of long-form pairs in which the chosen trajectory is preferred, by the part of the question's constraints that it \
                   keeps: all of them (LG), by pattern of memory (S sequential, P parallel), and by the data set that the question comes \
                   from. Whiskers: 95% intervals (Wilson).";
    TrendChart {
        key: "density".to_owned(),
        title: "Accuracy by density of constraints (figures 5 and 20)".to_owned(),
        caption: caption.to_owned(),
        axis: "constraints kept".to_owned(),
        places: DENSITIES.map(|percent| format!("{percent}%")).into(),
        rows: rows(panels.collect(), Source::ALL.len()).collect(),
    }
}
