//! The current look: size, titles and style. Thread-local until its scope ends, so that drawing functions need no argument. Set by the
//! command line only.

use std::cell::RefCell;
use std::rc::Rc;

use super::meaning::{GROUPS, Meaning};
use super::style::{Colour, Stroke};
use super::style_file::Style;

#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    pub titles: bool,
    /// `None` uses each picture's natural size.
    pub size: Option<Size>,
    pub style: Style,
    /// Keys of the measures to draw; empty: the first ones, as many as a page holds.
    pub measures: Vec<String>,
}

impl Default for Look {
    fn default() -> Self {
        Look { titles: true, size: None, style: Style::default(), measures: Vec::new() }
    }
}

/// Stated width and text size in CSS pixels (96 per inch).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    pub width: f64,
    /// Tick numbers are 5/6 of this.
    pub text: f64,
}

/// Text height in layout pixels.
pub(super) const WORDS: i32 = 12;

impl Size {
    /// CSS pixels per layout pixel.
    pub fn scale(&self) -> f64 {
        self.text / f64::from(WORDS)
    }

    /// Width in layout pixels.
    pub fn room(&self) -> i32 {
        (self.width / self.scale()).floor() as i32
    }
}

thread_local! {
    static CURRENT: RefCell<Rc<Look>> = RefCell::default();
}

pub fn current() -> Rc<Look> {
    CURRENT.with_borrow(Rc::clone)
}

/// The text in the words of the style file.
pub(super) fn worded(text: &str) -> String {
    current().style.worded(text)
}

/// Restores the previous look when dropped.
#[derive(Debug)]
#[must_use]
pub struct Scope {
    before: Rc<Look>,
}

impl Look {
    /// Sets the look of this thread until the scope is dropped.
    pub fn enter(self) -> Scope {
        Scope { before: CURRENT.replace(Rc::new(self)) }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(Rc::clone(&self.before));
    }
}

impl Meaning {
    pub fn colour(self) -> Colour {
        self.stroke().colour
    }

    pub fn stroke(self) -> Stroke {
        let stroke = current().style.stroke(self.key());
        match self {
            // Beyond the palette, hollow markers distinguish groups of equal colour.
            Meaning::Group(at) if (at / GROUPS) % 2 == 1 => stroke.hollow(),
            Meaning::Baseline => stroke.noise(),
            _ => stroke,
        }
    }
}
