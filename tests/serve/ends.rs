//! The end of an answer and the text before it: end tokens, stop strings, and tokens that are partial characters.

use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value as Metadata;
use palimpsest_core::engine::{Generated, StopReason, TextSide, ThinkingOptions};
use palimpsest_core::model::ModelFiles;
use serde_json::{Value, json};

use crate::parity::checkpoint::write_gguf;

use super::{Setting, fixture, joined, open, serve, serve_path, user};

fn read(folder: &Path, file: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join(file)).unwrap()).unwrap()
}

/// A copy of `llama-tiny` with edited JSON files.
fn changed(root: &Path, change: impl Fn(&str, &mut Value)) -> PathBuf {
    let folder = root.join("changed");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(fixture("llama-tiny/model.safetensors"), folder.join("model.safetensors")).unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        let mut json = read(&fixture("llama-tiny"), file);
        change(file, &mut json);
        std::fs::write(folder.join(file), json.to_string()).unwrap();
    }
    folder
}

/// Renames added tokens of `llama-tiny`, from id 264 on.
fn rename(tokenizer: &mut Value, names: [&str; 3]) {
    for (token, name) in tokenizer["added_tokens"].as_array_mut().unwrap().iter_mut().zip(names) {
        token["content"] = name.into();
    }
}

#[test]
fn m01_a_stop_string_that_is_a_special_token() {
    let served = serve("llama-tiny");
    // The bias forces one token: 264 is `<|im_start|>`, 32 is `A`.
    let body = |bias: Value, stop: &[&str], most: u64| json!({"prompt": "Hi", "logit_bias": bias, "temperature": 0, "max_tokens": most, "stop": stop});
    let special = json!({"264": 100});
    // Stop strings, the text before them, the generated tokens, the reason.
    for (bias, stops, text, tokens, reason) in [
        (&special, &["<|im_start|>"][..], "", 1, "stop"),
        (&special, &["im_st"], "", 1, "stop"),
        (&special, &["|><|"], "", 2, "stop"),
        (&special, &["<|im_start|><|im_start|><|im_start|>"], "", 3, "stop"),
        (&special, &["<|im_start|>x", "A"], "", 8, "length"),
        (&special, &[], "", 8, "length"),
        (&json!({"32": 100}), &["<|im_start|>"], "AAAAAAAA", 8, "length"),
        (&json!({"32": 100}), &["AAA"], "", 3, "stop"),
    ] {
        let asked = body(bias.clone(), stops, 8);
        let reply = served.complete(asked.clone()).ok();
        let choice = &reply["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!(reason)), "{stops:?}");
        assert_eq!(reply["usage"]["completion_tokens"], tokens, "{stops:?}");
        let frames: Vec<Value> = served.stream("/v1/completions", asked).collect();
        assert_eq!(joined(&frames, 0, "text"), (text.to_owned(), reason.to_owned()), "{stops:?}");
    }
    // In chats too; with a penalty other tokens come between, shown without the special one.
    let mixed = json!({
        "messages": user("Hi"), "logit_bias": {"264": 100, "32": 99}, "frequency_penalty": 2.0, "temperature": 0, "max_tokens": 12
    });
    let whole = served.chat(mixed.clone()).ok();
    let shown = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(shown.len() > 2 && shown.chars().all(|c| c == 'A'), "{shown}");
    let mut stopped = mixed;
    stopped["stop"] = json!(["A<|im_start|>"]);
    let reply = served.chat(stopped).ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    let content = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(shown.starts_with(content) && content.len() < shown.len(), "{content}");
}

#[test]
fn the_answer_of_a_run_ends_before_a_stop_string_with_a_special_token() {
    let model = open(&fixture("llama-tiny"), 64, ThinkingOptions::default());
    let tokenizer = model.tokenizer();
    for (text, stop, before) in [
        ("one<|im_start|>user", "<|im_start|>", "one"),
        ("one <|im_start|>user two", "<|im_start|>user", "one"),
        ("one<|im_start|>two user", "user", "onetwo"),
        ("one<|im_start|>two", "never", "onetwo"),
        ("one two", " two", "one"),
    ] {
        let tokens = tokenizer.encode(text).unwrap();
        let answer = tokenizer.decode(&tokens, true).unwrap();
        let generated = Generated { tokens, thought: 0, stop: StopReason::EndOfTurn };
        let found = model.text().before_stop(&answer, &generated, &[stop.to_owned()]).unwrap();
        assert_eq!(found.trim_end(), before, "{text}, {stop}");
    }
}

#[test]
fn m02_the_end_token_of_the_tokeniser_ends_answers_whatever_the_configs_state() {
    let chat = "{% for m in messages %}<|open|>{{ m.role }}\n{{ m.content }}<|fin|>\n{% endfor %}<|open|>assistant\n";
    let root = tempfile::tempdir().unwrap();
    let folder = |tokenizer: Value, config: Value, generation: Value| {
        changed(root.path(), |file, json| match file {
            "tokenizer.json" => rename(json, ["<|open|>", "<|fin|>", "<|padding|>"]),
            "config.json" => json["eos_token_id"] = config.clone(),
            "generation_config.json" => json["eos_token_id"] = generation.clone(),
            _ => {
                json["chat_template"] = chat.into();
                json["eos_token"] = tokenizer.clone();
                json["pad_token"] = "<|padding|>".into();
            }
        })
    };
    let fin = json!("<|fin|>");
    // The tokeniser's token, the ids of config.json and generation_config.json, and the resulting end tokens.
    for (tokenizer, config, generation, ends) in [
        (fin.clone(), Value::Null, Value::Null, vec![265]),
        (fin.clone(), json!(2), json!(2), vec![2, 265]),
        (json!({"__type": "AddedToken", "content": "<|fin|>"}), Value::Null, json!([3, 4]), vec![3, 4, 265]),
        (Value::Null, Value::Null, json!([2, 265]), vec![2, 265]),
        (Value::Null, json!(265), Value::Null, vec![265]),
        (Value::Null, json!(-1), Value::Null, vec![]),
        (json!("<|unknown|>"), Value::Null, Value::Null, vec![]),
    ] {
        let path = folder(tokenizer, config, generation);
        let side = TextSide::open(&ModelFiles::at(&path).unwrap()).unwrap();
        assert_eq!(side.stop, ends);
        assert_eq!(side.ends.iter().map(|end| end.id).collect::<Vec<_>>(), ends);
        assert!(side.ends.iter().all(|end| !end.stated.is_empty()));
    }
    let served = serve_path(&folder(fin, json!(2), Value::Null), Setting::default());
    let body = json!({"messages": user("Hi"), "logit_bias": {"265": 100}, "temperature": 0, "max_tokens": 6});
    let reply = served.chat(body).ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["usage"]["completion_tokens"], 0);
}

#[test]
fn end_tokens_of_known_names_count_and_those_within_an_answer_do_not() {
    let root = tempfile::tempdir().unwrap();
    let ends = |names: [&str; 3], special: bool| {
        let folder = changed(root.path(), |file, json| match file {
            "tokenizer.json" => {
                rename(json, names);
                for token in json["added_tokens"].as_array_mut().unwrap() {
                    token["special"] = special.into();
                }
            }
            "tokenizer_config.json" => *json = json!({}),
            _ => json["eos_token_id"] = Value::Null,
        });
        TextSide::open(&ModelFiles::at(&folder).unwrap()).unwrap().stop
    };
    for (names, special, expected) in [
        (["<|call|>", "<|return|>", "<|end|>"], true, vec![264, 265]),
        (["<|calls|>", "<|flush|>", "<|end|>"], true, vec![264, 265]),
        (["<|user|>", "<|other|>", "<|end|>"], true, vec![264, 266]),
        (["</s>", "<s>", "<pad>"], true, vec![264]),
        (["</s>", "<eos>", "[EOS]"], false, vec![]),
        (["<|im_end|>", "<end_of_turn>", "<|eot_id|>"], false, vec![264, 265, 266]),
        (["<eos>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"], true, vec![264, 265, 266]),
        (["<|fim_pad|>", "<|file_sep|>", "<tool_call>"], true, vec![]),
    ] {
        assert_eq!(ends(names, special), expected, "{names:?}");
    }
}

/// A vocabulary-only GGUF file with these texts and types (1 is normal, 3 control, 4 user-defined).
fn vocabulary(path: &Path, tokens: &[(&str, i32)], ids: &[(&str, u32)]) -> TextSide {
    let array = |values: Vec<Metadata>| Metadata::Array(values);
    let mut metadata = vec![
        ("general.architecture", Metadata::String("gpt-oss".to_owned())),
        ("tokenizer.ggml.model", Metadata::String("gpt2".to_owned())),
        ("tokenizer.ggml.pre", Metadata::String("gpt-4o".to_owned())),
        (
            "tokenizer.ggml.tokens",
            array(tokens.iter().map(|(text, _)| Metadata::String((*text).to_owned())).collect()),
        ),
        ("tokenizer.ggml.token_type", array(tokens.iter().map(|(_, kind)| Metadata::I32(*kind)).collect())),
    ];
    metadata.extend(ids.iter().map(|&(key, id)| (key, Metadata::U32(id))));
    TextSide::open(&ModelFiles::at(&write_gguf(path, &metadata, &[])).unwrap()).unwrap()
}

#[test]
fn a_gguf_file_knows_its_end_tokens_by_its_keys_and_by_their_names() {
    let root = tempfile::tempdir().unwrap();
    let harmony = [("a", 1), ("<|start|>", 3), ("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3), ("b", 1)];
    let [eos, eot, eom] = ["eos", "eot", "eom"].map(|name| format!("tokenizer.ggml.{name}_token_id"));
    for (i, (tokens, ids, ends)) in [
        (&harmony[..], vec![(eos.as_str(), 3)], vec![(3, 1), (4, 0)]),
        (&harmony, vec![], vec![(3, 0), (4, 0)]),
        (&harmony, vec![(&eos, 3), (&eot, 4), (&eom, 5)], vec![(3, 1), (4, 1), (5, 1)]),
        (
            &[("a", 1), ("<|end|>", 3), ("<|im_end|>", 4), ("</s>", 1)],
            vec![(&eos, 2), (&eot, 2)],
            vec![(1, 0), (2, 2)],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let side = vocabulary(&root.path().join(format!("{i}.gguf")), tokens, &ids);
        let found: Vec<(u32, usize)> = side.ends.iter().map(|end| (end.id, end.stated.len())).collect();
        assert_eq!(found, ends, "{tokens:?}, {ids:?}");
        assert!(side.ends.iter().all(|end| end.text == tokens[end.id as usize].0));
    }
}

#[test]
fn m09_bytes_that_become_no_character_are_told_at_once() {
    let served = serve("llama-tiny");
    // Ids of the letters that represent bytes.
    let tokenizer = read(&fixture("llama-tiny"), "tokenizer.json");
    let id = |letter: &str| tokenizer["model"]["vocab"][letter].to_string();
    // Letters of GPT-2's table: 0x80, 0xFF, 0xE2 (starts three bytes), 0xC3 (two), A.
    for (letter, text) in
        [("Ģ", "\u{fffd}"), ("ÿ", "\u{fffd}"), ("â", "\u{fffd}"), ("Ã", "\u{fffd}"), ("A", "A")]
    {
        let body =
            json!({"prompt": "Hi", "temperature": 0, "max_tokens": 40, "logit_bias": {id(letter): 100}});
        let frames: Vec<Value> = served.stream("/v1/completions", body.clone()).collect();
        assert_eq!(joined(&frames, 0, "text"), (text.repeat(40), "length".to_owned()), "{letter}");
        let pieces = frames.iter().filter_map(|frame| frame["choices"][0]["text"].as_str());
        let pieces: Vec<&str> = pieces.filter(|piece| !piece.is_empty()).collect();
        assert_eq!(pieces, vec![text; 40], "{letter}");
        assert_eq!(served.complete(body).ok()["choices"][0]["text"], text.repeat(40));
    }
}

/// `llama-tiny` with Llama 2's decoder: `▁` for spaces, bytes, and one leading space stripped.
fn sentence_pieces(root: &Path) -> PathBuf {
    changed(root, |file, json| match file {
        "tokenizer.json" => {
            let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
            let pieces = ["▁", "a", "▁a", "b", "▁b", "ab", "▁ab"].map(str::to_owned);
            let tokens = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter().chain(bytes).chain(pieces);
            let vocab: Value = tokens
                .enumerate()
                .map(|(id, token)| (token, json!(id)))
                .collect::<serde_json::Map<_, _>>()
                .into();
            json["model"] = json!({
                "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
                "merges": ["▁ a", "▁ b", "a b", "▁a b", "▁ ab"]
            });
            json["normalizer"] = json!({"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
            ]});
            json["pre_tokenizer"] = Value::Null;
            json["decoder"] = json!({"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}
            ]});
            let added = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
            json["added_tokens"] =
                json!([added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(266, "<|im_end|>")]);
        }
        "tokenizer_config.json" => {
            json["bos_token"] = "<s>".into();
            json["pad_token"] = "</s>".into();
            json["chat_template"] =
                "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}assistant:".into();
        }
        _ => json["eos_token_id"] = 266.into(),
    })
}

#[test]
fn m18_an_answer_keeps_its_first_space() {
    let root = tempfile::tempdir().unwrap();
    let served = serve_path(&sentence_pieces(root.path()), Setting::default());
    let ask = |change: Value| {
        let mut body = json!({"prompt": "ab", "temperature": 0, "max_tokens": 3, "logit_bias": {"265": 100}});
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        let reply = served.complete(body.clone()).ok();
        let frames: Vec<Value> = served.stream("/v1/completions", body).collect();
        let choice = &reply["choices"][0];
        let whole = (
            choice["text"].as_str().unwrap().to_owned(),
            choice["finish_reason"].as_str().unwrap().to_owned(),
        );
        assert_eq!(joined(&frames, 0, "text"), whole, "{change}");
        whole
    };
    // Texts as the crate `tokenizers` decodes prompt and answer together.
    for (change, text, reason) in [
        (json!({}), " ab ab ab", "length"),
        (json!({"echo": true}), "ab ab ab ab", "length"),
        (json!({"stop": [" ab"]}), "", "stop"),
        (json!({"stop": ["ab ab"]}), " ", "stop"),
        (json!({"prompt": [1]}), " ab ab ab", "length"),
        (json!({"prompt": "a b ab "}), " ab ab ab", "length"),
        // Pieces without a space, and one byte of a character repeated: 3 is the byte 0.
        (json!({"logit_bias": {"264": 100}}), "ababab", "length"),
        (json!({"logit_bias": {(3 + 0x80).to_string(): 100}}), "\u{fffd}\u{fffd}\u{fffd}", "length"),
        (json!({"logit_bias": {(3 + 0x41).to_string(): 100}}), "AAA", "length"),
    ] {
        assert_eq!(ask(change.clone()), (text.to_owned(), reason.to_owned()), "{change}");
    }
    let reply = served
        .chat(json!({"messages": user("ab"), "temperature": 0, "max_tokens": 3, "logit_bias": {"265": 100}}));
    assert_eq!(reply.ok()["choices"][0]["message"]["content"], "ab ab ab");
}
