//! Bar charts: counts per label value (STALE, figure 5) and stacked shares (SubtleMemory, figure 3).

use super::Figure;
use super::meaning::Meaning;
use super::plot::Sample;
use super::rows::{Row, RowMark, Rows};
use super::style::{Colour, GREY, LINEAR, shortened};
use palimpsest_data::benchmarks::{Bar, BarChart};
use palimpsest_data::case::labels::{LabelCounts, ValueCount};
use palimpsest_data::ground::csv::CsvTable;

const NAME: usize = 44;
/// Sequential scale from dark to light, readable without colour.
const PARTS: [Colour; 5] = [
    Colour(0x00, 0x44, 0x88),
    Colour(0x33, 0x88, 0xbb),
    Colour(0x88, 0xc0, 0xd8),
    Colour(0xd8, 0xb3, 0x65),
    LINEAR,
];

fn stacked(parts: impl IntoIterator<Item = (f64, Colour)>) -> Vec<RowMark> {
    let bars = parts.into_iter().filter(|(length, _)| *length > 0.0).scan(0.0, |done, (length, colour)| {
        let from = *done;
        *done += length;
        Some(RowMark::Bar([from, *done], colour))
    });
    bars.collect()
}

/// One bar per value, most frequent first, stacked by the split if there is one. Called by `palimpsest data stats --by LABEL --figure DIR`.
pub fn distribution(counts: &LabelCounts, origin: &str) -> Figure {
    let splits = counts.splits();
    let colour = |at: usize| Meaning::Group(at).colour();
    let labelled = counts.cases - counts.without;
    let row = |value: &ValueCount| {
        let of = |split: &&str| value.by_split.get(*split).copied().unwrap_or(0);
        let parted: usize = value.by_split.values().sum();
        let parts = splits.iter().enumerate().map(|(at, split)| (of(split) as f64, colour(at)));
        Row {
            label: shortened(&value.value, NAME),
            note: format!("{} ({:.1}%)", value.cases, 100.0 * value.cases as f64 / labelled as f64),
            marks: stacked(parts.chain([((value.cases - parted) as f64, GREY)])),
            ..Row::default()
        }
    };
    let most = counts.values.iter().map(|value| value.cases).max().unwrap_or(1).max(1);
    let rows = Rows {
        title: format!("Cases by {}", shortened(&counts.label, 40)),
        origin: origin.to_owned(),
        ends: (0.0, most as f64),
        ticks: ticks(most).into_iter().map(|tick| (tick as f64, tick.to_string())).collect(),
        rows: counts.values.iter().map(row).collect(),
        legend: splits
            .iter()
            .enumerate()
            .map(|(at, split)| (Sample::Bar(colour(at)), (*split).to_owned()))
            .collect(),
        ..Rows::default()
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
    rows.figure(format!("distribution-{}", file_part(&counts.label)), caption, csv)
}

fn ticks(most: usize) -> Vec<usize> {
    let steps = (0..).flat_map(|power| [1, 2, 5].map(|step| step * 10usize.saturating_pow(power)));
    let step = steps.into_iter().find(|step| most / step <= 6).unwrap_or(most).max(1);
    (0..=most / step).map(|at| at * step).collect()
}

fn file_part(label: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    label.chars().take(40).map(plain).collect()
}

/// Stacked bars of equal length, so that shares compare; the CSV has the counts.
pub(super) fn of_parts(chart: &BarChart, origin: &str) -> Figure {
    let colour = |at: usize| PARTS[at % PARTS.len()];
    let row = |bar: &Bar| {
        let whole = bar.counts.iter().sum::<usize>().max(1) as f64;
        let parts = bar.counts.iter().enumerate().map(|(at, count)| (*count as f64 / whole, colour(at)));
        let (group, label, note) = (bar.group.clone(), bar.label.clone(), bar.note.clone());
        Row { group, label, note, marks: stacked(parts) }
    };
    let rows = Rows {
        title: chart.title.clone(),
        origin: origin.to_owned(),
        ends: (0.0, 1.0),
        ticks: [0, 25, 50, 75, 100].map(|percent| (f64::from(percent) / 100.0, format!("{percent}%"))).into(),
        rows: chart.bars.iter().map(row).collect(),
        legend: chart
            .parts
            .iter()
            .enumerate()
            .map(|(at, part)| (Sample::Bar(colour(at)), part.clone()))
            .collect(),
        ..Rows::default()
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
    rows.figure(chart.key.clone(), chart.caption.clone(), csv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_round_numbers_from_0() {
        assert_eq!(ticks(1), [0, 1]);
        assert_eq!(ticks(7), [0, 2, 4, 6]);
        assert_eq!(ticks(63), [0, 10, 20, 30, 40, 50, 60]);
        assert_eq!(file_part("Seed category/β"), "seed-category--");
    }
}
