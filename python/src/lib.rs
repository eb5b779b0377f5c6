//! Native half of the Python package `palimpsest`.
//!
//! A thin layer: requests are plain values or JSON, tensors return as NumPy arrays that own Rust buffers, tables as JSON. Names,
//! docstrings, frames and figures are in `python/palimpsest`. Work runs with the GIL released ([`work`]) on own threads; process settings
//! stay untouched.

mod arrays;
mod command;
mod errors;
mod model;
mod prompt;
mod run;
mod work;

use std::ffi::OsString;

use palimpsest::memory::system::supervisor;
use pyo3::prelude::*;

/// The native module.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // An interpreter in another program may have no path; memory systems then run without a supervisor.
    let python = module.py().import("sys")?.getattr("executable")?.extract::<OsString>();
    if let Ok(python) = python
        && !python.is_empty()
    {
        supervisor::set_own_command(vec![python, "-m".into(), "palimpsest".into()]);
    }
    module.add("Error", module.py().get_type::<errors::Error>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<model::Model>()?;
    module.add_class::<prompt::Prompt>()?;
    module.add_function(wrap_pyfunction!(run::run, module)?)?;
    module.add_function(wrap_pyfunction!(run::rows, module)?)?;
    module.add_function(wrap_pyfunction!(run::attention, module)?)?;
    module.add_function(wrap_pyfunction!(run::masses, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::write, module)?)?;
    module.add_function(wrap_pyfunction!(command::command, module)?)
}
