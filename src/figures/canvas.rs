//! The canvas of every picture: drawing units, its width, text, and the finished SVG.
//!
//! Called by every kind of figure. A picture is laid out in pixels of which words are 12 high. Where a size is stated, those pixels are
//! scaled so that words have it, and the layout has the room that is left of the stated width.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::FigureError;
use super::look;
use super::style::{self, UNIT};

/// A drawing area in units of a quarter pixel.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// An error of the drawing library.
pub type Refusal = DrawingAreaErrorKind<std::io::Error>;

/// The widest picture where no width is stated, in pixels.
const MOST: i32 = 1240;
/// The narrowest, in which a title has room.
const LEAST: i32 = 620;

/// Around a picture, in pixels: a page has a margin of its own where a width is stated.
pub(super) fn margin() -> i32 {
    if look::current().size.is_some() { 3 } else { 14 }
}

/// The width that a layout may use, in pixels.
pub(super) fn room() -> i32 {
    look::current().size.map_or(MOST, |size| size.room())
}

/// True if a width is stated, which the picture then fills.
pub(super) fn is_sized() -> bool {
    look::current().size.is_some()
}

/// The width of a picture that needs so much: the stated one, or its own where that lies between the limits.
pub(super) fn width_for(natural: i32) -> i32 {
    if is_sized() { room() } else { natural.clamp(LEAST, MOST) }
}

/// The title and below it where the numbers come from, as lines that fit a width; nothing where titles are left to the caption.
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

    /// Where a picture's own content begins, in pixels.
    pub fn height(&self) -> i32 {
        match self.title.is_empty() {
            true => margin(),
            false => margin() + self.title.len() as i32 * 19 + self.origin.len() as i32 * 15 + 10,
        }
    }

    pub fn draw(&self, area: &Area<'_>) -> Result<(), Refusal> {
        let mut top = margin();
        for line in &self.title {
            write(area, line, (margin(), top), LABEL.sized(TITLE))?;
            top += 19;
        }
        for line in &self.origin {
            // Names of models and files, which the words of a style file leave alone.
            place(area, line, units((margin(), top)), NOTE, VPos::Top, FontTransform::None)?;
            top += 15;
        }
        Ok(())
    }
}

/// A text's width in pixels.
pub(super) fn text_width(text: &str, size: i32) -> i32 {
    let look = look::current();
    let worded = look.style.worded(text);
    look.style.typeface.width(&worded, f64::from(size)).ceil() as i32
}

/// A text as lines that fit a width, broken between words; a word that is wider is broken in itself.
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

/// A text's beginning and end, so that it fits a width.
pub(super) fn fitted(text: &str, size: i32, width: i32) -> String {
    let count = text.chars().count();
    let mut most = count;
    while most > 4 && text_width(&style::shortened(text, most), size) > width {
        most -= 1;
    }
    style::shortened(text, most)
}

/// Size, colour and side of a text.
#[derive(Clone, Copy)]
pub(super) struct TextStyle {
    pub size: i32,
    colour: RGBColor,
    side: HPos,
}

/// Titles of panels, axes and legends.
pub(super) const LABEL: TextStyle = TextStyle { size: 12, colour: style::INK, side: HPos::Left };
/// Remarks beside them.
pub(super) const NOTE: TextStyle = TextStyle { size: 11, colour: style::GREY, side: HPos::Left };
/// Numbers at ticks.
pub(super) const TICK: TextStyle = TextStyle { size: 10, colour: style::GREY, side: HPos::Left };

impl TextStyle {
    pub fn sized(self, size: i32) -> Self {
        TextStyle { size, ..self }
    }

    pub fn centred(self) -> Self {
        TextStyle { side: HPos::Center, ..self }
    }

    pub fn right(self) -> Self {
        TextStyle { side: HPos::Right, ..self }
    }
}

/// Text with its top at a place in pixels.
pub(super) fn write(area: &Area<'_>, text: &str, at: (i32, i32), style: TextStyle) -> Result<(), Refusal> {
    place(area, &worded(text), units(at), style, VPos::Top, FontTransform::None)
}

/// Text with its middle at a place in units.
pub(super) fn write_middle(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    style: TextStyle,
) -> Result<(), Refusal> {
    place(area, &worded(text), at, style, VPos::Center, FontTransform::None)
}

/// Names of ticks below a plot, from the left, each at a place across in pixels; those without room beside the one before are left out.
pub(super) fn write_ticks(
    area: &Area<'_>,
    top: i32,
    ticks: impl Iterator<Item = (i32, String)>,
) -> Result<(), Refusal> {
    let mut free = i32::MIN;
    for (x, name) in ticks {
        let half = text_width(&name, TICK.size) / 2 + 2;
        if x - half >= free {
            write(area, &name, (x, top), TICK.centred())?;
            free = x + half;
        }
    }
    Ok(())
}

/// Thin lines across a plot at every quarter of a whole, named at its left; `level` is the height of a share in pixels.
pub(super) fn percent_lines(
    area: &Area<'_>,
    (x0, x1): (i32, i32),
    level: impl Fn(f64) -> i32,
) -> Result<(), Refusal> {
    for percent in [0, 25, 50, 75, 100] {
        let y = level(f64::from(percent) / 100.0);
        let thin = style::GRID.stroke_width(UNIT as u32 * 3 / 4);
        area.draw(&PathElement::new([(x0, y), (x1, y)].map(units), thin))?;
        write_middle(area, &format!("{percent}%"), units((x0 - 5, y)), TICK.right())?;
    }
    Ok(())
}

/// The number of a column, read from below and ending at a place in pixels.
pub(super) fn write_upright(area: &Area<'_>, text: &str, at: (i32, i32)) -> Result<(), Refusal> {
    place(area, &worded(text), units(at), TICK.right(), VPos::Center, FontTransform::Rotate270)
}

/// The name of the axis at a picture's left, read from below, with its middle at a height in pixels.
pub(super) fn write_axis(area: &Area<'_>, text: &str, middle: i32) -> Result<(), Refusal> {
    let at = units((margin(), middle));
    place(area, &worded(text), at, LABEL.centred(), VPos::Top, FontTransform::Rotate270)
}

fn worded(text: &str) -> String {
    look::current().style.worded(text)
}

fn place(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    style: TextStyle,
    vertical: VPos,
    turned: FontTransform,
) -> Result<(), Refusal> {
    let families = look::current().style.typeface.families();
    // The SVG backend divides sizes by 1.24.
    let font = (families.as_str(), f64::from(style.size * UNIT) * 1.24).into_font().transform(turned);
    let style = font.color(&style.colour).pos(Pos::new(style.side, vertical));
    area.draw(&Text::new(text, at, style))
}

/// A place in pixels in drawing units.
pub(super) fn units((x, y): (i32, i32)) -> (i32, i32) {
    (x * UNIT, y * UNIT)
}

/// A line of one pixel through places in pixels.
pub(super) fn line<const N: usize>(
    area: &Area<'_>,
    points: [(i32, i32); N],
    colour: RGBColor,
) -> Result<(), Refusal> {
    area.draw(&PathElement::new(points.map(units), colour.stroke_width(UNIT as u32)))
}

/// A filled rectangle between two corners in pixels.
pub(super) fn filled(area: &Area<'_>, corners: [(i32, i32); 2], colour: RGBColor) -> Result<(), Refusal> {
    area.draw(&Rectangle::new(corners.map(units), colour.filled()))
}

/// The outline of a rectangle between two corners in pixels, of one pixel.
pub(super) fn outlined(area: &Area<'_>, corners: [(i32, i32); 2], colour: RGBColor) -> Result<(), Refusal> {
    area.draw(&Rectangle::new(corners.map(units), colour.stroke_width(UNIT as u32)))
}

/// Panels of one width in rows of the same number.
pub(super) struct Tiling {
    pub columns: i32,
    pub rows: i32,
    pub width: i32,
    pub panel: i32,
}

impl Tiling {
    /// Of so many panels: each asks for `natural` pixels and stands beside others from `least` on. `across` is the width of a picture of so
    /// many columns of a width.
    pub fn of(count: usize, [least, natural]: [i32; 2], across: impl Fn(i32, i32) -> i32) -> Self {
        let fit = (1..=count.max(1)).take_while(|columns| across(*columns as i32, least) <= room()).count();
        let columns = columns_for(count, fit) as i32;
        let width = width_for(across(columns, natural));
        let rows = count.div_ceil(columns as usize).max(1) as i32;
        Tiling { columns, rows, width, panel: (width - across(columns, 0)) / columns }
    }

    /// Column and row of a panel.
    pub fn place(&self, at: usize) -> (i32, i32) {
        (at as i32 % self.columns, at as i32 / self.columns)
    }
}

/// The values of an axis that stands upright at a picture's left: along it where it is long enough, else in lines above the panels.
pub(super) struct ValueAxis {
    lines: Vec<String>,
    upright: bool,
}

impl ValueAxis {
    /// Of panels that are so high together, in a picture of a width.
    pub fn of(label: &str, height: i32, width: i32) -> Self {
        if label.is_empty() {
            return ValueAxis { lines: Vec::new(), upright: true };
        }
        let upright = !is_sized() && text_width(label, 12) <= height;
        let lines = if upright { vec![label.to_owned()] } else { wrapped(label, 12, width - 2 * margin()) };
        ValueAxis { lines, upright }
    }

    /// Room that it takes at the left of the panels: none where a width is stated, and every pixel is the panels'.
    pub fn beside(label: &str) -> i32 {
        if label.is_empty() || is_sized() { 0 } else { 18 }
    }

    /// Room above the panels.
    pub fn above(&self) -> i32 {
        if self.upright { 0 } else { self.lines.len() as i32 * 15 + 5 }
    }

    /// `top` is where the room above the panels begins.
    pub fn draw(&self, area: &Area<'_>, top: i32, middle: i32) -> Result<(), Refusal> {
        for (at, line) in self.lines.iter().enumerate() {
            match self.upright {
                true => write_axis(area, line, middle)?,
                false => write(area, line, (margin(), top + at as i32 * 15), LABEL)?,
            }
        }
        Ok(())
    }
}

/// Columns for so many panels, of which so many have room beside each other: as few empty places as may be, then as many columns.
pub(super) fn columns_for(count: usize, most: usize) -> usize {
    let most = most.clamp(1, count.max(1));
    // Of many rows one may end early.
    if count > 3 * most {
        return most;
    }
    let empty = |columns: &usize| count.div_ceil(*columns) * columns - count;
    (most.div_ceil(2)..=most).rev().min_by_key(empty).unwrap_or(1)
}

/// A white picture of a size in pixels, drawn by `draw` in units, as SVG with a title for those who cannot see it.
pub(super) fn svg(
    name: &str,
    title: &str,
    (width, height): (i32, i32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Refusal>,
) -> Result<String, FigureError> {
    let fail = |refusal: Refusal| FigureError::Draw { figure: name.to_owned(), reason: refusal.to_string() };
    let units = |pixels: i32| (pixels * UNIT) as u32;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (units(width), units(height))).into_drawing_area();
        area.fill(&WHITE).map_err(fail)?;
        draw(&area).map_err(fail)?;
        area.present().map_err(fail)?;
    }
    // the backend sizes the picture in units; its view box stays in units, its size becomes pixels
    // no control character of a name may make it invalid XML
    text.retain(|c| c == '\n' || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')));
    let body = text.split_once('>').map(|(_, body)| body).unwrap_or_default();
    let look = look::current();
    let title: String = look.style.worded(title).chars().filter(|c| !c.is_control()).collect();
    let label = minijinja::HtmlEscape(&title);
    let size = match look.size {
        None => format!("width=\"{width}\" height=\"{height}\""),
        // Of a page: in its units, exactly as wide as was asked for.
        Some(size) => {
            let millimetres = |pixels: f64| pixels / 96.0 * 25.4;
            format!(
                "width=\"{:.3}mm\" height=\"{:.3}mm\"",
                millimetres(size.width),
                millimetres(f64::from(height) * size.width / f64::from(width))
            )
        }
    };
    Ok(format!(
        "<svg {size} viewBox=\"0 0 {} {}\" xmlns=\"http://www.w3.org/2000/svg\" \
         role=\"img\" aria-label=\"{label}\">\n<title>{label}</title>{body}",
        units(width),
        units(height),
    ))
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
