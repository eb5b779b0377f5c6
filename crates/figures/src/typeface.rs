//! The typeface of every figure, how wide its letters are, and lines of set letters.
//!
//! Arimo lies in this repository: its letters are as wide as those of Arial and Helvetica, so that a viewer without it keeps to the
//! layout. A style file may name another.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use icu_normalizer::ComposingNormalizerBorrowed;
use tiny_skia::Transform;
use ttf_parser::gpos::{PairAdjustment, PositioningSubtable};
use ttf_parser::{Face, GlyphId, Tag};

use super::style::{Side, Words};
use super::style_error::StyleError;

/// Arimo, regular, subset to Latin, Greek, Cyrillic and signs; its licence lies beside it.
const ARIMO: &[u8] = include_bytes!("font/Arimo-Regular.ttf");

/// A font file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typeface {
    family: String,
    /// `None` for the one that comes with the program.
    read: Option<Arc<Vec<u8>>>,
}

impl Default for Typeface {
    fn default() -> Self {
        Typeface { family: "Arimo".to_owned(), read: None }
    }
}

impl Typeface {
    /// A TrueType or OpenType file.
    pub fn read(path: &Path) -> Result<Self, StyleError> {
        let bytes =
            std::fs::read(path).map_err(|source| StyleError::Read { path: path.to_owned(), source })?;
        let no_font = |reason: String| StyleError::Font { path: path.to_owned(), reason };
        let face = Face::parse(&bytes, 0).map_err(|e| no_font(e.to_string()))?;
        let names = face.names().into_iter();
        let family = names.filter(|name| name.name_id == ttf_parser::name_id::FAMILY);
        let family = family.filter_map(|name| name.to_string()).next();
        let family = family.ok_or_else(|| no_font("it names no family".to_owned()))?;
        // It stands in an attribute between quotes, in a list.
        let plain = |c: &char| !matches!(c, '"' | '\'' | ',' | '<' | '&' | '\\') && !c.is_control();
        Ok(Typeface { family: family.chars().filter(plain).collect(), read: Some(Arc::new(bytes)) })
    }

    /// The families of a picture's texts: this one, and others of the same widths.
    pub fn families(&self) -> String {
        format!("{}, Arimo, Arial, Helvetica, Liberation Sans, sans-serif", self.family)
            .replace("Arimo, Arimo", "Arimo")
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        self.read.as_ref().map_or(ARIMO, |bytes| bytes.as_slice())
    }

    /// Width of a text set in so many pixels, in pixels.
    pub fn width(&self, text: &str, size: f64) -> f64 {
        let Ok(face) = Face::parse(self.bytes(), 0) else { return 0.0 };
        let em = f64::from(face.units_per_em());
        let advance = |c: char| {
            let glyph = face.glyph_index(c)?;
            face.glyph_hor_advance(glyph)
        };
        // A letter that the font lacks is drawn by another: about an em at most.
        let letters = text.chars().map(|c| advance(c).map_or(em, f64::from));
        letters.sum::<f64>() / em * size
    }
}

/// A set line of text.
pub(super) struct Line {
    /// In units.
    pub size: f32,
    pub origin: Transform,
    pub glyphs: Vec<Glyph>,
}

/// A letter of a line.
pub(super) struct Glyph {
    pub letter: char,
    pub id: GlyphId,
    /// Its place among [`Fonts`].
    pub font: usize,
    pub x: f32,
}

/// The fonts of a picture: the style's, then the program's own for the letters that it lacks.
pub(super) struct Fonts<'a> {
    faces: Vec<(&'a [u8], Face<'a>)>,
}

impl<'a> Fonts<'a> {
    pub fn of(typeface: &'a Typeface) -> Self {
        let files = [typeface.bytes(), ARIMO];
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

    /// Letters from left to right, one glyph a letter, with the font's kerning; their anchor at the place of the words.
    pub fn line(&self, words: &Words) -> Line {
        let size = words.size as f32;
        let mut glyphs: Vec<Glyph> = Vec::new();
        let mut x = 0.0;
        for letter in letters(&words.text).chars() {
            let (font, id) = self.glyph(letter);
            let Some((_, face)) = self.get(font) else { continue };
            let scale = size / f32::from(face.units_per_em());
            if let Some(last) = glyphs.last().filter(|last| last.font == font) {
                x += f32::from(kerning(face, last.id, id)) * scale;
            }
            glyphs.push(Glyph { letter, id, font, x });
            x += f32::from(face.glyph_hor_advance(id).unwrap_or(0)) * scale;
        }
        let back = match words.side {
            Side::Left => 0.0,
            Side::Centre => x / 2.0,
            Side::Right => x,
        };
        let (left, top) = (words.at.0 as f32, words.at.1 as f32);
        let turn = if words.upright { 270.0 } else { 0.0 };
        // An ex is half an em in browsers where a font does not say.
        let down = if words.middle { 0.25 } else { 0.76 };
        let origin = Transform::from_rotate_at(turn, left, top).pre_translate(left - back, top + down * size);
        Line { size, origin, glyphs }
    }

    /// The letters of a text that no font has, for which an empty box stands.
    pub fn lacking(&self, text: &str) -> BTreeSet<char> {
        letters(text).chars().filter(|letter| self.glyph(*letter).1 == GlyphId(0)).collect()
    }
}

/// A text as it is set: accents with their letters, since fonts have few by themselves, and nothing that is not drawn.
fn letters(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = ComposingNormalizerBorrowed::new_nfc().normalize(&text).into_owned();
    text.chars().filter(|letter| !is_unseen(*letter)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_as_wide_as_those_of_helvetica() {
        let own = Typeface::default();
        // Adobe's metrics of Helvetica: a 556, i 222, M 833 of 1000.
        for (text, width) in [("a", 556.0), ("i", 222.0), ("M", 833.0), ("aiM", 1611.0)] {
            let found = own.width(text, 1000.0);
            assert!((found - width).abs() < 2.0, "{text}: {found}");
        }
        for sign in "−…·≤≥×–→".chars() {
            let face = Face::parse(own.bytes(), 0).unwrap();
            assert!(face.glyph_index(sign).is_some(), "{sign}");
        }
    }

    #[test]
    fn letters_that_no_font_has_are_named() {
        let (own, none) = (Typeface::default(), BTreeSet::new());
        let fonts = Fonts::of(&own);
        assert_eq!(fonts.lacking("red 猫, 狗 and 猫"), BTreeSet::from(['猫', '狗']));
        assert_eq!(fonts.lacking("ไทย"), BTreeSet::from(['ไ', 'ท', 'ย']));
        assert_eq!(fonts.lacking("\u{1f600}"), BTreeSet::from(['\u{1f600}']));
        // Accents are composed, and what is not drawn is no box.
        for text in [
            "cafe\u{301} \u{c4}rger \u{3a3} \u{416} \u{2212}0.5\u{2026}",
            "soft\u{ad}hyphen\u{200b}\u{feff}",
            "",
        ] {
            assert_eq!(fonts.lacking(text), none, "{text}");
        }
    }

    #[test]
    fn what_is_no_font_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("letters.ttf");
        assert!(Typeface::read(&path).unwrap_err().to_string().contains("letters.ttf"));
        std::fs::write(&path, "no font").unwrap();
        let said = Typeface::read(&path).unwrap_err().to_string();
        assert!(said.contains("letters.ttf") && said.contains("TrueType"), "{said}");
    }
}
