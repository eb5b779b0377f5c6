//! Byte-level vocabularies (`tokenizer.ggml.model` = `gpt2`). Each entry of [`TABLE`] restates normaliser, pre-tokeniser and
//! `ignore_merges` of a published `tokenizer.json`, or llama.cpp's table (`llama-vocab.cpp`), which omits normalisers and approximates some
//! regexes but quotes their originals.

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
pub fn known_pre_tokenizers() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|published| published.names).copied()
}

fn known() -> String {
    known_pre_tokenizers().collect::<Vec<_>>().join(", ")
}

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// `[\p{Han}]+` and, without such letters, GPT-4o's.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_LLM: [&str; 6] = [
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1f7d}ᾀ-ᾴᾶ-ᾼ\x{1fbe}ῂ-ῄῆ-ῌῐ-\x{1fd3}ῖ-\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
];
const DEEPSEEK_CODER: [&str; 5] = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"];
const DEEPSEEK_3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

#[derive(Clone, Copy)]
enum Words {
    /// GPT-2's, built into the `tokenizers` crate.
    Gpt2,
    /// First splits off each numeric character, then GPT-2's.
    DigitsThenGpt2,
    /// Custom regexes, each splitting what the ones before left.
    Regexes(&'static [&'static str]),
}

struct Published {
    names: &'static [&'static str],
    words: Words,
    nfc: bool,
    /// A word that is a token is not split further.
    ignore_merges: bool,
}

const fn published(
    names: &'static [&'static str],
    words: Words,
    nfc: bool,
    ignore_merges: bool,
) -> Published {
    Published { names, words, nfc, ignore_merges }
}

const TABLE: [Published; 17] = [
    published(&["default", "gpt-2", "granite-docling", "trillion", "exaone4"], Words::Gpt2, false, false),
    // GPT-NeoX, Mamba
    published(&["olmo", "mpt"], Words::Gpt2, true, false),
    // StarCoder, Granite
    published(
        &["smollm", "refact", "starcoder", "exaone", "minerva-7b"],
        Words::DigitsThenGpt2,
        false,
        false,
    ),
    published(&["command-r"], Words::DigitsThenGpt2, true, false),
    // Llama 3; GLM 4 to 5 split alike.
    published(
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2", "glm4", "glm5"],
        Words::Regexes(&[LLAMA_3]),
        false,
        true,
    ),
    // cl100k (Phi-4, OLMo 2 and 3), and Llama 3 without `ignore_merges`.
    published(&["chatglm-bpe", "dbrx", "smaug-bpe"], Words::Regexes(&[LLAMA_3]), false, false),
    // Qwen 2, 2.5 and 3
    published(&["qwen2", "deepseek-r1-qwen"], Words::Regexes(&[QWEN_2]), true, false),
    published(&["hunyuan", "megrez"], Words::Regexes(&[QWEN_2]), false, false),
    published(&["qwen35"], Words::Regexes(&[QWEN_3_5]), true, false),
    // GPT-OSS, converted by transformers' TikTokenConverter
    published(&["gpt-4o", "llama4", "kanana2"], Words::Regexes(&[O200K]), false, true),
    published(&["minimax-m2"], Words::Regexes(&[O200K]), false, false),
    // Mistral Nemo and later
    published(&["tekken"], Words::Regexes(&[TEKKEN]), false, true),
    published(&["kimi-k2"], Words::Regexes(&[KIMI_K2]), false, false),
    published(&["seed-coder"], Words::Regexes(&[SEED_CODER]), false, false),
    // DeepSeek LLM, V2
    published(&["deepseek-llm"], Words::Regexes(&DEEPSEEK_LLM), false, false),
    published(&["deepseek-coder"], Words::Regexes(&DEEPSEEK_CODER), false, false),
    published(&["deepseek-v3", "hunyuan-dense"], Words::Regexes(&DEEPSEEK_3), false, false),
];

impl Published {
    fn named(name: &str) -> Result<&'static Self, TextError> {
        TABLE
            .iter()
            .find(|published| published.names.contains(&name))
            .ok_or_else(|| TextError::UnknownPreTokenizer { found: name.to_owned(), known: known() })
    }

    fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper, TextError> {
        let own_regex = ByteLevel::new(false, true, true);
        let parts = match self.words {
            Words::Gpt2 => return Ok(own_regex.into()),
            Words::DigitsThenGpt2 => vec![Digits::new(true).into(), own_regex.into()],
            Words::Regexes(regexes) => {
                let split = |regex: &&str| {
                    let pattern = SplitPattern::Regex((*regex).to_owned());
                    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                        .map_err(|error| unusable(format!("pre-tokeniser {}: {error}", self.names[0])))?;
                    Ok(split.into())
                };
                let mut parts = regexes.iter().map(split).collect::<Result<Vec<_>, TextError>>()?;
                parts.push(ByteLevel::new(false, true, false).into());
                parts
            }
        };
        Ok(Sequence::new(parts).into())
    }
}

/// Builds the tokeniser, without added tokens.
pub(super) fn build(metadata: &GgufTokenizer) -> Result<Tokenizer, TextError> {
    // Files from before April 2024 lack the name; a guess would be wrong for some.
    let pre = metadata.pre.as_deref().ok_or_else(|| TextError::MissingPreTokenizer { known: known() })?;
    let published = Published::named(pre)?;
    let vocab = metadata.vocab()?;
    let merges = metadata.listed_merges(&vocab)?;
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
