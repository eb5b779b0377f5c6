//! Renders a figure's shapes as PNG and PDF with the bundled font, never with system fonts.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use tiny_skia::{Color, FillRule, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash, Transform};
use ttf_parser::OutlineBuilder;

use super::drawing::{Drawing, Form};
use super::look::Look;
use super::style::{Colour, Ink, UNIT};
use super::typeface::{Fonts, Line};
use super::{Figure, FigureError, look, pdf};

const TOLD: usize = 12;

/// Renders in the look at its creation.
pub struct Rasteriser {
    look: Rc<Look>,
    /// PNG pixels per CSS pixel.
    zoom: f64,
    /// Missing characters already reported.
    lacking: RefCell<BTreeSet<char>>,
}

impl Rasteriser {
    pub fn new() -> Self {
        let look = look::current();
        // Print: 576 dpi; screen: two pixels per CSS pixel.
        let zoom = if look.size.is_some() { 6.0 } else { 2.0 };
        Rasteriser { look, zoom, lacking: RefCell::default() }
    }

    /// PNG on white: double size, or 576 dpi with a stated width.
    pub fn png(&self, figure: &Figure) -> Result<Vec<u8>, FigureError> {
        let fonts = Fonts::of(&self.look.style.typeface);
        self.tell_lacking(figure, &fonts);
        painted(&figure.drawing, &fonts, self.zoom).map_err(|reason| figure.refused(reason))
    }

    /// Deterministic one-page PDF with embedded fonts.
    pub fn pdf(&self, figure: &Figure) -> Result<Vec<u8>, FigureError> {
        let fonts = Fonts::of(&self.look.style.typeface);
        self.tell_lacking(figure, &fonts);
        let page = pdf::page(&figure.title, &figure.drawing, &fonts);
        page.map_err(|reason| figure.refused(format!("as PDF: {reason}")))
    }

    /// Warns once per character missing in all fonts.
    fn tell_lacking(&self, figure: &Figure, fonts: &Fonts<'_>) {
        let texts = figure.drawing.shapes.iter().filter_map(|shape| match &shape.form {
            Form::Words(words) => Some(&*words.text),
            _ => None,
        });
        let mut told = self.lacking.borrow_mut();
        let lacking: BTreeSet<char> =
            texts.flat_map(|text| fonts.lacking(text)).filter(|letter| told.insert(*letter)).collect();
        if lacking.is_empty() {
            return;
        }
        let shown = lacking.iter().take(TOLD);
        let shown: Vec<String> = shown.map(|one| format!("{one} (U+{:04X})", u32::from(*one))).collect();
        let more = match lacking.len().saturating_sub(TOLD) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        tracing::warn!(
            "figure {}: its font has no {}{more}; PDF and PNG show boxes in their place, the SVG whatever the viewer's fonts have; \
             name a font that has them in a style file (--style, `font`)",
            figure.name,
            shown.join(", ")
        );
    }
}

impl Default for Rasteriser {
    fn default() -> Self {
        Rasteriser::new()
    }
}

fn painted(drawing: &Drawing, fonts: &Fonts<'_>, zoom: f64) -> Result<Vec<u8>, String> {
    let (width, height) = (drawing.size.0 * zoom, drawing.size.1 * zoom);
    let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32)
        .ok_or_else(|| format!("a picture of {width} x {height} pixels cannot be made"))?;
    pixels.fill(Color::WHITE);
    let scale = (width / f64::from(drawing.view.0)) as f32;
    let view = Transform::from_scale(scale, scale);
    for shape in &drawing.shapes {
        let paint = paint(shape.ink);
        match (&shape.form, shape.pen) {
            (Form::Words(words), _) => {
                if let Some(path) = letters(&fonts.line(words), fonts) {
                    pixels.fill_path(&path, &paint, FillRule::Winding, view, None);
                }
            }
            (form, None) => {
                if let Some(path) = form.path() {
                    pixels.fill_path(&path, &paint, FillRule::Winding, view, None);
                }
            }
            (form, Some(pen)) => {
                let dash = pen.dash.map(|(dash, space)| [dash, space].map(|part| (part * UNIT) as f32));
                let dash = dash.and_then(|dash| StrokeDash::new(dash.to_vec(), 0.0));
                let stroke = Stroke { width: pen.width as f32, dash, ..Stroke::default() };
                if let Some(path) = form.path() {
                    pixels.stroke_path(&path, &paint, &stroke, view, None);
                }
            }
        }
    }
    pixels.encode_png().map_err(|error| error.to_string())
}

fn paint(Ink { colour: Colour(red, green, blue), opacity }: Ink) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color_rgba8(red, green, blue, (opacity.clamp(0.0, 1.0) * 255.0).round() as u8);
    paint
}

fn letters(line: &Line, fonts: &Fonts<'_>) -> Option<Path> {
    let mut all = PathBuilder::new();
    for glyph in &line.glyphs {
        let Some((_, face)) = fonts.get(glyph.font) else { continue };
        let mut outline = Outline(PathBuilder::new());
        face.outline_glyph(glyph.id, &mut outline);
        let scale = line.size / f32::from(face.units_per_em());
        // A font's y axis points up.
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
