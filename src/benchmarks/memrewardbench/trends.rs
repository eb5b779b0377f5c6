//! Accuracy and consistency over the length of the context and over the density of constraints: figures 5, 6, 19 and 20 of the paper, as
//! tables and as pictures.

use super::counts::{Compared, Counted, Share};
use super::orders::{Order, Variant};
use super::tables::{
    COARSE, DENSITIES, OVERLONG, OfBoth, Wanted, both_orders, count, each_asked, heads, number,
    of_generation, of_setting, of_task, starts, table, variant_name,
};
use super::terms::{Length, Setting, Source, Task};
use crate::benchmarks::{Chart, Table, TrendChart, TrendLine, TrendPanel, TrendPoint};
use crate::ground::sheet::{Column, cell};

/// Panels of a row of figure 19.
const BESIDE: usize = 5;

fn settings() -> Vec<(&'static str, Wanted)> {
    Setting::ALL.map(|setting| (setting.short(), of_setting(setting))).into()
}

/// The tasks by name, and all of them.
fn tasks() -> Vec<(&'static str, Wanted)> {
    let mut tasks = Vec::from(Task::ALL.map(|task| (task.short(), of_task(task))));
    tasks.push(("all", Box::new(|_| true)));
    tasks
}

/// Pairs of one length of those that `wanted` takes.
fn at(length: Length, wanted: &Wanted) -> impl Fn(&Compared) -> bool {
    move |pair| pair.length == Some(length) && wanted(pair)
}

fn columns(what: &str, more: &str) -> Vec<Column> {
    let mut columns = heads(what);
    columns.extend([Column::text("pairs of")]);
    columns.extend((!more.is_empty()).then(|| Column::text(more)));
    columns.extend(Length::ALL.map(|length| Column::number(length.name())));
    columns.extend(["Avg", OVERLONG].map(Column::number));
    columns
}

/// The tables by setting and length.
pub(super) fn tables(counted: &[Counted<'_>]) -> Vec<Table> {
    vec![accuracy(counted), consistency(counted)]
}

/// Accuracy by setting and length.
fn accuracy(counted: &[Counted<'_>]) -> Table {
    let mut rows = Vec::new();
    for (counted, asked, name) in
        each_asked(counted).filter(|(_, (_, variant), _)| *variant == Variant::Plain)
    {
        for (part, wanted) in settings().into_iter().chain(tasks()) {
            let all = counted.accuracy(asked, &wanted);
            if all.of == 0 {
                continue;
            }
            let mut row = starts(counted, &name);
            row.push(cell(part));
            row.extend(
                Length::ALL.map(|length| number(counted.accuracy(asked, at(length, &wanted)), COARSE)),
            );
            row.extend([number(all, COARSE), count(counted.overlong(asked, &wanted))]);
            rows.push(row);
        }
    }
    let title = "Accuracy by setting and length (figures 6 and 19)";
    table("accuracy-lengths", title, columns("condition", ""), rows, &[])
}

/// The shares of table 7, by name.
const KINDS: [(&str, OfBoth); 2] =
    [("stable", |found| found.stable), ("stable_right", |found| found.stable_right)];

/// Consistency by setting and length.
fn consistency(counted: &[Counted<'_>]) -> Table {
    let mut rows = Vec::new();
    for (counted, variant) in both_orders(counted).filter(|(_, variant)| *variant == Variant::Plain) {
        for (part, wanted) in settings().into_iter().chain(tasks()) {
            let Some(all) = counted.consistency(variant, &wanted) else { continue };
            let lengths = Length::ALL
                .map(|length| counted.consistency(variant, at(length, &wanted)).unwrap_or_default());
            for (kind, of) in KINDS {
                let mut row = starts(counted, variant_name(variant));
                row.extend([cell(part), cell(kind)]);
                row.extend(lengths.iter().map(|found| number(of(found), COARSE)));
                row.extend([number(of(&all), COARSE), count(all.overlong)]);
                rows.push(row);
            }
        }
    }
    let title = "Consistency by setting and length (figures 6 and 19)";
    let note = "stable: the same trajectory preferred in both orders; stable_right: the chosen one in both, the paper's table 7";
    table("consistency-lengths", title, columns("variant", "measure"), rows, &[note])
}

/// The pictures that the rows give. A line is of the first repetition: its whiskers are those of single answers.
pub(super) fn charts(counted: &[Counted<'_>]) -> Vec<Chart> {
    let first: Vec<Counted<'_>> = counted.iter().filter(|counted| counted.repetition == 0).cloned().collect();
    let repeats = if first.len() < counted.len() { " Of repetitions the first is drawn." } else { "" };
    let charts = [by_length(&first, false), by_length(&first, true), density(&first)];
    let said = |chart| match chart {
        Chart::Trends(chart) => Chart::Trends(TrendChart { caption: chart.caption + repeats, ..chart }),
        other => other,
    };
    charts.into_iter().flatten().map(said).collect()
}

/// A line's name: the run where there are several, the judge, and what was asked.
fn name(all: &[Counted<'_>], counted: &Counted<'_>, asked: &str) -> String {
    let run = all.iter().any(|other| other.run != counted.run).then_some(counted.run);
    let parts = [run, counted.judge, Some(asked).filter(|asked| !asked.is_empty())];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn point(share: Share) -> TrendPoint {
    TrendPoint { count: share.count, of: share.of }
}

/// The lines that have a point.
fn panel(title: String, lines: impl Iterator<Item = TrendLine>) -> Option<TrendPanel> {
    let lines: Vec<TrendLine> = lines.filter(|line| line.points.iter().any(|point| point.of > 0)).collect();
    (!lines.is_empty()).then_some(TrendPanel { title, lines })
}

/// Accuracy, and below it consistency where both orders were asked: by setting (figure 19) or by task (figure 6).
fn by_length(all: &[Counted<'_>], of_settings: bool) -> Option<Chart> {
    let parts = || if of_settings { settings() } else { tasks() };
    let accuracy = parts().into_iter().filter_map(|(part, wanted)| {
        let asked = each_asked(all).filter(|(_, (_, variant), _)| *variant == Variant::Plain);
        let lines = asked.map(|(counted, asked, condition)| TrendLine {
            name: name(all, counted, &condition),
            points: Length::ALL.map(|length| point(counted.accuracy(asked, at(length, &wanted)))).into(),
        });
        panel(format!("{part}: accuracy"), lines)
    });
    let consistency = parts().into_iter().filter_map(|(part, wanted)| {
        let asked = both_orders(all).filter(|(_, variant)| *variant == Variant::Plain);
        let lines = asked.map(|(counted, variant)| {
            let of = |length| {
                let found = counted.consistency(variant, at(length, &wanted)).unwrap_or_default();
                point(found.stable_right)
            };
            TrendLine { name: name(all, counted, "both orders"), points: Length::ALL.map(of).into() }
        });
        panel(format!("{part}: consistency"), lines)
    });
    let rows: Vec<Vec<TrendPanel>> = [accuracy.collect::<Vec<_>>(), consistency.collect()]
        .into_iter()
        .flat_map(|panels| panels.chunks(BESIDE).map(<[TrendPanel]>::to_vec).collect::<Vec<_>>())
        .collect();
    let (key, title) = match of_settings {
        true => ("length-by-setting", "Accuracy and consistency of each setting by length (figure 19)"),
        false => ("length", "Accuracy and consistency by length (figure 6)"),
    };
    let caption = "Share of pairs by the length of the context that they were made from. Accuracy: the chosen trajectory preferred, in the \
                   order named. Consistency: the chosen one preferred in both orders. What cannot be read or does not fit the context \
                   counts as wrong. Whiskers: 95% intervals (Wilson).";
    let places = Length::ALL.map(|length| length.name().to_owned()).into();
    chart(key, title, caption, "length of the context", places, rows)
}

/// Accuracy by density of constraints, by source.
fn density(all: &[Counted<'_>]) -> Option<Chart> {
    // All of them first, then the patterns; the sources have a row of their own.
    let mut parts = of_generation();
    parts.rotate_right(1);
    let panels = parts.into_iter().filter_map(|(part, wanted)| {
        let asked = all.iter().flat_map(|counted| Order::ALL.map(|order| (counted, order)));
        let lines = asked.map(|(counted, order)| {
            let of = |percent| point(counted.accuracy((order, Variant::Density(percent)), &wanted));
            TrendLine { name: name(all, counted, order.name()), points: DENSITIES.map(of).into() }
        });
        panel(part.to_owned(), lines)
    });
    let rows = panels.collect::<Vec<_>>().chunks(Source::ALL.len()).map(<[TrendPanel]>::to_vec).collect();
    let caption = "Share of long-form pairs in which the chosen trajectory is preferred, by the part of the question's constraints that it \
                   keeps: all of them (LG), by pattern of memory (S sequential, P parallel), and by the data set that the question comes \
                   from. Whiskers: 95% intervals (Wilson).";
    let places = DENSITIES.map(|percent| format!("{percent}%")).into();
    chart(
        "density",
        "Accuracy by density of constraints (figures 5 and 20)",
        caption,
        "constraints kept",
        places,
        rows,
    )
}

/// Absent without panels.
fn chart(
    key: &str,
    title: &str,
    caption: &str,
    axis: &str,
    places: Vec<String>,
    rows: Vec<Vec<TrendPanel>>,
) -> Option<Chart> {
    let of = |text: &str| text.to_owned();
    let (key, title, caption, axis) = (of(key), of(title), of(caption), of(axis));
    (!rows.is_empty()).then_some(Chart::Trends(TrendChart { key, title, caption, axis, places, rows }))
}
