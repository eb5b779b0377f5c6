//! Quirks of files that other tools load: irrelevant ones are accepted, and ambiguous ones are never guessed.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{DType, Device};
use palimpsest_core::model::weights::GgufFile;
use palimpsest_core::model::weights::gguf_tokenizer::tokenizer_fields;
use palimpsest_core::model::{OpenModel, arch};
use palimpsest_core::text::{GgufTokenizer, TextError, Tokenizer};
use serde_json::{Value as Json, json};

use super::checkpoint::{Llama, write_gguf};
use super::{engine, fixture, prefill};

/// A copy of a fixture's config.json and of its tensors, some renamed.
fn renamed(name: &str, into: &Path, names: &[(&str, &str)]) -> PathBuf {
    let mut model = Llama::fixture(name);
    for (from, to) in names {
        let tensor = model.tensors.remove(*from).unwrap();
        if !to.is_empty() {
            model.tensors.insert((*to).to_owned(), tensor);
        }
    }
    model.write_folder(into)
}

fn refusal(path: &Path) -> String {
    let loaded = OpenModel::open(&[path.to_owned()]).and_then(|model| model.load(&Device::Cpu, DType::F32));
    loaded.map_or_else(|error| format!("{:#}", anyhow::Error::from(error)), |_| "loaded".to_owned())
}

#[test]
fn m13_one_of_two_tied_matrices_is_enough_under_either_name() {
    const PLAIN: &str = "model.embed_tokens.weight";
    const NESTED: &str = "language_model.model.embed_tokens.weight";
    const WITHIN: &str = "model.language_model.embed_tokens.weight";
    let dir = tempfile::tempdir().unwrap();
    for (i, (name, from, to)) in [
        ("gemma3-tiny", PLAIN, "lm_head.weight"),
        ("gemma3-nested-tiny", NESTED, "lm_head.weight"),
        ("gemma3-nested-tiny", NESTED, "language_model.lm_head.weight"),
        ("llama3-rope-tiny", PLAIN, "lm_head.weight"),
        ("qwen2-tiny", PLAIN, "lm_head.weight"),
        ("qwen35-nested-tiny", WITHIN, "lm_head.weight"),
    ]
    .into_iter()
    .enumerate()
    {
        let original = OpenModel::open(&[fixture(name)]).unwrap();
        assert!(original.spec().tied);
        let folder = renamed(name, &dir.path().join(i.to_string()), &[(from, to)]);
        let (expected, _) = prefill(&engine(&fixture(name), 64), &[10, 20, 30], 3);
        let (found, _) = prefill(&engine(&folder, 64), &[10, 20, 30], 3);
        assert!(found == expected, "{name}");
        if name == "gemma3-tiny" {
            // transformers 5.24 with torch, for either name: the best token and its log-probability.
            let last = &found[found.len() - original.spec().vocab..];
            let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
            let sum: f32 = last.iter().map(|logit| (logit - last[best]).exp()).sum();
            assert!(best == 136 && (sum.ln() - 0.4268).abs() < 1e-3, "{best}: {}", -sum.ln());
        }
    }
    // Neither of the two, or only one if untied, is invalid.
    let none = renamed("gemma3-tiny", &dir.path().join("none"), &[(PLAIN, "")]);
    assert!(refusal(&none).contains("`model.embed_tokens.weight` is missing"), "{}", refusal(&none));
    let mut untied = Llama::fixture("llama-tiny");
    assert_eq!(untied.config["tie_word_embeddings"], json!(false));
    untied.tensors.remove(PLAIN);
    let untied = refusal(&untied.write_folder(&dir.path().join("untied")));
    assert!(untied.contains("`model.embed_tokens.weight` is missing"), "{untied}");
}

#[test]
fn fields_of_config_json_that_change_no_number_stop_no_model() {
    let described = |name: &str, field: &str, value: &Json| {
        let text = std::fs::read(fixture(name).join("config.json")).unwrap();
        let mut config: Json = serde_json::from_slice(&text).unwrap();
        config[field] = value.clone();
        arch::from_config(&config, "config.json").map(|(_, spec)| spec).map_err(|error| error.to_string())
    };
    // Generation parameters in config.json, as transformers before 5 wrote them, with non-default values.
    let generation = json!({
        "max_length": 4096, "min_length": 1, "do_sample": true, "early_stopping": "never", "num_beams": 4, "num_beam_groups": 2,
        "diversity_penalty": 0.5, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "typical_p": 0.9,
        "repetition_penalty": 1.05, "length_penalty": 0.8, "no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 3,
        "bad_words_ids": [[5, 6]], "num_return_sequences": 2, "output_scores": true, "return_dict_in_generate": true,
        "forced_bos_token_id": 1, "forced_eos_token_id": 2, "remove_invalid_values": true,
        "exponential_decay_length_penalty": [10, 1.01], "suppress_tokens": [7], "begin_suppress_tokens": [8], "max_new_tokens": 512,
        "min_new_tokens": 2, "min_p": 0.05, "epsilon_cutoff": 0.0003, "guidance_scale": 1.5, "stop_strings": ["###"]
    });
    let released = json!({
        "pad_token_id": -1, "eos_token_id": -1, "bos_token_id": null, "unk_token_id": 4294967295u32, "max_sequence_length": 2048,
        "tokenizer_class": "LlamaTokenizer", "torch_dtype": "float32", "gradient_checkpointing": true,
        "_name_or_path": "/home/someone/out", "add_cross_attention": true, "tokenizer_padding_side": "right",
        "unsloth_version": "2024.9", "transformers.js_config": {"dtype": "q4"}, "pruned_heads": {"1": [0]}
    });
    let fields = generation.as_object().unwrap().iter().chain(released.as_object().unwrap());
    for (field, value) in fields {
        for name in ["llama-tiny", "qwen3-tiny", "gemma3-tiny", "gpt-oss-tiny"] {
            let plain = described(name, "use_cache", &json!(true)).unwrap();
            assert_eq!(described(name, field, value).as_ref(), Ok(&plain), "{name}: {field}");
        }
    }
    // Similarly named fields that are not generation parameters.
    for field in ["temperature_scale", "top_k_experts", "logit_scale", "attention_temperature"] {
        let found = described("llama-tiny", field, &json!(2.0)).unwrap_err();
        assert!(found.contains(field), "{found}");
    }
}

/// A GGUF fixture with other metadata.
fn edited(name: &str, path: &Path, change: &[(&str, Option<Value>)]) -> PathBuf {
    let mut file = std::fs::File::open(fixture(name).join("model.gguf")).unwrap();
    let content = Content::read(&mut file).unwrap();
    let mut metadata: Vec<(&str, Value)> = (content.metadata.iter())
        .filter(|(key, _)| change.iter().all(|(changed, _)| changed != key))
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    metadata.extend(change.iter().filter_map(|(key, value)| Some((*key, value.clone()?))));
    let tensors: Vec<(String, QTensor)> =
        (content.tensor_infos.keys()).map(|name| (name.clone(), tensor(&content, &mut file, name))).collect();
    write_gguf(path, &metadata, &tensors)
}

fn tensor<R: Read + Seek>(content: &Content, file: &mut R, name: &str) -> QTensor {
    content.tensor(file, name, &Device::Cpu).unwrap()
}

const PRE: &str = "tokenizer.ggml.pre";

#[test]
fn m04_a_byte_level_gguf_without_its_pre_tokeniser_is_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str, change: &[(&str, Option<Value>)]| {
        let path = edited(name, &dir.path().join("model.gguf"), change);
        let fields = tokenizer_fields(&GgufFile::open(&[path]).unwrap()).unwrap();
        Tokenizer::from_gguf_metadata(&fields)
    };
    // a, two newlines, e.g. and a digit: the tokens of the model's tokenizer.json.
    for name in ["gguf-qwen2", "gguf-qwen3", "gguf-llama", "gguf-gpt-oss"] {
        let told = open(name, &[]).unwrap();
        assert!(told.count("a\n\nb 7").unwrap() > 1);
        let error = open(name, &[(PRE, None)]).unwrap_err();
        assert!(matches!(error, TextError::MissingPreTokenizer { .. }), "{name}: {error}");
        let error = error.to_string();
        for said in [PRE, "gguf-new-metadata --pre-tokenizer", "qwen2", "llama-bpe"] {
            assert!(error.contains(said), "{error}");
        }
        // With the suggested remedy it equals the model again.
        let pre = Content::read(&mut std::fs::File::open(fixture(name).join("model.gguf")).unwrap()).unwrap();
        let again = open(name, &[(PRE, Some(pre.metadata[PRE].clone()))]).unwrap();
        assert_eq!(again.encode("a\n\nb 7").unwrap(), told.encode("a\n\nb 7").unwrap());
    }
    // SentencePiece splits by its scores alone.
    let pieces = GgufTokenizer {
        model: "llama".to_owned(),
        tokens: ["<unk>", "\u{2581}", "a", "\u{2581}a"].map(str::to_owned).to_vec(),
        scores: Some(vec![0.0, -2.0, -3.0, -1.0]),
        ..GgufTokenizer::default()
    };
    assert_eq!(Tokenizer::from_gguf_metadata(&pieces).unwrap().encode("a a").unwrap(), [3, 3]);
}

#[test]
fn ids_of_a_gguf_that_name_no_token_are_unset() {
    let dir = tempfile::tempdir().unwrap();
    let fields = |change: &[(&str, Option<Value>)]| {
        let path = edited("gguf-qwen2", &dir.path().join("model.gguf"), change);
        tokenizer_fields(&GgufFile::open(&[path]).unwrap())
    };
    let told = fields(&[]).unwrap();
    let vocab = told.tokens.len() as u32;
    for name in ["bos", "eos", "eot", "unknown", "padding"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let set = |value: Value| fields(&[(&key, Some(value))]).unwrap();
        let id = |fields: &GgufTokenizer| match name {
            "bos" => fields.bos,
            "eos" => fields.eos,
            "eot" => fields.eot,
            "unknown" => fields.unk,
            _ => fields.pad,
        };
        for (value, expected) in [
            (Value::I32(-1), None),
            (Value::I64(-1), None),
            (Value::I8(-1), None),
            (Value::U32(u32::MAX), None),
            (Value::U64(u64::MAX), None),
            // A released Mistral with 32,000 tokens and end token 32000 (llama.cpp 3635).
            (Value::U32(vocab), None),
            (Value::U32(vocab - 1), Some(vocab - 1)),
            (Value::I32(3), Some(3)),
            (Value::U64(0), Some(0)),
        ] {
            let set = set(value.clone());
            assert_eq!(id(&set), expected, "{key} {value:?}");
            assert!(Tokenizer::from_gguf_metadata(&set).is_ok());
        }
        let error = fields(&[(&key, Some(Value::String("2".to_owned())))]).unwrap_err().to_string();
        assert!(error.contains(&key), "{error}");
    }
}
