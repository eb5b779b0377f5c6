//! The typeface of all figures: metrics and text layout.
//!
//! The bundled Arimo is metric-compatible with Arial and Helvetica, so viewers without it keep the layout. Style files may set another.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use icu_normalizer::ComposingNormalizerBorrowed;
use tiny_skia::Transform;
use ttf_parser::gpos::{PairAdjustment, PositioningSubtable};
use ttf_parser::{Face, GlyphId, Tag};

use super::style::{Side, Words};

/// Errors of style files and their fonts.
#[derive(Debug, thiserror::Error)]
pub enum StyleError {
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {reason}; `palimpsest figures --style-example` prints a whole style file")]
    Toml { path: PathBuf, reason: String },
    #[error(
        "{path} is no font that can be drawn with ({reason}); give a TrueType or OpenType file (.ttf, .otf)"
    )]
    Font { path: PathBuf, reason: String },
}

/// Arimo Regular, subset to Latin, Greek, Cyrillic and symbols; its licence is in the same folder.
const ARIMO: &[u8] = include_bytes!("font/Arimo-Regular.ttf");

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typeface {
    family: String,
    /// `None` for the bundled font.
    read: Option<Arc<Vec<u8>>>,
}

impl Default for Typeface {
    fn default() -> Self {
        Typeface { family: "Arimo".to_owned(), read: None }
    }
}

impl Typeface {
    pub fn read(path: &Path) -> Result<Self, StyleError> {
        let bytes =
            std::fs::read(path).map_err(|source| StyleError::Read { path: path.to_owned(), source })?;
        let no_font = |reason: String| StyleError::Font { path: path.to_owned(), reason };
        let face = Face::parse(&bytes, 0).map_err(|e| no_font(e.to_string()))?;
        let names = face.names().into_iter();
        let family = names.filter(|name| name.name_id == ttf_parser::name_id::FAMILY);
        let family = family.filter_map(|name| name.to_string()).next();
        let family = family.ok_or_else(|| no_font("it names no family".to_owned()))?;
        // The name is quoted inside a list in an attribute.
        let plain = |c: &char| !matches!(c, '"' | '\'' | ',' | '<' | '&' | '\\') && !c.is_control();
        Ok(Typeface { family: family.chars().filter(plain).collect(), read: Some(Arc::new(bytes)) })
    }

    /// CSS families: this font, then metric-compatible ones.
    pub fn families(&self) -> String {
        format!("{}, Arimo, Arial, Helvetica, Liberation Sans, sans-serif", self.family)
            .replace("Arimo, Arimo", "Arimo")
    }

    pub fn bytes(&self) -> &[u8] {
        self.read.as_ref().map_or(ARIMO, |bytes| bytes.as_slice())
    }

    /// Text width; both in pixels.
    pub fn width(&self, text: &str, size: f64) -> f64 {
        let Ok(face) = Face::parse(self.bytes(), 0) else { return 0.0 };
        let em = f64::from(face.units_per_em());
        let advance = |c: char| {
            let glyph = face.glyph_index(c)?;
            face.glyph_hor_advance(glyph)
        };
        // Missing letters use a fallback font: about one em at most.
        let letters = text.chars().map(|c| advance(c).map_or(em, f64::from));
        letters.sum::<f64>() / em * size
    }
}

pub(super) struct Line {
    /// In units.
    pub size: f32,
    pub origin: Transform,
    pub glyphs: Vec<Glyph>,
}

pub(super) struct Glyph {
    pub letter: char,
    pub id: GlyphId,
    pub font: usize,
    pub x: f32,
}

/// The style's font, then the bundled one as fallback.
pub(super) struct Fonts<'a> {
    faces: Vec<(&'a [u8], Face<'a>)>,
}

impl<'a> Fonts<'a> {
    pub fn of(typeface: &'a Typeface) -> Self {
        let files = [typeface.bytes(), ARIMO];
        let faces = files.into_iter().filter_map(|file| Some((file, Face::parse(file, 0).ok()?)));
        Fonts { faces: faces.collect() }
    }

    pub fn get(&self, font: usize) -> Option<&(&'a [u8], Face<'a>)> {
        self.faces.get(font)
    }

    /// First font with the letter; otherwise the first font's missing glyph.
    fn glyph(&self, letter: char) -> (usize, GlyphId) {
        let has = |(font, (_, face)): (usize, &(_, Face<'_>))| Some((font, face.glyph_index(letter)?));
        self.faces.iter().enumerate().find_map(has).unwrap_or((0, GlyphId(0)))
    }

    /// Left-to-right layout, one glyph per letter, with kerning; the anchor is the words' position.
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
        // Browsers assume an x-height of half an em if the font has none.
        let down = if words.middle { 0.25 } else { 0.76 };
        let origin = Transform::from_rotate_at(turn, left, top).pre_translate(left - back, top + down * size);
        Line { size, origin, glyphs }
    }

    pub fn lacking(&self, text: &str) -> BTreeSet<char> {
        letters(text).chars().filter(|letter| self.glyph(*letter).1 == GlyphId(0)).collect()
    }
}

/// Normalises text: composes accents, since fonts have few combining marks, and drops invisible characters.
fn letters(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = ComposingNormalizerBorrowed::new_nfc().normalize(&text).into_owned();
    text.chars().filter(|letter| !is_unseen(*letter)).collect()
}

/// Formatting characters without a glyph.
fn is_unseen(letter: char) -> bool {
    matches!(letter, '\u{AD}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}')
}

/// Kerning in font units.
fn kerning(face: &Face<'_>, first: GlyphId, second: GlyphId) -> i16 {
    let positioning = face.tables().gpos;
    let features = positioning.iter().flat_map(|table| table.features);
    let kerns = features.filter(|feature| feature.tag == Tag::from_bytes(b"kern"));
    // Scripts share lookups; apply each once.
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
        // Accents are composed; invisible characters are not missing.
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
