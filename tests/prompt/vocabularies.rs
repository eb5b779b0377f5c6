//! Released vocabularies: their tokenizer.json, and their GGUF conversions. The ids are Hugging Face's (tests/fixtures/README.md).

use std::collections::BTreeMap;
use std::path::PathBuf;

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::stale::{STALE, sample};
use palimpsest::chat::{self, MessageRole};
use palimpsest::prompt::{PromptBuilder, SegmentNumbers, Templates};
use palimpsest_core::model::weights::GgufFile;
use palimpsest_core::model::weights::gguf_tokenizer::tokenizer_fields;
use palimpsest_core::text::{ChatTemplate, Tokenizer, known_pre_tokenizers};
use serde::de::DeserializeOwned;

/// Pre-tokeniser names as llama.cpp's converter writes them; the folders have the same names.
const NAMES: [&str; 9] =
    ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "glm4", "chatglm-bpe", "minimax-m2"];

fn place(name: &str) -> PathBuf {
    PathBuf::from("tests/fixtures/tokenizers").join(name)
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(place(name)).unwrap()).unwrap()
}

fn from_gguf(path: PathBuf) -> Tokenizer {
    let file = GgufFile::open(&[path]).unwrap();
    Tokenizer::from_gguf_metadata(&tokenizer_fields(&file).unwrap()).unwrap()
}

/// Asserts that `tokenizer` gives the ids of `file` for every text.
fn assert_ids(tokenizer: &Tokenizer, file: &str, what: &str) {
    let texts: Vec<String> = read("texts.json");
    let expected: Vec<Vec<u32>> = read(file);
    assert_eq!(texts.len(), expected.len());
    let wrong: Vec<_> = (texts.iter().zip(&expected))
        .map(|(text, expected)| (text, tokenizer.encode(text).unwrap(), expected))
        .filter(|(_, ids, expected)| ids != *expected)
        .collect();
    let first = wrong.first().map(|(text, ids, expected)| format!("{text:?}: {ids:?}, not {expected:?}"));
    assert!(wrong.is_empty(), "{what}: {} of {} texts differ, first {first:?}", wrong.len(), texts.len());
}

#[test]
fn tokenizer_json_gives_hugging_faces_ids() {
    for name in NAMES {
        let tokenizer = Tokenizer::from_file(&place(name).join("tokenizer.json")).unwrap();
        assert_ids(&tokenizer, &format!("{name}/ids.json"), name);
    }
}

#[test]
fn gguf_gives_hugging_faces_ids() {
    for name in NAMES {
        assert_ids(&from_gguf(place(name).join("vocab.gguf")), &format!("{name}/ids.json"), name);
    }
}

#[test]
fn the_bytes_of_tokens_join_to_what_they_decode_to() {
    let texts: Vec<String> = read("texts.json");
    for name in NAMES {
        let tokenizer = Tokenizer::from_file(&place(name).join("tokenizer.json")).unwrap();
        let tokens = tokenizer.token_bytes();
        for text in &texts {
            let ids = tokenizer.encode(text).unwrap();
            let joined: Vec<u8> = ids.iter().flat_map(|&id| tokens[id as usize].bytes.clone()).collect();
            assert_eq!(joined, tokenizer.decode(&ids, false).unwrap().into_bytes(), "{name}: {text:?}");
        }
    }
}

/// The vocabulary of gpt-2 behind another pre-tokeniser.
fn behind(pre: &str) -> Tokenizer {
    let file = GgufFile::open(&[place("gpt-2").join("vocab.gguf")]).unwrap();
    let mut fields = tokenizer_fields(&file).unwrap();
    fields.pre = Some(pre.to_owned());
    Tokenizer::from_gguf_metadata(&fields).unwrap()
}

/// Names without a fixture, each with the tested name that splits alike.
const OTHERS: [(&str, &str); 23] = [
    ("default", "gpt-2"),
    ("granite-docling", "gpt-2"),
    ("trillion", "gpt-2"),
    ("exaone4", "gpt-2"),
    ("mpt", "olmo"),
    ("refact", "smollm"),
    ("starcoder", "smollm"),
    ("exaone", "smollm"),
    ("minerva-7b", "smollm"),
    ("llama3", "llama-bpe"),
    ("llama-v3", "llama-bpe"),
    ("falcon3", "llama-bpe"),
    ("pixtral", "llama-bpe"),
    ("midm-2.0", "llama-bpe"),
    ("lfm2", "llama-bpe"),
    ("glm5", "glm4"),
    ("dbrx", "chatglm-bpe"),
    ("smaug-bpe", "chatglm-bpe"),
    ("deepseek-r1-qwen", "qwen2"),
    ("megrez", "hunyuan"),
    ("llama4", "gpt-4o"),
    ("kanana2", "gpt-4o"),
    ("hunyuan-dense", "deepseek-v3"),
];

#[test]
fn further_pre_tokenizers_give_hugging_faces_ids_and_other_names_those_of_their_own() {
    let texts: Vec<String> = read("texts.json");
    let splits: BTreeMap<String, Vec<Vec<u32>>> = read("splits.json");
    let ids = |pre: &str| {
        let tokenizer = behind(pre);
        texts.iter().map(|text| tokenizer.encode(text).unwrap()).collect::<Vec<_>>()
    };
    for (name, expected) in &splits {
        for ((text, found), expected) in texts.iter().zip(ids(name)).zip(expected) {
            assert_eq!(&found, expected, "{name}: {text:?}");
        }
    }
    for (other, name) in OTHERS {
        assert!(ids(other) == ids(name), "{other} splits unlike {name}");
    }
    for name in known_pre_tokenizers() {
        let tested = NAMES.contains(&name) || splits.contains_key(name);
        assert!(tested || OTHERS.iter().any(|(other, _)| *other == name), "{name} has no fixture");
    }
}

#[test]
fn tokens_decode_to_the_text_however_the_vocabulary_was_read() {
    let texts: Vec<String> = read("texts.json");
    for name in NAMES {
        let folder = place(name);
        for tokenizer in [
            Tokenizer::from_file(&folder.join("tokenizer.json")).unwrap(),
            from_gguf(folder.join("vocab.gguf")),
        ] {
            for text in &texts {
                let decoded = tokenizer.decode(&tokenizer.encode(text).unwrap(), false).unwrap();
                if name.starts_with("qwen") {
                    // Qwen composes accents, after which a second round changes nothing.
                    assert_eq!(
                        tokenizer.decode(&tokenizer.encode(&decoded).unwrap(), false).unwrap(),
                        decoded,
                        "{name}"
                    );
                } else {
                    assert_eq!(&decoded, text, "{name}");
                }
            }
        }
    }
}

#[test]
fn merges_of_gemma_4s_files_give_hugging_faces_ids() {
    assert_ids(&from_gguf(place("gemma4").join("vocab.gguf")), "gemma4/ids.json", "gemma4");
}

/// Gemma 3's own vocabulary of 262,144 tokens.
#[test]
fn gemmas_vocabulary_gives_hugging_faces_ids() {
    let Some(path) = crate::gemma::file() else { return };
    let tokenizer = from_gguf(path);
    assert_ids(&tokenizer, "gemma3.json", "gemma3");
    for text in read::<Vec<String>>("texts.json") {
        // A visible space decodes as a space.
        let decoded = tokenizer.decode(&tokenizer.encode(&text).unwrap(), false).unwrap();
        assert_eq!(decoded, text.replace('\u{2581}', " "));
    }
}

/// The llama.cpp checkout named by PALIMPSEST_LLAMA_CPP, for files too large to copy.
fn llama_cpp() -> Option<PathBuf> {
    let checkout = std::env::var_os("PALIMPSEST_LLAMA_CPP");
    if checkout.is_none() {
        println!("left out: PALIMPSEST_LLAMA_CPP names no checkout of llama.cpp");
    }
    checkout.map(PathBuf::from)
}

/// The released vocabularies of Llama 3, Qwen 2 and GPT-2, with the ids of Hugging Face's tokenisers, are in llama.cpp's repository, too
/// large to copy. PALIMPSEST_LLAMA_CPP names a checkout. (Its file for Qwen 3.5 is Qwen 2's vocabulary with llama.cpp's own ids, which
/// composes no accents.)
#[test]
fn released_vocabularies_in_gguf_give_hugging_faces_ids() {
    let Some(checkout) = llama_cpp() else { return };
    for name in ["llama-bpe", "qwen2", "gpt-2"] {
        let file = |ending: &str| checkout.join("models").join(format!("ggml-vocab-{name}.gguf{ending}"));
        let tokenizer = from_gguf(file(""));
        let texts = std::fs::read_to_string(file(".inp")).unwrap();
        let ids = std::fs::read_to_string(file(".out")).unwrap();
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let ids: Vec<&str> = ids.lines().collect();
        for (text, line) in texts.iter().zip(&ids) {
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text).unwrap(), expected, "{name}: {text:?}");
        }
        assert!(
            ids.len() > 40 && texts.len() >= ids.len(),
            "{name}: {} texts, {} lines of ids",
            texts.len(),
            ids.len()
        );
    }
}

/// Published chat templates are in llama.cpp's repository.
#[test]
fn published_chat_templates_render_as_in_transformers() {
    #[derive(serde::Deserialize)]
    struct Case {
        template: String,
        messages: Vec<Message>,
        rendered: String,
    }
    #[derive(serde::Deserialize)]
    struct Message {
        role: String,
        content: String,
    }
    let Some(checkout) = llama_cpp() else { return };
    for Case { template: name, messages, rendered } in read::<Vec<Case>>("templates.json") {
        let path = checkout.join("models/templates").join(format!("{name}.jinja"));
        let source = std::fs::read_to_string(path).unwrap();
        let template = ChatTemplate::new(&name, &source, Some("<B>"), Some("<E>")).unwrap();
        let messages: Vec<_> = (messages.into_iter())
            .map(|message| {
                let role = match message.role.as_str() {
                    "system" => MessageRole::System,
                    "user" => MessageRole::User,
                    _ => MessageRole::Assistant,
                };
                chat::Message { role, content: message.content }
            })
            .collect();
        assert_eq!(template.render(&messages, true).unwrap(), rendered, "{name}");
    }
}

/// Published templates with thinking off and on: the text after a user's message, as transformers renders it
/// (`_compile_jinja_template(source).render(messages, add_generation_prompt=True, enable_thinking=...)`, transformers 5).
#[test]
fn published_chat_templates_switch_thoughts_as_in_transformers() {
    use palimpsest_core::text::{ThinkingMode, ThoughtFormat};
    let Some(checkout) = llama_cpp() else { return };
    let qwen_off = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let tags = Some(ThoughtFormat::Tags);
    for (name, format, off, on) in [
        ("Qwen-Qwen3-0.6B", tags, Some(qwen_off), "<|im_end|>\n<|im_start|>assistant\n"),
        ("Qwen3.5-4B", tags, Some(qwen_off), "<|im_end|>\n<|im_start|>assistant\n<think>\n"),
        ("GLM-4.6", tags, Some("/nothink<|assistant|>\n<think></think>"), "<|assistant|>"),
        ("GLM-4.7-Flash", tags, Some("<|assistant|></think>"), "<|assistant|><think>"),
        ("MiniMax-M2", tags, None, "[e~[\n]~b]ai\n<think>\n"),
        ("openai-gpt-oss-120b", Some(ThoughtFormat::Channels), None, "<|end|><|start|>assistant"),
        ("Qwen-Qwen2.5-7B-Instruct", None, None, "<|im_end|>\n<|im_start|>assistant\n"),
        ("Qwen3-Coder", None, None, "<|im_end|>\n<|im_start|>assistant\n"),
        ("google-gemma-2-2b-it", None, None, "<end_of_turn>\n<start_of_turn>model\n"),
        (
            "meta-llama-Llama-3.1-8B-Instruct",
            None,
            None,
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ] {
        let path = checkout.join("models/templates").join(format!("{name}.jinja"));
        let source = std::fs::read_to_string(path).unwrap();
        let template = ChatTemplate::new(name, &source, Some("<B>"), Some("<E>")).unwrap();
        assert_eq!(template.thinking().format, format, "{name}");
        let user = [chat::Message { role: MessageRole::User, content: "MARK".to_owned() }];
        let tail = |mode| {
            let (set, _) = template.with_thinking(mode, None).ok()?;
            let text = set.render(&user, true).unwrap();
            Some(text.rsplit_once("MARK").unwrap().1.to_owned())
        };
        let auto = tail(ThinkingMode::Auto);
        if format.is_some() {
            assert_eq!(tail(ThinkingMode::On).as_deref(), Some(on), "{name}");
            assert_eq!(tail(ThinkingMode::Off).as_deref(), off, "{name}");
            assert_eq!(auto.as_deref(), off.or(Some(on)), "{name}");
        } else {
            assert_eq!((auto.as_deref(), tail(ThinkingMode::On)), (Some(on), None), "{name}");
        }
    }
}

/// Basis of a session's total effect: its tokens can simply be left out.
#[test]
fn a_prompt_without_a_session_has_the_tokens_of_the_whole_one_but_the_sessions() {
    let case = sample::cases(SampleSpec { segments: Some(6), seed: 0 }).unwrap().remove(0);
    let chat = ChatTemplate::new("test", super::CHATML, None, None).unwrap();
    let builder = PromptBuilder::new(Templates::load(&STALE, None).unwrap(), chat);
    let builder = builder.numbering(SegmentNumbers::Original);
    for name in NAMES {
        let tokenizer = Tokenizer::from_file(&place(name).join("tokenizer.json")).unwrap();
        for probe in &case.probes {
            let whole = builder.build(&case.history, &[], probe).unwrap().encode(&tokenizer).unwrap();
            for segment in &case.history.segments {
                let history = case.history.select(|_, other| other.index != segment.index);
                let without = builder.build(&history, &[], probe).unwrap().encode(&tokenizer).unwrap();
                let span = whole.span(&format!("session[{}]", segment.index)).unwrap();
                let left = [&whole.tokens[..span.start], &whole.tokens[span.end..]].concat();
                assert_eq!(left, without.tokens, "{name}: without session {}", segment.index);
            }
        }
    }
}
