//! Layout shared by all pictures: width, head, text, names of axes.
//!
//! Layout pixels assume text 12 high. With a stated size, pixels are scaled to its text size and the layout gets the remaining width.

use super::drawing::{Drawing, Form, Place, Side, Words};
use super::look;
use super::style::{self, Colour, UNIT};

/// Maximum width in pixels, unless stated.
const MOST: i32 = 1240;
const LEAST: i32 = 620;

/// Margin in pixels; with a stated width the page has its own.
pub(super) fn margin() -> i32 {
    if is_sized() { 3 } else { 14 }
}

/// Available width in pixels.
pub(super) fn room() -> i32 {
    look::current().size.map_or(MOST, |size| size.room())
}

pub(super) fn is_sized() -> bool {
    look::current().size.is_some()
}

/// The stated width, or the natural one clamped to the limits.
pub(super) fn width_for(natural: i32) -> i32 {
    if is_sized() { room() } else { natural.clamp(LEAST, MOST) }
}

/// Plot area of a panel, in pixels.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub left: i32,
    pub top: i32,
    pub width: i32,
    pub height: i32,
}

impl Frame {
    pub fn right(self) -> i32 {
        self.left + self.width
    }

    pub fn bottom(self) -> i32 {
        self.top + self.height
    }
}

/// Title and origin as wrapped lines; empty if titles are left to the caption.
pub(super) struct Head {
    title: Vec<String>,
    origin: Vec<String>,
}

const TITLE: i32 = 15;

impl Head {
    pub fn of(title: &str, origin: &str, width: i32) -> Self {
        if !look::current().titles {
            return Head { title: Vec::new(), origin: Vec::new() };
        }
        let room = width - 2 * margin();
        let lines = origin.lines().flat_map(|line| wrapped(line, NOTE.size, room));
        Head { title: wrapped(title, TITLE, room), origin: lines.collect() }
    }

    pub fn height(&self) -> i32 {
        match self.title.is_empty() {
            true => margin(),
            false => margin() + self.title.len() as i32 * 19 + self.origin.len() as i32 * 15 + 10,
        }
    }

    pub fn draw(&self, area: &mut Drawing) {
        let mut top = margin();
        for line in &self.title {
            write(area, line, (margin(), top), LABEL.sized(TITLE));
            top += 19;
        }
        for line in &self.origin {
            // Model and file names: not translated by style files.
            put(area, line.clone(), units((margin(), top)), NOTE, (false, false));
            top += 15;
        }
    }
}

pub(super) fn text_width(text: &str, size: i32) -> i32 {
    let look = look::current();
    let worded = look.style.worded(text);
    look.style.typeface.width(&worded, f64::from(size)).ceil() as i32
}

/// Width of the widest text; 0 without any.
pub(super) fn widest<'a>(texts: impl IntoIterator<Item = &'a String>, size: i32) -> i32 {
    texts.into_iter().map(|text| text_width(text, size)).max().unwrap_or(0)
}

/// Wraps between words; breaks words that are too wide. No lines for an empty text.
pub(super) fn wrapped(text: &str, size: i32, width: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|_| !text.is_empty()) {
        if let Some(line) = lines.last_mut() {
            let joined = format!("{line} {word}");
            if text_width(&joined, size) <= width {
                *line = joined;
                continue;
            }
        }
        let mut rest: &str = word;
        while text_width(rest, size) > width && rest.chars().count() > 4 {
            let ends = || rest.char_indices().map(|(at, _)| at).skip(1);
            let fitting = ends().take_while(|at| text_width(&rest[..*at], size) <= width).last();
            let (line, after) = rest.split_at(fitting.or(ends().next()).unwrap_or(rest.len()));
            lines.push(line.to_owned());
            rest = after;
        }
        lines.push(rest.to_owned());
    }
    lines
}

pub(super) fn fitted(text: &str, size: i32, width: i32) -> String {
    let mut most = text.chars().count();
    while most > 4 && text_width(&style::shortened(text, most), size) > width {
        most -= 1;
    }
    style::shortened(text, most)
}

#[derive(Clone, Copy)]
pub(super) struct TextStyle {
    pub size: i32,
    colour: Colour,
    side: Side,
}

pub(super) const LABEL: TextStyle = TextStyle { size: 12, colour: style::INK, side: Side::Left };
pub(super) const NOTE: TextStyle = TextStyle { size: 11, colour: style::GREY, side: Side::Left };
pub(super) const TICK: TextStyle = TextStyle { size: 10, colour: style::GREY, side: Side::Left };

impl TextStyle {
    pub fn sized(self, size: i32) -> Self {
        TextStyle { size, ..self }
    }

    pub fn centred(self) -> Self {
        TextStyle { side: Side::Centre, ..self }
    }

    pub fn right(self) -> Self {
        TextStyle { side: Side::Right, ..self }
    }
}

/// Text; `at` is its top in pixels.
pub(super) fn write(area: &mut Drawing, text: &str, at: (i32, i32), style: TextStyle) {
    put(area, look::worded(text), units(at), style, (false, false));
}

/// Text; `at` is its middle in units.
pub(super) fn write_middle(area: &mut Drawing, text: &str, at: Place, style: TextStyle) {
    put(area, look::worded(text), at, style, (true, false));
}

/// Vertical column number; `at` is its end in pixels.
pub(super) fn write_upright(area: &mut Drawing, text: &str, at: (i32, i32)) {
    put(area, look::worded(text), units(at), TICK.right(), (true, true));
}

fn put(area: &mut Drawing, text: String, at: Place, style: TextStyle, (middle, upright): (bool, bool)) {
    let TextStyle { size, colour, side } = style;
    if !text.is_empty() {
        area.fill(Form::Words(Words { text, at, size: size * UNIT, side, middle, upright }), colour);
    }
}

/// Pixels to drawing units.
pub(super) fn units((x, y): (i32, i32)) -> Place {
    (x * UNIT, y * UNIT)
}

/// Name of the left axis: along it if it fits, else in lines above the panels.
pub(super) struct AxisName {
    lines: Vec<String>,
    upright: bool,
}

impl AxisName {
    pub fn of(name: &str, height: i32, width: i32) -> Self {
        let upright = !is_sized() && text_width(name, 12) <= height;
        let width = if upright { i32::MAX } else { width - 2 * margin() };
        AxisName { lines: wrapped(name, 12, width), upright }
    }

    /// Width left of the panels; 0 with a stated width.
    pub fn beside(name: &str) -> i32 {
        if name.is_empty() || is_sized() { 0 } else { 18 }
    }

    pub fn above(&self) -> i32 {
        if self.upright || self.lines.is_empty() { 0 } else { self.lines.len() as i32 * 15 + 5 }
    }

    pub fn draw(&self, area: &mut Drawing, top: i32, middle: i32) {
        for (at, line) in self.lines.iter().enumerate() {
            if self.upright {
                put(area, look::worded(line), units((margin(), middle)), LABEL.centred(), (false, true));
            } else {
                write(area, line, (margin(), top + at as i32 * 15), LABEL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_their_width_and_lose_no_letter() {
        let text =
            "attention mass (share of a row token's attention) overanextremelylongwordwithoutanyspace end";
        let lines = wrapped(text, 12, 100);
        assert!(lines.len() > 3 && lines.iter().all(|line| text_width(line, 12) <= 100), "{lines:?}");
        let letters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
        assert_eq!(letters(&lines.concat()), letters(text));
        assert!(text_width(&fitted(text, 12, 80), 12) <= 80);
        assert_eq!(wrapped("short", 12, 100), ["short"]);
    }
}
