//! Tensors as JSON: arrays of arrays.

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

/// Row-major elements of this shape, written as arrays of arrays.
pub struct Nested<'a> {
    /// The elements.
    pub values: &'a [f32],
    /// How they lie.
    pub shape: &'a [usize],
}

impl Serialize for Nested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Nested { values, shape } = self;
        let Some((&n, rest)) = shape.split_first() else {
            return values.first().copied().serialize(serializer);
        };
        let size = values.len() / n.max(1);
        let mut list = serializer.serialize_seq(Some(n))?;
        for i in 0..n {
            let values = values.get(i * size..(i + 1) * size).unwrap_or_default();
            match (rest, values) {
                ([], [value]) => list.serialize_element(value)?,
                _ => list.serialize_element(&Nested { values, shape: rest })?,
            }
        }
        list.end()
    }
}
