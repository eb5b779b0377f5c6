//! `tokenizer.*` metadata of a GGUF file.

use std::borrow::Cow;

use tokenizers::models::bpe::{Merges, Vocab};

use crate::text::TextError;

/// `tokenizer.ggml.model` of SentencePiece vocabularies.
pub(super) const SENTENCE_PIECE: &str = "llama";

/// `tokenizer.ggml.model` of Gemma 4's, SentencePiece with listed merges.
pub(super) const GEMMA_4: &str = "gemma4";

// `tokenizer.ggml.token_type` values (llama.cpp's `llama_token_type`).
pub(super) const NORMAL: i32 = 1;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;

/// SentencePiece's visible space.
pub(super) const SPACE: &str = "\u{2581}";

/// The `tokenizer.*` metadata of a GGUF file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE), `llama` or `gemma4` (SentencePiece BPE with byte fallback).
    pub model: String,
    /// `tokenizer.ggml.pre`: pre-tokeniser of byte-level vocabularies; unused by SentencePiece.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, by id; empty: all normal.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, best first, each two tokens separated by a space.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores`, by id.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`; used only by the plain layout.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; `llama` defaults to true.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl GgufTokenizer {
    /// Text of a token id, such as [`bos`](Self::bos).
    pub fn token(&self, id: Option<u32>) -> Option<&str> {
        self.tokens.get(usize::try_from(id?).ok()?).map(String::as_str)
    }

    /// Token text to id; duplicates (padding rows) keep the first.
    pub(super) fn vocab(&self) -> Result<Vocab, TextError> {
        let mut vocab = Vocab::default();
        for (index, token) in self.tokens.iter().enumerate() {
            let id = u32::try_from(index).map_err(|_| unusable("more than 2^32 tokens".to_owned()))?;
            vocab.entry(self.text(index, token).into_owned()).or_insert(id);
        }
        Ok(vocab)
    }

    /// `tokenizer.ggml.merges`; an error if a part, or what they make, is no token.
    pub(super) fn listed_merges(&self, vocab: &Vocab) -> Result<Merges, TextError> {
        let mut merges = Merges::with_capacity(self.merges.len());
        for (rank, merge) in self.merges.iter().enumerate() {
            // Tokens of files with merges contain no spaces; the first space separates.
            let (left, right) = merge
                .split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty())
                .ok_or_else(|| {
                    unusable(format!("merge {rank} ({merge:?}) is not two tokens with a space between"))
                })?;
            // The crate's builder does not validate merges.
            let joined = format!("{left}{right}");
            if let Some(missing) =
                [left, right, &joined].into_iter().find(|token| !vocab.contains_key(*token))
            {
                return Err(unusable(format!(
                    "merge {rank} ({merge:?}) needs the token {missing:?}, which is missing"
                )));
            }
            merges.push((left.to_owned(), right.to_owned()));
        }
        Ok(merges)
    }

    pub(super) fn text<'a>(&self, id: usize, token: &'a str) -> Cow<'a, str> {
        if self.model == SENTENCE_PIECE { sentence_piece_text(token, self.kind(id)) } else { token.into() }
    }

    /// Token type, normal by default.
    pub(super) fn kind(&self, id: usize) -> i32 {
        self.token_types.get(id).copied().unwrap_or(NORMAL)
    }
}

/// Vocabulary text of a token. Converters write user-defined runs of [`SPACE`] as plain spaces, but merges need the original. Other
/// user-defined tokens match the raw text and keep spaces.
fn sentence_piece_text(token: &str, kind: i32) -> Cow<'_, str> {
    let spaces = kind == USER_DEFINED && token.bytes().all(|byte| byte == b' ');
    if spaces { token.replace(' ', SPACE).into() } else { token.into() }
}

pub(super) fn unusable(reason: String) -> TextError {
    TextError::Tokenizer { name: "in the GGUF file".to_owned(), reason }
}
