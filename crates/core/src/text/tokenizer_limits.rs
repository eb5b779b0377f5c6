//! Limits of an untrusted `tokenizer.json`, checked before it is used: what makes texts larger, or takes more than linear time.
//!
//! A text grows by what normalisers, pre-tokenisers and decoders write for each character, step by step, and by long tokens. Patterns with
//! look-around or back-references are matched by backtracking, which has no bound that depends on the text alone.

use std::fmt;

use base64::Engine;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::TextError;

/// Maximum bytes that a step writes for a match, or before or after a text.
const LONGEST_TEXT: usize = 64;

/// Maximum factor by which the steps of a part can make a text longer together.
const MOST_GROWTH: usize = 256;

/// Maximum bytes that the charsmap of a SentencePiece normaliser writes for a match. NFKC writes at most 33.
const LONGEST_MAPPED: usize = 256;

/// Maximum bytes of a pattern.
const LONGEST_PATTERN: usize = 16 << 10;

/// Maximum bytes of a token's text.
const LONGEST_TOKEN: usize = 16 << 10;

/// Maximum levels of steps within steps.
const DEPTH: usize = 16;

/// Maximum steps of all parts together, those that hold others included: each takes a pass over the text.
const MOST_STEPS: usize = 64;

/// Maximum characters of a word that WordPiece searches in quadratic time; it is 100 by default.
const LONGEST_WORD: u64 = 1000;

/// Maximum characters of a piece of a Unigram vocabulary, which is sought at each place of a text; SentencePiece makes 16 by default.
const LONGEST_PIECE: usize = 512;

/// Ids may leave out this many beside four times as many as there are tokens: lists of all ids are made.
const MOST_UNUSED: usize = 1 << 18;

/// Look-ahead that is known to be cheap: white space up to the last one before a word.
const LAST_SPACE: &str = r"\s+(?!\S)";

/// Whole patterns with look-ahead of known models: digits in threes from the right.
const KNOWN: [&str; 2] = [r"(?=(\d{3})+(?!\d))", r"\d{1,3}(?=(?:\d{3})*\b)"];

/// Constructs that make the engine match a pattern by backtracking.
const BACKTRACKING: [&str; 10] = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "(?(", "\\k", ")?+", ")*+", ")++"];

#[derive(serde::Deserialize)]
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

/// Fields of a model that are checked before its vocabulary is read.
#[derive(Default, serde::Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Longest,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    max_input_chars_per_word: Option<u64>,
}

/// Characters of the longest piece of a Unigram vocabulary, which is a list; the others are mappings, and have 0.
#[derive(Default)]
struct Longest(usize);

impl<'de> Deserialize<'de> for Longest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Pieces)
    }
}

struct Pieces;

impl<'de> Visitor<'de> for Pieces {
    type Value = Longest;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a vocabulary")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pieces: A) -> Result<Longest, A::Error> {
        let mut longest = 0;
        while let Some((piece, _)) = pieces.next_element::<(String, IgnoredAny)>()? {
            longest = longest.max(piece.chars().count());
        }
        Ok(Longest(longest))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut tokens: A) -> Result<Longest, A::Error> {
        while tokens.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Longest(0))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Longest, E> {
        Ok(Longest(0))
    }
}

/// Totals over the steps so far.
struct Sum {
    /// Of all parts.
    steps: usize,
    /// Factor by which those of this part can make a text longer.
    growth: usize,
}

/// Checks the text of a `tokenizer.json`; `name` is for errors.
pub(super) fn check(bytes: &[u8], name: &str) -> Result<(), TextError> {
    let failed = |reason| TextError::Tokenizer { name: name.to_owned(), reason };
    let parts: Parts = serde_json::from_slice(bytes)
        .map_err(|error| failed(format!("not a usable tokenizer.json: {error}")))?;
    let mut sum = Sum { steps: 0, growth: 1 };
    for (part, steps) in [
        ("normalizer", &parts.normalizer),
        ("pre_tokenizer", &parts.pre_tokenizer),
        ("decoder", &parts.decoder),
    ] {
        sum.growth = 1;
        check_step(steps, part, 0, &mut sum).map_err(failed)?;
    }
    let model = parts.model;
    for (field, text) in [
        ("continuing_subword_prefix", model.continuing_subword_prefix),
        ("end_of_word_suffix", model.end_of_word_suffix),
    ] {
        short(&format!("model.{field}"), text.as_deref().unwrap_or_default(), LONGEST_TEXT)
            .map_err(failed)?;
    }
    if model.vocab.0 > LONGEST_PIECE {
        return Err(failed(format!(
            "`model.vocab` has a piece of {} characters, and at most {LONGEST_PIECE} are taken",
            model.vocab.0
        )));
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

/// Checks one step, or the steps within it, and adds it to `sum`.
fn check_step(step: &Value, field: &str, depth: usize, sum: &mut Sum) -> Result<(), String> {
    if depth > DEPTH {
        return Err(format!("`{field}` is nested more than {DEPTH} deep"));
    }
    let below = |key: &str| format!("{field}.{key}");
    match step {
        Value::Array(steps) => {
            for (i, step) in steps.iter().enumerate() {
                check_step(step, &format!("{field}[{i}]"), depth, sum)?;
            }
        }
        Value::Object(fields) => {
            sum.steps += 1;
            if sum.steps > MOST_STEPS {
                return Err(format!("`{field}` is one of more than {MOST_STEPS} steps"));
            }
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("precompiled_charsmap", Value::String(map)) => check_map(map, &below(key))?,
                    ("pattern", pattern) => check_pattern(pattern, &below(key))?,
                    ("length", Value::Number(length)) if length.as_u64() == Some(0) => {
                        return Err(format!("`{}` is 0", below(key)));
                    }
                    (_, Value::String(text)) => short(&below(key), text, LONGEST_TEXT)?,
                    (_, value @ (Value::Array(_) | Value::Object(_))) => {
                        check_step(value, &below(key), depth + 1, sum)?;
                    }
                    _ => {}
                }
            }
            if let Some(content) = step["content"].as_str() {
                // An expression can match between characters.
                let between = usize::from(step["pattern"]["String"].as_str().is_none_or(str::is_empty));
                sum.growth = sum.growth.saturating_mul((content.chars().count() + between).max(1));
            }
            // Each byte above 127 becomes a letter of two bytes, and a sign before each piece can be longer than the piece.
            let factor = match step["type"].as_str() {
                Some("ByteLevel") if step["add_prefix_space"] == true => 3,
                Some("ByteLevel" | "Metaspace") => 2,
                _ => 1,
            };
            sum.growth = sum.growth.saturating_mul(factor);
            if sum.growth > MOST_GROWTH {
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

/// Whether one of [`KNOWN`] is among the steps of a pre-tokeniser.
pub(super) fn counts_digits(steps: &Value) -> bool {
    match steps {
        Value::String(text) => KNOWN.contains(&text.as_str()),
        Value::Array(items) => items.iter().any(counts_digits),
        Value::Object(fields) => fields.values().any(counts_digits),
        _ => false,
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

    fn byte_level() -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
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
            (
                "normalizer",
                json!({"type": "Sequence", "normalizers": vec![json!({"type": "ByteLevel"}); 24]}),
                "`normalizer.normalizers[8]`",
            ),
            (
                "pre_tokenizer",
                json!({"type": "Sequence", "pretokenizers": vec![byte_level(); 24]}),
                "`pre_tokenizer.pretokenizers[8]`",
            ),
            (
                "normalizer",
                json!({"type": "Sequence", "normalizers": vec![json!({"type": "Lowercase"}); 100]}),
                "`normalizer.normalizers[63]`",
            ),
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
            ("max_input_chars_per_word", json!(1001)),
            ("vocab", json!([["<unk>", 0.0], ["x".repeat(513), -1.0]])),
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

    #[test]
    fn one_or_two_byte_levels_and_long_pieces_are_taken() {
        let two = json!({"type": "Sequence", "pretokenizers": vec![byte_level(); 2]});
        let unigram = json!({
            "type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [["<unk>", 0.0], ["\u{2581}".repeat(400), -1.0], ["a", -2.0]]
        });
        for (part, value) in
            [("normalizer", json!({"type": "ByteLevel"})), ("pre_tokenizer", two), ("model", unigram)]
        {
            let mut json = fixture();
            json[part] = value;
            let taken = super::check(json.to_string().as_bytes(), "of a test");
            assert!(taken.is_ok(), "{part}: {taken:?}");
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

    /// Looking ahead from every digit takes time that grows with the square of their number.
    #[test]
    fn long_runs_of_digits_are_an_error_where_they_are_counted_from_the_right() {
        let (most, more) = ("1".repeat(20_000), format!("a {} b", "1".repeat(20_001)));
        for (regex, counts) in [(super::KNOWN[0], true), (super::KNOWN[1], true), (r"\p{N}{1,3}", false)] {
            let mut json = fixture();
            json["pre_tokenizer"] =
                json!({"type": "Sequence", "pretokenizers": [split(regex), byte_level()]});
            let tokenizer = Tokenizer::from_bytes(json.to_string().as_bytes(), "of a test").unwrap();
            assert!(tokenizer.count(&most).is_ok(), "{regex}");
            assert_eq!(tokenizer.count(&more).is_err(), counts, "{regex}");
        }
    }
}
