//! Tensors as nested JSON arrays.

use serde::ser::{Serialize, SerializeSeq, Serializer};

use palimpsest_core::attention::NO_KEY;

/// Row-major elements with this shape.
pub struct Nested<'a> {
    pub elements: Elements<'a>,
    pub shape: &'a [usize],
}

#[derive(Clone, Copy)]
pub enum Elements<'a> {
    Numbers(&'a [f32]),
    /// (token index, weight); fewer than k if a position sees fewer tokens.
    Pairs(&'a [u32], &'a [f32]),
    Named(&'a [u32], &'a [f32], &'a [String]),
}

impl<'a> Elements<'a> {
    /// Part `i` of `n` equal parts.
    fn part(self, i: usize, n: usize) -> Self {
        fn part<T>(all: &[T], i: usize, n: usize) -> &[T] {
            let size = all.len() / n;
            all.get(i * size..(i + 1) * size).unwrap_or_default()
        }
        match self {
            Elements::Numbers(values) => Elements::Numbers(part(values, i, n)),
            Elements::Pairs(keys, weights) => Elements::Pairs(part(keys, i, n), part(weights, i, n)),
            Elements::Named(keys, weights, texts) => {
                Elements::Named(part(keys, i, n), part(weights, i, n), texts)
            }
        }
    }
}

impl Serialize for Nested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.shape, self.elements) {
            ([], Elements::Numbers(values)) => values.first().serialize(serializer),
            ([_] | [], Elements::Pairs(keys, weights)) => {
                serializer.collect_seq(keys.iter().zip(weights).filter(|(key, _)| **key != NO_KEY))
            }
            ([_] | [], Elements::Named(keys, weights, texts)) => {
                let text = |key: u32| texts.get(key as usize).map_or("", String::as_str);
                let there = keys.iter().zip(weights).filter(|(key, _)| **key != NO_KEY);
                serializer.collect_seq(there.map(|(key, weight)| (key, weight, text(*key))))
            }
            ([n, shape @ ..], elements) => {
                let mut list = serializer.serialize_seq(Some(*n))?;
                for i in 0..*n {
                    list.serialize_element(&Nested { elements: elements.part(i, *n), shape })?;
                }
                list.end()
            }
        }
    }
}
