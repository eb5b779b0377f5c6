//! The tokeniser: text to tokens with byte offsets, and back.
//!
//! A thin layer over the `tokenizers` crate that fixes what this project depends on: no special tokens are added
//! (chat templates write their own), nothing is truncated or padded, and offsets are those of the text as given.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tokenizers::tokenizer::Tokenizer as Inner;
use tokenizers::tokenizer::normalizer::Range as TextRange;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Token,
};

use super::token_bytes::{Spelling, TokenBytes};
use super::{GgufTokenizer, TextError};

/// A model's tokeniser.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Inner,
    /// One more than the greatest token id.
    vocab_size: usize,
    /// Most bytes of a text that one token stands for.
    longest: Option<usize>,
    spelling: Arc<Spelling>,
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

impl AsRef<Tokenizer> for Tokenizer {
    fn as_ref(&self) -> &Tokenizer {
        self
    }
}

impl Tokenizer {
    /// The bytes of every token, by id.
    pub fn token_bytes(&self) -> Vec<TokenBytes> {
        let of = |id: u32| self.bytes_of(id).unwrap_or_default();
        (0..u32::try_from(self.vocab_size()).unwrap_or(u32::MAX)).map(of).collect()
    }

    /// Reads a Hugging Face `tokenizer.json`.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let bytes =
            std::fs::read(path).map_err(|source| TextError::Read { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes, &path.display().to_string())
    }

    /// The same of a file's content, which errors call `name`.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, TextError> {
        let inner = Inner::from_bytes(bytes).map_err(|error| TextError::Tokenizer {
            name: name.to_owned(),
            reason: format!("not a usable tokenizer.json: {error}"),
        })?;
        Self::from_inner(inner, name)
    }

    /// The tokeniser as a `tokenizer.json`.
    pub fn to_json(&self) -> Result<String, TextError> {
        self.inner.to_string(false).map_err(|error| TextError::Tokenizer {
            name: "of the model".to_owned(),
            reason: format!("it cannot be written: {error}"),
        })
    }

    /// Builds the tokeniser that a GGUF file describes.
    pub fn from_gguf_metadata(metadata: &GgufTokenizer) -> Result<Self, TextError> {
        let mut tokenizer = Self::from_inner(metadata.to_inner()?, "in the GGUF file")?;
        // Duplicate entries (padding rows) share one id in the map above; the file's count is the true one.
        tokenizer.vocab_size = metadata.tokens.len();
        Ok(tokenizer)
    }

    /// Takes a tokeniser of the `tokenizers` crate; `name` is what errors call it. Its truncation, padding and
    /// post-processing are switched off: the last moves offsets and adds special tokens.
    pub fn from_inner(mut inner: Inner, name: &str) -> Result<Self, TextError> {
        inner
            .with_truncation(None)
            .map_err(|error| TextError::Tokenizer { name: name.to_owned(), reason: error.to_string() })?;
        inner.with_padding(None);
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1);
        let longest = Self::longest_of(&inner);
        let decoder = serde_json::to_value(inner.get_decoder()).unwrap_or_default();
        Ok(Tokenizer { inner, vocab_size, longest, spelling: Arc::new(Spelling::of(&decoder)) })
    }

    /// Token ids of `text`, without added special tokens. Text that looks like a special token becomes that token, as it
    /// does in a model's usual chat stack.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        check_runs(text)?;
        let encoding = self.inner.encode_fast(text, false).map_err(|error| encode_error(&*error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids of `text` with the bytes each covers.
    pub fn encode_with_offsets(&self, text: &str) -> Result<Encoded, TextError> {
        check_runs(text)?;
        let encoding = self.inner.encode(text, false).map_err(|error| encode_error(&*error))?;
        Ok(encoded(&encoding, text))
    }

    /// As [`Self::encode_with_offsets`], but text within the byte ranges `content` that spells a special token is plain text. What
    /// holds no such text gets the same tokens.
    pub fn encode_content(&self, text: &str, content: &[Range<usize>]) -> Result<Encoded, TextError> {
        let kept = self.added_tokens(text);
        let count = kept.len();
        let is_content = |at: &Range<usize>| content.iter().any(|c| c.start <= at.start && at.start < c.end);
        let kept: Vec<_> =
            kept.into_iter().filter(|(at, _, special)| !(*special && is_content(at))).collect();
        if kept.len() == count {
            return self.encode_with_offsets(text);
        }
        check_runs(text)?;
        let encoding = self.encode_between(text, &kept).map_err(|error| encode_error(&*error))?;
        Ok(encoded(&encoding, text))
    }

    /// The texts of special tokens that `text` spells, ascending, each once.
    pub fn special_tokens_in(&self, text: &str) -> BTreeSet<String> {
        let special = self.added_tokens(text).into_iter().filter(|(.., special)| *special);
        special.map(|(_, token, _)| token.value).collect()
    }

    /// The added tokens that `text` spells: the bytes of each, the token, and whether it is a special one.
    fn added_tokens(&self, text: &str) -> Vec<(Range<usize>, Token, bool)> {
        let added = self.inner.get_added_vocabulary();
        let found = added.extract_and_normalize(self.inner.get_normalizer(), text);
        let splits = found.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter();
        let tokens = splits.filter_map(|(_, (start, end), tokens)| {
            let token = tokens.as_ref()?.first()?.clone();
            let special = added.get_added_tokens_decoder().get(&token.id).is_some_and(|token| token.special);
            Some((start..end, token, special))
        });
        tokens.collect()
    }

    /// The steps of the tokeniser, with these added tokens in their places instead of all that the text spells.
    fn encode_between(
        &self,
        text: &str,
        kept: &[(Range<usize>, Token, bool)],
    ) -> tokenizers::Result<tokenizers::Encoding> {
        let mut whole = PreTokenizedString::from(text);
        whole.split(|_, sequence| {
            let piece = |range: Range<usize>| sequence.slice(TextRange::Original(range));
            let mut pieces: Vec<(NormalizedString, Option<Vec<Token>>)> = Vec::new();
            let mut reached = 0;
            for (at, token, _) in kept {
                pieces.extend(piece(reached..at.start).map(|piece| (piece, None)));
                pieces.extend(piece(at.clone()).map(|piece| (piece, Some(vec![token.clone()]))));
                reached = at.end;
            }
            pieces.extend(piece(reached..text.len()).map(|piece| (piece, None)));
            Ok(pieces)
        })?;
        if let Some(normalizer) = self.inner.get_normalizer() {
            whole.normalize(|piece| normalizer.normalize(piece))?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut whole)?;
        }
        let model = self.inner.get_model();
        whole.tokenize(|piece| model.tokenize(piece.get()))?;
        whole.into_encoding(None, 0, OffsetType::Byte)
    }

    /// Number of tokens of `text`.
    pub fn count(&self, text: &str) -> Result<usize, TextError> {
        check_runs(text)?;
        let encoding = self.inner.encode_fast(text, false).map_err(|error| encode_error(&*error))?;
        Ok(encoding.len())
    }

    /// The text of `ids`; `skip_special` leaves special tokens out. Bytes that form no character become U+FFFD, and ids
    /// outside the vocabulary nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        self.inner.decode(ids, skip_special).map_err(|error| TextError::Tokenizer {
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

    /// Most bytes of a text that one token can stand for: a text of more than n times as many has more than n tokens. `None` where
    /// that is not known of the tokeniser.
    pub fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// The spelling of bytes in the vocabulary.
    pub(super) fn spelling(&self) -> &Spelling {
        &self.spelling
    }

    /// The bytes of a token; `None` for an id without one.
    pub(super) fn bytes_of(&self, id: u32) -> Option<TokenBytes> {
        let bytes = self.spelling.bytes(&self.token(id)?);
        Some(TokenBytes { bytes, special: self.is_special(id) })
    }

    /// True if a token is a special one, which is left out of texts.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    /// One more than the greatest token id. A model's output can be wider where its embedding is padded.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

fn encoded(encoding: &tokenizers::Encoding, text: &str) -> Encoded {
    let mut reached = 0;
    // A normaliser that moves or inserts characters can report a start that steps back; a token never begins
    // before its predecessor.
    let offsets = encoding.get_offsets().iter().map(|&(start, end)| {
        reached = start.min(text.len()).max(reached);
        (reached, end.min(text.len()).max(reached))
    });
    Encoded { ids: encoding.get_ids().to_vec(), offsets: offsets.collect() }
}

/// Characters of one kind in a row that a text may hold. The regular expressions of pre-tokenisers go back at most a million times
/// within a match, and where they give up the rest of the text is silently left in one piece.
const LONGEST_RUN: usize = 500_000;

/// Refuses a text that would be cut into other tokens than the model was trained with.
pub fn check_runs(text: &str) -> Result<(), TextError> {
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
            return Err(TextError::Tokenizer { name: "in use".to_owned(), reason });
        }
    }
    Ok(())
}

fn encode_error(error: &dyn std::error::Error) -> TextError {
    TextError::Tokenizer { name: "in use".to_owned(), reason: format!("cannot encode the text: {error}") }
}
