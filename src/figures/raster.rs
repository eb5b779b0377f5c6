//! PNG and PDF from the very same SVG, with the figures' font and none of the system's.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use tiny_skia::{Color, FillRule, Paint, Path, PathBuilder, Pixmap, Stroke};
use ttf_parser::OutlineBuilder;

use super::drawing::{Drawing, DrawingError, Fonts, Ink, Line, Shape};
use super::look::Look;
use super::{Figure, FigureError, look, pdf};

/// Most letters that a warning lists.
const TOLD: usize = 12;

/// A renderer of pictures of the look that holds as it is made.
pub struct Rasteriser {
    look: Rc<Look>,
    /// Pixels of the PNG a pixel of the SVG.
    zoom: f32,
    /// The letters that no font has, as far as they were told.
    lacking: RefCell<BTreeSet<char>>,
}

impl Rasteriser {
    /// With the fonts of the look, and none of the system's.
    pub fn new() -> Self {
        let look = look::current();
        // On paper 576 dots an inch, on a screen two a pixel.
        let zoom = if look.size.is_some() { 6.0 } else { 2.0 };
        Rasteriser { look, zoom, lacking: RefCell::default() }
    }

    fn drawn<T>(
        &self,
        figure: &Figure,
        draw: impl FnOnce(&Drawing, &Fonts<'_>) -> Result<T, DrawingError>,
    ) -> Result<T, FigureError> {
        let fonts = Fonts::of(&self.look.style.typeface);
        let drawn = Drawing::read(&figure.svg, &fonts).and_then(|drawing| {
            self.tell_lacking(figure, &drawing);
            draw(&drawing, &fonts)
        });
        drawn.map_err(|error| FigureError::Draw { figure: figure.name.clone(), reason: error.to_string() })
    }

    /// Warns of letters that no font has, of each once.
    fn tell_lacking(&self, figure: &Figure, drawing: &Drawing) {
        let mut told = self.lacking.borrow_mut();
        let lacking: Vec<char> =
            drawing.lacking().into_iter().filter(|letter| told.insert(*letter)).collect();
        if lacking.is_empty() {
            return;
        }
        let shown: Vec<String> = lacking
            .iter()
            .take(TOLD)
            .map(|letter| format!("{letter} (U+{:04X})", u32::from(*letter)))
            .collect();
        let more = lacking.len().saturating_sub(TOLD);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        tracing::warn!(
            "figure {}: its font has no {}{more}; PDF and PNG show boxes in their place, the SVG whatever the viewer's fonts have; \
             name a font that has them in a style file (--style, `font`)",
            figure.name,
            shown.join(", ")
        );
    }

    /// The figure as PNG on white: at twice its size, or at 576 dots an inch where a width was stated.
    pub fn png(&self, figure: &Figure) -> Result<Vec<u8>, FigureError> {
        self.drawn(figure, |drawing, fonts| painted(drawing, fonts, self.zoom))
    }

    /// The figure as PDF, a page of its size with its text as text and its font embedded; the same bytes for the same figure.
    pub fn pdf(&self, figure: &Figure) -> Result<Vec<u8>, FigureError> {
        let page = |drawing: &Drawing, fonts: &Fonts<'_>| {
            let page = pdf::page(&figure.title, drawing, fonts);
            page.map_err(|error| DrawingError::encoding(format!("as PDF: {error}")))
        };
        self.drawn(figure, page)
    }
}

impl Default for Rasteriser {
    fn default() -> Self {
        Rasteriser::new()
    }
}

fn painted(drawing: &Drawing, fonts: &Fonts<'_>, zoom: f32) -> Result<Vec<u8>, DrawingError> {
    let (width, height) = (drawing.size.0 * zoom, drawing.size.1 * zoom);
    let mut pixels =
        Pixmap::new(width.ceil() as u32, height.ceil() as u32).ok_or(DrawingError::Size(width, height))?;
    pixels.fill(Color::WHITE);
    let view = drawing.to_pixels.post_scale(zoom, zoom);
    for shape in &drawing.shapes {
        match shape {
            Shape::Path { path, ink, stroke: None } => {
                pixels.fill_path(path, &paint(*ink), FillRule::Winding, view, None);
            }
            Shape::Path { path, ink, stroke: Some(width) } => {
                let stroke = Stroke { width: *width, ..Stroke::default() };
                pixels.stroke_path(path, &paint(*ink), &stroke, view, None);
            }
            Shape::Text(line) => {
                if let Some(path) = letters(line, fonts) {
                    pixels.fill_path(&path, &paint(line.ink), FillRule::Winding, view, None);
                }
            }
        }
    }
    pixels.encode_png().map_err(DrawingError::encoding)
}

fn paint(ink: Ink) -> Paint<'static> {
    let [red, green, blue] = ink.colour;
    let mut paint = Paint::default();
    paint.set_color_rgba8(red, green, blue, (ink.opacity.clamp(0.0, 1.0) * 255.0).round() as u8);
    paint
}

/// The outlines of a line's letters; `None` where it has none.
fn letters(line: &Line, fonts: &Fonts<'_>) -> Option<Path> {
    let mut all = PathBuilder::new();
    for glyph in &line.glyphs {
        let Some((_, face)) = fonts.get(glyph.font) else { continue };
        let mut outline = Outline(PathBuilder::new());
        face.outline_glyph(glyph.id, &mut outline);
        let scale = line.size / f32::from(face.units_per_em());
        // A font's y grows upwards.
        let place = line.origin.pre_translate(glyph.x, 0.0).pre_scale(scale, -scale);
        if let Some(path) = outline.0.finish().and_then(|path| path.transform(place)) {
            all.push_path(&path);
        }
    }
    all.finish()
}

struct Outline(PathBuilder);

impl OutlineBuilder for Outline {
    fn move_to(&mut self, x: f32, y: f32) {
        self.0.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.0.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.0.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.0.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.0.close();
    }
}
