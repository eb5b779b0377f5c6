//! Dose: made histories in which one thing at a time is set, and what a model holds for current is read from log-probabilities.
//!
//! An item is a subject, an attribute and values of a closed set; its rows vary one factor (distance, depth, restatements, ...) and
//! come in twins of equal length. `palimpsest build dose` writes them.

pub mod implied;
pub mod row;
pub mod state;
pub mod terms;
