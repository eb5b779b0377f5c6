//! The `tokenizer.*` metadata of a GGUF file, as read.

use std::borrow::Cow;

use tokenizers::models::bpe::Vocab;

use crate::text::TextError;

/// The value of `tokenizer.ggml.model` for SentencePiece vocabularies.
pub(super) const SENTENCE_PIECE: &str = "llama";

// `tokenizer.ggml.token_type` values (llama.cpp's `llama_token_type`).
pub(super) const NORMAL: i32 = 1;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;

/// SentencePiece's visible space.
pub(super) const SPACE: &str = "\u{2581}";

/// The `tokenizer.*` metadata of a GGUF file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE with byte fallback).
    pub model: String,
    /// `tokenizer.ggml.pre`: how byte-level vocabularies cut text into words. SentencePiece has no need of it.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, by id; empty means that all are normal.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, best first, each two tokens with a space between.
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
    /// `tokenizer.ggml.add_bos_token`. Used for the plain layout of models without a chat template only.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; SentencePiece files without it mean true.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl GgufTokenizer {
    /// The text of a token id, for example of [`bos`](Self::bos).
    pub fn token(&self, id: Option<u32>) -> Option<&str> {
        self.tokens.get(usize::try_from(id?).ok()?).map(String::as_str)
    }

    /// Token text to id; of duplicates (padding rows) the first.
    pub(super) fn vocab(&self) -> Result<Vocab, TextError> {
        let mut vocab = Vocab::default();
        for (index, token) in self.tokens.iter().enumerate() {
            let id = u32::try_from(index).map_err(|_| unusable("more than 2^32 tokens".to_owned()))?;
            vocab.entry(self.text(index, token).into_owned()).or_insert(id);
        }
        Ok(vocab)
    }

    /// The text of a token as the vocabulary holds it.
    pub(super) fn text<'a>(&self, id: usize, token: &'a str) -> Cow<'a, str> {
        if self.model == SENTENCE_PIECE { sentence_piece_text(token, self.kind(id)) } else { token.into() }
    }

    /// The type of a token; without a list of types all are normal.
    pub(super) fn kind(&self, id: usize) -> i32 {
        self.token_types.get(id).copied().unwrap_or(NORMAL)
    }
}

/// The text of a token as the vocabulary holds it. Converters write user-defined runs of [`SPACE`] with plain spaces; merges
/// need them as the model knows them. Other user-defined tokens are matched in the text as given and keep their spaces.
fn sentence_piece_text(token: &str, kind: i32) -> Cow<'_, str> {
    let spaces = kind == USER_DEFINED && token.bytes().all(|byte| byte == b' ');
    if spaces { token.replace(' ', SPACE).into() } else { token.into() }
}

pub(super) fn unusable(reason: String) -> TextError {
    TextError::Tokenizer { name: "in the GGUF file".to_owned(), reason }
}
