//! A picture as shapes, and its SVG. `raster` and `pdf` render the same shapes.

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use tiny_skia::{Path, PathBuilder, Rect};

use super::look;
pub use super::style::Place;
use super::style::{Colour, Dash, Ink, UNIT, WHITE};
pub(super) use super::style::{Side, Words};

#[derive(Debug, Clone)]
pub(super) enum Form {
    Rectangle([Place; 2]),
    Circle(Place, i32),
    Polygon(Vec<Place>),
    Line(Vec<Place>),
    Words(Words),
}

/// Width in units, dashes in pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pen {
    pub width: i32,
    pub dash: Option<Dash>,
}

#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub form: Form,
    pub ink: Ink,
    pub pen: Option<Pen>,
}

#[derive(Debug, Clone, Default)]
pub struct Drawing {
    /// In units.
    pub(super) view: (i32, i32),
    /// In CSS pixels.
    pub(super) size: (f64, f64),
    /// In painting order.
    pub(super) shapes: Vec<Shape>,
    families: String,
}

impl Drawing {
    /// An empty drawing in the current look; size in layout pixels.
    pub(super) fn of((width, height): (i32, i32)) -> Self {
        let look = look::current();
        let (w, h) = (f64::from(width), f64::from(height));
        let size = look.size.map_or((w, h), |size| (size.width, h * size.width / w));
        let view = (width * UNIT, height * UNIT);
        let families = look.style.typeface.families();
        let mut drawing = Drawing { view, size, shapes: Vec::new(), families };
        drawing.fill(Form::Rectangle([(0, 0), view]), WHITE);
        drawing
    }

    pub(super) fn fill(&mut self, form: Form, ink: impl Into<Ink>) {
        self.shapes.push(Shape { form, ink: ink.into(), pen: None });
    }

    /// `width` in units.
    pub(super) fn line(&mut self, places: impl Into<Vec<Place>>, ink: impl Into<Ink>, width: i32) {
        self.dashed(places, ink, width, None);
    }

    pub(super) fn dashed(
        &mut self,
        places: impl Into<Vec<Place>>,
        ink: impl Into<Ink>,
        width: i32,
        dash: Option<Dash>,
    ) {
        let form = Form::Line(places.into());
        self.shapes.push(Shape { form, ink: ink.into(), pen: Some(Pen { width, dash }) });
    }

    /// One unit wide.
    pub(super) fn outline(&mut self, corners: [Place; 2], ink: impl Into<Ink>) {
        let pen = Some(Pen { width: 1, dash: None });
        self.shapes.push(Shape { form: Form::Rectangle(corners), ink: ink.into(), pen });
    }

    /// SVG with an accessible title.
    pub(super) fn svg(&self, title: &str) -> String {
        let look = look::current();
        let title: String = look.style.worded(title).chars().filter(|c| !c.is_control()).collect();
        let title = minijinja::HtmlEscape(&title).to_string();
        let size = match look.size {
            None => format!("width=\"{}\" height=\"{}\"", self.size.0, self.size.1),
            // Stated width: exact physical size.
            Some(_) => {
                let millimetres = |pixels: f64| pixels / 96.0 * 25.4;
                let (width, height) = (millimetres(self.size.0), millimetres(self.size.1));
                format!("width=\"{width:.3}mm\" height=\"{height:.3}mm\"")
            }
        };
        let mut text = String::new();
        // Only file backends fail.
        let _ = self.plot(&mut text);
        let shapes = text.find("viewBox").and_then(|at| text[at..].find('>').map(|end| at + end + 1));
        // Replaces plotters' root element to add a title and the physical size.
        text.replace_range(
            ..shapes.unwrap_or(0),
            &format!(
                "<svg {size} viewBox=\"0 0 {} {}\" xmlns=\"http://www.w3.org/2000/svg\" \
             role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>",
                self.view.0, self.view.1,
            ),
        );
        // Control characters are invalid in XML.
        text.retain(|c| c == '\n' || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')));
        text
    }

    fn plot(&self, text: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let view = (self.view.0.unsigned_abs(), self.view.1.unsigned_abs());
        let area = SVGBackend::with_string(text, view).into_drawing_area();
        for Shape { form, ink, pen } in &self.shapes {
            let Colour(r, g, b) = ink.colour;
            let colour = RGBColor(r, g, b).mix(ink.opacity);
            let style = match pen {
                None => colour.filled(),
                Some(pen) => colour.stroke_width(pen.width.unsigned_abs()),
            };
            match form {
                Form::Rectangle(corners) => area.draw(&Rectangle::new(sorted(*corners), style))?,
                Form::Circle(at, r) => area.draw(&Circle::new(*at, *r, style))?,
                Form::Polygon(places) => area.draw(&Polygon::new(places.clone(), style))?,
                Form::Line(places) => match pen.and_then(|pen| pen.dash) {
                    None => area.draw(&PathElement::new(places.clone(), style))?,
                    Some((dash, space)) => {
                        let (dash, space) = (dash * UNIT, space * UNIT);
                        area.draw(&DashedPathElement::new(places.clone(), dash, space, style))?;
                    }
                },
                Form::Words(words) => area.draw(&self.text(words, &colour))?,
            }
        }
        area.present()
    }

    fn text<'a>(&'a self, words: &'a Words, colour: &RGBAColor) -> Text<'a, Place, &'a str> {
        let side = match words.side {
            Side::Left => HPos::Left,
            Side::Centre => HPos::Center,
            Side::Right => HPos::Right,
        };
        let turned = if words.upright { FontTransform::Rotate270 } else { FontTransform::None };
        // The SVG backend divides sizes by 1.24.
        let font = (self.families.as_str(), f64::from(words.size) * 1.24).into_font().transform(turned);
        let vertical = if words.middle { VPos::Center } else { VPos::Top };
        Text::new(words.text.as_str(), words.at, font.color(colour).pos(Pos::new(side, vertical)))
    }
}

fn sorted([(x0, y0), (x1, y1)]: [Place; 2]) -> [Place; 2] {
    [(x0.min(x1), y0.min(y1)), (x0.max(x1), y0.max(y1))]
}

impl Form {
    /// `None` for text and empty forms.
    pub(super) fn path(&self) -> Option<Path> {
        let mut path = PathBuilder::new();
        let point = |(x, y): Place| (x as f32, y as f32);
        match self {
            Form::Rectangle(corners) => {
                let [(x0, y0), (x1, y1)] = sorted(*corners).map(point);
                path.push_rect(Rect::from_ltrb(x0, y0, x1, y1)?);
            }
            Form::Circle(at, r) => {
                let ((x, y), r) = (point(*at), *r as f32);
                // Circle as four cubics, which PDF supports: 4/3 tan(π/8).
                let k = r * 0.552_284_8;
                path.move_to(x + r, y);
                path.cubic_to(x + r, y + k, x + k, y + r, x, y + r);
                path.cubic_to(x - k, y + r, x - r, y + k, x - r, y);
                path.cubic_to(x - r, y - k, x - k, y - r, x, y - r);
                path.cubic_to(x + k, y - r, x + r, y - k, x + r, y);
                path.close();
            }
            Form::Polygon(places) | Form::Line(places) => {
                for (at, place) in places.iter().enumerate() {
                    let (x, y) = point(*place);
                    if at == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
                }
                if matches!(self, Form::Polygon(_)) {
                    path.close();
                }
            }
            Form::Words(_) => {}
        }
        path.finish()
    }
}
