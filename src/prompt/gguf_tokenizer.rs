//! The tokeniser inside a GGUF file, rebuilt with the parts of the `tokenizers` crate.
//!
//! GGUF stores the vocabulary, the merges or scores, and the *name* of the pre-tokeniser. The table in
//! [`pre_tokenizer`] says what each name stands for in the models' published `tokenizer.json`.

use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as NormalizerSequence};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
    decoders,
};

use super::PromptError;

/// The names of `tokenizer.ggml.pre` that are understood.
pub const KNOWN_PRE_TOKENIZERS: [&str; 6] = ["default", "gpt-2", "llama-bpe", "qwen2", "qwen35", "smollm"];

const LLAMA_BPE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// SentencePiece's visible space.
const SPACE: &str = "\u{2581}";

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
            "gpt2" => self.byte_level()?,
            "llama" => self.sentence_piece()?,
            other => {
                return Err(unusable(format!(
                    "model {other:?} is not known (known: gpt2, llama); use a model folder with tokenizer.json instead"
                )));
            }
        };
        let of_type = |wanted: i32| {
            let special = wanted == CONTROL;
            self.tokens.iter().zip(&self.token_types).filter(move |&(_, &kind)| kind == wanted).map(
                move |(token, _)| AddedToken::from(token.clone(), special).normalized(false).special(special),
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
        for (id, token) in self.tokens.iter().enumerate() {
            let id = u32::try_from(id).map_err(|_| unusable("more than 2^32 tokens".to_owned()))?;
            vocab.entry(token.clone()).or_insert(id);
        }
        Ok(vocab)
    }

    fn byte_level(&self) -> Result<Tokenizer, PromptError> {
        let name = self.pre.as_deref().unwrap_or("default");
        let (normalizer, pre_tokenizer) = pre_tokenizer(name)?;
        let vocab = self.vocab()?;
        let mut merges = Merges::with_capacity(self.merges.len());
        for (rank, merge) in self.merges.iter().enumerate() {
            // A token can itself be a space only in files that are not byte-level; the first space separates.
            let (left, right) = merge
                .split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty())
                .ok_or_else(|| {
                    unusable(format!("merge {rank} ({merge:?}) is not two tokens with a space between"))
                })?;
            // The crate's builder trusts its input: it must not see a merge whose parts or result are no tokens.
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
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            // Llama 3's tokenizer.json takes a whole word that is a token as it is, whatever the merges say.
            .ignore_merges(name == "llama-bpe")
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_normalizer(normalizer).map_err(|error| unusable(error.to_string()))?;
        tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
        tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
        Ok(tokenizer)
    }

    /// SentencePiece BPE as transformers converts it: a merge for every way to split a normal piece into two normal
    /// pieces, ordered by the piece's score.
    fn sentence_piece(&self) -> Result<Tokenizer, PromptError> {
        let scores = self
            .scores
            .as_deref()
            .ok_or_else(|| unusable("model \"llama\" without tokenizer.ggml.scores".to_owned()))?;
        let vocab = self.vocab()?;
        let kind = |id: usize| self.token_types.get(id).copied().unwrap_or(NORMAL);
        let normal: HashSet<&str> = (self.tokens.iter().enumerate())
            .filter(|&(id, _)| kind(id) == NORMAL)
            .map(|(_, token)| token.as_str())
            .collect();
        // (score, characters left, characters right, left, right)
        let mut scored: Vec<(f32, usize, usize, &str, &str)> = Vec::new();
        for (id, (token, &score)) in self.tokens.iter().zip(scores).enumerate() {
            if kind(id) != NORMAL {
                continue;
            }
            let characters = token.chars().count();
            for (taken, (at, _)) in token.char_indices().enumerate().skip(1) {
                let (left, right) = token.split_at(at);
                if normal.contains(left) && normal.contains(right) {
                    scored.push((score, taken, characters - taken, left, right));
                }
            }
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
        let merges = scored
            .into_iter()
            .map(|(.., left, right)| (left.to_owned(), right.to_owned()))
            .collect::<Merges>();
        let mut builder = BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(true).fuse_unk(true);
        if let Some(unk) = self.token(self.unk) {
            builder = builder.unk_token(unk.to_owned());
        }
        let mut tokenizer = Tokenizer::new(builder.build().map_err(|error| unusable(error.to_string()))?);

        let replace =
            |from: &str, to: &str| Replace::new(from, to).map_err(|error| unusable(error.to_string()));
        let dummy_prefix = self.add_space_prefix.unwrap_or(true);
        let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
        let mut decoders: Vec<DecoderWrapper> =
            vec![replace(SPACE, " ")?.into(), decoders::byte_fallback::ByteFallback::new().into()];
        decoders.push(decoders::fuse::Fuse::new().into());
        if dummy_prefix {
            normalizers.push(Prepend::new(SPACE.to_owned()).into());
            decoders.push(decoders::strip::Strip::new(' ', 1, 0).into());
        }
        normalizers.push(replace(" ", SPACE)?.into());
        tokenizer
            .with_normalizer(Some(NormalizerSequence::new(normalizers)))
            .map_err(|error| unusable(error.to_string()))?;
        tokenizer.with_decoder(Some(decoders::sequence::Sequence::new(decoders)));
        Ok(tokenizer)
    }
}

/// What a pre-tokeniser name stands for.
fn pre_tokenizer(name: &str) -> Result<(Option<NormalizerWrapper>, PreTokenizerWrapper), PromptError> {
    let split = |regex: &str| {
        Split::new(SplitPattern::Regex(regex.to_owned()), SplitDelimiterBehavior::Isolated, false)
            .map_err(|error| unusable(format!("pre-tokeniser {name}: {error}")))
    };
    let own_regex = ByteLevel::new(false, true, true);
    let no_regex = ByteLevel::new(false, true, false);
    Ok(match name {
        "default" | "gpt-2" => (None, own_regex.into()),
        "smollm" => {
            (None, PreTokenizerSequence::new(vec![Digits::new(true).into(), own_regex.into()]).into())
        }
        "llama-bpe" => {
            (None, PreTokenizerSequence::new(vec![split(LLAMA_BPE)?.into(), no_regex.into()]).into())
        }
        "qwen2" | "qwen35" => {
            let regex = if name == "qwen2" { QWEN2 } else { QWEN35 };
            let sequence = PreTokenizerSequence::new(vec![split(regex)?.into(), no_regex.into()]);
            (Some(NFC.into()), sequence.into())
        }
        other => {
            return Err(PromptError::UnknownPreTokenizer {
                found: other.to_owned(),
                known: KNOWN_PRE_TOKENIZERS.join(", "),
            });
        }
    })
}

fn unusable(reason: String) -> PromptError {
    PromptError::Tokenizer { name: "in the GGUF file".to_owned(), reason }
}
