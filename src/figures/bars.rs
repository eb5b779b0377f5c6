//! How often each value of a label occurs, as bars (STALE, figure 5). Called by `palimpsest data stats --by LABEL --figure DIR`.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::canvas::{MARGIN, Refusal, head, svg, text_width, wide_enough, write};
use super::style::{BLUE, GREEN, GREY, GRID, INK, UNIT, VERMILLION, shortened};
use super::{Figure, FigureError};
use crate::data::labels::LabelCounts;

const HEAD: i32 = 58;
const BAR: i32 = 16;
const STEP: i32 = 24;
/// Length of the longest bar in pixels.
const LENGTH: i32 = 380;
const FOOT: i32 = 56;
/// Characters of a value's name.
const NAME: usize = 44;

/// A bar a value, the most frequent first, each parted by the split where cases have one. `origin` says where the cases come
/// from.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn distribution(counts: &LabelCounts, origin: &str) -> Result<Figure, FigureError> {
    let name = format!("distribution-{}", file_part(&counts.label));
    let title = format!("Cases by {}", shortened(&counts.label, 40));
    let splits = counts.splits();
    let colour = |split: &str| {
        const COLOURS: [RGBColor; 3] = [BLUE, VERMILLION, GREEN];
        splits.iter().position(|one| *one == split).map_or(GREY, |at| COLOURS[at % COLOURS.len()])
    };
    let names: Vec<String> = counts.values.iter().map(|value| shortened(&value.value, NAME)).collect();
    let left = MARGIN + names.iter().map(|name| text_width(name, 12)).max().unwrap_or(0) + 10;
    let labelled = counts.cases - counts.without;
    let width = wide_enough(left + LENGTH + 110, &title, origin);
    let height = HEAD + counts.values.len() as i32 * STEP + FOOT;
    let most = counts.values.iter().map(|value| value.cases).max().unwrap_or(1).max(1);
    let length = |cases: usize| (cases as f64 / most as f64 * f64::from(LENGTH)).round() as i32;
    let svg = svg(&name, &title, (width, height), |area| {
        head(area, &title, origin, width)?;
        let bottom = HEAD + counts.values.len() as i32 * STEP;
        for tick in ticks(most) {
            let x = left + length(tick);
            let line = [(x * UNIT, (HEAD - 4) * UNIT), (x * UNIT, bottom * UNIT)];
            area.draw(&PathElement::new(line, GRID.stroke_width(UNIT as u32)))?;
            write(area, &tick.to_string(), (x, bottom + 4), 10, GREY, HPos::Center)?;
        }
        for (at, (value, name)) in counts.values.iter().zip(&names).enumerate() {
            let top = HEAD + at as i32 * STEP;
            write(area, name, (left - 8, top + 1), 12, INK, HPos::Right)?;
            let mut done = 0;
            let mut part = |cases: usize, colour: RGBColor| -> Result<(), Refusal> {
                let (from, to) = (left + length(done), left + length(done + cases));
                done += cases;
                let corners = [(from * UNIT, top * UNIT), (to * UNIT, (top + BAR) * UNIT)];
                area.draw(&Rectangle::new(corners, colour.filled()))
            };
            let parted: usize = value.by_split.values().sum();
            for (split, cases) in &value.by_split {
                part(*cases, colour(split))?;
            }
            part(value.cases - parted, GREY)?;
            let share = 100.0 * value.cases as f64 / labelled as f64;
            let said = format!("{} ({share:.1}%)", value.cases);
            write(area, &said, (left + length(value.cases) + 7, top + 2), 11, GREY, HPos::Left)?;
        }
        let mut x = left;
        for split in &splits {
            let corners = [(x * UNIT, (bottom + 28) * UNIT), ((x + 14) * UNIT, (bottom + 40) * UNIT)];
            area.draw(&Rectangle::new(corners, colour(split).filled()))?;
            write(area, &shortened(split, 24), (x + 20, bottom + 27), 12, INK, HPos::Left)?;
            x += 20 + text_width(&shortened(split, 24), 12) + 22;
        }
        Ok(())
    })?;
    let without = match counts.without {
        0 => String::new(),
        n => format!(" {n} of {} cases have no such label and are left out.", counts.cases),
    };
    let caption = format!(
        "Cases by their label `{}`: {labelled} cases, {} values. Percentages are of the cases that have the label.{without}",
        counts.label,
        counts.values.len()
    );
    let csv = csv(counts, &splits).map_err(|source| FigureError::Table { figure: name.clone(), source })?;
    Ok(Figure { name, title, caption, svg, csv })
}

/// Rows of `label,value,cases`, and a column a value of the split.
fn csv(counts: &LabelCounts, splits: &[&str]) -> Result<Vec<u8>, csv::Error> {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(["label", "value", "cases"].iter().chain(splits))?;
    for value in &counts.values {
        let mut row = vec![counts.label.clone(), value.value.clone(), value.cases.to_string()];
        row.extend(splits.iter().map(|split| value.by_split.get(*split).copied().unwrap_or(0).to_string()));
        table.write_record(row)?;
    }
    table.into_inner().map_err(|e| csv::Error::from(std::io::Error::from(e.error().kind())))
}

/// Whole numbers from 0 up to the longest bar.
fn ticks(most: usize) -> Vec<usize> {
    let steps = (0..).flat_map(|power| [1, 2, 5].map(|step| step * 10usize.saturating_pow(power)));
    let step = steps.into_iter().find(|step| most / step <= 6).unwrap_or(most).max(1);
    (0..=most / step).map(|at| at * step).collect()
}

/// A label as a part of a file's name.
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
