//! The tokeniser inside a GGUF file, rebuilt with the parts of the `tokenizers` crate.
//!
//! GGUF stores the vocabulary, the merges or scores, and the *name* of the pre-tokeniser. The two kinds of vocabulary have
//! a file each: `byte_level` knows what the names stand for in the models' published `tokenizer.json`, `sentence_piece`
//! makes merges of scores.

mod byte_level;
mod sentence_piece;

use std::borrow::Cow;

use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, Tokenizer};

use super::PromptError;

pub use byte_level::KNOWN_PRE_TOKENIZERS;

/// The value of `tokenizer.ggml.model` for SentencePiece vocabularies.
const SENTENCE_PIECE: &str = "llama";

// `tokenizer.ggml.token_type` values (llama.cpp's `llama_token_type`).
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// The `tokenizer.*` metadata of a GGUF file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE with byte fallback).
    pub model: String,
    /// `tokenizer.ggml.pre`; absent means `default`.
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

    pub(super) fn to_inner(&self) -> Result<Tokenizer, PromptError> {
        self.check()?;
        let mut tokenizer = match self.model.as_str() {
            "gpt2" => byte_level::build(self)?,
            SENTENCE_PIECE => sentence_piece::build(self)?,
            other => {
                return Err(unusable(format!(
                    "model {other:?} is not known (known: gpt2, llama); use a model folder with tokenizer.json instead"
                )));
            }
        };
        let of_type = |wanted: i32| {
            let special = wanted == CONTROL;
            (self.tokens.iter().enumerate()).filter(move |&(id, _)| self.kind(id) == wanted).map(
                move |(id, token)| {
                    AddedToken::from(self.text(id, token), special).normalized(false).special(special)
                },
            )
        };
        tokenizer.add_special_tokens(of_type(CONTROL)).map_err(|error| unusable(error.to_string()))?;
        tokenizer.add_tokens(of_type(USER_DEFINED)).map_err(|error| unusable(error.to_string()))?;
        Ok(tokenizer)
    }

    fn check(&self) -> Result<(), PromptError> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(unusable("the file holds no tokens".to_owned()));
        }
        if !self.token_types.is_empty() && self.token_types.len() != count {
            let types = self.token_types.len();
            return Err(unusable(format!("{count} tokens but {types} token types")));
        }
        match &self.scores {
            Some(scores) if scores.len() != count => {
                Err(unusable(format!("{count} tokens but {} scores", scores.len())))
            }
            _ => Ok(()),
        }
    }

    /// Token text to id; of duplicates (padding rows) the first.
    fn vocab(&self) -> Result<Vocab, PromptError> {
        let mut vocab = Vocab::default();
        for (index, token) in self.tokens.iter().enumerate() {
            let id = u32::try_from(index).map_err(|_| unusable("more than 2^32 tokens".to_owned()))?;
            vocab.entry(self.text(index, token).into_owned()).or_insert(id);
        }
        Ok(vocab)
    }

    /// The text of a token as the vocabulary holds it.
    fn text<'a>(&self, id: usize, token: &'a str) -> Cow<'a, str> {
        if self.model == SENTENCE_PIECE { sentence_piece::text(token, self.kind(id)) } else { token.into() }
    }

    /// The type of a token; without a list of types all are normal.
    fn kind(&self, id: usize) -> i32 {
        self.token_types.get(id).copied().unwrap_or(NORMAL)
    }
}

fn unusable(reason: String) -> PromptError {
    PromptError::Tokenizer { name: "in the GGUF file".to_owned(), reason }
}
