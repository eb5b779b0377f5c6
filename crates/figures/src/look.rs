//! The look of the pictures that are drawn next: their size, whether titles stand in them, and the style.
//!
//! It holds for the thread until its scope ends, as a pen's colour does, so that no function that draws has to hand it on. Set by the
//! command line alone.

use std::cell::RefCell;
use std::rc::Rc;

use super::meaning::{GROUPS, Looks, Meaning};
use super::style::{Colour, Stroke};
use super::style_file::Style;

#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// True if title and origin stand in the picture.
    pub titles: bool,
    /// A stated size; `None` lays each picture out at its own.
    pub size: Option<Size>,
    pub style: Style,
}

impl Default for Look {
    fn default() -> Self {
        Look { titles: true, size: None, style: Style::default() }
    }
}

/// A picture's stated width and size of text, in CSS pixels (96 an inch).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    pub width: f64,
    /// Of words; numbers at ticks are five sixths of it.
    pub text: f64,
}

/// Pixels of words in a layout, which a stated size of text is measured against.
pub(super) const WORDS: i32 = 12;

impl Size {
    /// CSS pixels a pixel of the layout.
    pub fn scale(&self) -> f64 {
        self.text / f64::from(WORDS)
    }

    /// Pixels of the layout in which a picture is laid out.
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

/// Until it is dropped a look holds; then the one before it.
#[derive(Debug)]
#[must_use]
pub struct Scope {
    before: Rc<Look>,
}

impl Look {
    /// Draws all that follows on this thread by this look, until the scope is dropped.
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
            // Beyond the palette hollow markers tell a group from the one whose colour it has.
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
