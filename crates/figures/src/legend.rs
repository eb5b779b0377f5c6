//! Legends: swatches with labels, wrapped to a width.

use super::canvas::{TextStyle, text_width, write};
use super::drawing::Drawing;

pub(super) struct Legend<S> {
    lines: Vec<Vec<Entry<S>>>,
    style: TextStyle,
    step: i32,
}

struct Entry<S> {
    swatch: S,
    /// From the swatch's left edge to the label.
    indent: i32,
    text: String,
    /// Includes the gap to the next entry.
    width: i32,
}

impl<S> Legend<S> {
    /// Entries: swatch, its width, label. Gaps and line height in pixels.
    pub fn of(
        entries: impl IntoIterator<Item = (S, i32, String)>,
        style: TextStyle,
        [gap, step]: [i32; 2],
        room: i32,
    ) -> Self {
        let mut lines: Vec<Vec<Entry<S>>> = Vec::new();
        let mut used = i32::MAX;
        for (swatch, indent, text) in entries {
            let width = indent + text_width(&text, style.size) + gap;
            if used.saturating_add(width) > room {
                lines.push(Vec::new());
                used = 0;
            }
            used += width;
            if let Some(line) = lines.last_mut() {
                line.push(Entry { swatch, indent, text, width });
            }
        }
        Legend { lines, style, step }
    }

    pub fn height(&self) -> i32 {
        self.lines.len() as i32 * self.step
    }

    /// `left` gives a line's start from its width; `draw` draws a swatch at a line's top.
    pub fn draw(
        &self,
        area: &mut Drawing,
        left: impl Fn(i32) -> i32,
        top: i32,
        draw: impl Fn(&mut Drawing, &S, (i32, i32)),
    ) {
        for (line, entries) in self.lines.iter().enumerate() {
            let y = top + line as i32 * self.step;
            let mut x = left(entries.iter().map(|entry| entry.width).sum());
            for Entry { swatch, indent, text, width } in entries {
                draw(area, swatch, (x, y));
                write(area, text, (x + indent, y), self.style);
                x += width;
            }
        }
    }
}
