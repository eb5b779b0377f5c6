//! Inks and strokes shared by all figures; [`super::meaning`] assigns them.

/// Drawing units per pixel: positions are integers, and curves need subpixel steps.
pub const UNIT: i32 = 4;

/// sRGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Colour(pub u8, pub u8, pub u8);

pub const WHITE: Colour = Colour(255, 255, 255);

impl Colour {
    /// Opacity from 0 to 1.
    pub fn mix(self, opacity: f64) -> Ink {
        Ink { colour: self, opacity }
    }
}

/// Opacity from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ink {
    pub colour: Colour,
    pub opacity: f64,
}

impl From<Colour> for Ink {
    fn from(colour: Colour) -> Self {
        colour.mix(1.0)
    }
}

pub const INK: Colour = Colour(0x1a, 0x1a, 0x1a);
/// Secondary text and axes.
pub const GREY: Colour = Colour(0x4a, 0x4a, 0x4a);
pub const GRID: Colour = Colour(0xe2, 0xe2, 0xe2);
/// Behind linear layers: light enough for grid and curves, dark enough for print.
pub const LINEAR: Colour = Colour(0xec, 0xec, 0xec);
/// Upper end of a diverging scale.
const ABOVE: Colour = Colour(0x00, 0x72, 0xb2);
/// Lower end of a diverging scale.
const BELOW: Colour = Colour(0xd5, 0x5e, 0x00);

/// Dash and gap length in pixels.
pub type Dash = (i32, i32);

pub const DOTS: Dash = (1, 2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Down,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stroke {
    pub colour: Colour,
    pub marker: Marker,
    pub dash: Option<Dash>,
    pub hollow: bool,
    /// Linear layers: thinner, with hollow markers.
    pub linear: bool,
}

impl Stroke {
    pub const fn solid(colour: Colour, marker: Marker) -> Self {
        Stroke { colour, marker, dash: None, hollow: false, linear: false }
    }

    /// Noise baseline: same colour, dotted, without markers.
    #[must_use]
    pub const fn noise(self) -> Self {
        Stroke { marker: Marker::None, dash: Some(DOTS), ..self }
    }

    #[must_use]
    pub const fn hollow(self) -> Self {
        Stroke { hollow: true, ..self }
    }

    /// Stroke of the same curve at linear layers.
    #[must_use]
    pub const fn linear(self) -> Self {
        Stroke { linear: true, hollow: true, ..self }
    }

    pub fn is_noise(self) -> bool {
        self.marker == Marker::None
    }

    /// In units.
    pub fn width(self) -> i32 {
        let quarters = if self.linear || self.is_noise() { 5 } else { 7 };
        UNIT * quarters / 4
    }

    /// Dash and gap in pixels; `None` for a solid line.
    pub fn dashes(self) -> Option<Dash> {
        match (self.linear, self.is_noise()) {
            (true, true) => Some((1, 4)),
            _ => self.dash,
        }
    }
}

/// Elides the middle of texts longer than `most` characters.
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

/// Maps -1..1 from vermillion over white to blue.
pub fn diverging(at: f64) -> Colour {
    let Colour(r, g, b) = if at < 0.0 { BELOW } else { ABOVE };
    let part = at.abs().min(1.0);
    let mix = |c: u8| (255.0 + (f64::from(c) - 255.0) * part).round() as u8;
    Colour(mix(r), mix(g), mix(b))
}

/// In units.
pub type Place = (i32, i32);

#[derive(Debug, Clone)]
pub(super) struct Words {
    pub text: String,
    pub at: Place,
    /// In units.
    pub size: i32,
    pub side: Side,
    /// Vertically centred, else top-aligned.
    pub middle: bool,
    /// Rotated, reading upwards.
    pub upright: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Centre,
    Right,
}
