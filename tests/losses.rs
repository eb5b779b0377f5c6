mod commands;
mod paper;
pub mod stores;
mod texts;
mod untold;
