//! The native half of the Python package `palimpsest`: models, prompts and runs as Python sees them.
//!
//! Thin: what is asked comes as plain values or JSON, and goes to the rooms of the crate `palimpsest`; tensors go back as NumPy arrays that
//! own Rust's buffers, tables as JSON. The Python half (`python/palimpsest`) gives them names, docstrings, frames and pictures.
//! Work runs with the GIL released ([`work`]), on threads of this module's own, and no setting of the process is touched.

mod arrays;
mod command;
mod errors;
mod model;
mod prompt;
mod run;
mod work;

use pyo3::prelude::*;

/// The native module.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
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
