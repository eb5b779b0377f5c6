//! Similarity of texts to a query, by words or by embeddings. Retrievers rank the segments of a history by it, CUPMem its entries.
//!
//! [`ByWords`]: Okapi BM25 (Robertson and Zaragoza, 2009), with the crate `bm25`. k1 = 1.2, b = 0.75, idf = ln(1 + (N - n + 0.5) /
//! (n + 0.5)); repeated query words count repeatedly. Words are split by [`palimpsest_data::ground::words`], without stemming or stop words
//! (our choice). [`ByEmbedding`]: cosine (KnowMe-Bench, section 5.1: naive RAG).

use std::collections::HashMap;

use bm25::{Embedder as WordCounter, EmbedderBuilder, Scorer, Tokenizer};

use crate::embedder::Embedder;
use crate::models::ModelStore;
use crate::progress;
use palimpsest_data::case::finding::quote;
use palimpsest_data::case::{Case, Segment};
use palimpsest_data::ground::order::sorted_unique;
use palimpsest_data::ground::words::words;

pub trait Similarity: Send {
    fn name(&self) -> String;

    /// One score per text; greater is nearer.
    fn scores(&mut self, texts: &[&str], query: &str) -> Result<Vec<f64>, String>;
}

/// Places of a case's segments, nearest first; ties keep the order of the history. The searched text of a segment is its date in words if
/// there is one (`August 15, 1969`), then its turns, without speakers.
pub fn ranked(similarity: &mut dyn Similarity, case: &Case, query: &str) -> Result<Vec<usize>, String> {
    let text = |segment: &Segment| {
        let date = segment.time.map(|time| time.strftime("%B %-d, %Y").to_string());
        let turns = segment.turns.iter().map(|turn| turn.content.clone());
        date.into_iter().chain(turns).collect::<Vec<_>>().join("\n")
    };
    let texts: Vec<String> = case.history.segments.iter().map(text).collect();
    let scores = similarity.scores(&texts.iter().map(String::as_str).collect::<Vec<_>>(), query)?;
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

#[derive(Default)]
pub struct ByWords(Option<Index>);

struct Index {
    texts: Vec<String>,
    counter: WordCounter<u64, Words>,
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
    fn of(texts: &[&str]) -> Self {
        let counter = EmbedderBuilder::with_tokenizer_and_fit_to_corpus(Words, texts).build();
        let mut scorer = Scorer::new();
        for (place, text) in texts.iter().enumerate() {
            scorer.upsert(&place, counter.embed(text));
        }
        Index { texts: texts.iter().map(|&text| text.to_owned()).collect(), counter, scorer }
    }
}

/// The texts form the collection. A text without a word of the query scores 0.
impl Similarity for ByWords {
    fn name(&self) -> String {
        "bm25".to_owned()
    }

    fn scores(&mut self, texts: &[&str], query: &str) -> Result<Vec<f64>, String> {
        let known = self.0.take().filter(|index| index.texts == texts);
        let index = self.0.insert(known.unwrap_or_else(|| Index::of(texts)));
        let mut scores = vec![0.0; texts.len()];
        for found in index.scorer.matches(&index.counter.embed(query)) {
            scores[found.id] = f64::from(found.score);
        }
        Ok(scores)
    }
}

type Embed = Box<dyn FnMut(&[&str]) -> Result<Vec<Vec<f32>>, String> + Send>;

/// Texts whose embeddings are kept.
const KEPT: usize = 1 << 14;

pub struct ByEmbedding {
    name: String,
    embed: Embed,
    known: HashMap<String, Vec<f32>>,
}

impl ByEmbedding {
    pub fn new(name: &str, embed: Embed) -> Self {
        ByEmbedding { name: name.to_owned(), embed, known: HashMap::new() }
    }

    /// The built-in embedding model, downloaded if missing. `show` prints progress.
    pub fn built_in(show: bool) -> anyhow::Result<Self> {
        Embedder::built_in()?;
        let embedder = Embedder::open(&ModelStore::open()?.embedder()?)?;
        let embed = move |texts: &[&str]| {
            // A text alone is the query of a known history.
            let bar = (show && texts.len() > 1)
                .then(|| progress::texts(texts.len() as u64, "embedding the history"));
            let on_done = |done: usize| bar.iter().for_each(|bar| bar.inc(done as u64));
            let vectors = embedder.embed(texts, on_done).map_err(|error| error.to_string());
            bar.iter().for_each(|bar| bar.finish_and_clear());
            vectors
        };
        Ok(ByEmbedding::new("all-MiniLM-L6-v2", Box::new(embed)))
    }
}

impl Similarity for ByEmbedding {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn scores(&mut self, texts: &[&str], query: &str) -> Result<Vec<f64>, String> {
        if self.known.len() > KEPT {
            self.known.clear();
        }
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

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum() };
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}
