//! The canvas of every picture: drawing units, text and the finished SVG.
//!
//! Called by [`super::sheet`], [`super::heat_map`] and [`super::bars`], and by what they draw with (`plot`).

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::FigureError;
use super::style::{self, UNIT};

/// A drawing area in units of a quarter pixel.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What the drawing library says when it refuses.
pub type Refusal = DrawingAreaErrorKind<std::io::Error>;

/// Around every picture, in pixels.
pub(super) const MARGIN: i32 = 14;
/// Height of a line that says where numbers come from, in pixels.
pub(super) const ORIGIN: i32 = 16;

/// The title and below it where the numbers come from, a line each; returns where the next line would begin.
pub(super) fn head(area: &Area<'_>, title: &str, origin: &str, width: i32) -> Result<(), Refusal> {
    let most = (f64::from(width - 2 * MARGIN) / (16.0 * 0.5)) as usize;
    write(area, &style::shortened(title, most.max(20)), (MARGIN, 10), 16, style::INK, HPos::Left)?;
    for (at, line) in origin.lines().enumerate() {
        let top = 32 + at as i32 * ORIGIN;
        write(area, &fitting(line, width), (MARGIN, top), 11, style::GREY, HPos::Left)?;
    }
    Ok(())
}

/// A picture's width in pixels, of at least `width`, in which its title and origin have room; beyond a limit they are shortened.
pub(super) fn wide_enough(width: i32, title: &str, origin: &str) -> i32 {
    const MOST: i32 = 1100;
    let lines = origin.lines().map(|line| line.chars().count() as i32 * 6).max().unwrap_or(0);
    width.max((text_width(title, 16).max(lines) + 2 * MARGIN).clamp(620, MOST))
}

/// How much lower everything begins where several lines say where the numbers come from.
pub(super) fn more_origins(origin: &str) -> i32 {
    (origin.lines().count() as i32 - 1).max(0) * ORIGIN
}

/// An estimate of a text's width in pixels, with a little room for viewers that use another font.
pub(super) fn text_width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * 0.53).ceil() as i32
}

/// An origin line, shortened to fit a picture of a width.
pub(super) fn fitting(line: &str, width: i32) -> String {
    style::shortened(line, ((width - 2 * MARGIN) / 6).max(20) as usize)
}

/// Text at a place in pixels, its top there.
pub(super) fn write(
    area: &Area<'_>,
    text: &str,
    (x, y): (i32, i32),
    size: i32,
    colour: RGBColor,
    side: HPos,
) -> Result<(), Refusal> {
    let style = style::text(size, colour).pos(Pos::new(side, VPos::Top));
    area.draw(&Text::new(text.to_owned(), (x * UNIT, y * UNIT), style))
}

/// A white picture of a size in pixels, drawn by `draw` in units, as SVG with a title for those who cannot see it.
pub(super) fn svg(
    name: &str,
    title: &str,
    (width, height): (i32, i32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Refusal>,
) -> Result<String, FigureError> {
    style::ensure_font();
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
    let title: String = title.chars().filter(|c| !c.is_control()).collect();
    let label = minijinja::HtmlEscape(&title);
    Ok(format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {} {}\" xmlns=\"http://www.w3.org/2000/svg\" \
         role=\"img\" aria-label=\"{label}\">\n<title>{label}</title>{body}",
        units(width),
        units(height),
    ))
}
