//! Neutral requests of scores: the same prompt with a null question.
//!
//! Read after the scored request, so that the documents' KV cache is reused. Masses are cached for further questions about the same
//! documents.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ndarray::Array4;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::super::error::ApiError;
use palimpsest_core::attention::Masses;
use palimpsest_core::engine::thread::EngineThread;
use palimpsest_core::engine::{Event, Next, Observe, Request, Rows, Task};
use palimpsest_core::span::Span;

pub const SCORE_CACHE_BYTES: usize = 16 << 20;

pub const TEXT: &str = "N/A";

/// SHA-256 of a prompt's tokens and spans.
type Key = [u8; 32];

#[derive(Debug, Clone)]
pub struct NeutralPrompt {
    tokens: Arc<[u32]>,
    question: Vec<Span>,
    documents: Vec<Span>,
    digest: Key,
}

impl NeutralPrompt {
    pub fn new(tokens: Vec<u32>, question: Vec<Span>, documents: Vec<Span>) -> Self {
        let numbers = question.iter().chain(&documents).flat_map(|span| [span.start as u32, span.end as u32]);
        let numbers = [documents.len() as u32].into_iter().chain(numbers).chain(tokens.iter().copied());
        let digest = Sha256::digest(numbers.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).into();
        // Without overlays.
        let documents =
            documents.into_iter().map(|span| Span::new(span.label.clone(), span.range())).collect();
        NeutralPrompt { tokens: tokens.into(), question, documents, digest }
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
    pub async fn masses(
        &self,
        engine: &EngineThread,
        cancelled: Arc<AtomicBool>,
        prompt: &NeutralPrompt,
    ) -> Result<Arc<NeutralMasses>, ApiError> {
        if let Some(known) = self.get(&prompt.digest) {
            return Ok(known);
        }
        let masses = measured(engine, cancelled, prompt).await?;
        let masses = Arc::new(NeutralMasses { layers: masses.layers, mass: masses.mass });
        self.put(&prompt.digest, Arc::clone(&masses));
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

/// Prefills the prompt and measures its question row.
async fn measured(
    engine: &EngineThread,
    cancelled: Arc<AtomicBool>,
    prompt: &NeutralPrompt,
) -> Result<Masses, ApiError> {
    let rows = Rows { spans: prompt.question.clone(), ..Rows::default() };
    let observe = Observe { rows, keys: prompt.documents.clone(), ..Observe::default() };
    let request = Request::of(prompt.tokens.to_vec(), observe, Task::Read);
    let (told, heard) = oneshot::channel();
    let mut told = Some(told);
    engine.submit(request, move |event| {
        let gone = told.as_ref().is_none_or(oneshot::Sender::is_closed) || cancelled.load(Ordering::Relaxed);
        let outcome = match event {
            Event::Done(measured) => Ok(measured.masses),
            Event::Failed(error) => Err(ApiError::from(error)),
            _ => return if gone { Next::Cancel } else { Next::Go },
        };
        if let Some(told) = told.take() {
            let _ = told.send(outcome);
        }
        Next::Cancel
    });
    heard.await.unwrap_or_else(|_| Err(ApiError::left()))
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
