//! Text similarity: by embeddings if there is an embedder, otherwise by BM25.
//!
//! The authors embed with all-MiniLM-L6-v2. The system's identity records the fallback to BM25. Ties go to the later text, since a later
//! state is the likelier default.

use std::collections::HashMap;

use crate::memory::bm25::Bm25Ranker;
use palimpsest_data::ground::order::sorted_unique;

pub trait Similarity: Send {
    fn name(&self) -> String;

    /// One score per text; greater is nearer.
    fn scores(&mut self, texts: &[&str], query: &str) -> Result<Vec<f64>, String>;
}

#[derive(Default)]
pub struct ByWords(Bm25Ranker);

impl Similarity for ByWords {
    fn name(&self) -> String {
        "bm25".to_owned()
    }

    fn scores(&mut self, texts: &[&str], query: &str) -> Result<Vec<f64>, String> {
        let texts = texts.iter().map(|&text| text.to_owned()).collect();
        Ok(self.0.scores(texts, query).into_iter().map(f64::from).collect())
    }
}

type Embed = Box<dyn FnMut(&[&str]) -> Result<Vec<Vec<f32>>, String> + Send>;

/// Cosine similarity; caches the embedding of each text.
pub struct ByEmbedding {
    name: String,
    embed: Embed,
    known: HashMap<String, Vec<f32>>,
}

impl ByEmbedding {
    pub fn new(name: &str, embed: Embed) -> Self {
        ByEmbedding { name: name.to_owned(), embed, known: HashMap::new() }
    }
}

impl Similarity for ByEmbedding {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn scores(&mut self, texts: &[&str], query: &str) -> Result<Vec<f64>, String> {
        let all = texts.iter().chain([&query]).copied();
        let missing = sorted_unique(all.filter(|text| !self.known.contains_key(*text)));
        if !missing.is_empty() {
            let vectors = (self.embed)(&missing)?;
            self.known.extend(missing.iter().map(|&text| text.to_owned()).zip(vectors));
        }
        let vector = |text: &str| self.known.get(text).map(Vec::as_slice).unwrap_or_default();
        let of_query = vector(query);
        Ok(texts.iter().map(|text| cosine(vector(text), of_query)).collect())
    }
}

/// Lower-cased with collapsed whitespace.
pub(super) fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum() };
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}
