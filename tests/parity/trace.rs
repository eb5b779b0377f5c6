//! `palimpsest trace`.

use std::path::Path;
use std::process::Command;

use safetensors::SafeTensors;
use serde_json::{Value as Json, json};

use super::{TINY, apart, engine, fixture, numbers};

pub fn trace(args: &[&str]) -> (i32, String, String) {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_palimpsest"))
        .env("PALIMPSEST_HOME", home.path())
        // If set, Candle's errors carry a backtrace.
        .env_remove("RUST_BACKTRACE")
        .arg("trace")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

pub fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_file_has_the_names_shapes_metadata_and_numbers_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let (out, stats) = (dir.path().join("out.safetensors"), dir.path().join("stats.json"));
    for name in TINY {
        let folder = fixture(name);
        let tokens = folder.join("tokens.json");
        let args = ["--model", shown(&folder), "--tokens", shown(&tokens), "--out", shown(&out)];
        let more = ["--stats", shown(&stats), "--chunk", "37", "--dtype", "f32", "--device", "cpu"];
        let (code, said, err) = trace(&[&args[..], &more[..]].concat());
        assert_eq!(code, 0, "{err}");
        assert!(said.contains("out.safetensors: 151 tokens") && said.contains(" traced"), "{said}");

        let (ours, theirs) =
            (std::fs::read(&out).unwrap(), std::fs::read(folder.join("reference.safetensors")).unwrap());
        let (_, header) = SafeTensors::read_metadata(&ours).unwrap();
        let (_, expected) = SafeTensors::read_metadata(&theirs).unwrap();
        for key in ["layers", "delta_layers", "rows", "spans"] {
            let parsed = |header: &safetensors::tensor::Metadata| -> Option<Json> {
                Some(serde_json::from_str(header.metadata().as_ref().unwrap().get(key)?).unwrap())
            };
            assert_eq!(parsed(&header), parsed(&expected), "{name}: {key}");
        }
        assert_eq!(header.metadata().as_ref().unwrap()["dtype"], "f32");
        let tensors = candle_core::safetensors::load(&out, &candle_core::Device::Cpu).unwrap();
        let theirs =
            candle_core::safetensors::load(folder.join("reference.safetensors"), &candle_core::Device::Cpu);
        let theirs = theirs.unwrap();
        for tensor in ["logits", "mass", "sink", "delta_signed", "delta_share"] {
            // Features that the model lacks are absent from its trace.
            assert_eq!(tensors.contains_key(tensor), theirs.contains_key(tensor), "{name}: {tensor}");
            let (Some(found), Some(expected)) = (tensors.get(tensor), theirs.get(tensor)) else { continue };
            assert_eq!(found.dims(), expected.dims());
            let tolerance = if tensor == "logits" { 1e-3 } else { 1e-4 };
            let difference = apart(&numbers(found), &numbers(expected));
            assert!(difference < tolerance, "{name}: {tensor} off by {difference:e}");
        }

        // The windows are the model's, and `share` is the mass of uniform attention within them: counted key by key.
        let windows: Vec<Option<usize>> =
            serde_json::from_str(&header.metadata().as_ref().unwrap()["windows"]).unwrap();
        let spec = engine(&folder, 64).decoder().spec().clone();
        let of_model: Vec<Option<usize>> =
            spec.layers.iter().filter_map(|layer| layer.attention()).map(|spec| spec.window).collect();
        assert_eq!(windows, of_model, "{name}");
        let file: Json = serde_json::from_slice(&std::fs::read(&tokens).unwrap()).unwrap();
        let range = |span: &Json| span[0].as_u64().unwrap() as usize..span[1].as_u64().unwrap() as usize;
        let mut expected = Vec::new();
        for window in &windows {
            for row in file["rows"].as_array().unwrap() {
                let rows = range(&file["spans"][row.as_str().unwrap()]);
                for keys in file["spans"].as_object().unwrap().values().map(range) {
                    let paid = rows.clone().map(|i| {
                        let seen = || (0..=i).filter(|j| window.is_none_or(|window| i - j < window));
                        seen().filter(|j| keys.contains(j)).count() as f32 / seen().count() as f32
                    });
                    expected.push(paid.sum::<f32>() / rows.len() as f32);
                }
            }
        }
        assert_eq!(tensors["share"].dims(), [windows.len(), 2, file["spans"].as_object().unwrap().len()]);
        assert!(apart(&numbers(&tensors["share"]), &expected) < 1e-6, "{name}");

        let stats: Json = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
        assert_eq!(stats["tokens"], 151);
        for field in ["prefill_seconds", "tokens_per_second", "observer_seconds"] {
            assert!(stats[field].as_f64().is_some_and(|x| x > 0.0), "{field}: {stats}");
        }
        assert_eq!(stats["peak_resident_bytes"].as_u64().is_some(), cfg!(target_os = "linux"), "{stats}");
        assert_eq!(stats["peak_device_bytes"], serde_json::json!({}), "the CPU is no card: {stats}");
    }
}

#[test]
fn generated_tokens_are_the_references_and_stats_say_where_the_time_went_without_changing_a_byte() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // One with softmax attention only, and one with delta-rule layers.
    for name in ["llama-tiny", "qwen35-text-tiny"] {
        let folder = fixture(name);
        let (tokens, stats) = (folder.join("tokens.json"), at("stats.json"));
        let traced = |tokens: &Path, out: &Path, more: &[&str]| {
            let args = ["--model", shown(&folder), "--tokens", shown(tokens), "--out", shown(out)];
            let (code, _, err) = trace(&[&args[..], more].concat());
            assert_eq!(code, 0, "{err}");
            err
        };
        let read = |path: &Path| -> Json { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
        let generate = ["--generate", "64", "--stats", shown(&stats)];
        let said = traced(&tokens, &at("with"), &generate);
        assert!(said.contains("decode linear") && said.contains("unaccounted"), "{said}");
        assert_eq!(traced(&tokens, &at("without"), &generate[..2]), "");
        let (with, without) = (std::fs::read(at("with")).unwrap(), std::fs::read(at("without")).unwrap());
        assert!(with == without, "{name}: --stats changes the output");
        let generated: Vec<u32> = candle_core::safetensors::load(at("with"), &candle_core::Device::Cpu)
            .unwrap()["generated"]
            .to_vec1()
            .unwrap();
        assert_eq!(generated, super::reference::reference(name, "greedy").to_vec1::<u32>().unwrap());

        let json = read(&stats);
        assert_eq!((&json["tokens"], &json["decode_tokens"]), (&json!(151), &json!(64)));
        assert!(json["decode_tokens_per_second"].as_f64().unwrap() > 0.0, "{json}");
        let names = ["linear", "attention", "observer", "other"];
        let mut claimed = 0.0;
        for phase in ["prefill", "decode"] {
            let parts = json["seconds"][phase].as_object().unwrap();
            assert_eq!(parts.keys().collect::<Vec<_>>(), names);
            let seconds: f64 = parts.values().map(|part| part.as_f64().unwrap()).sum();
            assert!((seconds - json[format!("{phase}_seconds")].as_f64().unwrap()).abs() < 1e-9, "{json}");
            assert!(parts.values().all(|part| part.as_f64().unwrap() >= 0.0), "{json}");
            claimed += seconds;
        }
        for part in ["load", "tokenise", "sampling", "io", "unaccounted"] {
            let seconds = json["seconds"][part].as_f64().unwrap();
            assert!(seconds >= 0.0, "{part}: {json}");
            claimed += seconds;
        }
        assert!((claimed - json["seconds"]["wall"].as_f64().unwrap()).abs() < 1e-9, "{json}");
        let calls = |phase: &str, part: &str| json["calls"][phase][part].as_u64().unwrap();
        assert_eq!((calls("prefill", "other"), calls("decode", "other")), (1, 64));
        assert_eq!(json["calls"]["sampling"], 65, "the last one chosen is not asked for");
        let layers = calls("prefill", "attention");
        assert!(layers > 0 && calls("prefill", "observer") == layers, "one chunk: {json}");
        assert_eq!((calls("decode", "attention"), calls("decode", "observer")), (64 * layers, 0));

        // Without rows nothing is observed.
        let mut file = read(&tokens);
        file["rows"] = json!([]);
        std::fs::write(at("rowless.json"), file.to_string()).unwrap();
        traced(&at("rowless.json"), &at("out"), &["--stats", shown(&stats)]);
        let json = read(&stats);
        assert_eq!((&json["observer_seconds"], &json["decode_tokens"]), (&json!(0.0), &json!(0)));
        assert_eq!(json["decode_tokens_per_second"], Json::Null);
        assert_eq!(json["calls"]["prefill"]["observer"], 0);
    }
}

#[test]
fn generated_tokens_are_rows_of_the_names_shapes_and_numbers_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
    // Softmax only, with windows and sinks, and with delta-rule layers.
    for name in ["llama-tiny", "gpt-oss-tiny", "qwen35-text-tiny"] {
        let folder = fixture(name);
        let mut file: Json =
            serde_json::from_slice(&std::fs::read(folder.join("tokens.json")).unwrap()).unwrap();
        file["rows"] = json!(["last", "each", "query", "answer"]);
        std::fs::write(&tokens, file.to_string()).unwrap();
        let args = ["--model", shown(&folder), "--tokens", shown(&tokens), "--out", shown(&out)];
        let (code, _, err) = trace(&[&args[..], &["--generate", "12"]].concat());
        assert_eq!(code, 0, "{err}");
        let bytes = std::fs::read(&out).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["rows"], r#"["last","query","answer"]"#);
        let read = |path: &Path| candle_core::safetensors::load(path, &candle_core::Device::Cpu).unwrap();
        let each = fixture("each").join(format!("{name}.safetensors"));
        let (found, expected) = (read(&out), read(&each));
        let each = found["mass_each"].dims4().unwrap();
        assert_eq!((each.2, found["mass"].dims4().unwrap().2), (12, 3));
        assert_eq!(found["share"].dims()[1], 3);
        for key in ["generated", "mass_each", "sink_each", "delta_signed_each", "delta_share_each"] {
            assert_eq!(found.contains_key(key), expected.contains_key(key), "{name}: {key}");
            let (Some(found), Some(expected)) = (found.get(key), expected.get(key)) else { continue };
            assert_eq!(found.dims(), expected.dims(), "{name}: {key}");
            let numbers = |x: &candle_core::Tensor| numbers(&x.to_dtype(candle_core::DType::F32).unwrap());
            let difference = apart(&numbers(found), &numbers(expected));
            assert!(difference < 1e-4, "{name}: {key} off by {difference:e}");
        }
    }
}

/// Runs llama-tiny over a tokens file; returns exit code, stderr, and the output file, if any.
fn traced(file: &Json, args: &[&str]) -> (i32, String, Option<Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
    std::fs::write(&tokens, file.to_string()).unwrap();
    let model = fixture(TINY[0]);
    let always = ["--model", shown(&model), "--tokens", shown(&tokens), "--out", shown(&out)];
    let (code, _, err) = trace(&[&always[..], args].concat());
    assert!(std::fs::read_dir(dir.path()).unwrap().count() <= 2, "nothing else is left behind");
    (code, err, std::fs::read(&out).ok())
}

#[test]
fn overlaps_gaps_no_rows_and_no_logits_are_all_right() {
    let file = json!({
        "tokens": [1, 2, 3, 4, 5, 6],
        "spans": {"b": [2, 4], "a": [0, 3], "query": [5, 6], "nothing": [1, 1]},
        "rows": ["query", "b"], "logits": 0,
    });
    let (code, err, out) = traced(&file, &["--chunk", "4"]);
    assert_eq!(code, 0, "{err}");
    let out = out.unwrap();
    let tensors = SafeTensors::deserialize(&out).unwrap();
    assert_eq!(tensors.tensor("logits").unwrap().shape(), [0, 267]);
    let mass = tensors.tensor("mass").unwrap();
    assert_eq!(mass.shape(), [3, 6, 2, 4]);
    let (_, header) = SafeTensors::read_metadata(&out).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    assert_eq!(metadata["spans"], r#"["b","a","query","nothing"]"#, "the file's order, not the alphabet's");
    assert_eq!(metadata["rows"], r#"["query","b"]"#);
    let values: Vec<f32> =
        mass.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    for of_rows in values.chunks_exact(8) {
        // `b` cannot see the query, and sees all of itself and of the first three tokens: together more than 1.
        assert_eq!((of_rows[6], of_rows[7], of_rows[3]), (0.0, 0.0, 0.0));
        assert!(of_rows[4] + of_rows[5] >= 1.0 - 1e-5);
        assert!(of_rows[..4].iter().all(|&m| (0.0..=1.0).contains(&m)));
    }
    let (code, err, out) = traced(&json!({"tokens": [1, 2], "spans": {}, "rows": []}), &[]);
    assert_eq!((code, out.is_some()), (0, true), "{err}");
}

#[test]
fn wrong_input_is_one_line_that_names_it_and_nothing_is_written() {
    let good = json!({
        "tokens": [1, 2, 3, 4, 5], "spans": {"old": [0, 2], "query": [3, 5]}, "rows": ["query"], "logits": 1,
    });
    let with = |field: &str, value: Json| {
        let mut file = good.clone();
        file[field] = value;
        file
    };
    assert_eq!(traced(&good, &[]).0, 0);
    for (file, args, said) in [
        (with("spans", json!({"query": [3, 6]})), &[][..], "span `query` [3, 6) is not within the 5 tokens"),
        (with("spans", json!({"query": [4, 3]})), &[], "span `query` [4, 3)"),
        (with("spans", json!({"query": [3, 3]})), &[], "row span `query` is empty"),
        (with("spans", json!({"query": [3]})), &[], "span `query` is [3]"),
        (with("spans", json!({"query": [-1, 3]})), &[], "span `query` is [-1,3]"),
        (with("rows", json!(["new"])), &[], "row `new` is none of the spans"),
        (
            with("rows", json!(["each"])),
            &[],
            "row `each` is of generated tokens, and none are asked for; add --generate",
        ),
        (with("rows", json!(["answer"])), &[], "row `answer` is of generated tokens"),
        (with("rows", json!(["each", "each"])), &["--generate", "1"], "row `each` comes twice"),
        (
            with("spans", json!({"last": [0, 2], "query": [3, 5]})),
            &[],
            "span `last`: `last`, `answer` and `each` name rows",
        ),
        (with("spans", json!({"each": [0, 2], "query": [3, 5]})), &[], "span `each`"),
        (with("logits", json!(6)), &[], "`logits` asks for 6 positions of 5"),
        (with("tokens", json!([])), &[], "`tokens` is empty"),
        (with("tokens", json!([1, 2, 267, 4, 5])), &[], "token id 267"),
        (with("tokens", json!([1, -2])), &[], "is not a tokens file"),
        (with("span", json!({})), &[], "unknown field `span`"),
        (json!([1, 2]), &[], "is not a tokens file"),
        (
            with("knockouts", json!([{"rows": "query", "keys": "old", "layers": [0, 1, 2]}])),
            &[],
            "`layers` is [0, 1, 2]; give the first layer and one past the last",
        ),
        (
            with("knockouts", json!([{"rows": "query", "keys": "old", "layers": [2, 9]}])),
            &[],
            "layers 2..9 go beyond the model's 0..3; give START..END, such as 2..3",
        ),
        (
            with("knockouts", json!([{"rows": "query", "keys": "old", "layers": [3, 9]}])),
            &[],
            "layers 3..9 are not among the model's 0..3; give START..END, such as 0..3",
        ),
        (good.clone(), &["--compare"], "nothing is knocked out, so that there is nothing to compare"),
        (
            with("tokens", json!(vec![1; 8193])),
            &[],
            "8193 tokens are more than the model's context length of 8192",
        ),
        (
            good.clone(),
            &["--generate", "8188"],
            "8193 tokens are more than the model's context length of 8192",
        ),
        (good.clone(), &["--generate", "18446744073709551615"], "the model's context length of 8192"),
        (good.clone(), &["--generate", "18446744073709551615", "--allow-longer"], "18446744073709551615"),
        (good.clone(), &["--dtype", "int4"], "`int4` is no dtype"),
        (good.clone(), &["--device", "tpu"], "`tpu` is no device"),
        (good.clone(), &["--stats", "no/such/folder/stats.json"], "no/such/folder"),
    ] {
        let (code, err, out) = traced(&file, args);
        assert_eq!((code, out), (1, None), "{err}");
        assert!(err.contains(said) && err.trim_end().lines().count() == 1, "{err:?} does not say {said:?}");
    }
    let (code, err, _) = traced(&good, &["--chunk", "0"]);
    assert!(code == 2 && err.contains("above 0"), "{err}");
}

#[test]
fn an_output_folder_or_a_model_that_is_not_there_is_named_and_an_old_file_survives_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let (model, tokens) = (fixture(TINY[0]), fixture(TINY[0]).join("tokens.json"));
    let (missing, old) = (dir.path().join("missing/out.safetensors"), dir.path().join("old.safetensors"));
    let (code, _, err) =
        trace(&["--model", shown(&model), "--tokens", shown(&tokens), "--out", shown(&missing)]);
    assert!(code == 1 && err.contains("missing/out.safetensors"), "{err}");
    std::fs::write(&old, "precious").unwrap();
    let nowhere = dir.path().join("nowhere");
    let (code, _, err) =
        trace(&["--model", shown(&nowhere), "--tokens", shown(&tokens), "--out", shown(&old)]);
    assert!(code == 1 && err.contains("nowhere"), "{err}");
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "precious");
    let (code, _, err) =
        trace(&["--model", shown(&model), "--tokens", shown(&nowhere), "--out", shown(&old)]);
    assert!(code == 1 && err.contains("nowhere"), "{err}");
}
