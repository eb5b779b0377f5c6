//! Tokeniser: text to tokens with byte offsets, and back. Wraps the `tokenizers` crate with fixed settings: no added special tokens (chat
//! templates write them), no truncation or padding, and offsets into the original text.

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
use super::{GgufTokenizer, TextError, tokenizer_limits};

/// A model's tokeniser.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Inner,
    /// Largest token id + 1.
    vocab_size: usize,
    /// Maximum bytes of text per token.
    longest: Option<usize>,
    /// Whether its pre-tokeniser looks ahead over a run of digits.
    counts_digits: bool,
    spelling: Arc<Spelling>,
}

/// A tokenised text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Byte range `(start, end)` of each token, aligned to characters. Tokens of one multi-token character all cover the whole of it, so
    /// ranges can overlap; starts never decrease.
    pub offsets: Vec<(usize, usize)>,
}

impl AsRef<Tokenizer> for Tokenizer {
    fn as_ref(&self) -> &Tokenizer {
        self
    }
}

impl Tokenizer {
    /// Bytes of every token, by id.
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

    /// Parses a `tokenizer.json`; `name` is used in errors.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, TextError> {
        tokenizer_limits::check(bytes, name)?;
        let inner = Inner::from_bytes(bytes).map_err(|error| TextError::Tokenizer {
            name: name.to_owned(),
            reason: format!("not a usable tokenizer.json: {error}"),
        })?;
        Self::from_inner(inner, name)
    }

    /// Serialises to `tokenizer.json`.
    pub fn to_json(&self) -> Result<String, TextError> {
        self.inner.to_string(false).map_err(|error| TextError::Tokenizer {
            name: "of the model".to_owned(),
            reason: format!("it cannot be written: {error}"),
        })
    }

    /// Builds the tokeniser of a GGUF file.
    pub fn from_gguf_metadata(metadata: &GgufTokenizer) -> Result<Self, TextError> {
        let mut tokenizer = Self::from_inner(metadata.to_inner()?, "in the GGUF file")?;
        // The map above merges duplicate entries (padding rows); the file's count is right.
        tokenizer.vocab_size = metadata.tokens.len();
        Ok(tokenizer)
    }

    /// Wraps a `tokenizers` tokeniser; `name` is for errors. Disables truncation, padding and post-processing (shifts offsets, adds
    /// tokens).
    pub fn from_inner(mut inner: Inner, name: &str) -> Result<Self, TextError> {
        inner
            .with_truncation(None)
            .map_err(|error| TextError::Tokenizer { name: name.to_owned(), reason: error.to_string() })?;
        inner.with_padding(None);
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let vocabulary = inner.get_vocab(true);
        let vocab_size = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
        tokenizer_limits::check_vocabulary(vocab_size, vocabulary.keys())
            .map_err(|reason| TextError::Tokenizer { name: name.to_owned(), reason })?;
        let longest = Self::longest_of(&inner);
        let decoder = serde_json::to_value(inner.get_decoder()).unwrap_or_default();
        let steps = serde_json::to_value(inner.get_pre_tokenizer()).unwrap_or_default();
        let counts_digits = tokenizer_limits::counts_digits(&steps);
        Ok(Tokenizer {
            inner,
            vocab_size,
            longest,
            counts_digits,
            spelling: Arc::new(Spelling::of(&decoder)),
        })
    }

    /// Token ids of `text`. Text that spells a special token becomes that token, as in usual chat stacks.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.check_runs(text)?;
        let encoding = self.inner.encode_fast(text, false).map_err(|error| encode_error(&*error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids of `text` with byte offsets.
    pub fn encode_with_offsets(&self, text: &str) -> Result<Encoded, TextError> {
        self.check_runs(text)?;
        let encoding = self.inner.encode(text, false).map_err(|error| encode_error(&*error))?;
        Ok(encoded(&encoding, text))
    }

    /// [`Self::encode_with_offsets`], but special tokens spelled within the byte ranges `content` are plain text. Other text is unaffected.
    pub fn encode_content(&self, text: &str, content: &[Range<usize>]) -> Result<Encoded, TextError> {
        let kept = self.added_tokens(text);
        let count = kept.len();
        let is_content = |at: &Range<usize>| content.iter().any(|c| c.start <= at.start && at.start < c.end);
        let kept: Vec<_> =
            kept.into_iter().filter(|(at, _, special)| !(*special && is_content(at))).collect();
        if kept.len() == count {
            return self.encode_with_offsets(text);
        }
        self.check_runs(text)?;
        let encoding = self.encode_between(text, &kept).map_err(|error| encode_error(&*error))?;
        Ok(encoded(&encoding, text))
    }

    /// Special tokens spelled by `text`, sorted, without duplicates.
    pub fn special_tokens_in(&self, text: &str) -> BTreeSet<String> {
        let special = self.added_tokens(text).into_iter().filter(|(.., special)| *special);
        special.map(|(_, token, _)| token.value).collect()
    }

    /// Added tokens in `text`: byte range, token, and whether it is special.
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

    /// Runs the tokeniser's steps with only these added tokens.
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

    fn check_runs(&self, text: &str) -> Result<(), TextError> {
        check_runs(text)?;
        let mut runs = text.split(|c: char| !c.is_numeric());
        match self.counts_digits && runs.any(|run| run.chars().count() > LONGEST_DIGITS) {
            true => Err(TextError::Tokenizer {
                name: "in use".to_owned(),
                reason: format!(
                    "the text holds more than {LONGEST_DIGITS} digits in a row, which this tokeniser counts anew at each \
                     of them; break them up or leave them out"
                ),
            }),
            false => Ok(()),
        }
    }

    /// Number of tokens of `text`.
    pub fn count(&self, text: &str) -> Result<usize, TextError> {
        self.check_runs(text)?;
        let encoding = self.inner.encode_fast(text, false).map_err(|error| encode_error(&*error))?;
        Ok(encoding.len())
    }

    /// Text of `ids`; `skip_special` omits special tokens. Invalid UTF-8 becomes U+FFFD; unknown ids are skipped.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        self.inner.decode(ids, skip_special).map_err(|error| TextError::Tokenizer {
            name: "in use".to_owned(),
            reason: format!("cannot decode {} tokens: {error}", ids.len()),
        })
    }

    /// Id of a token by its exact text, such as `<|im_end|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Vocabulary text of a token, with spaces as `Ġ` or `▁`. For readable text use [`decode`](Self::decode).
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Maximum bytes of text per token, so a text of more than n times as many bytes has more than n tokens. `None` if unknown.
    pub fn longest(&self) -> Option<usize> {
        self.longest
    }

    pub(super) fn spelling(&self) -> &Spelling {
        &self.spelling
    }

    /// Bytes of a token; `None` for an unused id.
    pub(super) fn bytes_of(&self, id: u32) -> Option<TokenBytes> {
        let bytes = self.spelling.bytes(&self.token(id)?);
        Some(TokenBytes { bytes, special: self.is_special(id) })
    }

    /// True for a special token, which is omitted from text.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    /// Largest token id + 1. A padded output head can be wider.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

fn encoded(encoding: &tokenizers::Encoding, text: &str) -> Encoded {
    let mut reached = 0;
    // Normalisers that move or insert characters can report decreasing starts; clamp them.
    let offsets = encoding.get_offsets().iter().map(|&(start, end)| {
        reached = start.min(text.len()).max(reached);
        (reached, end.min(text.len()).max(reached))
    });
    Encoded { ids: encoding.get_ids().to_vec(), offsets: offsets.collect() }
}

/// Maximum run of one kind of character: pre-tokeniser regexes give up after a million steps and leave the rest in one piece.
const LONGEST_RUN: usize = 500_000;

/// Maximum run of digits where the time grows with the square of its length: about a second.
const LONGEST_DIGITS: usize = 20_000;

/// Rejects texts that the pre-tokeniser would split differently than in training.
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
