//! Exact near-duplicate search: Jaccard similarity of word bigrams with prefix filtering (sets with similarity at least t share one of the
//! first (1 - t)|a| + 1 elements of either, under any fixed order).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::ground::words::{phrase, units};

/// Minimum similarity of reported near-duplicates.
pub const ALIKE: f64 = 0.7;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alike {
    pub first: usize,
    pub second: usize,
    /// Jaccard similarity in [0, 1].
    pub similarity: f64,
}

/// Ignores case, punctuation and white space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shingles {
    /// Words; characters in scripts without spaces.
    pub words: usize,
    pub digest: u64,
    /// Sorted, distinct hashes of bigrams; a single word hashes alone.
    pub pairs: Vec<u64>,
}

impl Shingles {
    pub fn of(text: &str) -> Self {
        let words = units(text);
        let mut pairs: Vec<u64> = match words.as_slice() {
            [one] => vec![hash(one)],
            several => several.windows(2).map(|pair| hash(&pair)).collect(),
        };
        pairs.sort_unstable();
        pairs.dedup();
        Shingles { words: words.len(), digest: hash(&phrase(text)), pairs }
    }
}

/// Stable: `DefaultHasher::new` has fixed keys.
fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Jaccard similarity of sorted sets; 0 if both are empty.
pub fn similarity(a: &[u64], b: &[u64]) -> f64 {
    let (mut i, mut j, mut common) = (0, 0, 0usize);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        common += usize::from(x == y);
        (i, j) = (i + usize::from(x <= y), j + usize::from(y <= x));
    }
    let either = a.len() + b.len() - common;
    if either == 0 { 0.0 } else { common as f64 / either as f64 }
}

/// All pairs with similarity at least `least`, in (0, 1]. Sets are sorted and distinct.
pub fn pairs(sets: &[Vec<u64>], least: f64) -> Vec<Alike> {
    let mut often: HashMap<u64, usize> = HashMap::new();
    for element in sets.iter().flatten() {
        *often.entry(*element).or_default() += 1;
    }
    let mut holders: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut found = Vec::new();
    for (second, set) in sets.iter().enumerate() {
        let mut rare_first = set.clone();
        rare_first.sort_unstable_by_key(|element| (often.get(element).copied(), *element));
        // Tolerance for rounding in the product.
        let needed = (least * set.len() as f64 - 1e-9).ceil().max(0.0) as usize;
        let prefix = (set.len() + 1).saturating_sub(needed).min(set.len());
        let mut candidates: Vec<usize> = Vec::new();
        for element in rare_first.iter().take(prefix) {
            let of = holders.entry(*element).or_default();
            candidates.extend(of.iter().copied());
            of.push(second);
        }
        candidates.sort_unstable();
        candidates.dedup();
        for first in candidates {
            let Some(other) = sets.get(first) else { continue };
            let (short, long) = (set.len().min(other.len()), set.len().max(other.len()));
            if (short as f64) < least * long as f64 - 1e-9 {
                continue;
            }
            let similarity = similarity(other, set);
            if similarity >= least {
                found.push(Alike { first, second, similarity });
            }
        }
    }
    found.sort_unstable_by_key(|pair| (pair.first, pair.second));
    found
}
