//! Font, colours and strokes of every figure.
//!
//! The font comes from a crate, so that a figure needs nothing of the system. Colours are those of Okabe and Ito, which
//! stay apart for colour-blind readers; markers and dashes differ as well, for print in grey.

use std::sync::Once;

use plotters::style::{FontStyle, IntoFont, RGBColor, TextStyle, register_font};

/// Drawing units a pixel: the SVG backend draws on whole units only, and curves need finer steps than pixels.
pub const UNIT: i32 = 4;

/// The font list of every text. The first is the one that is registered; the others serve viewers that lack it.
pub const FONT: &str = "Ubuntu, Helvetica, Arial, sans-serif";

/// Text.
pub const INK: RGBColor = RGBColor(0x1a, 0x1a, 0x1a);
/// Secondary text and axes.
pub const GREY: RGBColor = RGBColor(0x55, 0x55, 0x55);
/// Grid lines.
pub const GRID: RGBColor = RGBColor(0xe2, 0xe2, 0xe2);
/// Behind linear layers: light, so that grid and curves stand out on it, and dark enough for print.
pub const LINEAR: RGBColor = RGBColor(0xec, 0xec, 0xec);
/// Okabe and Ito's blue.
pub const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
/// Okabe and Ito's vermillion.
pub const VERMILLION: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
/// Okabe and Ito's bluish green.
pub const GREEN: RGBColor = RGBColor(0x00, 0x9e, 0x73);

/// What marks the points of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// A filled circle.
    Circle,
    /// A filled square.
    Square,
    /// A filled triangle.
    Triangle,
    /// Nothing.
    None,
}

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stroke {
    /// Of line, marker and band.
    pub colour: RGBColor,
    /// On some of the points.
    pub marker: Marker,
    /// Whether the line is dashed.
    pub dashed: bool,
    /// Whether it is of linear layers: thinner, with hollow markers.
    pub linear: bool,
    /// Whether it is of windowed layers: thinner.
    pub windowed: bool,
}

impl Stroke {
    /// A solid line with markers.
    pub const fn solid(colour: RGBColor, marker: Marker) -> Self {
        Stroke { colour, marker, dashed: false, linear: false, windowed: false }
    }

    /// The same colour, dashed and without markers: a noise baseline.
    #[must_use]
    pub const fn noise(self) -> Self {
        Stroke { marker: Marker::None, dashed: true, ..self }
    }

    /// The same, dashed.
    #[must_use]
    pub const fn dashed(self) -> Self {
        Stroke { dashed: true, ..self }
    }

    /// The same curve at linear layers.
    #[must_use]
    pub const fn linear(self) -> Self {
        Stroke { linear: true, ..self }
    }

    /// The same curve at layers with a window.
    #[must_use]
    pub const fn windowed(self) -> Self {
        Stroke { windowed: true, ..self }
    }

    /// Whether it is a baseline, which has no markers.
    pub fn is_noise(self) -> bool {
        self.marker == Marker::None
    }

    /// The line's width in units.
    pub fn width(self) -> u32 {
        let quarters = match (self.linear || self.windowed, self.is_noise()) {
            (false, false) => 7,
            (false, true) => 5,
            (true, _) => 4,
        };
        UNIT as u32 * quarters / 4
    }

    /// Lengths of dash and space in pixels; `None` for a solid line.
    pub fn dashes(self) -> Option<(i32, i32)> {
        match (self.dashed, self.is_noise(), self.linear) {
            (false, ..) => None,
            (true, false, _) => Some((7, 4)),
            (true, true, false) => Some((3, 3)),
            (true, true, true) => Some((1, 3)),
        }
    }
}

/// Makes the font known to the drawing library, once.
pub fn ensure_font() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // The bytes are a constant of the crate; were they no font, drawing would fail with a message of its own.
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    });
}

/// Text of a size in pixels.
pub fn text(size: i32, colour: RGBColor) -> TextStyle<'static> {
    // The SVG backend divides sizes by 1.24.
    (FONT, f64::from(size * UNIT) * 1.24).into_font().color(&colour)
}

/// A text of at most `most` characters: its beginning and its end.
pub fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let tail = most / 3;
    let head: String = text.chars().take(most.saturating_sub(tail + 1)).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{head}…{end}")
}

/// The colour of a value between -1 and 1: vermillion over white to blue.
pub fn diverging(at: f64) -> RGBColor {
    let RGBColor(r, g, b) = if at < 0.0 { VERMILLION } else { BLUE };
    let part = at.abs().min(1.0);
    let mix = |c: u8| (255.0 + (f64::from(c) - 255.0) * part).round() as u8;
    RGBColor(mix(r), mix(g), mix(b))
}
