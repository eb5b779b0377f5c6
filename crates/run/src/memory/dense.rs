//! Retrieval by embeddings: segments by the cosine of their vectors to the query's (KnowMe-Bench, section 5.1: naive RAG).
//!
//! A segment's text is its date in words and all that its turns say, as for retrieval by words. The vectors of a history are made once, when the first query
//! comes, and kept until another history does. Segments of equal cosine stay in the order of the history.

use super::rank::{Rank, texts};
use crate::embedder::{EmbedError, Embedder};
use crate::models::{ModelStore, ModelsError};
use crate::progress;
use palimpsest_data::case::Case;

#[derive(Debug, thiserror::Error)]
pub enum DenseError {
    #[error(transparent)]
    Fetch(#[from] ModelsError),
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
    /// Normalised to length 1.
    vectors: Vec<Vec<f32>>,
}

impl DenseRanker {
    /// With the embedding model of the model home, which is fetched where it is not there. `show` says whether someone is told how far
    /// the vectors of a history are.
    pub fn open(store: &ModelStore, show: bool) -> Result<Self, DenseError> {
        Embedder::built_in()?;
        let embedder = Embedder::open(&store.embedder()?)?;
        Ok(DenseRanker { embedder, show, index: None })
    }

    /// The cosine of each text to the query.
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
        // Stable: ties keep the order of the history.
        places.sort_by(|&a, &b| cosines[b].total_cmp(&cosines[a]));
        Ok(places)
    }
}
