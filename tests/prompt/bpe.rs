//! The encodings of OpenAI's models.

use std::path::Path;

use palimpsest::prompt::{BytePairEncoding, ENCODINGS};
use palimpsest_core::text::CountTokens;

fn read(name: &str) -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn hard_texts_have_as_many_tokens_as_by_openais_own_package() {
    // tests/reference/openai_encodings.py: tiktoken 0.14.0 with tables pinned by SHA-256.
    let (texts, expected) = (read("texts.json"), read("openai.json"));
    let texts: Vec<&str> = texts.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(texts.len() > 250);
    for name in ENCODINGS {
        let encoding = BytePairEncoding::named(name).unwrap();
        let expected: Vec<Vec<u32>> = serde_json::from_value(expected[name].clone()).unwrap();
        assert_eq!(expected.len(), texts.len());
        for (text, expected) in texts.iter().zip(expected) {
            assert_eq!(encoding.count(text).unwrap(), expected.len(), "{name}: {text:?}");
        }
    }
}

#[test]
fn long_runs_are_counted_or_refused_and_never_panic() {
    // The underlying crate panics if the pre-tokeniser's regex backtracks too often.
    let encoding = BytePairEncoding::named("o200k_base").unwrap();
    for piece in ["a", "A", " ", "\n", "7", "!", "é", "\u{301}", "文", "aA", "e\u{301}", " \n", "' "] {
        let most = encoding.count(&piece.repeat(400_000 / piece.len())).unwrap();
        assert!(most > 0, "{piece:?}");
    }
    for piece in ["a", " ", "\u{301}"] {
        let error = encoding.count(&piece.repeat(600_000)).unwrap_err().to_string();
        assert!(error.contains("in a row") && error.contains("Break it up"), "{error}");
    }
}

#[test]
fn an_unknown_encoding_is_refused_with_those_that_are_known() {
    let error = BytePairEncoding::named("p50k").unwrap_err().to_string();
    assert!(error.contains("p50k") && error.contains("o200k_base, cl100k_base"), "{error}");
}
