//! The embedder, on candle-transformers' BERT. Runs on the CPU in f32. Longer texts are truncated to the model's limit, special tokens
//! included.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use palimpsest_core::model::arch;
use rayon::prelude::*;
use tokenizers::{Tokenizer, TruncationParams};

use super::EmbedError;
use crate::models::EmbedderFiles;

/// Tokens per batch, padding included: large enough for efficient products, small enough for the caches.
const BATCH_TOKENS: usize = 2048;

/// Bytes tokenised first; enough for any limit.
const WINDOW: usize = 16 << 10;

/// Maximum bytes of a text tokenised to fill the limit.
const MOST_READ: usize = 2 << 20;

pub struct Embedder {
    model: BertModel,
    tokenizer: Tokenizer,
    vocab: usize,
    limit: usize,
}

impl std::fmt::Debug for Embedder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedder").finish_non_exhaustive()
    }
}

impl Embedder {
    /// Err in builds without an embedder, before anything is fetched.
    pub fn built_in() -> Result<(), EmbedError> {
        Ok(())
    }

    pub fn open(files: &EmbedderFiles) -> Result<Self, EmbedError> {
        let at = |name: &str| files.folder.join(name);
        let broken = |name: &str, reason: String| EmbedError::Broken { path: at(name), reason };
        let config: Config = arch::parse(&read(&at("config.json"))?)
            .and_then(serde_json::from_value)
            .map_err(|error| broken("config.json", error.to_string()))?;
        let mut tokenizer = Tokenizer::from_bytes(read(&at("tokenizer.json"))?)
            .map_err(|error| broken("tokenizer.json", error.to_string()))?;
        let limit = files.max_tokens.min(config.max_position_embeddings);
        let truncation = TruncationParams { max_length: limit, ..TruncationParams::default() };
        tokenizer
            .with_truncation(Some(truncation))
            .map_err(|error| broken("tokenizer.json", error.to_string()))?;
        tokenizer.with_padding(None);
        let weights = read(&at("model.safetensors"))?;
        let weights = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)
            .map_err(|error| broken("model.safetensors", error.to_string()))?;
        let model = BertModel::load(weights, &config)
            .map_err(|error| broken("model.safetensors", error.to_string()))?;
        Ok(Embedder { model, tokenizer, vocab: config.vocab_size, limit })
    }

    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Maximum tokens of a text, special tokens included.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Token ids with special tokens, truncated to [`Embedder::limit`].
    pub fn tokens<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Result<Vec<Vec<u32>>, EmbedError> {
        texts.par_iter().map(|text| self.tokens_of(text.as_ref())).collect()
    }

    /// Tokenises growing windows of a text until there are enough tokens.
    fn tokens_of(&self, text: &str) -> Result<Vec<u32>, EmbedError> {
        let encode = |text: &str| {
            let encoding = self.tokenizer.encode_fast(text, true);
            Ok(encoding.map_err(|error| EmbedError::Tokens(error.to_string()))?.get_ids().to_vec())
        };
        let refused = |window: usize| {
            let limit = self.limit;
            let reason = format!("its first {window} bytes hold no {limit} tokens; is it text?");
            Err(EmbedError::Tokens(reason))
        };
        let mut window = 0;
        while window < text.len() {
            // BERT tokenises word by word, so the first tokens of a prefix are those of the text.
            if window >= MOST_READ {
                return refused(window);
            }
            window = window.saturating_mul(8).clamp(WINDOW, MOST_READ);
            let mut rest = text.as_bytes().get(window..).unwrap_or_default().iter();
            window = rest.position(u8::is_ascii_whitespace).map_or(text.len(), |more| window + more);
            if window > 2 * MOST_READ {
                return refused(window);
            }
            let tokens = encode(text.get(..window).unwrap_or(text))?;
            if tokens.len() >= self.limit || window == text.len() {
                return Ok(tokens);
            }
        }
        encode(text)
    }

    /// L2-normalised, in order. `on_done` receives the number of texts done after each batch.
    pub fn embed(&self, texts: &[&str], on_done: impl Fn(usize) + Sync) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.embed_tokens(&self.tokens(texts)?, on_done)
    }

    /// Requires non-empty token lists of at most [`Embedder::limit`] ids below [`Embedder::vocab`].
    pub fn embed_tokens(
        &self,
        tokens: &[Vec<u32>],
        on_done: impl Fn(usize) + Sync,
    ) -> Result<Vec<Vec<f32>>, EmbedError> {
        // Batch texts of similar length to limit padding.
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        order.sort_by_key(|&at| tokens[at].len());
        let mut batches: Vec<Vec<usize>> = Vec::new();
        for at in order {
            let longest = tokens[at].len().max(1);
            match batches.last_mut().filter(|batch| (batch.len() + 1) * longest <= BATCH_TOKENS) {
                Some(batch) => batch.push(at),
                None => batches.push(vec![at]),
            }
        }
        let batch = |batch: &Vec<usize>| -> Result<Vec<(usize, Vec<f32>)>, EmbedError> {
            let of_batch: Vec<&[u32]> = batch.iter().map(|&at| tokens[at].as_slice()).collect();
            let vectors = self.forward(&of_batch)?;
            on_done(batch.len());
            Ok(batch.iter().copied().zip(vectors).collect())
        };
        let done: Vec<Vec<(usize, Vec<f32>)>> = batches.par_iter().map(batch).collect::<Result<_, _>>()?;
        let mut vectors = vec![Vec::new(); tokens.len()];
        for (at, vector) in done.into_iter().flatten() {
            vectors[at] = vector;
        }
        Ok(vectors)
    }

    /// One batch: b texts, padded to l tokens.
    fn forward(&self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let (b, l) = (texts.len(), texts.iter().map(|text| text.len()).max().unwrap_or(0));
        let (mut ids, mut mask) = (vec![0_u32; b * l], vec![0_f32; b * l]);
        for (row, text) in texts.iter().enumerate() {
            ids[row * l..row * l + text.len()].copy_from_slice(text);
            mask[row * l..row * l + text.len()].fill(1.0);
        }
        let ids = Tensor::from_vec(ids, (b, l), &Device::Cpu)?;
        let mask = Tensor::from_vec(mask, (b, l), &Device::Cpu)?;
        let hidden = self.model.forward(&ids, &ids.zeros_like()?, Some(&mask))?; // (b, l, d)
        let weights = mask.unsqueeze(2)?; // (b, l, 1)
        let sum = hidden.broadcast_mul(&weights)?.sum(1)?; // (b, d)
        let mean = sum.broadcast_div(&weights.sum(1)?)?; // (b, d)
        let norm = mean.sqr()?.sum_keepdim(1)?.sqrt()?; // (b, 1)
        Ok(mean.broadcast_div(&norm)?.to_vec2()?)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, EmbedError> {
    std::fs::read(path).map_err(|source| EmbedError::Read { path: path.to_owned(), source })
}
