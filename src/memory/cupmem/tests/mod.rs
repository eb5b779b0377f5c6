//! CUPMem driven by a scripted chat model.

mod code_reading;
mod code_writing;
mod cost;
mod faults;
mod port;
mod port_sessions;
mod reading;
mod sample;
mod script;
mod switches;
mod system;
mod verdicts;
mod writing;
