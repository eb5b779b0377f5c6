mod borders;
mod bpe;
mod calls;
mod chat_template;
mod jinja;
mod spans;
mod special_tokens;
mod templates;
mod tokenizer;
mod vocabularies;

use jiff::civil::date;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::case::{Evidence, History, Probe, Segment, Turn};
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest_core::text::{ChatTemplate, GgufTokenizer, Tokenizer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// The most common chat format.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// No system role, trimmed content, a beginning-of-sequence token.
const TRIMS_AND_RAISES: &str = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
    {% for message in messages %}{{ '<turn>' + message['role'] + '\\n' + message['content'] | trim + '<end>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}";

/// A byte-level vocabulary with merges that would cross borders: blank lines, spaces before words, `.` and `:` with a newline.
fn metadata(pre: &str) -> GgufTokenizer {
    let mut tokens: Vec<String> =
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "<turn>", "<end>"].map(str::to_owned).to_vec();
    let specials = tokens.len();
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    tokens.extend(alphabet.iter().map(char::to_string));
    let pairs = [
        ("Ċ", "Ċ"),
        ("ĊĊ", "Ċ"),
        ("Ċ", "S"),
        ("Ċ", "Q"),
        (":", "Ċ"),
        (".", "Ċ"),
        ("?", "Ċ"),
        ("?", "ĊĊ"),
        ("Ġ", "t"),
        ("Ġt", "h"),
        ("Ġth", "e"),
        ("Ġ", "Ġ"),
        ("S", "e"),
        ("Se", "s"),
        ("u", "s"),
        ("us", "e"),
        ("use", "r"),
        ("1", "2"),
        // the first three bytes of most emoji
        ("ð", "Ł"),
        ("ðŁ", "ĺ"),
    ];
    let mut merges = Vec::new();
    for (left, right) in pairs {
        tokens.push(format!("{left}{right}"));
        merges.push(format!("{left} {right}"));
    }
    let token_types = (0..tokens.len()).map(|id| if id < specials { 3 } else { 1 }).collect();
    GgufTokenizer {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens,
        token_types,
        merges,
        bos: Some(3),
        chat_template: Some(CHATML.to_owned()),
        ..GgufTokenizer::default()
    }
}

fn tokenizer(pre: &str) -> Tokenizer {
    Tokenizer::from_gguf_metadata(&metadata(pre)).unwrap()
}

fn builder(chat_template: &str, bos: Option<&str>) -> PromptBuilder {
    let chat = ChatTemplate::new("test", chat_template, bos, None).unwrap();
    PromptBuilder::new(Templates::load(&STALE, None).unwrap(), chat)
}

/// Sessions that alternate user and assistant, with indices 0, 2, 4, ... as after truncation.
fn history(contents: &[&[&str]]) -> History {
    let sessions = contents.iter().enumerate().map(|(place, turns)| Segment {
        kind: "session".to_owned(),
        index: place * 2,
        time: Some(date(2024, 5, 1 + i8::try_from(place).unwrap()).at(9, 30, 0, 0)),
        turns: (turns.iter().enumerate())
            .map(|(turn, content)| Turn::new(if turn % 2 == 0 { "user" } else { "assistant" }, *content))
            .collect(),
    });
    History { segments: sessions.collect(), query_time: None }
}

fn cycling() -> History {
    history(&[
        &["I cycle to work every day.", "Great! How far is it?"],
        &["Any tips for tomatoes?", "Water them in the morning."],
        &["I broke my leg on Sunday.\n", "Oh no. Rest well!  "],
    ])
}

fn evidence() -> Vec<Evidence> {
    vec![Evidence::segment("old", 0), Evidence::segment("new", 4)]
}

fn probe(form: &str, query: &str) -> Probe {
    let (id, form, query) = ("P".to_owned(), form.to_owned(), query.to_owned());
    Probe { id, form, query, ..Probe::default() }
}
