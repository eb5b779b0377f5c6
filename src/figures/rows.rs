//! Lines of words around marks: a label at the left, a note at the right; where that leaves marks no room, both stand above them.

use super::canvas::{
    Area, LABEL, NOTE, Refusal, fitted, is_sized, margin, room, text_width, width_for, write,
};

/// The least room for marks between the words of a line.
const LEAST: i32 = 170;

/// The layout of the lines of a picture, in pixels.
pub(super) struct RowLayout {
    pub width: i32,
    /// Where marks begin, and how long the longest may be.
    pub left: i32,
    pub length: i32,
    pub step: i32,
    /// From a line's top to its marks.
    pub mark_top: i32,
}

impl RowLayout {
    /// For lines of labels and notes, whose marks are so long where there is room, and so high.
    pub fn of(texts: &[(&str, String)], length: i32, height: i32) -> Self {
        let label = texts.iter().map(|(label, _)| text_width(label, 12)).max().unwrap_or(0);
        let note = texts.iter().map(|(_, note)| text_width(note, 11)).max().unwrap_or(0);
        let words = label + note + 22 + 2 * margin();
        let width = width_for(words + length);
        if words + LEAST <= width {
            let length = if is_sized() { width - words } else { length.min(width - words) };
            return RowLayout { width, left: margin() + label + 10, length, step: height, mark_top: 0 };
        }
        // Numbers at both ends of the axis reach beyond it.
        let side = margin() + 12;
        let length = (room().min(width) - 2 * side).max(40);
        RowLayout { width, left: side, length, step: height + 17, mark_top: 15 }
    }

    /// A line's words.
    pub fn words(&self, area: &Area<'_>, (label, note): &(&str, String), top: i32) -> Result<(), Refusal> {
        if self.mark_top == 0 {
            write(area, label, (self.left - 10, top + 1), LABEL.right())?;
            return write(area, note, (self.left + self.length + 12, top + 2), NOTE);
        }
        let right = self.width - margin();
        let taken = text_width(note, 11) + 8;
        let label = fitted(label, 12, right - margin() - taken);
        write(area, &label, (margin(), top), LABEL)?;
        write(area, note, (right, top + 1), NOTE.right())
    }
}
