//! Tests of the losses of memory systems, from the store to the answer.

mod commands;
mod paper;
pub mod stores;
mod texts;
mod untold;
