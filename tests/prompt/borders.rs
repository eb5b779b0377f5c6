//! Assignment of tokens across a border to spans, against a plain definition over characters.

use std::ops::Range;

use palimpsest::case::{Evidence, Location};
use palimpsest_core::text::TextError;
use palimpsest_core::text::{Borders, CountTokens, SpecialTokens, Tokenizer};
use proptest::prelude::*;

use super::spans::any_text;
use super::tokenizer::sentence_piece;
use super::{CHATML, builder, history, probe, tokenizer};

/// Reference span of each token: of the first of its characters that is not white space, or of its first character. Uses the tokens'
/// bytes, not the tokeniser's offsets.
fn by_reading(tokenizer: &Tokenizer, text: &str, spans: &[Range<usize>]) -> Vec<usize> {
    let bytes = tokenizer.token_bytes();
    let mut at = 0;
    let mut own = Vec::new();
    for id in tokenizer.encode(text).unwrap() {
        let token = at..at + bytes[id as usize].bytes.len();
        let touched: Vec<(usize, char)> = text
            .char_indices()
            .filter(|(start, c)| *start < token.end && start + c.len_utf8() > token.start)
            .collect();
        let decides = touched.iter().find(|(_, c)| !c.is_whitespace()).unwrap_or(&touched[0]).0;
        own.push(spans.iter().position(|span| span.contains(&decides)).unwrap());
        at = token.end;
    }
    assert_eq!(at, text.len(), "the bytes of the tokens are the text");
    own
}

fn by_borders(tokenizer: &Tokenizer, text: &str, spans: &[Range<usize>]) -> Vec<usize> {
    let encoded = tokenizer.encode_with_offsets(text).unwrap();
    let borders = Borders::new(&encoded, text);
    let mut own = vec![usize::MAX; encoded.ids.len()];
    let mut reached = 0;
    for (i, span) in spans.iter().enumerate() {
        let tokens = borders.tokens(span);
        assert_eq!(tokens.start, reached, "spans tile");
        reached = tokens.end;
        own[tokens].fill(i);
    }
    assert_eq!(reached, own.len(), "spans tile");
    own
}

/// The token text assigned to each of these concatenated parts.
fn texts_of(tokenizer: &Tokenizer, parts: &[&str]) -> Vec<String> {
    let text = parts.concat();
    let encoded = tokenizer.encode_with_offsets(&text).unwrap();
    let borders = Borders::new(&encoded, &text);
    let mut end = 0;
    let of = |part: &&str| {
        let start = end;
        end += part.len();
        tokenizer.decode(&encoded.ids[borders.tokens(&(start..end))], false).unwrap()
    };
    parts.iter().map(of).collect()
}

#[test]
fn a_part_that_ends_in_a_space_does_not_take_the_next_parts_first_word() {
    for tokenizer in [tokenizer("smollm"), tokenizer("gpt-2"), tokenizer("llama-bpe"), sentence_piece(false)]
    {
        // ` the` is a token of these vocabularies.
        assert_eq!(tokenizer.encode(" the").unwrap().len(), 1);
        assert_eq!(texts_of(&tokenizer, &["Then. ", "the hen"]), ["Then.", " the hen"]);
        assert_eq!(texts_of(&tokenizer, &["Then.", " ", "the hen"]), ["Then.", "", " the hen"]);
        // A word cut by a border belongs to the part where it begins.
        assert_eq!(texts_of(&tokenizer, &["n t", "he hen"]), ["n the", " hen"]);
    }
}

#[test]
fn white_space_alone_is_of_the_span_of_its_first_byte() {
    for pre in ["smollm", "gpt-2", "llama-bpe"] {
        let tokenizer = tokenizer(pre);
        // Two spaces are a token, and the third goes with the word.
        assert_eq!(texts_of(&tokenizer, &["a ", "  the"]), ["a  ", " the"], "{pre}");
    }
    for tokenizer in [tokenizer("llama-bpe"), sentence_piece(false)] {
        assert_eq!(texts_of(&tokenizer, &["n\n", "\ns"]), ["n\n\n", "s"]);
    }
}

#[test]
fn a_character_of_several_tokens_is_of_one_span() {
    for tokenizer in [tokenizer("smollm"), sentence_piece(false)] {
        assert!(tokenizer.encode("🤖").unwrap().len() > 1);
        assert_eq!(texts_of(&tokenizer, &["n ", "🤖", " 日"]), ["n ", "🤖", " 日"]);
    }
}

#[test]
fn the_space_that_a_tokeniser_puts_before_a_text_is_of_the_first_span() {
    let tokenizer = sentence_piece(true);
    assert_eq!(texts_of(&tokenizer, &["the ", "then"]), ["the", "then"]);
    assert_eq!(by_borders(&tokenizer, "the then", &[0..4, 4..8]), [0, 1, 1]);
}

#[test]
fn an_overlay_has_its_first_word_and_one_of_white_space_alone_is_refused() {
    let tokenizer = tokenizer("smollm");
    let of = |bytes: Range<usize>| {
        let place = Location { segment: 0, turn: Some(0), bytes: Some(bytes) };
        let evidence = [Evidence { role: "new".to_owned(), place }];
        let prompt =
            builder(CHATML, None).build(&history(&[&["to the hen"]]), &evidence, &probe("question", "Who?"));
        prompt.unwrap().encode(&tokenizer)
    };
    let encoded = of(3..6).unwrap();
    assert_eq!(tokenizer.decode(encoded.tokens_of(&encoded.overlays[0]), false).unwrap(), " the");
    assert!(
        matches!(of(2..3).unwrap_err(), TextError::EmptySpan { label } if label == "session[0].turn[0][2..3]")
    );
}

#[test]
fn costs_are_the_lengths_of_spans() {
    let tokenizer = tokenizer("smollm");
    let parts = ["Then. ", "the hen\n", "\n", " the"];
    let text = parts.concat() + ".";
    let encoded = tokenizer.encode_with_offsets(&text).unwrap();
    let costs = tokenizer.count_each(&parts, SpecialTokens::Control).unwrap();
    assert_eq!(costs.iter().sum::<usize>(), encoded.ids.len() - 1);
    let spans: Vec<usize> =
        texts_of(&tokenizer, &parts).iter().map(|text| tokenizer.count(text).unwrap()).collect();
    assert_eq!(costs, spans);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn tokens_are_of_the_span_that_a_reader_says(
        text in any_text(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        pre in prop::sample::select(vec!["smollm", "gpt-2", "llama-bpe", "sentence piece"]),
    ) {
        prop_assume!(!text.is_empty());
        let tokenizer = if pre == "sentence piece" { sentence_piece(false) } else { tokenizer(pre) };
        let characters: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let mut borders: Vec<usize> = cuts.iter().map(|cut| *cut.get(&characters)).collect();
        borders.extend([0, text.len()]);
        borders.sort_unstable();
        borders.dedup();
        let spans: Vec<Range<usize>> = borders.windows(2).map(|pair| pair[0]..pair[1]).collect();
        prop_assert_eq!(by_borders(&tokenizer, &text, &spans), by_reading(&tokenizer, &text, &spans));
    }
}
