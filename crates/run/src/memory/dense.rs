//! Dense retrieval: ranks segments by cosine similarity to the query (KnowMe-Bench, section 5.1: naive RAG).
//!
//! Segment text is the same as for BM25. The embeddings of one history are computed at its first query and cached. Ties keep the order of
//! the history.

use super::rank::{Rank, texts};
use crate::embedder::{EmbedError, Embedder};
use crate::models::ModelStore;
use crate::progress;
use palimpsest_data::case::Case;

#[derive(Debug, thiserror::Error)]
pub enum DenseError {
    #[error(transparent)]
    Fetch(#[from] anyhow::Error),
    #[error(transparent)]
    Embed(#[from] EmbedError),
}

#[derive(Debug)]
pub struct DenseRanker {
    embedder: Embedder,
    show: bool,
    index: Option<Index>,
}

#[derive(Debug)]
struct Index {
    texts: Vec<String>,
    vectors: Vec<Vec<f32>>,
}

impl DenseRanker {
    /// Uses the built-in embedding model and downloads it if missing. `show` prints embedding progress.
    pub fn open(store: &ModelStore, show: bool) -> Result<Self, DenseError> {
        Embedder::built_in()?;
        let embedder = Embedder::open(&store.embedder()?)?;
        Ok(DenseRanker { embedder, show, index: None })
    }

    pub fn cosines(&mut self, texts: Vec<String>, query: &str) -> Result<Vec<f32>, EmbedError> {
        let known = self.index.take().filter(|index| index.texts == texts);
        let index = match known {
            Some(index) => index,
            None => self.index_of(texts)?,
        };
        let of_query = self.embedder.embed(&[query], |_| {})?.pop().unwrap_or_default();
        let dot = |vector: &Vec<f32>| vector.iter().zip(&of_query).map(|(a, b)| a * b).sum();
        let cosines = index.vectors.iter().map(dot).collect();
        self.index = Some(index);
        Ok(cosines)
    }

    fn index_of(&self, texts: Vec<String>) -> Result<Index, EmbedError> {
        let bar = self.show.then(|| progress::texts(texts.len() as u64, "embedding the history"));
        let said: Vec<&str> = texts.iter().map(String::as_str).collect();
        let on_done = |done: usize| {
            if let Some(bar) = &bar {
                bar.inc(done as u64);
            }
        };
        let vectors = self.embedder.embed(&said, on_done)?;
        if let Some(bar) = &bar {
            bar.finish_and_clear();
        }
        Ok(Index { texts, vectors })
    }
}

impl Rank for DenseRanker {
    fn rank(&mut self, case: &Case, query: &str) -> Result<Vec<usize>, String> {
        let cosines = self.cosines(texts(case), query).map_err(|error| error.to_string())?;
        let mut places: Vec<usize> = (0..cosines.len()).collect();
        // Stable sort: ties keep the order of the history.
        places.sort_by(|&a, &b| cosines[b].total_cmp(&cosines[a]));
        Ok(places)
    }
}
