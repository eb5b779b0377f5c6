//! Files that are one JSON array, read with the count of the rows before what is wrong.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::de::Read;

/// The elements of an array that is all of the text; `expected` is its name in complaints.
///
/// # Errors
/// The parser's, with how many elements stand before it.
pub(super) fn elements<'de, T: DeserializeOwned>(
    mut json: serde_json::Deserializer<impl Read<'de>>,
    expected: &'static str,
) -> Result<Vec<T>, (serde_json::Error, usize)> {
    let read = Cell::new(0);
    let array = CountedArray { expected, read: &read, element: PhantomData };
    array
        .deserialize(&mut json)
        .and_then(|elements| json.end().map(|()| elements))
        .map_err(|error| (error, read.get()))
}

/// An array whose elements are counted while they are read.
struct CountedArray<'a, T> {
    expected: &'static str,
    read: &'a Cell<usize>,
    element: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for CountedArray<'_, T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for CountedArray<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = items.next_element()? {
            elements.push(element);
            self.read.set(elements.len());
        }
        Ok(elements)
    }
}
