//! Norms against transformers, and logit attributions against the logits.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use safetensors::SafeTensors;
use serde_json::{Value as Json, json};

use super::trace::{shown, trace};
use super::{TINY, fixture, numbers};

type Tensors = HashMap<String, Tensor>;

fn read(path: &Path) -> Tensors {
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

fn metadata(path: &Path) -> HashMap<String, String> {
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    header.metadata().clone().unwrap()
}

fn tokens_of(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(fixture(name).join("tokens.json")).unwrap()).unwrap()
}

/// Output and metadata of `palimpsest trace` for a tokens file.
fn traced(folder: &Path, file: &Json) -> (Tensors, HashMap<String, String>) {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
    std::fs::write(&tokens, file.to_string()).unwrap();
    let args = ["--model", shown(folder), "--tokens", shown(&tokens), "--out", shown(&out), "--chunk", "37"];
    let (code, _, err) = trace(&args);
    assert_eq!(code, 0, "{}: {err}", folder.display());
    (read(&out), metadata(&out))
}

/// Maximum difference, relative for values above 1e-3.
fn off(found: &Tensor, expected: &Tensor) -> f32 {
    assert_eq!(found.dims(), expected.dims());
    let pairs = numbers(found).into_iter().zip(numbers(expected));
    pairs.map(|(found, expected)| (found - expected).abs() / expected.abs().max(1e-3)).fold(0.0, f32::max)
}

#[test]
fn lengths_are_those_of_transformers_plain_and_with_a_path_blocked() {
    for name in TINY {
        let path = fixture("measures").join(format!("{name}.safetensors"));
        let expected = read(&path);
        let mut file = tokens_of(name);
        file["measures"] = json!(["value_norm", "output_norm"]);
        for suffix in ["", "_blocked"] {
            if suffix == "_blocked" {
                file["knockouts"] = serde_json::from_str(&metadata(&path)["knockouts"]).unwrap();
            }
            let (found, _) = traced(&fixture(name), &file);
            assert!(!found.contains_key("mass") && !found.contains_key("share"), "{name}");
            for key in ["value_norm", "output_norm"] {
                let expected = &expected[&format!("{key}{suffix}")];
                let off = off(&found[key], expected);
                assert!(off < 1e-4, "{name}: {key}{suffix} off by {off:e}");
            }
        }
        // The reference distinguishes heads and layers.
        let plain = &expected["value_norm"];
        let (layers, heads) = (plain.dim(0).unwrap(), plain.dim(1).unwrap());
        let other_head =
            Tensor::cat(&[plain.narrow(1, 1, heads - 1).unwrap(), plain.narrow(1, 0, 1).unwrap()], 1);
        assert!(off(&other_head.unwrap(), plain) > 1e-2, "{name}: heads are alike");
        if layers > 1 {
            let other =
                Tensor::cat(&[plain.narrow(0, 1, layers - 1).unwrap(), plain.narrow(0, 0, 1).unwrap()], 0);
            assert!(off(&other.unwrap(), plain) > 1e-2, "{name}: layers are alike");
        }
        assert!(off(&expected["output_norm"], plain) > 1e-2, "{name}: values never cancel");
    }
}

/// Disjoint spans of a tokens file, with the option for targets.
fn with_targets(name: &str, targets: Json) -> (Json, usize) {
    let mut file = tokens_of(name);
    let n = file["tokens"].as_array().unwrap().len();
    file["spans"] = json!({"first": [1, n / 4], "third": [n / 2, n - 5], "query": [n - 4, n]});
    file["rows"] = json!(["query"]);
    file["logits"] = json!(n);
    file["targets"] = targets;
    (file, n)
}

fn sums(found: &Tensors) -> Vec<f32> {
    let heads = found["attribution"].flatten_from(1).unwrap().sum(1).unwrap();
    numbers(&(heads + found["attribution_other"].sum(1).unwrap()).unwrap())
}

#[test]
fn what_a_logit_is_made_of_adds_up_to_it_in_every_architecture() {
    for name in TINY {
        let n = tokens_of(name)["tokens"].as_array().unwrap().len();
        let asked = [(n - 1, 3, Some(7)), (n - 1, 3, None), (n / 3, 11, Some(2)), (n - 2, 5, Some(5))];
        let targets = asked.map(|(position, token, against)| match against {
            Some(against) => json!({"position": position, "token": token, "against": against}),
            None => json!({"position": position, "token": token}),
        });
        let (mut file, _) = with_targets(name, json!(targets));
        for knockouts in
            [json!([]), json!([{"rows": "query", "keys": "third", "layers": last_softmax(name)}])]
        {
            file["knockouts"] = knockouts;
            let (found, metadata) = traced(&fixture(name), &file);
            let vocabulary = found["logits"].dim(1).unwrap();
            let logits = numbers(&found["logits"]);
            let logit = |position: usize, token: usize| logits[position * vocabulary + token];
            for ((position, token, against), sum) in asked.into_iter().zip(sums(&found)) {
                let expected =
                    logit(position, token) - against.map_or(0.0, |against| logit(position, against));
                assert!((sum - expected).abs() < 1e-3, "{name} at {position}: {sum} for {expected}");
            }
            assert_eq!(metadata["attribution_spans"], r#"["first","third","query","(none)"]"#);
            let parts: Vec<String> = serde_json::from_str(&metadata["parts"]).unwrap();
            assert_eq!(parts.len(), found["attribution_other"].dim(1).unwrap());
            assert!(
                parts[0] == "embedding" && parts.iter().any(|part| part.starts_with("feed_forward[")),
                "{parts:?}"
            );
            // Every term matters: without any of them the sum would differ.
            let largest = numbers(&found["attribution"]).into_iter().map(f32::abs).fold(0.0, f32::max);
            assert!(largest > 1e-2, "{name}: heads add nothing");
        }
    }
}

/// The last softmax layer, as a range.
fn last_softmax(name: &str) -> [usize; 2] {
    let spec = super::engine(&fixture(name), 64).decoder().spec().clone();
    let last = spec.layers.iter().rposition(|layer| layer.attention().is_some()).unwrap();
    [last, last + 1]
}

#[test]
fn a_span_that_is_hidden_and_a_head_that_writes_nothing_have_no_part_in_a_logit() {
    for name in ["llama-tiny", "gemma3-tiny", "gemma4-tiny", "gpt-oss-tiny", "qwen35-text-tiny"] {
        let n = tokens_of(name)["tokens"].as_array().unwrap().len();
        let (mut file, _) = with_targets(name, json!([{"position": n - 1, "token": 3, "against": 7}]));
        // `third` ends before the last row, within its window.
        file["spans"]["third"] = json!([n - 9, n - 5]);
        let plain = traced(&fixture(name), &file).0;
        file["knockouts"] = json!([{"rows": "query", "keys": "third", "layers": last_softmax(name)}]);
        let blocked = traced(&fixture(name), &file).0;
        let of_third = |found: &Tensors| {
            let all = &found["attribution"];
            let last = all.dim(1).unwrap() - 1;
            numbers(&all.narrow(1, last, 1).unwrap().narrow(3, 1, 1).unwrap())
        };
        assert!(of_third(&plain).iter().any(|x| x.abs() > 1e-4), "{name}: {:?}", of_third(&plain));
        assert!(of_third(&blocked).iter().all(|x| *x == 0.0), "{name}: {:?}", of_third(&blocked));
    }

    // One head of one layer writes nothing.
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture("llama-tiny")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let path = dir.path().join("model.safetensors");
    let mut weights = read(&path);
    let spec = super::engine(&fixture("llama-tiny"), 64).decoder().spec().clone();
    let attention = spec.layers[1].attention().unwrap().clone();
    let name = "model.layers.1.self_attn.o_proj.weight";
    let weight = weights[name].clone();
    let zeros = weight.narrow(1, attention.head_dim, attention.head_dim).unwrap().zeros_like().unwrap();
    let rest = (attention.heads - 2) * attention.head_dim;
    let parts = [
        weight.narrow(1, 0, attention.head_dim).unwrap(),
        zeros,
        weight.narrow(1, 2 * attention.head_dim, rest).unwrap(),
    ];
    weights.insert(name.to_owned(), Tensor::cat(&parts, 1).unwrap());
    candle_core::safetensors::save(&weights, &path).unwrap();
    let n = tokens_of("llama-tiny")["tokens"].as_array().unwrap().len();
    let (mut file, _) = with_targets("llama-tiny", json!([{"position": n - 1, "token": 3}]));
    file["measures"] = json!(["mass", "value_norm", "output_norm"]);
    let found = traced(dir.path(), &file).0;
    for key in ["attribution", "value_norm", "output_norm"] {
        let layers = usize::from(key == "attribution");
        let of = |layer: usize, head: usize| {
            numbers(&found[key].narrow(layers, layer, 1).unwrap().narrow(layers + 1, head, 1).unwrap())
        };
        for layer in 0..spec.layers.len() {
            for head in 0..attention.heads {
                let nothing = of(layer, head).iter().all(|x| *x == 0.0);
                assert_eq!(nothing, (layer, head) == (1, 1), "{key} at layer {layer}, head {head}");
            }
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    let refused = |more: &[(&str, Json)]| {
        let dir = tempfile::tempdir().unwrap();
        let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
        let (mut file, _) = with_targets("llama-tiny", json!([]));
        for (key, value) in more {
            file[*key] = value.clone();
        }
        std::fs::write(&tokens, file.to_string()).unwrap();
        let folder = fixture("llama-tiny");
        let args =
            ["--model", shown(&folder), "--tokens", shown(&tokens), "--out", shown(&out), "--generate", "1"];
        let (code, _, err) = trace(&args);
        assert!(code == 1 && !out.exists(), "{err}");
        err
    };
    let err = refused(&[("measures", json!(["masses"]))]);
    assert!(err.contains("`masses`") && err.contains("output_norm"), "{err}");
    let err = refused(&[("measures", json!(["value_norm"])), ("rows", json!(["each"]))]);
    assert!(err.contains("`each`"), "{err}");
    let err = refused(&[("targets", json!([{"position": 9999, "token": 1}]))]);
    assert!(err.contains("9999") && err.contains("tokens"), "{err}");
    let err = refused(&[("targets", json!([{"position": 1, "token": 99_999_999}]))]);
    assert!(err.contains("99999999") && err.contains("vocabulary"), "{err}");
    let overlapping = json!({"query": [2, 6], "other": [5, 9]});
    let err = refused(&[("targets", json!([{"position": 1, "token": 1}])), ("spans", overlapping)]);
    assert!(err.contains("`query`") && err.contains("`other`"), "{err}");
}
