//! The typeface of every figure, and how wide its letters are.
//!
//! Arimo lies in this repository: its letters are as wide as those of Arial and Helvetica, so that a viewer without it keeps to the
//! layout. A style file may name another.

use std::path::Path;
use std::sync::Arc;

use super::StyleError;

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
    /// The font of the program as bytes, for what the other lacks.
    pub(super) const OWN: &[u8] = ARIMO;

    /// A TrueType or OpenType file.
    pub fn read(path: &Path) -> Result<Self, StyleError> {
        let bytes =
            std::fs::read(path).map_err(|source| StyleError::Read { path: path.to_owned(), source })?;
        let no_font = |reason: String| StyleError::Font { path: path.to_owned(), reason };
        let face = ttf_parser::Face::parse(&bytes, 0).map_err(|e| no_font(e.to_string()))?;
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
        let Ok(face) = ttf_parser::Face::parse(self.bytes(), 0) else { return 0.0 };
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
            let face = ttf_parser::Face::parse(own.bytes(), 0).unwrap();
            assert!(face.glyph_index(sign).is_some(), "{sign}");
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
