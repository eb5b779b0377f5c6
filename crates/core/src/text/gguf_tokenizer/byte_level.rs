//! Byte-level vocabularies (`tokenizer.ggml.model` = `gpt2`). Each entry of [`TABLE`] restates normaliser, pre-tokeniser and
//! `ignore_merges` of a published `tokenizer.json`. llama.cpp's table omits normalisers and approximates some regexes.

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

use super::fields::{GgufTokenizer, unusable};
use crate::text::TextError;

/// Supported values of `tokenizer.ggml.pre`.
pub const KNOWN_PRE_TOKENIZERS: [&str; 12] = [
    "default",
    "gpt-2",
    "llama-bpe",
    "llama3",
    "llama-v3",
    "qwen2",
    "qwen35",
    "gpt-4o",
    "glm4",
    "chatglm-bpe",
    "minimax-m2",
    "smollm",
];

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

#[derive(Clone, Copy)]
enum Words {
    /// GPT-2's, built into the `tokenizers` crate.
    Gpt2,
    /// First splits off each numeric character, then GPT-2's.
    DigitsThenGpt2,
    /// A custom regex.
    Regex(&'static str),
}

struct Published {
    names: &'static [&'static str],
    words: Words,
    nfc: bool,
    /// A word that is a token is not split further.
    ignore_merges: bool,
}

const TABLE: [Published; 8] = [
    Published { names: &["default", "gpt-2"], words: Words::Gpt2, nfc: false, ignore_merges: false },
    Published { names: &["smollm"], words: Words::DigitsThenGpt2, nfc: false, ignore_merges: false },
    // Llama 3; GLM 4 to 4.7 split alike.
    Published {
        names: &["llama-bpe", "llama3", "llama-v3", "glm4"],
        words: Words::Regex(LLAMA_3),
        nfc: false,
        ignore_merges: true,
    },
    Published { names: &["chatglm-bpe"], words: Words::Regex(LLAMA_3), nfc: false, ignore_merges: false },
    // Qwen 2, 2.5 and 3
    Published { names: &["qwen2"], words: Words::Regex(QWEN_2), nfc: true, ignore_merges: false },
    Published { names: &["qwen35"], words: Words::Regex(QWEN_3_5), nfc: true, ignore_merges: false },
    // GPT-OSS, converted by transformers' TikTokenConverter
    Published { names: &["gpt-4o"], words: Words::Regex(O200K), nfc: false, ignore_merges: true },
    Published { names: &["minimax-m2"], words: Words::Regex(O200K), nfc: false, ignore_merges: false },
];

impl Published {
    fn named(name: &str) -> Result<&'static Self, TextError> {
        TABLE.iter().find(|published| published.names.contains(&name)).ok_or_else(|| {
            TextError::UnknownPreTokenizer { found: name.to_owned(), known: KNOWN_PRE_TOKENIZERS.join(", ") }
        })
    }

    fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper, TextError> {
        let own_regex = ByteLevel::new(false, true, true);
        let parts = match self.words {
            Words::Gpt2 => return Ok(own_regex.into()),
            Words::DigitsThenGpt2 => vec![Digits::new(true).into(), own_regex.into()],
            Words::Regex(regex) => {
                let pattern = SplitPattern::Regex(regex.to_owned());
                let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(|error| unusable(format!("pre-tokeniser {}: {error}", self.names[0])))?;
                vec![split.into(), ByteLevel::new(false, true, false).into()]
            }
        };
        Ok(Sequence::new(parts).into())
    }
}

/// Builds the tokeniser, without added tokens.
pub(super) fn build(metadata: &GgufTokenizer) -> Result<Tokenizer, TextError> {
    // Files from before April 2024 lack the name; a guess would be wrong for some.
    let pre = metadata
        .pre
        .as_deref()
        .ok_or_else(|| TextError::MissingPreTokenizer { known: KNOWN_PRE_TOKENIZERS.join(", ") })?;
    let published = Published::named(pre)?;
    let vocab = metadata.vocab()?;
    let merges = metadata.written_merges(&vocab)?;
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(published.ignore_merges)
        .build()
        .map_err(|error| unusable(error.to_string()))?;
    let mut tokenizer = Tokenizer::new(model);
    let normalizer = published.nfc.then(|| NormalizerWrapper::from(NFC));
    tokenizer.with_normalizer(normalizer).map_err(|error| unusable(error.to_string()))?;
    tokenizer.with_pre_tokenizer(Some(published.pre_tokenizer()?));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
    Ok(tokenizer)
}
