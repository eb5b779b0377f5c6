//! Makers that all kinds have.

use super::review;
use super::table::Maker;

pub const MAKERS: &[(&str, Maker)] = &[("review", Maker::All(review::review))];
