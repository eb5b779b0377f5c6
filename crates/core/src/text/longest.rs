//! Maximum bytes per token, to reject texts that cannot fit a context without tokenising. Defined only for tokenisers that drop nothing and
//! do not fuse unknown characters: n bytes then need at least n / max tokens.

use serde_json::Value;

use super::Tokenizer;
use super::token_bytes::{letters as byte_letters, steps};

/// Upper bound of byte length over NFC byte length: 3.5 over all of Unicode.
const COMPOSED: usize = 4;

impl Tokenizer {
    /// Maximum bytes per token; `None` if unbounded.
    pub(super) fn longest_of(inner: &tokenizers::Tokenizer) -> Option<usize> {
        let json = |part: serde_json::Result<Value>| part.ok();
        let normalizer = json(serde_json::to_value(inner.get_normalizer()))?;
        let pre_tokenizer = json(serde_json::to_value(inner.get_pre_tokenizer()))?;
        let mut letters = false;
        let mut factor = 1;
        for step in steps(&normalizer, "normalizers") {
            match step["type"].as_str() {
                None if step.is_null() => {}
                Some("NFC") => factor = COMPOSED,
                Some("ByteLevel") => letters = true,
                Some("Prepend") => {}
                Some("Replace") => {
                    let (from, to) = (step["pattern"]["String"].as_str()?, step["content"].as_str()?);
                    if to.len() < from.len() {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        for step in steps(&pre_tokenizer, "pretokenizers") {
            match step["type"].as_str() {
                None if step.is_null() => {}
                Some("ByteLevel") => letters = true,
                Some("Metaspace" | "Digits" | "UnicodeScripts") => {}
                Some("Split" | "Punctuation") if step["behavior"] != "Removed" => {}
                _ => return None,
            }
        }
        let added = inner.get_added_vocabulary().get_added_tokens_decoder();
        // These also consume adjacent white space.
        if added.values().any(|token| token.lstrip || token.rstrip) {
            return None;
        }
        let vocabulary = inner.get_vocab(false);
        let whole = match letters {
            true => byte_letters().into_keys().all(|c| vocabulary.contains_key(&c.to_string())),
            false => {
                let fallback = match inner.get_model() {
                    tokenizers::ModelWrapper::BPE(model) => model.byte_fallback,
                    _ => false,
                };
                fallback && (0..=u8::MAX).all(|byte| vocabulary.contains_key(&format!("<0x{byte:02X}>")))
            }
        };
        // In a byte-letter vocabulary each character is one byte.
        let bytes = |token: &String| if letters { token.chars().count() } else { token.len() };
        let longest = vocabulary.keys().map(bytes).chain(added.values().map(|token| token.content.len()));
        longest.max().filter(|&longest| whole && longest > 0).map(|longest| longest * factor)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::super::Tokenizer;

    fn fixture() -> Value {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-tiny/tokenizer.json");
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn tokenizer(json: &Value) -> Tokenizer {
        let inner = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        Tokenizer::from_inner(inner, "of a test").unwrap()
    }

    #[test]
    fn no_text_has_fewer_tokens_than_its_bytes_over_the_longest() {
        let mut json = fixture();
        for normalizer in [Value::Null, json!({"type": "NFC"})] {
            json["normalizer"] = normalizer;
            let tokenizer = tokenizer(&json);
            let longest = tokenizer.longest().unwrap();
            let special = tokenizer.special_tokens_in("<s></s><unk><|im_end|>");
            let texts = [
                "plain words".to_owned(),
                " ".repeat(500),
                // Shorter when composed.
                "\u{1112}\u{1161}\u{11ab}\u{3b1}\u{313}\u{300}\u{345}\u{212b}\u{301}".repeat(50),
                "\u{1f9ed}\0\r\n".repeat(50),
                special.into_iter().collect::<String>().repeat(50),
            ];
            for text in texts {
                let count = tokenizer.count(&text).unwrap();
                assert!(count * longest >= text.len(), "{count} tokens of {} bytes", text.len());
            }
        }
    }

    #[test]
    fn tokenisers_that_leave_text_out_tell_no_longest_token() {
        for (part, value) in [
            ("normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true})),
            ("normalizer", json!({"type": "Replace", "pattern": {"String": "  "}, "content": " "})),
            ("pre_tokenizer", json!({"type": "WhitespaceSplit"})),
            ("pre_tokenizer", json!(null)),
        ] {
            let mut json = fixture();
            json[part] = value.clone();
            assert_eq!(tokenizer(&json).longest(), None, "{part} {value}");
        }
        let mut json = fixture();
        json["added_tokens"][0]["rstrip"] = true.into();
        assert_eq!(tokenizer(&json).longest(), None);
    }
}
