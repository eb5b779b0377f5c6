//! Makers that all kinds have.

use super::table::Maker;

pub const MAKERS: &[(&str, Maker)] = &[];
