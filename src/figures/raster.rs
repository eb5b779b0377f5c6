//! PNG from the very same SVG, with the crate's font and none of the system's.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg;

use super::{Figure, FigureError};

/// Pixels of the PNG a pixel of the SVG.
const ZOOM: f32 = 2.0;

/// A rasteriser with its fonts loaded.
pub struct Rasteriser {
    options: usvg::Options<'static>,
}

impl Rasteriser {
    /// Loads the figures' font, and none of the system's.
    pub fn new() -> Self {
        let mut fonts = usvg::fontdb::Database::new();
        fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
        fonts.set_sans_serif_family("Ubuntu");
        let options = usvg::Options {
            fontdb: Arc::new(fonts),
            font_family: "Ubuntu".to_owned(),
            ..usvg::Options::default()
        };
        Rasteriser { options }
    }

    /// The figure as PNG, at twice its size, on white.
    ///
    /// # Errors
    /// [`FigureError::Draw`] where the SVG does not parse or is too large.
    pub fn png(&self, figure: &Figure) -> Result<Vec<u8>, FigureError> {
        let fail = |reason: String| FigureError::Draw { figure: figure.name.clone(), reason };
        let tree = usvg::Tree::from_str(&figure.svg, &self.options).map_err(|e| fail(e.to_string()))?;
        let (width, height) = (tree.size().width() * ZOOM, tree.size().height() * ZOOM);
        let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32)
            .ok_or_else(|| fail(format!("a picture of {width} x {height} pixels cannot be made")))?;
        pixels.fill(resvg::tiny_skia::Color::WHITE);
        resvg::render(&tree, Transform::from_scale(ZOOM, ZOOM), &mut pixels.as_mut());
        pixels.encode_png().map_err(|e| fail(e.to_string()))
    }
}

impl Default for Rasteriser {
    fn default() -> Self {
        Rasteriser::new()
    }
}
