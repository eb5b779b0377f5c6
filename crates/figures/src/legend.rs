//! Legends: samples with labels, wrapped to a width.

use super::canvas::{LABEL, NOTE, TextStyle, fitted, text_width, wrapped, write};
use super::drawing::Drawing;
use super::plot::{SAMPLE, Sample, sample};

pub(super) struct Legend {
    lines: Vec<Vec<Entry>>,
    /// Line height.
    step: i32,
}

struct Entry {
    sample: Option<Sample>,
    text: String,
    style: TextStyle,
    /// From the sample's left edge to the label.
    indent: i32,
    /// Includes the gap to the next entry.
    width: i32,
}

impl Legend {
    /// Shared by the panels of a sheet.
    pub fn of_sheet(entries: impl IntoIterator<Item = (Sample, String)>, room: i32) -> Self {
        let entries = entries.into_iter().map(|(sample, text)| (Some(sample), text));
        Legend::of(entries, (LABEL, 17), (SAMPLE + 7, 22), room)
    }

    /// A panel's own; texts without a sample are notes.
    pub fn of_panel(entries: impl IntoIterator<Item = (Option<Sample>, String)>, width: i32) -> Self {
        Legend::of(entries, (NOTE, 15), (SAMPLE + 6, 12), width + 12)
    }

    fn of(
        entries: impl IntoIterator<Item = (Option<Sample>, String)>,
        (style, step): (TextStyle, i32),
        (indent, gap): (i32, i32),
        room: i32,
    ) -> Self {
        let mut legend = Legend { lines: Vec::new(), step };
        let mut used = i32::MAX;
        let mut after_note = false;
        for (sample, text) in entries {
            // Samples stand below a note, in every panel alike.
            if after_note && sample.is_some() {
                used = i32::MAX;
            }
            after_note = sample.is_none();
            let indent = if sample.is_some() { indent } else { 0 };
            let fits = |text: &str| text_width(text, style.size) <= room - gap - indent;
            // A count is kept whole.
            let texts = match text.split_once(" (n = ") {
                Some((words, n)) if sample.is_some() && !fits(&text) => {
                    let mut lines = wrapped(words, style.size, room - gap - indent);
                    let last = lines.last().map(|last| format!("{last} (n = {n}")).filter(|last| fits(last));
                    match (last, lines.last_mut()) {
                        (Some(last), Some(line)) => *line = last,
                        _ => lines.push(format!("(n = {n}")),
                    }
                    lines
                }
                _ => wrapped(&text, style.size, room - gap - indent),
            };
            // Words on several lines have these for themselves.
            let whole = texts.len() == 1;
            for (at, text) in texts.iter().enumerate() {
                let text = fitted(text, style.size, room - gap - indent);
                let width = indent + text_width(&text, style.size) + gap;
                if !whole || used.saturating_add(width) > room {
                    legend.lines.push(Vec::new());
                    used = 0;
                }
                used = if whole || sample.is_none() { used + width } else { i32::MAX };
                if let Some(line) = legend.lines.last_mut() {
                    line.push(Entry { sample: sample.filter(|_| at == 0), text, style, indent, width });
                }
            }
        }
        legend
    }

    pub fn height(&self) -> i32 {
        self.lines.len() as i32 * self.step
    }

    /// `left` gives a line's start from its width.
    pub fn draw(&self, area: &mut Drawing, left: impl Fn(i32) -> i32, top: i32) {
        for (at, line) in self.lines.iter().enumerate() {
            let y = top + at as i32 * self.step;
            let mut x = left(line.iter().map(|entry| entry.width).sum());
            for Entry { sample: shown, text, style, indent, width } in line {
                shown.iter().for_each(|shown| sample(area, *shown, (x, y + 7)));
                write(area, text, (x + indent, y), *style);
                x += width;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::{GREY, Marker, Stroke};

    #[test]
    fn samples_stand_below_a_note_even_where_there_is_room_beside_it() {
        let line = Some(Sample::Line(Stroke::solid(GREY, Marker::Circle)));
        let lines = |entries: &[(Option<Sample>, &str)]| {
            let entries = entries.iter().map(|(sample, text)| (*sample, (*text).to_owned()));
            Legend::of_panel(entries, 600).lines.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(lines(&[(None, "full"), (line, "right (n = 2)"), (line, "wrong (n = 1)")]), [1, 2]);
        assert_eq!(lines(&[(None, "full"), (None, "n = 1 to 2")]), [2]);
    }
}
