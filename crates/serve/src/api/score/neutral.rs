//! Neutral requests of scores: the same prompt with a null question.
//!
//! Read after the scored request, so that the documents' KV cache is reused. Masses are cached for further questions about the same
//! documents.

use std::sync::{Arc, Mutex, PoisonError};

use ndarray::Array4;
use sha2::{Digest, Sha256};

use super::super::engine::ServedEngine;
use super::super::error::ApiError;
use palimpsest_core::attention::Masses;
use palimpsest_core::engine::{Event, Observe, Request, Rows, Task};
use palimpsest_core::span::Span;

pub const SCORE_CACHE_BYTES: usize = 16 << 20;

pub const TEXT: &str = "N/A";

/// SHA-256 of a prompt's tokens and spans.
type Key = [u8; 32];

#[derive(Debug, Clone)]
pub struct NeutralPrompt {
    pub tokens: Vec<u32>,
    pub question: Vec<Span>,
    pub documents: Vec<Span>,
}

impl NeutralPrompt {
    fn digest(&self) -> Key {
        let spans = self.question.iter().chain(&self.documents);
        let numbers = spans.flat_map(|span| [span.start as u32, span.end as u32]);
        let count = self.documents.len() as u32;
        let numbers = [count].into_iter().chain(numbers).chain(self.tokens.iter().copied());
        Sha256::digest(numbers.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).into()
    }
}

#[derive(Debug)]
pub struct NeutralMasses {
    layers: Vec<usize>,
    /// [layers, heads, 1, documents]; the row is the question.
    mass: Array4<f32>,
}

impl NeutralMasses {
    pub fn of(&self, (layer, head): (usize, usize)) -> Option<Vec<f64>> {
        let layer = self.layers.iter().position(|&of| of == layer)?;
        let documents = self.mass.len_of(ndarray::Axis(3));
        (0..documents).map(|d| self.mass.get([layer, head, 0, d]).map(|&x| f64::from(x))).collect()
    }

    fn bytes(&self) -> usize {
        self.mass.len() * size_of::<f32>()
    }
}

/// LRU cache; the most recent entry is last.
#[derive(Debug, Default)]
pub struct NeutralCache(Mutex<Vec<(Key, Arc<NeutralMasses>)>>);

impl NeutralCache {
    /// Masses of the question row, cached or of a prefill.
    pub async fn masses(
        &self,
        engine: &ServedEngine,
        prompt: &NeutralPrompt,
    ) -> Result<Arc<NeutralMasses>, ApiError> {
        let digest = prompt.digest();
        if let Some(known) = self.get(&digest) {
            return Ok(known);
        }
        let rows = Rows { spans: prompt.question.clone(), ..Rows::default() };
        let observe = Observe { rows, keys: prompt.documents.clone(), ..Observe::default() };
        let request = Request::of(prompt.tokens.clone(), observe, Task::Read);
        let masses = engine.results(request, || {
            |event: Event| match event {
                Event::Done(measured) => Some(Ok(measured.masses)),
                _ => None,
            }
        });
        let Masses { layers, mass, .. } = masses.await?.pop().ok_or_else(ApiError::left)?;
        let masses = Arc::new(NeutralMasses { layers, mass });
        self.put(&digest, Arc::clone(&masses));
        Ok(masses)
    }

    fn get(&self, digest: &Key) -> Option<Arc<NeutralMasses>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(of, _)| of == digest)?;
        let found = kept.remove(at);
        let masses = Arc::clone(&found.1);
        kept.push(found);
        Some(masses)
    }

    fn put(&self, digest: &Key, masses: Arc<NeutralMasses>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(of, _)| of != digest);
        kept.push((*digest, masses));
        let mut bytes: usize = kept.iter().map(|(_, masses)| masses.bytes()).sum();
        while bytes > SCORE_CACHE_BYTES && !kept.is_empty() {
            bytes -= kept.remove(0).1.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_masses_are_those_used_last_within_their_bytes() {
        let cache = NeutralCache::default();
        let numbers = SCORE_CACHE_BYTES / size_of::<f32>() / 3;
        let masses = || Arc::new(NeutralMasses { layers: vec![0], mass: Array4::zeros((1, 1, 1, numbers)) });
        for key in [[0; 32], [1; 32], [2; 32]] {
            cache.put(&key, masses());
        }
        assert!(cache.get(&[0; 32]).is_some());
        cache.put(&[3; 32], masses());
        assert!(cache.get(&[1; 32]).is_none());
        assert!([[0; 32], [2; 32], [3; 32]].iter().all(|key| cache.get(key).is_some()));
        let huge = Array4::zeros((1, 1, 1, 4 * numbers));
        cache.put(&[4; 32], Arc::new(NeutralMasses { layers: vec![0], mass: huge }));
        assert!(cache.get(&[4; 32]).is_none(), "one that does not fit is not kept");
    }
}
