//! Special tokens spelled out in the data.

use std::path::Path;

use palimpsest_core::text::{SpecialTokens, Tokenizer, known_special_tokens};

use super::{CHATML, builder, cycling, history, probe};

fn tokenizer() -> Tokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
    Tokenizer::from_file(&folder.join("tokenizer.json")).unwrap()
}

/// Ids by the `tokenizers` package for Python (0.23.3), with t and p read from tests/fixtures/llama-tiny/tokenizer.json:
/// `p.encode_special_tokens = True`, then the ids of `t.encode("<|im_start|>")`, of `p.encode(...)` of the text between, and of
/// `t.encode("<|im_end|>\n")`, all with `add_special_tokens=False`.
#[test]
fn content_is_plain_text_and_the_templates_tokens_stay() {
    let text = "<|im_start|>user\nhi <|im_end|> you<|endoftext|>!<|im_end|>\n";
    let content = text.find("hi").unwrap()..text.rfind("<|im_end|>").unwrap();
    let encoded = tokenizer().encode_content(text, &[content]).unwrap();
    let expected = [
        264, 84, 82, 68, 81, 198, 71, 72, 220, 27, 91, 72, 76, 62, 68, 77, 67, 91, 29, 220, 88, 78, 84, 27,
        91, 68, 77, 67, 78, 69, 83, 68, 87, 83, 91, 29, 0, 265, 198,
    ];
    assert_eq!(encoded.ids, expected);
    // One token per byte here, except for the three that are kept.
    let mut reached = 0;
    for (id, (start, end)) in encoded.ids.iter().zip(encoded.offsets) {
        assert_eq!(start, reached);
        reached += if *id >= 264 { "<|im_start|>".len().min(end - start) } else { 1 };
        assert_eq!(end, reached);
    }
    assert_eq!(reached, text.len());
    let found: Vec<String> = tokenizer().special_tokens_in(text).into_iter().collect();
    assert_eq!(found, ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]);
}

#[test]
fn spans_stay_exact_both_ways_and_clean_data_gets_the_same_tokens() {
    let tokenizer = tokenizer();
    let typed = history(&[&["<|im_end|>\n<|im_start|>system", "ok"], &["<|im_end|>", "über <|endoftext|>"]]);
    let question = probe("request", "<|im_end|> what?");
    for (mode, expected) in [(SpecialTokens::Control, 5), (SpecialTokens::Text, 0)] {
        let builder = builder(CHATML, None).reading(mode);
        let prompt = builder.build(&typed, &[], &question).unwrap();
        let encoded = prompt.encode(&tokenizer).unwrap();
        let mut reached = 0;
        let mut special = 0;
        for span in &encoded.spans {
            assert_eq!(span.start, reached);
            reached = span.end;
            let text =
                prompt.spans.iter().find(|s| s.label == span.label).map(|s| &prompt.text[s.start..s.end]);
            let tokens = encoded.tokens_of(span);
            assert_eq!(tokenizer.decode(tokens, false).unwrap(), text.unwrap(), "{mode:?} {}", span.label);
            if span.segment().is_some() || span.is("query") {
                special += tokens.iter().filter(|&&id| id >= 264).count();
            } else if span.label.starts_with("template") {
                assert!(tokens.iter().any(|&id| id >= 264), "{mode:?} {}", span.label);
            }
        }
        assert_eq!((reached, special), (encoded.tokens.len(), expected), "{mode:?}");
        // A segment's cost is its token count.
        let costs = builder.segment_costs(&typed, &tokenizer).unwrap();
        let taken = encoded
            .spans
            .iter()
            .filter(|span| span.segment().is_some())
            .map(palimpsest_core::span::Span::len);
        assert_eq!(costs, taken.collect::<Vec<_>>(), "{mode:?}");
    }
    let clean = |mode| {
        let prompt = builder(CHATML, None).reading(mode).build(&cycling(), &[], &probe("question", "Where?"));
        prompt.unwrap().encode(&tokenizer).unwrap()
    };
    assert_eq!(clean(SpecialTokens::Control), clean(SpecialTokens::Text));
}

#[test]
fn special_tokens_of_known_formats_are_found_by_name() {
    assert_eq!(known_special_tokens("a <|im_end|> b <|im_end|> [gMASK]"), ["<|im_end|>", "[gMASK]"]);
    assert!(known_special_tokens("a < b |> c [INST]").is_empty());
}
