//! Inks, strokes and words shared by all figures; [`super::meaning`] assigns them.

/// Drawing units per pixel: positions are integers, and curves need subpixel steps.
pub const UNIT: i32 = 4;

/// sRGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Colour(pub u8, pub u8, pub u8);

pub const WHITE: Colour = Colour(255, 255, 255);

impl Colour {
    pub const fn of(rgb: u32) -> Self {
        let [_, r, g, b] = rgb.to_be_bytes();
        Colour(r, g, b)
    }

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

pub const INK: Colour = Colour::of(0x1a1a1a);
/// Secondary text and axes.
pub const GREY: Colour = Colour::of(0x4a4a4a);
pub const GRID: Colour = Colour::of(0xe2e2e2);
/// Behind linear layers: light enough for grid and curves, dark enough for print.
pub const LINEAR: Colour = Colour::of(0xececec);

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
        if self.linear && self.is_noise() { Some((1, 4)) } else { self.dash }
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
