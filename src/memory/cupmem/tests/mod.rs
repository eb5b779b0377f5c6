//! CUPMem driven by a scripted chat model.

mod cost;
mod faults;
mod reading;
mod sample;
mod script;
mod switches;
mod system;
mod verdicts;
mod writing;
