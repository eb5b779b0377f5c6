//! Layout shared by all pictures: width, head, text, tiling of panels.
//!
//! Layout pixels assume text 12 high. With a stated size, pixels are scaled to its text size and the layout gets the remaining width.

use super::drawing::{Drawing, Form, Place, Side, Words};
use super::look;
use super::style::{self, Colour, Ink, UNIT};

/// Maximum width in pixels, unless stated.
const MOST: i32 = 1240;
const LEAST: i32 = 620;

/// Margin in pixels; with a stated width the page has its own.
pub(super) fn margin() -> i32 {
    if look::current().size.is_some() { 3 } else { 14 }
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

/// Title and origin as wrapped lines; empty if titles are left to the caption.
pub(super) struct Head {
    title: Vec<String>,
    origin: Vec<String>,
}

const TITLE: i32 = 15;
const ORIGIN: i32 = 11;

impl Head {
    pub fn of(title: &str, origin: &str, width: i32) -> Self {
        if !look::current().titles {
            return Head { title: Vec::new(), origin: Vec::new() };
        }
        let room = width - 2 * margin();
        let lines = origin.lines().flat_map(|line| wrapped(line, ORIGIN, room));
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

/// Wraps between words; breaks words that are too wide.
pub(super) fn wrapped(text: &str, size: i32, width: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let joined = lines.last().map(|line| format!("{line} {word}"));
        if let (Some(joined), Some(line)) = (joined, lines.last_mut())
            && text_width(&joined, size) <= width
        {
            *line = joined;
            continue;
        }
        let mut rest: &str = word;
        while text_width(rest, size) > width && rest.chars().count() > 4 {
            let fits = |at: &usize| text_width(&rest[..*at], size) <= width;
            let ends = rest.char_indices().map(|(at, _)| at).skip(1);
            let at =
                ends.take_while(fits).last().unwrap_or_else(|| rest.chars().next().map_or(1, char::len_utf8));
            let (line, after) = rest.split_at(at);
            lines.push(line.to_owned());
            rest = after;
        }
        lines.push(rest.to_owned());
    }
    lines
}

pub(super) fn fitted(text: &str, size: i32, width: i32) -> String {
    let count = text.chars().count();
    let mut most = count;
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
    put(area, worded(text), units(at), style, (false, false));
}

/// Text; `at` is its middle in units.
pub(super) fn write_middle(area: &mut Drawing, text: &str, at: Place, style: TextStyle) {
    put(area, worded(text), at, style, (true, false));
}

/// Vertical column number; `at` is its end in pixels.
pub(super) fn write_upright(area: &mut Drawing, text: &str, at: (i32, i32)) {
    put(area, worded(text), units(at), TICK.right(), (true, true));
}

/// Vertical name of the left axis, centred at `middle` pixels.
pub(super) fn write_axis(area: &mut Drawing, text: &str, middle: i32) {
    put(area, worded(text), units((margin(), middle)), LABEL.centred(), (false, true));
}

fn worded(text: &str) -> String {
    look::current().style.worded(text)
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

/// One pixel wide; points in pixels.
pub(super) fn line(area: &mut Drawing, points: impl IntoIterator<Item = (i32, i32)>, ink: impl Into<Ink>) {
    area.line(points.into_iter().map(units).collect::<Vec<_>>(), ink, UNIT);
}

/// Corners in pixels.
pub(super) fn filled(area: &mut Drawing, corners: [(i32, i32); 2], ink: impl Into<Ink>) {
    area.fill(Form::Rectangle(corners.map(units)), ink);
}

/// Corners in pixels.
pub(super) fn outlined(area: &mut Drawing, corners: [(i32, i32); 2], ink: impl Into<Ink>) {
    area.outline(corners.map(units), ink);
}

/// Position in pixels, radius in units.
pub(super) fn dot(area: &mut Drawing, at: (i32, i32), radius: i32, ink: impl Into<Ink>) {
    area.fill(Form::Circle(units(at), radius), ink);
}

pub(super) struct Tiling {
    pub columns: i32,
    pub rows: i32,
    pub width: i32,
    pub panel: i32,
}

impl Tiling {
    /// `least` and `natural` are panel widths in pixels. `across` gives the picture's width for a number of columns and their width.
    pub fn of(count: usize, [least, natural]: [i32; 2], across: impl Fn(i32, i32) -> i32) -> Self {
        let fit = (1..=count.max(1)).take_while(|columns| across(*columns as i32, least) <= room()).count();
        let columns = columns_for(count, fit) as i32;
        let width = width_for(across(columns, natural));
        let rows = count.div_ceil(columns as usize).max(1) as i32;
        Tiling { columns, rows, width, panel: (width - across(columns, 0)) / columns }
    }

    pub fn place(&self, at: usize) -> (i32, i32) {
        (at as i32 % self.columns, at as i32 / self.columns)
    }
}

/// Label of the left value axis: along it if it fits, else in lines above the panels.
pub(super) struct ValueAxis {
    lines: Vec<String>,
    upright: bool,
}

impl ValueAxis {
    pub fn of(label: &str, height: i32, width: i32) -> Self {
        if label.is_empty() {
            return ValueAxis { lines: Vec::new(), upright: true };
        }
        let upright = !is_sized() && text_width(label, 12) <= height;
        let lines = if upright { vec![label.to_owned()] } else { wrapped(label, 12, width - 2 * margin()) };
        ValueAxis { lines, upright }
    }

    /// Width left of the panels; 0 with a stated width.
    pub fn beside(label: &str) -> i32 {
        if label.is_empty() || is_sized() { 0 } else { 18 }
    }

    pub fn above(&self) -> i32 {
        if self.upright { 0 } else { self.lines.len() as i32 * 15 + 5 }
    }

    pub fn draw(&self, area: &mut Drawing, top: i32, middle: i32) {
        for (at, line) in self.lines.iter().enumerate() {
            match self.upright {
                true => write_axis(area, line, middle),
                false => write(area, line, (margin(), top + at as i32 * 15), LABEL),
            }
        }
    }
}

/// Number of columns, at most `most`: fewest empty cells, then most columns.
pub(super) fn columns_for(count: usize, most: usize) -> usize {
    let most = most.clamp(1, count.max(1));
    // With many rows, the last may be incomplete.
    if count > 3 * most {
        return most;
    }
    let empty = |columns: &usize| count.div_ceil(*columns) * columns - count;
    (most.div_ceil(2)..=most).rev().min_by_key(empty).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_leave_as_few_places_empty_as_may_be() {
        let cases = [
            (3, 2, 1),
            (4, 3, 2),
            (5, 3, 3),
            (6, 4, 3),
            (7, 4, 4),
            (10, 3, 3),
            (8, 3, 2),
            (1, 4, 1),
            (0, 3, 1),
            (4, 9, 4),
        ];
        for (count, most, columns) in cases {
            assert_eq!(columns_for(count, most), columns, "{count} panels, room for {most}");
        }
    }

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
