//! Converts errors to Python exceptions.

use std::any::Any;

use palimpsest::cli::in_one_line;
use pyo3::exceptions::{PyException, PyFileNotFoundError};
use pyo3::prelude::*;

pyo3::create_exception!(
    palimpsest,
    Error,
    PyException,
    "Something that was asked for cannot be done. The message is the one that the command `palimpsest` prints behind `error:`."
);

/// `FileNotFoundError` for missing files, else [`Error`].
pub fn raised(error: &anyhow::Error) -> PyErr {
    let is_missing = error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    });
    let text = in_one_line(error);
    if is_missing { PyFileNotFoundError::new_err(text) } else { Error::new_err(text) }
}

/// A panic as an exception; the message is also on standard error.
pub fn panicked(payload: &(dyn Any + Send)) -> PyErr {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no words");
    Error::new_err(format!("This is a bug: {text}"))
}
