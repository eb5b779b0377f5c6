//! NumPy arrays that own Rust buffers, and safetensors output.

use std::path::PathBuf;

use anyhow::Context;
use numpy::ndarray::ArrayD;
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods};
use palimpsest::observe::TraceTensors;
use palimpsest_core::attention::{Values, write_tensors};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::errors::raised;

pub type Arrays<'py> = (Bound<'py, PyDict>, Bound<'py, PyDict>);

/// Converts tensors to arrays without copying.
pub fn of<'py>(py: Python<'py>, found: TraceTensors) -> PyResult<Arrays<'py>> {
    let TraceTensors { tensors, metadata } = found;
    let arrays = PyDict::new(py);
    for (name, values, shape) in tensors {
        let of_shape = |e| raised(&anyhow::Error::new(e).context(format!("This is a bug: tensor {name}")));
        match values {
            Values::F32(values) => {
                let array = ArrayD::from_shape_vec(shape, values).map_err(of_shape)?;
                arrays.set_item(name, array.into_pyarray(py))?;
            }
            Values::U32(values) => {
                let array = ArrayD::from_shape_vec(shape, values).map_err(of_shape)?;
                arrays.set_item(name, array.into_pyarray(py))?;
            }
        }
    }
    let described = PyDict::new(py);
    for (name, text) in metadata {
        described.set_item(name, text)?;
    }
    Ok((arrays, described))
}

/// Writes arrays of f32 and u32 with metadata to a safetensors file, as the command does.
#[pyfunction]
pub fn write(
    py: Python<'_>,
    path: PathBuf,
    arrays: &Bound<'_, PyDict>,
    metadata: &Bound<'_, PyDict>,
) -> PyResult<()> {
    let mut tensors: Vec<(String, Values, Vec<usize>)> = Vec::new();
    for (name, array) in arrays {
        let name: String = name.extract()?;
        if let Ok(array) = array.cast::<PyArrayDyn<f32>>() {
            let array = array.readonly();
            let array = array.as_array();
            tensors.push((name, Values::F32(array.iter().copied().collect()), array.shape().to_vec()));
        } else {
            let array = array.cast::<PyArrayDyn<u32>>()?.readonly();
            let array = array.as_array();
            tensors.push((name, Values::U32(array.iter().copied().collect()), array.shape().to_vec()));
        }
    }
    let mut described: Vec<(String, String)> = Vec::new();
    for (name, text) in metadata {
        described.push((name.extract()?, text.extract()?));
    }
    super::work::run(py, None, |_| {
        let tensors: Vec<(&str, Values, Vec<usize>)> = tensors
            .iter()
            .map(|(name, values, shape)| (name.as_str(), values.clone(), shape.clone()))
            .collect();
        let described: Vec<(&str, String)> =
            described.iter().map(|(name, text)| (name.as_str(), text.clone())).collect();
        write_tensors(&path, &tensors, &described).with_context(|| format!("{}", path.display()))
    })
}
