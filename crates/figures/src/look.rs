//! The current look: size, titles and style. Thread-local until its scope ends, so that drawing functions need no argument. Set by the
//! command line only.

use std::cell::RefCell;
use std::rc::Rc;

use super::meaning::{GROUPS, Looks, Meaning};
use super::style::{Colour, Stroke};
use super::style_file::Style;

#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    pub titles: bool,
    /// `None` uses each picture's natural size.
    pub size: Option<Size>,
    pub style: Style,
}

impl Default for Look {
    fn default() -> Self {
        Look { titles: true, size: None, style: Style::default() }
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
    pub fn looks(self) -> Looks {
        current().style.looks(self.key())
    }

    pub fn colour(self) -> Colour {
        self.looks().colour
    }

    pub fn stroke(self) -> Stroke {
        let Looks { colour, dash, marker } = self.looks();
        let stroke = Stroke { dash, ..Stroke::solid(colour, marker) };
        match self {
            // Beyond the palette, hollow markers distinguish groups of equal colour.
            Meaning::Group(at) if (at / GROUPS) % 2 == 1 => stroke.hollow(),
            Meaning::Baseline => stroke.noise(),
            _ => stroke,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_holds_until_its_scope_ends() {
        let inner = Look { titles: false, ..Look::default() };
        {
            let _scope = inner.clone().enter();
            assert_eq!(*current(), inner);
        }
        assert_eq!(*current(), Look::default());
    }

    #[test]
    fn a_column_of_84_millimetres_has_room_for_two_panels() {
        let size = Size { width: 84.0 / 25.4 * 96.0, text: 8.0 / 72.0 * 96.0 };
        assert_eq!(size.room(), 357);
    }
}
