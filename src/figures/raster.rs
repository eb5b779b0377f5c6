//! PNG and PDF from the very same SVG, with the figures' font and none of the system's.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg;

use super::typeface::Typeface;
use super::{Figure, FigureError, look, pdf};

/// A renderer with its fonts loaded.
pub struct Rasteriser {
    options: usvg::Options<'static>,
    /// Pixels of the PNG a pixel of the SVG.
    zoom: f32,
}

impl Rasteriser {
    /// Loads the figures' font, and none of the system's.
    pub fn new() -> Self {
        let look = look::current();
        let typeface = &look.style.typeface;
        let mut fonts = usvg::fontdb::Database::new();
        fonts.load_font_data(Typeface::OWN.to_vec());
        if *typeface != Typeface::default() {
            fonts.load_font_data(typeface.bytes().to_vec());
        }
        fonts.set_sans_serif_family(typeface.family());
        let options = usvg::Options {
            fontdb: Arc::new(fonts),
            font_family: typeface.family().to_owned(),
            ..usvg::Options::default()
        };
        // On paper 576 dots an inch, on a screen two a pixel.
        Rasteriser { options, zoom: if look.size.is_some() { 6.0 } else { 2.0 } }
    }

    fn tree(&self, figure: &Figure) -> Result<usvg::Tree, FigureError> {
        usvg::Tree::from_str(&figure.svg, &self.options)
            .map_err(|e| FigureError::Draw { figure: figure.name.clone(), reason: e.to_string() })
    }

    /// The figure as PNG on white: at twice its size, or at 576 dots an inch where a width was stated.
    ///
    /// # Errors
    /// [`FigureError::Draw`] where the SVG does not parse or is too large.
    pub fn png(&self, figure: &Figure) -> Result<Vec<u8>, FigureError> {
        let fail = |reason: String| FigureError::Draw { figure: figure.name.clone(), reason };
        let tree = self.tree(figure)?;
        let (width, height) = (tree.size().width() * self.zoom, tree.size().height() * self.zoom);
        let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32)
            .ok_or_else(|| fail(format!("a picture of {width} x {height} pixels cannot be made")))?;
        pixels.fill(resvg::tiny_skia::Color::WHITE);
        resvg::render(&tree, Transform::from_scale(self.zoom, self.zoom), &mut pixels.as_mut());
        pixels.encode_png().map_err(|e| fail(e.to_string()))
    }

    /// The figure as PDF, a page of its size with its text as text and its font embedded; the same bytes for the same figure.
    ///
    /// # Errors
    /// [`FigureError::Draw`] where the SVG does not parse.
    pub fn pdf(&self, figure: &Figure) -> Result<Vec<u8>, FigureError> {
        pdf::page(figure, &self.tree(figure)?)
    }
}

impl Default for Rasteriser {
    fn default() -> Self {
        Rasteriser::new()
    }
}
