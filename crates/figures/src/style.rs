//! Inks and strokes that every figure shares. What a colour means is [`super::meaning`]'s.

/// Drawing units a pixel: places are whole units, and curves need finer steps than pixels.
pub const UNIT: i32 = 4;

/// A colour, sRGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Colour(pub u8, pub u8, pub u8);

pub const WHITE: Colour = Colour(255, 255, 255);

impl Colour {
    /// The colour at an opacity from 0 to 1.
    pub fn mix(self, opacity: f64) -> Ink {
        Ink { colour: self, opacity }
    }
}

/// A colour and its opacity from 0 to 1.
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

/// Text.
pub const INK: Colour = Colour(0x1a, 0x1a, 0x1a);
/// Secondary text and axes.
pub const GREY: Colour = Colour(0x4a, 0x4a, 0x4a);
/// Grid lines.
pub const GRID: Colour = Colour(0xe2, 0xe2, 0xe2);
/// Behind linear layers: light, so that grid and curves stand out on it, and dark enough for print.
pub const LINEAR: Colour = Colour(0xec, 0xec, 0xec);
/// The upper end of a scale that has two.
const ABOVE: Colour = Colour(0x00, 0x72, 0xb2);
/// The lower end of a scale that has two.
const BELOW: Colour = Colour(0xd5, 0x5e, 0x00);

/// Lengths of dash and space in pixels.
pub type Dash = (i32, i32);

/// The dots of every noise baseline.
pub const DOTS: Dash = (1, 2);

/// The marker of a curve's points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    /// A triangle that points up.
    Triangle,
    Diamond,
    Down,
    None,
}

/// The look of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stroke {
    pub colour: Colour,
    pub marker: Marker,
    /// `None` for a solid line.
    pub dash: Option<Dash>,
    /// True if markers are hollow.
    pub hollow: bool,
    /// True if it is of linear layers: thinner, with hollow markers.
    pub linear: bool,
}

impl Stroke {
    /// A solid line with markers.
    pub const fn solid(colour: Colour, marker: Marker) -> Self {
        Stroke { colour, marker, dash: None, hollow: false, linear: false }
    }

    /// The same colour, dotted and without markers: a noise baseline.
    #[must_use]
    pub const fn noise(self) -> Self {
        Stroke { marker: Marker::None, dash: Some(DOTS), ..self }
    }

    /// The same with hollow markers.
    #[must_use]
    pub const fn hollow(self) -> Self {
        Stroke { hollow: true, ..self }
    }

    /// The same curve at linear layers.
    #[must_use]
    pub const fn linear(self) -> Self {
        Stroke { linear: true, hollow: true, ..self }
    }

    /// True if it is a baseline, which has no markers.
    pub fn is_noise(self) -> bool {
        self.marker == Marker::None
    }

    /// The line's width in units.
    pub fn width(self) -> i32 {
        let quarters = if self.linear || self.is_noise() { 5 } else { 7 };
        UNIT * quarters / 4
    }

    /// Lengths of dash and space in pixels; `None` for a solid line.
    pub fn dashes(self) -> Option<Dash> {
        match (self.linear, self.is_noise()) {
            (true, true) => Some((1, 4)),
            _ => self.dash,
        }
    }
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
pub fn diverging(at: f64) -> Colour {
    let Colour(r, g, b) = if at < 0.0 { BELOW } else { ABOVE };
    let part = at.abs().min(1.0);
    let mix = |c: u8| (255.0 + (f64::from(c) - 255.0) * part).round() as u8;
    Colour(mix(r), mix(g), mix(b))
}

/// A place in units.
pub type Place = (i32, i32);

#[derive(Debug, Clone)]
pub(super) struct Words {
    pub text: String,
    pub at: Place,
    /// In units.
    pub size: i32,
    pub side: Side,
    /// True if the place is at the middle of its height, else at the top.
    pub middle: bool,
    /// Read from below.
    pub upright: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Centre,
    Right,
}
