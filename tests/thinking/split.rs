//! Thoughts and answers are split exactly, in text and token by token.

use std::sync::Arc;

use palimpsest_core::text::{
    GgufTokenizer, ReplyPhase, Split, ThoughtFormat, ThoughtReader, Thoughts, Tokenizer,
};

fn split(thought: Option<&str>, answer: Option<&str>) -> Split {
    Split { thought: thought.map(str::to_owned), answer: answer.map(str::to_owned) }
}

const CHANNELS: &str = "<|channel|>analysis<|message|>Rome? \n<|end|><|start|>assistant<|channel|>commentary<|message|>Look.<|end|>\
    <|start|>assistant<|channel|>final<|message|> In <|im_end|>Oslo. ";

#[test]
fn a_leading_thought_of_an_endpoints_reply_is_split_off() {
    for (text, thought, answer) in [
        ("<think>\nRome?\n</think>\n\nIn Oslo.\n", Some("Rome?"), Some("In Oslo.")),
        (" \n<think>Rome?</think>In Oslo.", Some("Rome?"), Some("In Oslo.")),
        ("<think>\n\n</think>\n\nIn Oslo.", None, Some("In Oslo.")),
        ("<think>Rome? Or", Some("Rome? Or"), None),
        ("<think>", None, None),
        // Only the first one is a thought.
        ("<think>a</think>b <think>c</think>", Some("a"), Some("b <think>c</think>")),
        // The server left the first marker in the prompt.
        ("Rome?\n</think>\n\nIn Oslo.", Some("Rome?"), Some("In Oslo.")),
        // None of these begins with a thought.
        ("In Oslo.", None, Some("In Oslo.")),
        ("In <think>Oslo</think>.", None, Some("In <think>Oslo</think>.")),
        ("<thinking>no</thinking>", None, Some("<thinking>no</thinking>")),
        ("<th", None, Some("<th")),
        ("", None, Some("")),
        (CHANNELS, Some("Rome?\n\nLook."), Some("In <|im_end|>Oslo.")),
        ("<|channel|>analysis<|message|>Rome", Some("Rome"), None),
        ("<|channel|>final <|constrain|>json<|message|>{}", None, Some("{}")),
        ("<|channel|>analysis", None, None),
    ] {
        assert_eq!(Split::of_text(text), split(thought, answer), "{text:?}");
    }
}

/// Letters and markers, with and without merges across the markers' ends.
fn tokenizer(merges: &[(&str, &str)], specials: &[&str]) -> Arc<Tokenizer> {
    let mut tokens: Vec<String> = specials.iter().map(|s| (*s).to_owned()).collect();
    let count = tokens.len();
    let mut alphabet: Vec<char> =
        tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    tokens.extend(alphabet.iter().map(char::to_string));
    tokens.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let token_types = (0..tokens.len()).map(|id| if id < count { 3 } else { 1 }).collect();
    let merges = merges.iter().map(|(a, b)| format!("{a} {b}")).collect();
    let metadata = GgufTokenizer {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens,
        token_types,
        merges,
        ..GgufTokenizer::default()
    };
    Arc::new(Tokenizer::from_gguf_metadata(&metadata).unwrap())
}

const MARKERS: [&str; 7] =
    ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|im_end|>", "<think>", "</think>"];

#[test]
fn tokens_are_split_as_text_is_whether_markers_are_tokens_or_letters() {
    let vocabularies = [
        tokenizer(&[], &MARKERS),
        tokenizer(&[], &["<|im_end|>"]),
        // The end of the marker and the text after it in one token.
        tokenizer(&[(">", "Ċ"), (">Ċ", "Ċ"), ("t", "h"), ("<", "th")], &["<|im_end|>"]),
    ];
    for tokenizer in &vocabularies {
        for (format, opened, text, thought, answer) in [
            (
                ThoughtFormat::Tags,
                false,
                "<think>\nRömé 🙂?\n</think>\n\nIn Oslo 🙂.",
                Some("Römé 🙂?"),
                Some("In Oslo 🙂."),
            ),
            (ThoughtFormat::Tags, true, "Rome?\n</think>\n\nIn Oslo.", Some("Rome?"), Some("In Oslo.")),
            (ThoughtFormat::Tags, true, "<think>\nRome?</think>In Oslo.", Some("Rome?"), Some("In Oslo.")),
            (ThoughtFormat::Tags, true, "</think>In Oslo.", None, Some("In Oslo.")),
            (ThoughtFormat::Tags, true, "Rome? Or", Some("Rome? Or"), None),
            (ThoughtFormat::Tags, false, "\n<think>Rome? Or", Some("Rome? Or"), None),
            (
                ThoughtFormat::Tags,
                false,
                "In Oslo, <think>no</think>.",
                None,
                Some("In Oslo, <think>no</think>."),
            ),
            (ThoughtFormat::Tags, false, "\n\n", None, Some("")),
            (ThoughtFormat::Tags, false, "<t", None, Some("<t")),
            (ThoughtFormat::Channels, false, CHANNELS, Some("Rome?\n\nLook."), Some("In Oslo.")),
            (ThoughtFormat::Channels, false, "<|channel|>analysis<|message|>Rome", Some("Rome"), None),
            (ThoughtFormat::Channels, false, "<|message|>In Oslo.", None, Some("In Oslo.")),
            (ThoughtFormat::Channels, false, "In Oslo.", None, Some("In Oslo.")),
        ] {
            // Special tokens are omitted from answers; here that matters only if the markers are special.
            let special = tokenizer.token_id("<think>").is_some();
            if special && text == "In Oslo, <think>no</think>." {
                continue;
            }
            let thoughts = Thoughts { format, on: true, opened };
            let tokens = tokenizer.encode(text).unwrap();
            assert_eq!(thoughts.split(tokenizer, &tokens).unwrap(), split(thought, answer), "{text:?}");
        }
    }
}

#[test]
fn a_reader_says_at_which_token_the_answer_begins() {
    let tokenizer = tokenizer(&[], &MARKERS);
    let places = |opened: bool, text: &str| {
        let thoughts = Thoughts { format: ThoughtFormat::Tags, on: true, opened };
        let mut reader = ThoughtReader::new(thoughts, Arc::clone(&tokenizer));
        let places = tokenizer.encode(text).unwrap().into_iter().map(|token| {
            reader.push(token);
            reader.place()
        });
        (places.collect::<Vec<_>>(), reader.thought())
    };
    use ReplyPhase::{Answer, Thought, Undecided};
    assert_eq!(places(false, "\n<think>a</think>b"), (vec![Undecided, Thought, Thought, Answer, Answer], 4));
    assert_eq!(places(true, "a</think>b"), (vec![Thought, Answer, Answer], 2));
    assert_eq!(places(false, "\nab"), (vec![Undecided, Answer, Answer], 0));
}
