//! Renders a figure's shapes as PNG with the figures' fonts, never with system fonts.

use tiny_skia::{Color, FillRule, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash, Transform};
use ttf_parser::OutlineBuilder;

use super::drawing::{Drawing, Form};
use super::style::{Colour, Ink, UNIT};
use super::typeface::{Fonts, Line};

/// PNG on white, with `zoom` pixels per CSS pixel.
pub(super) fn png(drawing: &Drawing, fonts: &Fonts<'_>, zoom: f64) -> Result<Vec<u8>, String> {
    let (width, height) = (drawing.size.0 * zoom, drawing.size.1 * zoom);
    let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32)
        .ok_or_else(|| format!("a picture of {width} x {height} pixels cannot be made"))?;
    pixels.fill(Color::WHITE);
    let scale = (width / f64::from(drawing.view.0)) as f32;
    let view = Transform::from_scale(scale, scale);
    for shape in &drawing.shapes {
        let path = match &shape.form {
            Form::Words(words) => letters(&fonts.line(words), fonts),
            form => form.path(),
        };
        let (Some(path), paint) = (path, paint(shape.ink)) else { continue };
        let Some(pen) = shape.pen else {
            pixels.fill_path(&path, &paint, FillRule::Winding, view, None);
            continue;
        };
        let dash = pen.dash.map(|(dash, space)| [dash, space].map(|part| (part * UNIT) as f32));
        let dash = dash.and_then(|dash| StrokeDash::new(dash.to_vec(), 0.0));
        let stroke = Stroke { width: pen.width as f32, dash, ..Stroke::default() };
        pixels.stroke_path(&path, &paint, &stroke, view, None);
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
