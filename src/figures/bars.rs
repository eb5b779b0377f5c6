//! Counts of each value of a label, as bars (STALE, figure 5). Called by `palimpsest data stats --by LABEL --figure DIR`.

use plotters::style::RGBColor;

use super::canvas::{Head, LABEL, Refusal, TICK, filled, fitted, line, margin, svg, write};
use super::legend::Legend;
use super::meaning::Meaning;
use super::rows::RowLayout;
use super::style::{GREY, GRID, shortened};
use super::{Figure, FigureError};
use crate::data::labels::{LabelCounts, ValueCount};
use crate::ground::csv::CsvTable;

const BAR: i32 = 16;
const STEP: i32 = 24;
/// Length of the longest bar in pixels.
const LENGTH: i32 = 380;
/// Characters of a value's name.
const NAME: usize = 44;

/// A bar a value, the most frequent first, each parted by the split where cases have one. `origin` says where the cases come
/// from.
pub fn distribution(counts: &LabelCounts, origin: &str) -> Result<Figure, FigureError> {
    let name = format!("distribution-{}", file_part(&counts.label));
    let title = format!("Cases by {}", shortened(&counts.label, 40));
    let splits = counts.splits();
    let colour = |split: &str| {
        splits.iter().position(|one| *one == split).map_or(GREY, |at| Meaning::Group(at).colour())
    };
    let labelled = counts.cases - counts.without;
    let names: Vec<String> = counts.values.iter().map(|value| shortened(&value.value, NAME)).collect();
    let said = counts.values.iter().map(|value| {
        let share = 100.0 * value.cases as f64 / labelled as f64;
        format!("{} ({share:.1}%)", value.cases)
    });
    let texts: Vec<(&str, String)> = names.iter().map(String::as_str).zip(said).collect();
    let rows = RowLayout::of(&texts, LENGTH, STEP);
    let head = Head::of(&title, origin, rows.width);
    let top = head.height() + 4;
    let bottom = top + counts.values.len() as i32 * rows.step;
    let room = rows.width - 2 * margin();
    let entries = splits.iter().map(|split| (colour(split), 20, fitted(split, 12, room - 22)));
    let legend = Legend::of(entries, LABEL, [22, 18], room);
    let height = bottom + 26 + legend.height() + margin();
    let most = counts.values.iter().map(|value| value.cases).max().unwrap_or(1).max(1);
    let length = |cases: usize| (cases as f64 / most as f64 * f64::from(rows.length)).round() as i32;
    let left = rows.left;
    let svg = svg(&name, &title, (rows.width, height), |area| {
        head.draw(area)?;
        for tick in ticks(most) {
            let x = left + length(tick);
            line(area, [(x, top - 4), (x, bottom)], GRID)?;
            write(area, &tick.to_string(), (x, bottom + 4), TICK.centred())?;
        }
        for (at, value) in counts.values.iter().enumerate() {
            let row = top + at as i32 * rows.step;
            rows.words(area, &texts[at], row)?;
            let from_top = row + rows.mark_top;
            let mut done = 0;
            let mut part = |cases: usize, colour: RGBColor| -> Result<(), Refusal> {
                let (from, to) = (left + length(done), left + length(done + cases));
                done += cases;
                filled(area, [(from, from_top), (to, from_top + BAR)], colour)
            };
            let parted: usize = value.by_split.values().sum();
            for (split, cases) in &value.by_split {
                part(*cases, colour(split))?;
            }
            part(value.cases - parted, GREY)?;
        }
        legend.draw(
            area,
            |_| margin(),
            bottom + 26,
            |colour, (x, y)| filled(area, [(x, y + 1), (x + 14, y + 13)], *colour),
        )
    })?;
    let without = match counts.without {
        0 => String::new(),
        n => format!(" {n} of {} cases have no such label and are left out.", counts.cases),
    };
    let caption = format!(
        "Cases by their label {}: {labelled} cases, {} values. Percentages are of the cases that have the label.{without}",
        counts.label,
        counts.values.len()
    );
    let csv = csv(counts, &splits);
    Ok(Figure { name, title, caption, svg, csv })
}

/// A row a value, with a column a value of the split.
fn csv(counts: &LabelCounts, splits: &[&str]) -> Vec<u8> {
    let table = CsvTable::of(&counts.values)
        .column("label", |_| &counts.label)
        .column("value", |value| &value.value)
        .column("cases", |value| value.cases);
    let of_split = |table: CsvTable<_>, split: &&str| {
        table.column(split, |value: &ValueCount| value.by_split.get(*split).copied().unwrap_or(0))
    };
    splits.iter().fold(table, of_split).bytes()
}

/// Whole numbers from 0 up to the longest bar.
fn ticks(most: usize) -> Vec<usize> {
    let steps = (0..).flat_map(|power| [1, 2, 5].map(|step| step * 10usize.saturating_pow(power)));
    let step = steps.into_iter().find(|step| most / step <= 6).unwrap_or(most).max(1);
    (0..=most / step).map(|at| at * step).collect()
}

fn file_part(label: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    label.chars().take(40).map(plain).collect()
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
