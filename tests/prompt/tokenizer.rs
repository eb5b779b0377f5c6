//! Tokenisers, and decoding during generation.

use palimpsest_core::text::TextError;
use palimpsest_core::text::{GgufTokenizer, StreamDecoder, Tokenizer, known_pre_tokenizers};
use proptest::prelude::*;

use super::{metadata, tokenizer};

const MIXED: &str = "Ça va? 日本語 🤖👩‍👩‍👧 in 2024 — the user's  plan\n\n\tend";

#[test]
fn byte_level_tokens_decode_to_the_text_for_every_known_pre_tokenizer() {
    for pre in known_pre_tokenizers() {
        let tokenizer = tokenizer(pre);
        let encoded = tokenizer.encode_with_offsets(MIXED).unwrap();
        assert_eq!(tokenizer.decode(&encoded.ids, false).unwrap(), MIXED, "{pre}");
        assert_eq!(tokenizer.encode(MIXED).unwrap(), encoded.ids);
        assert_eq!(tokenizer.count(MIXED).unwrap(), encoded.ids.len());
        assert!(encoded.offsets.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{pre}: starts decrease");
        assert!(
            encoded.offsets.iter().all(|&(start, end)| MIXED.get(start..end).is_some()),
            "{pre}: split character"
        );
    }
}

/// A name for each way to split words.
const SPLITS: [&str; 12] = [
    "gpt-2",
    "smollm",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "gpt-4o",
    "tekken",
    "kimi-k2",
    "seed-coder",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
];

/// The pre-tokenisers' regexes backtrack character by character over such runs.
#[test]
fn many_characters_of_one_kind_are_cut_as_a_few_are_and_too_many_are_refused() {
    let most = crate::left_out::few_or_all(30_000, 120_000);
    let tail = "\n\nIt's 12,345 o'clock, isn't it?";
    for pre in SPLITS {
        let tokenizer = tokenizer(pre);
        for unit in [" ", "\n", "A", "a", "\u{4e2d}", "7", "!"] {
            let ends = |count: usize| {
                let ids = tokenizer.encode(&(unit.repeat(count) + tail)).unwrap();
                let last = tokenizer.encode(tail).unwrap().len() / 2;
                (ids[ids.len() - last..].to_vec(), tokenizer.decode(&ids, false).unwrap().len())
            };
            let ((few, _), (many, length)) = (ends(12), ends(most));
            assert_eq!(few, many, "{pre}: {unit:?}");
            assert_eq!(length, most * unit.len() + tail.len(), "{pre}: {unit:?}");
        }
        let error = tokenizer.count(&" ".repeat(500_001)).unwrap_err().to_string();
        assert!(error.contains("500000") && error.contains("in a row"), "{error}");
        assert!(tokenizer.count(&" ab".repeat(200_000)).is_ok());
    }
}

#[test]
fn pre_tokenizers_differ_where_they_must() {
    // The vocabulary merges 1 and 2; a digit-by-digit pre-tokeniser must prevent it.
    for (pre, tokens) in [("smollm", 2), ("qwen2", 2), ("llama-bpe", 1), ("gpt-2", 1), ("default", 1)] {
        assert_eq!(tokenizer(pre).count("12").unwrap(), tokens, "{pre}");
    }
    // A colon absorbs the newline in the regexes of llama-bpe and qwen2 only.
    for (pre, tokens) in [("smollm", 2), ("qwen2", 1), ("llama-bpe", 1), ("gpt-2", 2)] {
        assert_eq!(tokenizer(pre).count(":\n").unwrap(), tokens, "{pre}");
    }
}

#[test]
fn special_tokens_are_single_and_can_be_left_out() {
    let tokenizer = tokenizer("smollm");
    let ids = tokenizer.encode("<|im_start|>user<|im_end|>").unwrap();
    assert_eq!(ids.first().copied(), tokenizer.token_id("<|im_start|>"));
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "user");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<|im_start|>user<|im_end|>");
    assert_eq!(tokenizer.vocab_size(), metadata("smollm").tokens.len());
    assert_eq!(tokenizer.token_id("absent"), None);
}

#[test]
fn tokenizer_json_gives_the_same_tokens_and_its_extras_are_ignored() {
    let inner = tokenizers::Tokenizer::from_bytes(TOKENIZER_JSON).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    inner.save(&path, false).unwrap();
    let tokenizer = Tokenizer::from_file(&path).unwrap();
    // The file requests truncation to one token, trimmed offsets and an added token; none may happen.
    let encoded = tokenizer.encode_with_offsets("a b a").unwrap();
    assert_eq!(encoded.ids, [1, 2, 3, 2, 1]);
    assert_eq!(encoded.offsets, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]);
    assert_eq!(tokenizer.vocab_size(), 4);
    let error = Tokenizer::from_file(&dir.path().join("absent.json")).unwrap_err().to_string();
    assert!(error.contains("absent.json"), "{error}");
    std::fs::write(&path, "{}").unwrap();
    assert!(Tokenizer::from_file(&path).unwrap_err().to_string().contains("tokenizer.json"));
}

const TOKENIZER_JSON: &str = r#"{
  "version": "1.0",
  "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
  "padding": null,
  "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
    "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
    "vocab": {"<s>": 0, "a": 1, "Ġ": 2, "b": 3}, "merges": []}
}"#;

#[test]
fn unusable_gguf_metadata_is_an_error_that_names_the_remedy() {
    let error = |change: &dyn Fn(&mut GgufTokenizer)| {
        let mut metadata = metadata("smollm");
        change(&mut metadata);
        Tokenizer::from_gguf_metadata(&metadata).unwrap_err()
    };
    let unknown = error(&|metadata| metadata.pre = Some("jais".to_owned()));
    assert!(matches!(unknown, TextError::UnknownPreTokenizer { .. }));
    let text = unknown.to_string();
    assert!(text.contains("jais") && known_pre_tokenizers().all(|name| text.contains(name)), "{text}");
    assert!(error(&|metadata| metadata.model = "bert".to_owned()).to_string().contains("\"bert\""));
    assert!(error(&|metadata| metadata.tokens.clear()).to_string().contains("no tokens"));
    assert!(error(&|metadata| metadata.token_types.truncate(2)).to_string().contains("2 token types"));
    assert!(error(&|metadata| metadata.merges.push("q".to_owned())).to_string().contains("\"q\""));
    assert!(error(&|metadata| metadata.merges.push("q q".to_owned())).to_string().contains("\"qq\""));
    assert!(error(&|metadata| metadata.model = "llama".to_owned()).to_string().contains("scores"));
}

/// A tiny SentencePiece vocabulary: specials, 256 bytes, then pieces by descending score.
pub fn sentence_piece(add_space_prefix: bool) -> Tokenizer {
    Tokenizer::from_gguf_metadata(&GgufTokenizer {
        add_space_prefix: Some(add_space_prefix),
        ..sentence_piece_metadata()
    })
    .unwrap()
}

fn sentence_piece_metadata() -> GgufTokenizer {
    let mut tokens: Vec<String> = ["<pad>", "<eos>", "<bos>", "<unk>"].map(str::to_owned).to_vec();
    let mut token_types = vec![3, 3, 3, 2];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    token_types.extend([6; 256]);
    let pieces = ["th", "▁th", "he", "the", "▁the", "▁", "t", "h", "e", "n", "s"];
    tokens.extend(pieces.map(str::to_owned));
    token_types.extend([1; 11]);
    tokens.push("\n\n".to_owned());
    token_types.push(4);
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    GgufTokenizer {
        model: "llama".to_owned(),
        tokens,
        token_types,
        scores: Some(scores),
        unk: Some(3),
        ..GgufTokenizer::default()
    }
}

#[test]
fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
    let tokenizer = sentence_piece(false);
    let pieces = |text: &str| -> Vec<String> {
        tokenizer.encode(text).unwrap().into_iter().filter_map(|id| tokenizer.token(id)).collect()
    };
    assert_eq!(pieces("the then\n\n"), ["the", "▁the", "n", "\n\n"]);
    assert_eq!(pieces("sé"), ["s", "<0xC3>", "<0xA9>"]);
    let text = "  the thés 🤖\n\n then ";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
}

#[test]
fn pieces_with_merges_merge_by_these_and_no_space_is_put_in_front() {
    let tokenizer = Tokenizer::from_gguf_metadata(&GgufTokenizer {
        model: "gemma4".to_owned(),
        merges: ["h e", "t he", "▁ the"].map(str::to_owned).to_vec(),
        ..sentence_piece_metadata()
    })
    .unwrap();
    let pieces = |text: &str| -> Vec<String> {
        tokenizer.encode(text).unwrap().into_iter().filter_map(|id| tokenizer.token(id)).collect()
    };
    assert_eq!(pieces("the then\n\n"), ["the", "▁the", "n", "\n\n"]);
    // By score these would be one token.
    assert_eq!(pieces("th"), ["t", "h"]);
    let text = " thé  the";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap(), false).unwrap(), text);
}

#[test]
fn runs_of_spaces_that_converters_write_plainly_are_tokens_whichever_way_they_come_about() {
    let mut tokens: Vec<String> = ["<unk>", "▁", "a", "▁a", "  ", "   ", "<x> y"].map(str::to_owned).to_vec();
    let mut token_types = vec![2, 1, 1, 1, 4, 4, 4];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    token_types.extend([6; 256]);
    let tokenizer = Tokenizer::from_gguf_metadata(&GgufTokenizer {
        model: "llama".to_owned(),
        // Converters give added tokens a score of -1000; the model matches them before all others.
        scores: Some(
            (0u16..)
                .zip(&token_types)
                .map(|(id, &kind)| if kind == 1 { -f32::from(id) } else { -1000.0 })
                .collect(),
        ),
        tokens,
        token_types,
        unk: Some(0),
        add_space_prefix: Some(false),
        ..GgufTokenizer::default()
    })
    .unwrap();
    for (text, ids) in [
        (" a", vec![3]),
        ("  a", vec![4, 2]),
        ("   a", vec![5, 2]),
        // Four spaces: three, then the last goes with the letter.
        ("    a", vec![5, 3]),
        ("a\u{2581} a", vec![2, 4, 2]),
        // A literal run is split off before spaces become visible, as in transformers.
        (" \u{2581}\u{2581}a", vec![1, 4, 2]),
        ("a<x> y  ", vec![2, 6, 4]),
    ] {
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text:?}");
    }
}

#[test]
fn sentence_piece_dummy_prefix_is_added_and_taken_off() {
    let tokenizer = sentence_piece(true);
    let ids = tokenizer.encode("the").unwrap();
    assert_eq!(tokenizer.token(ids[0]).unwrap(), "▁the");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "the");
}

fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut decoder = StreamDecoder::new(tokenizer);
    let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap().shown()).collect();
    pieces.push(decoder.finish());
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

#[test]
fn stream_emits_emoji_and_cjk_whole() {
    for tokenizer in [tokenizer("smollm"), sentence_piece(false)] {
        let ids = tokenizer.encode("日本 🤖!").unwrap();
        let pieces = stream(&tokenizer, &ids);
        assert_eq!(pieces, ["日", "本", " ", "🤖", "!"]);
    }
}

#[test]
fn stream_shows_bytes_that_never_become_a_character_at_the_end() {
    let tokenizer = tokenizer("smollm");
    let mut ids = tokenizer.encode("a🤖").unwrap();
    ids.pop();
    assert_eq!(stream(&tokenizer, &ids).concat(), "a\u{fffd}");
}

/// Pieces of tokens by vocabulary name.
fn pieces(tokenizer: &Tokenizer, names: &[&str]) -> Vec<String> {
    let mut decoder = StreamDecoder::new(tokenizer);
    let push = |name: &&str| decoder.push(tokenizer.token_id(name).unwrap()).unwrap().shown();
    let mut pieces: Vec<String> = names.iter().map(push).collect();
    pieces.push(decoder.finish());
    pieces
}

#[test]
fn stream_tells_bytes_that_cannot_become_a_character_at_once() {
    let (letters, bytes) = (tokenizer("smollm"), sentence_piece(false));
    // Letters and names of the bytes E2, 82, AC (a euro sign in three), 80 (alone), FF and 41 (A).
    let of_letter = |byte: &str| match byte {
        "E2" => "â",
        "82" => "Ĥ",
        "AC" => "¬",
        "80" => "Ģ",
        "FF" => "ÿ",
        "EF" => "ï",
        "BF" => "¿",
        "BD" => "½",
        other => panic!("{other}"),
    };
    const NONE: char = '\u{fffd}';
    for (told, expected) in [
        ("80 80", ["\u{fffd}", "\u{fffd}", ""].to_vec()),
        ("FF", ["\u{fffd}", ""].to_vec()),
        ("E2 82 AC", ["", "", "€", ""].to_vec()),
        ("E2 E2 82 AC", ["", "\u{fffd}", "", "€", ""].to_vec()),
        ("AC E2", ["\u{fffd}", "", "\u{fffd}"].to_vec()),
        ("E2 82 FF 80", ["", "", "X\u{fffd}", "\u{fffd}", ""].to_vec()),
        ("E2 82", ["", "", "X"].to_vec()),
        // The replacement character itself is an ordinary character.
        ("EF BF BD 80", ["", "", "\u{fffd}", "\u{fffd}", ""].to_vec()),
    ] {
        let names: Vec<&str> = told.split(' ').map(of_letter).collect();
        // One per partial character, or one per byte if single bytes are tokens.
        let with = |count: usize| -> Vec<String> {
            let x = NONE.to_string().repeat(count);
            expected.iter().map(|piece| piece.replace('X', &x)).collect()
        };
        assert_eq!(pieces(&letters, &names), with(1), "{told}");
        let names: Vec<String> = told.split(' ').map(|byte| format!("<0x{byte}>")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(pieces(&bytes, &names), with(2), "{told}");
    }
}

#[test]
fn stream_goes_on_as_the_decoder_joins_tokens() {
    let json = |decoder: &str, vocab: &str| {
        format!(
            r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{{"id": 9, "content": "<x>", "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true}}], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": {decoder}, "model": {{"type": "WordLevel", "unk_token": "a", "vocab": {vocab}}}}}"#
        )
    };
    // A decoder, three tokens, and the text of the last two after the first.
    for (decoder, tokens, text) in [
        ("null", ["a", "b", "c"], " b c"),
        (r###"{"type": "WordPiece", "prefix": "##", "cleanup": true}"###, ["a", "##b", "c"], "b c"),
        (
            r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}"#,
            ["▁a", "▁b", "c"],
            " bc",
        ),
        (
            r#"{"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "Fuse"}]}"#,
            ["a", " b", "c"],
            "bc",
        ),
        (r#"{"type": "Fuse"}"#, ["a", "b", "c"], "bc"),
        (
            r#"{"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "-"}, "content": " "}]}"#,
            ["a", "-b", "c"],
            " bc",
        ),
    ] {
        let vocab: std::collections::BTreeMap<_, _> =
            tokens.iter().enumerate().map(|(id, token)| (token, id)).collect();
        let json = json(decoder, &serde_json::to_string(&vocab).unwrap());
        let tokenizer = Tokenizer::from_bytes(json.as_bytes(), "test").unwrap();
        assert_eq!(pieces(&tokenizer, &tokens[1..]).concat(), text, "{decoder}");
        let first = tokenizer.decode(&[0], true).unwrap();
        let ids = tokens.map(|token| tokenizer.token_id(token).unwrap());
        assert_eq!(first + text, tokenizer.decode(&ids, true).unwrap(), "{decoder}");
        let mut stream = StreamDecoder::new(&tokenizer);
        let piece = stream.push(tokenizer.token_id("<x>").unwrap()).unwrap();
        assert_eq!((piece.text.as_str(), piece.special.as_str()), ("", "<x>"), "{decoder}");
        assert_eq!(stream.push(77).unwrap().shown(), "", "no token");
    }
}

proptest! {
    #[test]
    fn stream_concatenates_to_the_whole_decoding(text in "(\\PC|\\n|🤖|é){0,40}", pre in prop::sample::select(known_pre_tokenizers().collect::<Vec<_>>())) {
        let tokenizer = tokenizer(pre);
        let ids = tokenizer.encode(&text).unwrap();
        prop_assert_eq!(stream(&tokenizer, &ids).concat(), tokenizer.decode(&ids, false).unwrap());
    }
}

#[test]
fn the_bytes_of_tokens_join_to_the_text_whatever_they_cut() {
    for tokenizer in [tokenizer("smollm"), tokenizer("llama-bpe"), sentence_piece(false)] {
        let tokens = tokenizer.token_bytes();
        assert_eq!(tokens.len(), tokenizer.vocab_size());
        let ids = tokenizer.encode(MIXED).unwrap();
        let joined: Vec<u8> = ids.iter().flat_map(|&id| tokens[id as usize].bytes.clone()).collect();
        assert_eq!(joined, MIXED.as_bytes());
        let cut = ids.iter().filter(|&&id| std::str::from_utf8(&tokens[id as usize].bytes).is_err());
        assert!(cut.count() > 3, "no token is part of a character");
    }
    let tokenizer = tokenizer("smollm");
    let of = |token: &str| tokenizer.token_bytes()[tokenizer.token_id(token).unwrap() as usize].clone();
    assert!(of("<|im_end|>").special && of("<|im_end|>").bytes == b"<|im_end|>");
    assert!(!of("Ġthe").special && of("Ġthe").bytes == b" the");
}
