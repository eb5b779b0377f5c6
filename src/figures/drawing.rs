//! A figure's SVG as shapes and lines of set letters, for PNG and PDF.
//!
//! It reads what plotters writes (lines, rectangles, polygons, circles, one-line texts) and refuses everything else that SVG has, so
//! that nothing is lost in silence. Letters are set from left to right, one glyph a letter, with the font's kerning.

use std::collections::BTreeSet;

use icu_normalizer::ComposingNormalizerBorrowed;
use roxmltree::{Document, Node};
use tiny_skia::{Path, PathBuilder, Rect, Transform};
use ttf_parser::gpos::{PairAdjustment, PositioningSubtable};
use ttf_parser::{Face, GlyphId, Tag};

use super::typeface::Typeface;

/// The reason why a picture cannot be drawn from its SVG.
#[derive(Debug, thiserror::Error)]
pub(super) enum DrawingError {
    #[error(transparent)]
    Svg(#[from] roxmltree::Error),
    #[error("<{0}> is no shape that figures have")]
    Shape(String),
    #[error("<{element}> lacks {name}")]
    Missing { element: String, name: String },
    #[error("{name}=\"{value}\" {problem}")]
    Value { name: String, value: String, problem: &'static str },
    #[error("its viewBox is {0:?}")]
    ViewBox(Vec<f32>),
    #[error("it rotates by {0:?}")]
    Rotation(Vec<f32>),
    #[error("a picture of {0} x {1} pixels cannot be made")]
    Size(f32, f32),
    #[error("{0}")]
    Encoding(Box<dyn std::error::Error + Send + Sync>),
}

impl DrawingError {
    pub fn encoding(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        DrawingError::Encoding(error.into())
    }

    fn value(name: &str, value: &str, problem: &'static str) -> Self {
        DrawingError::Value { name: name.to_owned(), value: value.to_owned(), problem }
    }
}

/// A picture, its coordinates those of its view box.
pub(super) struct Drawing {
    pub size: (f32, f32),
    /// From the view box to CSS pixels.
    pub to_pixels: Transform,
    pub shapes: Vec<Shape>,
}

/// In the order in which they are painted.
pub(super) enum Shape {
    Path {
        path: Path,
        ink: Ink,
        /// The width of its stroke; `None` fills it.
        stroke: Option<f32>,
    },
    Text(Line),
}

/// A colour and its opacity.
#[derive(Clone, Copy)]
pub(super) struct Ink {
    pub colour: [u8; 3],
    pub opacity: f32,
}

pub(super) struct Line {
    pub ink: Ink,
    pub size: f32,
    pub origin: Transform,
    pub glyphs: Vec<Glyph>,
}

/// A letter of a line.
pub(super) struct Glyph {
    pub letter: char,
    pub id: GlyphId,
    /// Among [`Fonts`].
    pub font: usize,
    pub x: f32,
}

/// The fonts of a picture: the style's, then the program's own for the letters that it lacks.
pub(super) struct Fonts<'a> {
    faces: Vec<(&'a [u8], Face<'a>)>,
}

impl<'a> Fonts<'a> {
    pub fn of(typeface: &'a Typeface) -> Self {
        let files = [typeface.bytes(), Typeface::OWN];
        let faces = files.into_iter().filter_map(|file| Some((file, Face::parse(file, 0).ok()?)));
        Fonts { faces: faces.collect() }
    }

    /// A font's file and its tables.
    pub fn get(&self, font: usize) -> Option<&(&'a [u8], Face<'a>)> {
        self.faces.get(font)
    }

    /// The font that has a letter; the first one's empty box stands for a letter that none has.
    fn glyph(&self, letter: char) -> (usize, GlyphId) {
        let has = |(font, (_, face)): (usize, &(_, Face<'_>))| Some((font, face.glyph_index(letter)?));
        self.faces.iter().enumerate().find_map(has).unwrap_or((0, GlyphId(0)))
    }

    /// Letters from the origin on, and the width of them all.
    fn set(&self, text: &str, size: f32) -> (Vec<Glyph>, f32) {
        let mut glyphs: Vec<Glyph> = Vec::new();
        let mut x = 0.0;
        for letter in text.chars().filter(|letter| !is_unseen(*letter)) {
            let (font, id) = self.glyph(letter);
            let Some((_, face)) = self.get(font) else { continue };
            let scale = size / f32::from(face.units_per_em());
            if let Some(last) = glyphs.last().filter(|last| last.font == font) {
                x += f32::from(kerning(face, last.id, id)) * scale;
            }
            glyphs.push(Glyph { letter, id, font, x });
            x += f32::from(face.glyph_hor_advance(id).unwrap_or(0)) * scale;
        }
        (glyphs, x)
    }
}

/// True of a character that says how others are drawn and is not drawn itself.
fn is_unseen(letter: char) -> bool {
    matches!(letter, '\u{AD}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}')
}

/// Units by which two letters stand closer (or wider) than their widths say.
fn kerning(face: &Face<'_>, first: GlyphId, second: GlyphId) -> i16 {
    let positioning = face.tables().gpos;
    let features = positioning.iter().flat_map(|table| table.features);
    let kerns = features.filter(|feature| feature.tag == Tag::from_bytes(b"kern"));
    // Scripts share lookups, and each holds once.
    let lookups: BTreeSet<u16> = kerns.flat_map(|feature| feature.lookup_indices).collect();
    if lookups.is_empty() {
        let tables = face.tables().kern.into_iter().flat_map(|table| table.subtables);
        let mut plain = tables.filter(|table| table.horizontal && !table.has_cross_stream);
        return plain.find_map(|table| table.glyphs_kerning(first, second)).unwrap_or(0);
    }
    let by_lookup = |at: u16| {
        let subtables = positioning?.lookups.get(at)?.subtables;
        subtables.into_iter::<PositioningSubtable<'_>>().find_map(|subtable| {
            let PositioningSubtable::Pair(pair) = subtable else { return None };
            let covered = pair.coverage().get(first)?;
            let (value, _) = match pair {
                PairAdjustment::Format1 { sets, .. } => sets.get(covered)?.get(second)?,
                PairAdjustment::Format2 { classes, matrix, .. } => {
                    matrix.get((classes.0.get(first), classes.1.get(second)))?
                }
            };
            Some(value.x_advance)
        })
    };
    lookups.into_iter().filter_map(by_lookup).sum()
}

impl Drawing {
    /// Reads a picture.
    pub fn read(svg: &str, fonts: &Fonts<'_>) -> Result<Self, DrawingError> {
        let document = Document::parse(svg)?;
        let root = document.root_element();
        let size = (length(root, "width")?, length(root, "height")?);
        let view = numbers(root, "viewBox")?;
        let [_, _, width, height] = view[..] else { return Err(DrawingError::ViewBox(view)) };
        let scale = (size.0 / width).min(size.1 / height);
        let to_pixels = Transform::from_row(
            scale,
            0.0,
            0.0,
            scale,
            (size.0 - width * scale) / 2.0,
            (size.1 - height * scale) / 2.0,
        );
        let mut shapes = Vec::new();
        for node in root.children().filter(Node::is_element) {
            match node.tag_name().name() {
                "title" => {}
                "text" => shapes.extend(line(node, fonts)?.map(Shape::Text)),
                _ => painted(node, &mut shapes)?,
            }
        }
        Ok(Drawing { size, to_pixels, shapes })
    }

    /// The letters that no font has, for which its empty box stands.
    pub fn lacking(&self) -> BTreeSet<char> {
        let lines = self.shapes.iter().filter_map(|shape| match shape {
            Shape::Text(line) => Some(line),
            Shape::Path { .. } => None,
        });
        let boxes = lines.flat_map(|line| &line.glyphs).filter(|glyph| glyph.id == GlyphId(0));
        boxes.map(|glyph| glyph.letter).collect()
    }
}

const NONE: &str = "is none that figures have";

/// A path, filled or stroked or both.
fn painted(node: Node<'_, '_>, shapes: &mut Vec<Shape>) -> Result<(), DrawingError> {
    let mut path = PathBuilder::new();
    let number = |name: &str| number(node, name);
    match node.tag_name().name() {
        "line" => {
            path.move_to(number("x1")?, number("y1")?);
            path.line_to(number("x2")?, number("y2")?);
        }
        "rect" => {
            let (width, height) = (number("width")?, number("height")?);
            let Some(rect) = Rect::from_xywh(number("x")?, number("y")?, width, height) else {
                return Ok(());
            };
            path.push_rect(rect);
        }
        "circle" => circle(&mut path, number("cx")?, number("cy")?, number("r")?),
        form @ ("polyline" | "polygon") => {
            for (at, point) in numbers(node, "points")?.chunks_exact(2).enumerate() {
                match at {
                    0 => path.move_to(point[0], point[1]),
                    _ => path.line_to(point[0], point[1]),
                }
            }
            if form == "polygon" {
                path.close();
            }
        }
        other => return Err(DrawingError::Shape(other.to_owned())),
    }
    // Two points in one place, or none.
    let Some(path) = path.finish() else { return Ok(()) };
    for (name, stroke) in [("fill", None), ("stroke", Some(node.attribute("stroke-width")))] {
        let Some(ink) = ink(node, name)? else { continue };
        let stroke = stroke.map(|width| width.map_or(Ok(1.0), |_| number("stroke-width"))).transpose()?;
        shapes.push(Shape::Path { path: path.clone(), ink, stroke });
    }
    Ok(())
}

/// Four cubic curves, which PDF has too.
fn circle(path: &mut PathBuilder, x: f32, y: f32, r: f32) {
    // Of a quarter: 4/3 tan(π/8).
    let k = r * 0.552_284_8;
    path.move_to(x + r, y);
    path.cubic_to(x + r, y + k, x + k, y + r, x, y + r);
    path.cubic_to(x - k, y + r, x - r, y + k, x - r, y);
    path.cubic_to(x - r, y - k, x - k, y - r, x, y - r);
    path.cubic_to(x + k, y - r, x + r, y - k, x + r, y);
    path.close();
}

/// A line of letters, its anchor at the place that it names.
fn line(node: Node<'_, '_>, fonts: &Fonts<'_>) -> Result<Option<Line>, DrawingError> {
    let Some(ink) = ink(node, "fill")? else { return Ok(None) };
    let (x, y, size) = (number(node, "x")?, number(node, "y")?, number(node, "font-size")?);
    let text = node.text().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    // Fonts have letters with their accents; accents by themselves few.
    let text = ComposingNormalizerBorrowed::new_nfc().normalize(&text);
    let down = match node.attribute("dy") {
        None => 0.0,
        Some(dy) => match (dy.strip_suffix("em"), dy.strip_suffix("ex")) {
            (Some(ems), _) => parsed(ems, "dy")? * size,
            // As browsers do where a font does not say.
            (_, Some(exes)) => parsed(exes, "dy")? * size / 2.0,
            _ => parsed(dy, "dy")?,
        },
    };
    let (glyphs, width) = fonts.set(&text, size);
    let back = match node.attribute("text-anchor") {
        None | Some("start") => 0.0,
        Some("middle") => width / 2.0,
        Some("end") => width,
        Some(other) => return Err(DrawingError::value("text-anchor", other, NONE)),
    };
    let turned = match node.attribute("transform") {
        None => Transform::identity(),
        Some(transform) => {
            let turn = transform.strip_prefix("rotate(").and_then(|turn| turn.strip_suffix(')'));
            let turn = turn.ok_or_else(|| DrawingError::value("transform", transform, NONE))?;
            let turn: Vec<f32> =
                turn.split(',').map(|part| parsed(part, "transform")).collect::<Result<_, _>>()?;
            let [angle, x, y] = turn[..] else { return Err(DrawingError::Rotation(turn)) };
            Transform::from_rotate_at(angle, x, y)
        }
    };
    let origin = turned.pre_translate(x - back, y + down);
    Ok(Some(Line { ink, size, origin, glyphs }))
}

/// The colour of a fill or stroke; `None` where there is none.
fn ink(node: Node<'_, '_>, name: &str) -> Result<Option<Ink>, DrawingError> {
    let Some(colour) = node.attribute(name).filter(|colour| *colour != "none") else { return Ok(None) };
    let wrong = || DrawingError::value(name, colour, "is not as #RRGGBB");
    let digits = colour.strip_prefix('#').filter(|digits| digits.len() == 6).ok_or_else(wrong)?;
    let [_, red, green, blue] = u32::from_str_radix(digits, 16).map_err(|_| wrong())?.to_be_bytes();
    let opacity = node.attribute("opacity").map_or(Ok(1.0), |opacity| parsed(opacity, "opacity"))?;
    Ok(Some(Ink { colour: [red, green, blue], opacity }))
}

fn parsed(text: &str, name: &str) -> Result<f32, DrawingError> {
    text.trim().parse().map_err(|_| DrawingError::value(name, text, "is no number"))
}

fn attribute<'a>(node: Node<'a, '_>, name: &str) -> Result<&'a str, DrawingError> {
    let element = node.tag_name().name();
    node.attribute(name)
        .ok_or_else(|| DrawingError::Missing { element: element.to_owned(), name: name.to_owned() })
}

fn number(node: Node<'_, '_>, name: &str) -> Result<f32, DrawingError> {
    parsed(attribute(node, name)?, name)
}

fn numbers(node: Node<'_, '_>, name: &str) -> Result<Vec<f32>, DrawingError> {
    let parts = attribute(node, name)?.split([' ', ',']).filter(|part| !part.is_empty());
    parts.map(|part| parsed(part, name)).collect()
}

/// CSS pixels of a length in pixels or millimetres.
fn length(node: Node<'_, '_>, name: &str) -> Result<f32, DrawingError> {
    let text = attribute(node, name)?;
    match text.strip_suffix("mm") {
        Some(millimetres) => Ok(parsed(millimetres, name)? * 96.0 / 25.4),
        None => parsed(text, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_no_font_has_are_named() {
        let (own, none) = (Typeface::default(), BTreeSet::new());
        let fonts = Fonts::of(&own);
        let lacking = |text: &str| {
            let svg = format!(
                "<svg width=\"90\" height=\"9\" viewBox=\"0 0 90 9\"><text x=\"1\" y=\"8\" font-size=\"8\" fill=\"#000000\">{text}</text></svg>"
            );
            Drawing::read(&svg, &fonts).unwrap().lacking()
        };
        assert_eq!(lacking("red 猫, 狗 and 猫"), BTreeSet::from(['猫', '狗']));
        assert_eq!(lacking("ไทย"), BTreeSet::from(['ไ', 'ท', 'ย']));
        assert_eq!(lacking("\u{1f600}"), BTreeSet::from(['\u{1f600}']));
        // Accents are composed, and what is not drawn is no box.
        for text in [
            "cafe\u{301} \u{c4}rger \u{3a3} \u{416} \u{2212}0.5\u{2026}",
            "soft\u{ad}hyphen\u{200b}\u{feff}",
            "",
        ] {
            assert_eq!(lacking(text), none, "{text}");
        }
    }
}
