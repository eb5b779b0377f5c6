//! Which texts are near a query: by embeddings where there is an embedder, else by words.
//!
//! The authors embed with all-MiniLM-L6-v2. Without an embedder BM25 stands in, and the system's identity says so. Among texts of equal score, such as
//! those without a word in common with the query, the later ones come first: a later state is the likelier default.

use std::collections::HashMap;

use crate::chat::endpoint::Endpoint;
use crate::embedder::Embedder;
use crate::memory::bm25::Bm25Ranker;

/// Scores texts against a query.
pub trait Similarity: Send {
    /// Its name, for the system's identity.
    fn name(&self) -> String;

    /// A score a text, greater is nearer.
    fn scores(&mut self, texts: &[&str], query: &str) -> Result<Vec<f64>, String>;
}

/// Nearness by words: Okapi BM25 over the texts compared.
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

/// A source of vectors.
pub trait Embeds: Send {
    /// Its name.
    fn name(&self) -> String;

    /// A vector a text.
    fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>, String>;
}

/// The built-in embedder, all-MiniLM-L6-v2.
impl Embeds for Embedder {
    fn name(&self) -> String {
        "all-MiniLM-L6-v2".to_owned()
    }

    fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>, String> {
        Embedder::embed(self, texts, |_| {}).map_err(|error| error.to_string())
    }
}

/// A server of OpenAI's `/v1/embeddings`.
impl Embeds for Endpoint {
    fn name(&self) -> String {
        self.model().to_owned()
    }

    fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>, String> {
        self.embeddings(texts).map_err(|error| error.to_string())
    }
}

/// Nearness by the cosine of vectors. Each text is embedded once.
pub struct ByEmbedding<E> {
    embedder: E,
    known: HashMap<String, Vec<f32>>,
}

impl<E: Embeds> ByEmbedding<E> {
    /// With an embedder.
    pub fn new(embedder: E) -> Self {
        ByEmbedding { embedder, known: HashMap::new() }
    }
}

impl<E: Embeds> Similarity for ByEmbedding<E> {
    fn name(&self) -> String {
        self.embedder.name()
    }

    fn scores(&mut self, texts: &[&str], query: &str) -> Result<Vec<f64>, String> {
        let mut missing: Vec<&str> = texts.iter().chain([&query]).copied().collect();
        missing.retain(|text| !self.known.contains_key(*text));
        missing.sort_unstable();
        missing.dedup();
        if !missing.is_empty() {
            let vectors = self.embedder.embed(&missing)?;
            self.known.extend(missing.iter().map(|&text| text.to_owned()).zip(vectors));
        }
        let vector = |text: &str| self.known.get(text).map(Vec::as_slice).unwrap_or_default();
        let of_query = vector(query);
        Ok(texts.iter().map(|text| cosine(vector(text), of_query)).collect())
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum() };
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Letters(usize);

    impl Embeds for Letters {
        fn name(&self) -> String {
            "letters".to_owned()
        }

        fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>, String> {
            self.0 += texts.len();
            let count = |text: &str, c| text.matches(c).count() as f32;
            Ok(texts.iter().map(|text| vec![count(text, 'a'), count(text, 'b')]).collect())
        }
    }

    #[test]
    fn texts_are_embedded_once_and_compared_by_cosine() {
        let mut similarity = ByEmbedding::new(Letters(0));
        let scores = similarity.scores(&["aa", "b", "zz"], "a").unwrap();
        assert_eq!(scores, [1.0, 0.0, 0.0], "no direction, no cosine");
        assert_eq!(similarity.scores(&["aa", "b"], "b").unwrap(), [0.0, 1.0]);
        assert_eq!(similarity.embedder.0, 4, "aa, b, zz and a");
    }
}
