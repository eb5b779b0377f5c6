//! The tokeniser: text to tokens with byte offsets, and back.
//!
//! A thin layer over the `tokenizers` crate that fixes what this project depends on: no special tokens are added
//! (chat templates write their own), nothing is truncated or padded, and offsets are those of the text as given.

use std::path::Path;

use tokenizers::Tokenizer as Inner;

use super::{GgufTokenizer, PromptError};

/// A model's tokeniser.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Inner,
    /// One more than the greatest token id.
    vocab_size: usize,
}

/// A tokenised text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// For each token the byte range `(start, end)` of the text that it covers, aligned to characters. Tokens that share
    /// one character (byte-level pieces of an emoji, say) all cover the whole of it, so ranges can overlap; starts never
    /// decrease.
    pub offsets: Vec<(usize, usize)>,
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json`.
    pub fn from_file(path: &Path) -> Result<Self, PromptError> {
        let bytes =
            std::fs::read(path).map_err(|source| PromptError::Read { path: path.to_owned(), source })?;
        let inner = Inner::from_bytes(bytes).map_err(|error| PromptError::Tokenizer {
            name: path.display().to_string(),
            reason: format!("not a usable tokenizer.json: {error}"),
        })?;
        Self::from_inner(inner, &path.display().to_string())
    }

    /// Builds the tokeniser that a GGUF file describes.
    pub fn from_gguf_metadata(metadata: &GgufTokenizer) -> Result<Self, PromptError> {
        let mut tokenizer = Self::from_inner(metadata.to_inner()?, "in the GGUF file")?;
        // Duplicate entries (padding rows) share one id in the map above; the file's count is the true one.
        tokenizer.vocab_size = metadata.tokens.len();
        Ok(tokenizer)
    }

    /// Takes a tokeniser of the `tokenizers` crate; `name` is what errors call it. Its truncation, padding and
    /// post-processing are switched off: the last moves offsets and adds special tokens.
    pub fn from_inner(mut inner: Inner, name: &str) -> Result<Self, PromptError> {
        inner
            .with_truncation(None)
            .map_err(|error| PromptError::Tokenizer { name: name.to_owned(), reason: error.to_string() })?;
        inner.with_padding(None);
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1);
        Ok(Tokenizer { inner, vocab_size })
    }

    /// Token ids of `text`, without added special tokens. Text that looks like a special token becomes that token, as it
    /// does in a model's usual chat stack.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        check_runs(text)?;
        let encoding = self.inner.encode_fast(text, false).map_err(|error| encode_error(&*error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids of `text` with the bytes each covers.
    pub fn encode_with_offsets(&self, text: &str) -> Result<Encoded, PromptError> {
        check_runs(text)?;
        let encoding = self.inner.encode(text, false).map_err(|error| encode_error(&*error))?;
        let mut reached = 0;
        // A normaliser that moves or inserts characters can report a start that steps back; a token never begins
        // before its predecessor.
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| {
            reached = start.min(text.len()).max(reached);
            (reached, end.min(text.len()).max(reached))
        });
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets: offsets.collect() })
    }

    /// Number of tokens of `text`.
    pub fn count(&self, text: &str) -> Result<usize, PromptError> {
        check_runs(text)?;
        let encoding = self.inner.encode_fast(text, false).map_err(|error| encode_error(&*error))?;
        Ok(encoding.len())
    }

    /// The text of `ids`; `skip_special` leaves special tokens out. Bytes that form no character become U+FFFD, and ids
    /// outside the vocabulary nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, PromptError> {
        self.inner.decode(ids, skip_special).map_err(|error| PromptError::Tokenizer {
            name: "in use".to_owned(),
            reason: format!("cannot decode {} tokens: {error}", ids.len()),
        })
    }

    /// The id of a token by its exact text, for example `<|im_end|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of a token as the vocabulary writes it (byte-level and SentencePiece vocabularies write a space as `Ġ`
    /// or `▁`). For people, use [`decode`](Self::decode).
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// One more than the greatest token id. A model's output can be wider where its embedding is padded.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

/// Characters of one kind in a row that a text may hold. The regular expressions of pre-tokenisers go back at most a million times
/// within a match, and where they give up the rest of the text is silently left in one piece.
const LONGEST_RUN: usize = 500_000;

/// Refuses a text that would be cut into other tokens than the model was trained with.
pub(super) fn check_runs(text: &str) -> Result<(), PromptError> {
    if text.len() <= LONGEST_RUN {
        return Ok(());
    }
    let kind = |c: char| (c.is_whitespace(), c.is_alphabetic(), c.is_numeric());
    let (mut last, mut run) = (None, 0);
    for c in text.chars() {
        run = if last == Some(kind(c)) { run + 1 } else { 1 };
        last = Some(kind(c));
        if run > LONGEST_RUN {
            let reason = format!(
                "the text holds more than {LONGEST_RUN} letters, digits, spaces or signs in a row, which cannot be cut into \
                 tokens reliably; is it text? Break it up or leave it out"
            );
            return Err(PromptError::Tokenizer { name: "in use".to_owned(), reason });
        }
    }
    Ok(())
}

fn encode_error(error: &dyn std::error::Error) -> PromptError {
    PromptError::Tokenizer { name: "in use".to_owned(), reason: format!("cannot encode the text: {error}") }
}
