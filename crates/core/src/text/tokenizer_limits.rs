//! Limits of an untrusted `tokenizer.json`, checked before it is used: what makes texts larger, or takes more than linear time.
//!
//! A text grows by what normalisers and decoders write for each character, step by step, and by long tokens. Patterns with look-around or
//! back-references are matched by backtracking, which has no bound that depends on the text alone.

use base64::Engine;
use serde::Deserialize;
use serde_json::Value;

use super::TextError;

/// Maximum bytes that a step writes for a match, or before or after a text.
const LONGEST_TEXT: usize = 64;

/// Maximum factor by which the steps of a part can make a text longer together.
const MOST_GROWTH: usize = 256;

/// Maximum bytes that the charsmap of a SentencePiece normaliser writes for a match; known ones write at most 33.
const LONGEST_MAPPED: usize = 256;

/// Maximum bytes of a pattern.
const LONGEST_PATTERN: usize = 16 << 10;

/// Maximum bytes of a token's text.
const LONGEST_TOKEN: usize = 16 << 10;

/// Maximum levels of steps within steps.
const DEPTH: usize = 16;

/// Maximum characters of a word that WordPiece searches in quadratic time.
const LONGEST_WORD: u64 = 10_000;

/// Ids may leave out this many beside four times as many as there are tokens: lists of all ids are made.
const MOST_UNUSED: usize = 1 << 18;

/// Look-ahead that is known to be cheap: white space up to the last one before a word.
const LAST_SPACE: &str = r"\s+(?!\S)";

/// Whole patterns with look-ahead of known models: digits in threes from the right.
const KNOWN: [&str; 2] = [r"(?=(\d{3})+(?!\d))", r"\d{1,3}(?=(?:\d{3})*\b)"];

/// What makes a pattern be matched by backtracking.
const BACKTRACKING: [&str; 10] = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "(?(", "\\k", ")?+", ")*+", ")++"];

#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    model: Model,
}

/// All of a model but its vocabulary, which is checked as it is read.
#[derive(Default, Deserialize)]
struct Model {
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    max_input_chars_per_word: Option<u64>,
}

/// Checks the text of a `tokenizer.json`; `name` is for errors.
pub(super) fn check(bytes: &[u8], name: &str) -> Result<(), TextError> {
    let failed = |reason| TextError::Tokenizer { name: name.to_owned(), reason };
    let parts: Parts = serde_json::from_slice(bytes)
        .map_err(|error| failed(format!("not a usable tokenizer.json: {error}")))?;
    for (part, steps) in [
        ("normalizer", &parts.normalizer),
        ("pre_tokenizer", &parts.pre_tokenizer),
        ("decoder", &parts.decoder),
    ] {
        let mut growth = 1;
        check_step(steps, part, 0, &mut growth).map_err(failed)?;
    }
    let model = parts.model;
    for (field, text) in [
        ("continuing_subword_prefix", model.continuing_subword_prefix),
        ("end_of_word_suffix", model.end_of_word_suffix),
    ] {
        short(&format!("model.{field}"), text.as_deref().unwrap_or_default(), LONGEST_TEXT)
            .map_err(failed)?;
    }
    match model.max_input_chars_per_word.filter(|&chars| chars > LONGEST_WORD) {
        Some(chars) => Err(failed(format!(
            "`model.max_input_chars_per_word` is {chars}, and can be at most {LONGEST_WORD}"
        ))),
        None => Ok(()),
    }
}

/// Checks a vocabulary: its number of tokens, its largest id + 1, and its texts.
pub(super) fn check_vocabulary<'a>(
    size: usize,
    texts: impl ExactSizeIterator<Item = &'a String>,
) -> Result<(), String> {
    let count = texts.len();
    if size > count.saturating_mul(4).saturating_add(MOST_UNUSED) {
        return Err(format!("`model.vocab` or `added_tokens` has the id {} for {count} tokens", size - 1));
    }
    let longest = texts.map(String::len).max().unwrap_or(0);
    match longest > LONGEST_TOKEN {
        true => Err(format!(
            "`model.vocab` or `added_tokens` has a token of {longest} bytes, and at most {LONGEST_TOKEN} are taken"
        )),
        false => Ok(()),
    }
}

fn short(field: &str, text: &str, most: usize) -> Result<(), String> {
    match text.len() > most {
        true => Err(format!("`{field}` has {} bytes, and at most {most} are taken", text.len())),
        false => Ok(()),
    }
}

/// Checks one step, or the steps within it; multiplies `growth`.
fn check_step(step: &Value, field: &str, depth: usize, growth: &mut usize) -> Result<(), String> {
    if depth > DEPTH {
        return Err(format!("`{field}` is nested more than {DEPTH} deep"));
    }
    let below = |key: &str| format!("{field}.{key}");
    match step {
        Value::Array(steps) => {
            for (i, step) in steps.iter().enumerate() {
                check_step(step, &format!("{field}[{i}]"), depth, growth)?;
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("precompiled_charsmap", Value::String(map)) => check_map(map, &below(key))?,
                    ("pattern", pattern) => check_pattern(pattern, &below(key))?,
                    ("length", Value::Number(length)) if length.as_u64() == Some(0) => {
                        return Err(format!("`{}` is 0", below(key)));
                    }
                    (_, Value::String(text)) => short(&below(key), text, LONGEST_TEXT)?,
                    (_, value @ (Value::Array(_) | Value::Object(_))) => {
                        check_step(value, &below(key), depth + 1, growth)?;
                    }
                    _ => {}
                }
            }
            if let Some(content) = step["content"].as_str() {
                // An expression can match between characters.
                let between = usize::from(step["pattern"]["String"].as_str().is_none_or(str::is_empty));
                *growth = growth.saturating_mul((content.chars().count() + between).max(1));
            }
            if *growth > MOST_GROWTH {
                return Err(format!("`{field}` can make a text more than {MOST_GROWTH} times as long"));
            }
        }
        _ => {}
    }
    Ok(())
}

/// A map is a trie, whose size comes first, and texts that end with a zero.
fn check_map(map: &str, field: &str) -> Result<(), String> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(map)
        .map_err(|error| format!("`{field}` is no base64: {error}"))?;
    let size = bytes.first_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
    let texts = bytes.get(4 + size..).unwrap_or_default();
    let longest = texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    match longest > LONGEST_MAPPED {
        true => Err(format!(
            "`{field}` writes {longest} bytes for a character, and at most {LONGEST_MAPPED} are taken"
        )),
        false => Ok(()),
    }
}

fn check_pattern(pattern: &Value, field: &str) -> Result<(), String> {
    let Some(regex) = pattern["Regex"].as_str() else {
        return short(field, pattern["String"].as_str().unwrap_or_default(), LONGEST_PATTERN);
    };
    short(field, regex, LONGEST_PATTERN)?;
    if KNOWN.contains(&regex) {
        return Ok(());
    }
    for part in alternatives(regex).into_iter().filter(|&part| part != LAST_SPACE) {
        let is_digit = |c: char| c.is_ascii_digit() && c != '0';
        let refers = part.match_indices('\\').any(|(at, _)| part[at + 1..].starts_with(is_digit));
        if refers || BACKTRACKING.iter().any(|sign| part.contains(sign)) {
            let shown: String = part.chars().take(60).collect();
            return Err(format!(
                "`{field}` has `{shown}`, whose look-around, back-reference or possessive group can take time without bound; \
                 `{LAST_SPACE}` is known to be cheap"
            ));
        }
    }
    Ok(())
}

/// The alternatives of an expression, those within groups and classes left together.
fn alternatives(regex: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut groups, mut classes, mut escaped) =
        (Vec::new(), 0, 0_usize, 0_usize, false);
    for (at, c) in regex.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => classes += 1,
            ']' => classes = classes.saturating_sub(1),
            '(' if classes == 0 => groups += 1,
            ')' if classes == 0 => groups = groups.saturating_sub(1),
            '|' if classes == 0 && groups == 0 => {
                parts.extend(regex.get(begin..at));
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.extend(regex.get(begin..));
    parts
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base64::Engine;
    use serde_json::{Value, json};

    use super::super::Tokenizer;

    fn fixture() -> Value {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-tiny/tokenizer.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn replaced(pattern: &Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    fn split(regex: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
    }

    fn nested(depth: usize, key: &str) -> Value {
        (0..depth).fold(json!({"type": "ByteLevel"}), |inner, _| json!({"type": "Sequence", key: [inner]}))
    }

    #[test]
    fn a_tokeniser_that_could_take_without_bound_is_refused_by_its_field() {
        let long = "x".repeat(1 << 20);
        let doubled = vec![replaced(&json!({"String": "a"}), "aa"); 40];
        let map = [&4_u32.to_le_bytes()[..], &[0; 4], long.as_bytes(), &[0]].concat();
        let map = base64::engine::general_purpose::STANDARD.encode(map);
        let a = json!({"Regex": "."});
        for (part, value, field) in [
            ("normalizer", replaced(&a, &long), "`normalizer.content`"),
            ("normalizer", json!({"type": "Prepend", "prepend": long}), "`normalizer.prepend`"),
            (
                "normalizer",
                json!({"type": "Sequence", "normalizers": doubled}),
                "`normalizer.normalizers[8]`",
            ),
            (
                "normalizer",
                json!({"type": "Precompiled", "precompiled_charsmap": map}),
                "`normalizer.precompiled_charsmap`",
            ),
            ("normalizer", nested(20, "normalizers"), "`normalizer.normalizers[0]"),
            ("pre_tokenizer", split("(a+)+$(?=b)"), "`pre_tokenizer.pattern`"),
            ("pre_tokenizer", split(r"(?=(a|a){18}b)|."), "`pre_tokenizer.pattern`"),
            ("pre_tokenizer", split(r"(a)\1*"), "`pre_tokenizer.pattern`"),
            ("pre_tokenizer", split(r"(?:\s+(?!\S)|x)*y"), "`pre_tokenizer.pattern`"),
            ("pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "`pre_tokenizer.length`"),
            ("decoder", replaced(&json!({"String": "a"}), &long), "`decoder.content`"),
            ("decoder", json!({"type": "WordPiece", "prefix": long, "cleanup": true}), "`decoder.prefix`"),
            ("decoder", nested(30, "decoders"), "`decoder.decoders[0]"),
        ] {
            let mut json = fixture();
            json[part] = value;
            let error =
                Tokenizer::from_bytes(json.to_string().as_bytes(), "of a test").unwrap_err().to_string();
            assert!(error.starts_with("tokeniser of a test: ") && error.contains(field), "{error}");
        }
        for (field, value) in [
            ("continuing_subword_prefix", json!(long)),
            ("end_of_word_suffix", json!(long)),
            ("max_input_chars_per_word", json!(1_u64 << 40)),
        ] {
            let mut json = fixture();
            json["model"][field] = value;
            let error =
                Tokenizer::from_bytes(json.to_string().as_bytes(), "of a test").unwrap_err().to_string();
            assert!(error.contains(&format!("`model.{field}`")), "{error}");
        }
        for (id, content) in [(4_000_000_000_u32, "far"), (266, long.as_str())] {
            let mut json = fixture();
            json["model"]["vocab"][content] = id.into();
            let error =
                Tokenizer::from_bytes(json.to_string().as_bytes(), "of a test").unwrap_err().to_string();
            assert!(error.contains("`model.vocab` or `added_tokens`"), "{error}");
        }
    }

    /// 20,000 levels are more than JSON is read to.
    #[test]
    fn decoders_nested_20000_deep_are_an_error() {
        let (open, close) = (r#"{"type":"Sequence","decoders":["#.repeat(20_000), "]}".repeat(20_000));
        let mut json = fixture();
        json["decoder"] = "here".into();
        let text = json.to_string().replace("\"here\"", &format!("{open}{{\"type\":\"Fuse\"}}{close}"));
        Tokenizer::from_bytes(text.as_bytes(), "of a test").unwrap_err();
    }

    #[test]
    fn steps_of_known_tokenisers_are_taken() {
        let llama = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let possessive = r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|\s+(?!\S)|\s";
        for regex in [
            llama,
            possessive,
            r"(?=(\d{3})+(?!\d))",
            r"\d{1,3}(?=(?:\d{3})*\b)",
            r"[\(\)|\[]\(",
            r"[0-9][0-9][0-9]",
        ] {
            let mut json = fixture();
            json["pre_tokenizer"] = split(regex);
            json["normalizer"] = json!({"type": "Sequence", "normalizers": [
                {"type": "NFKC"}, replaced(&json!({"String": " "}), "\u{2581}"), replaced(&json!({"Regex": " {2,}"}), " "),
                {"type": "Prepend", "prepend": "\u{2581}"}
            ]});
            let tokenizer = Tokenizer::from_bytes(json.to_string().as_bytes(), "of a test");
            assert!(tokenizer.is_ok(), "{regex}: {tokenizer:?}");
        }
    }
}
