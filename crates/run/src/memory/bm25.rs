//! Okapi BM25 retrieval over the segments of a history (Robertson and Zaragoza, 2009), with the crate `bm25`.
//!
//! k1 = 1.2, b = 0.75, idf = ln(1 + (N - n + 0.5) / (n + 0.5)); repeated query words count repeatedly. Words are split by
//! [`palimpsest_data::ground::words`], without stemming or stop words (our choice). The indexed text of a segment is its date in words and
//! its turns, without speakers. Ties, including segments without any query word, keep the order of the history.

use bm25::{Embedder, EmbedderBuilder, Scorer, Tokenizer};

use super::rank::{Rank, texts};
use palimpsest_data::case::Case;
use palimpsest_data::case::finding::quote;
use palimpsest_data::ground::words::words;

#[derive(Default)]
pub struct Bm25Ranker {
    index: Option<Index>,
}

struct Index {
    texts: Vec<String>,
    embedder: Embedder<u64, Words>,
    scorer: Scorer<usize, u64>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Words;

impl Tokenizer for Words {
    fn tokenize(&self, text: &str) -> Vec<String> {
        words(text)
    }
}

impl Index {
    fn of(texts: Vec<String>) -> Self {
        let all: Vec<&str> = texts.iter().map(String::as_str).collect();
        let builder: EmbedderBuilder<u64, Words> =
            EmbedderBuilder::with_tokenizer_and_fit_to_corpus(Words, &all);
        let embedder = builder.build();
        let mut scorer = Scorer::new();
        for (place, text) in texts.iter().enumerate() {
            scorer.upsert(&place, embedder.embed(text));
        }
        Index { texts, embedder, scorer }
    }
}

impl Bm25Ranker {
    /// BM25 scores of `texts`, which form the collection; 0 without a common word.
    pub fn scores(&mut self, texts: Vec<String>, query: &str) -> Vec<f32> {
        let count = texts.len();
        let known = self.index.take().filter(|index| index.texts == texts);
        let index = self.index.insert(known.unwrap_or_else(|| Index::of(texts)));
        let mut scores = vec![0.0; count];
        for found in index.scorer.matches(&index.embedder.embed(query)) {
            if let Some(score) = scores.get_mut(found.id) {
                *score = found.score;
            }
        }
        scores
    }
}

impl Rank for Bm25Ranker {
    fn rank(&mut self, case: &Case, query: &str) -> Result<Vec<usize>, String> {
        let scores = self.scores(texts(case), query);
        if !scores.is_empty() && scores.iter().all(|score| *score == 0.0) {
            tracing::warn!(
                "case {}: no segment has a word of the question {}; BM25 takes the first ones of the history",
                case.id,
                quote(query)
            );
        }
        let mut places: Vec<usize> = (0..scores.len()).collect();
        places.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        Ok(places)
    }
}
