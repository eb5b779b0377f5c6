//! Measures of `palimpsest trace`, over HTTP with the same names and values.

use std::collections::HashMap;
use std::process::Command;

use candle_core::{Device, Tensor};
use serde_json::{Map, Value, json};

use super::attention::{close, flat, spans};
use super::{Served, fixture, serve};

/// Full softmax attention, windows with sinks, and linear layers.
const MODELS: [&str; 3] = ["llama-tiny", "gpt-oss-tiny", "qwen35-text-tiny"];

const SELECTED: [&str; 2] = ["selected", "forgone"];
const MEASURES: [&str; 5] = ["mass", "share", "density", "value_norm", "output_norm"];

fn ask(served: &Served, attention: Value) -> super::Reply {
    let part = |text: &str, span: &str| json!({"type": "text", "text": text, "span": span});
    served.chat(json!({
        "messages": [{"role": "user", "content": [
            part("The fig tree stands by the well. ", "one"),
            part("The olive tree was felled in March. ", "two"),
            part("Which tree is left?", "question")
        ]}],
        "temperature": 0, "max_completion_tokens": 3, "palimpsest": attention
    }))
}

fn told(served: &Served, attention: Value) -> Value {
    ask(served, attention).ok()["choices"][0]["palimpsest"].clone()
}

/// Output of `palimpsest trace` over the same tokens.
fn traced(name: &str, attention: &Value, more: Value) -> HashMap<String, Tensor> {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
    let keys: Map<String, Value> =
        spans(attention).into_iter().map(|span| (span.label, json!([span.start, span.end]))).collect();
    let mut file =
        json!({"tokens": attention["prompt_token_ids"], "spans": keys, "rows": ["question", "last"]});
    for (key, value) in more.as_object().unwrap() {
        file[key] = value.clone();
    }
    std::fs::write(&tokens, file.to_string()).unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_palimpsest"))
        .env("PALIMPSEST_HOME", dir.path())
        .args(["trace", "--model", fixture(name).to_str().unwrap(), "--tokens", tokens.to_str().unwrap()])
        .args(["--selected", "--out", out.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    candle_core::safetensors::load(&out, &Device::Cpu).unwrap()
}

/// Densities of unseen keys are NaN: -1 here.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    let values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(|x| if x.is_nan() { -1.0 } else { x }).collect()
}

fn with_numbers(json: &Value) -> Value {
    match json {
        Value::Null => json!(-1.0),
        Value::Array(list) => list.iter().map(with_numbers).collect(),
        other => other.clone(),
    }
}

#[test]
fn lengths_densities_and_terms_of_logits_are_those_of_trace() {
    for name in MODELS {
        let served = serve(name);
        let targets = json!([{"token": 3, "against": 7}, {"position": 12, "token": 5}]);
        let rows = json!(["question", "last"]);
        // Part of the prompt is cached.
        ask(&served, Value::Null).ok();
        let asked = json!({
            "rows": rows, "heads": "all", "measures": MEASURES, "targets": targets, "token_ids": true, "selected": true
        });
        let found = told(&served, asked);
        let n = found["prompt_token_ids"].as_array().unwrap().len();
        let of_trace = json!([{"position": n - 1, "token": 3, "against": 7}, {"position": 12, "token": 5}]);
        let expected = traced(name, &found, json!({"measures": MEASURES, "targets": of_trace}));
        for key in MEASURES.into_iter().chain(["attribution", "attribution_other"]).chain(SELECTED) {
            let (shape, values) = flat(&with_numbers(&found[key]));
            assert_eq!(shape, expected[key].dims(), "{name}: {key}");
            close(&format!("{name}: {key}"), &values, &numbers(&expected[key]));
        }
        let unseen = |values: &[f32]| values.iter().filter(|x| **x < 0.0).count();
        assert!(unseen(&numbers(&expected["density"])) > 0, "{name}: every row sees every span");
        assert_eq!(found["attribution_spans"].as_array().unwrap().last().unwrap(), "(none)");
        assert_eq!(found["parts"].as_array().unwrap().len(), expected["attribution_other"].dim(1).unwrap());
        assert!(numbers(&expected["value_norm"]).iter().any(|x| *x > 1e-3), "{name}: nothing is carried");

        // The mean over heads and single heads agree.
        let mean = told(&served, json!({"rows": rows, "measures": ["output_norm", "density"]}));
        for key in ["output_norm", "density"] {
            // NaN stays NaN in a mean.
            let all = expected[key].mean(1).unwrap();
            close(&format!("{name}: {key}"), &flat(&with_numbers(&mean[key])).1, &numbers(&all));
        }
        assert!(mean.get("mass").is_none() && mean.get("share").is_none(), "{name}");
        assert!(SELECTED.iter().all(|key| mean.get(*key).is_none()), "{name}: not asked for");
        let windows = name == "gpt-oss-tiny";
        assert_eq!(numbers(&expected["forgone"]).iter().any(|x| *x > 0.01), windows, "{name}");
        let layer = found["layers"].as_array().unwrap().last().unwrap();
        let one = told(
            &served,
            json!({"rows": rows, "measures": ["value_norm", "density"], "heads": [[layer, 1]], "selected": true}),
        );
        for key in SELECTED {
            let last = expected[key].dim(0).unwrap() - 1;
            let (shape, values) = flat(&with_numbers(&one[key]));
            assert_eq!(shape[..2], [1, 2], "{name}: {key}");
            close(&format!("{name}: {key}"), &values, &numbers(&expected[key].get(last).unwrap()));
        }
        for key in ["value_norm", "density"] {
            let last = expected[key].dim(0).unwrap() - 1;
            let head = expected[key].get(last).unwrap().get(1).unwrap();
            close(&format!("{name}: {key}"), &flat(&with_numbers(&one[key])).1, &numbers(&head));
        }
    }
}

#[test]
fn tokens_are_told_as_texts_beside_their_indices() {
    let served = serve("llama-tiny");
    let asked = json!({"rows": ["question", "answer"], "top_keys": 2, "tokens": true, "token_ids": true});
    let found = told(&served, asked.clone());
    let texts: Vec<&str> =
        found["tokens"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let ids = |key: &str| found[key].as_array().unwrap().clone();
    assert_eq!(texts.len(), ids("prompt_token_ids").len() + ids("token_ids").len());
    let two = spans(&found).into_iter().find(|span| span.label == "two").unwrap();
    assert_eq!(texts[two.range()].concat().trim(), "The olive tree was felled in March.");
    for entry in found["top_keys"].as_array().unwrap().iter().flat_map(|layer| layer.as_array().unwrap()) {
        for key in entry.as_array().unwrap() {
            assert_eq!(key[2], texts[key[0].as_u64().unwrap() as usize], "{key}");
        }
    }
    let mut without = asked;
    without["tokens"] = false.into();
    let without = told(&served, without);
    assert_eq!(
        (without["top_keys"][0][0][0][0].clone(), without.get("tokens")),
        (found["top_keys"][0][0][0][0].clone(), None)
    );
    assert_eq!(without["top_keys"][0][0][0].as_array().unwrap().len(), 2);
    // Alone, without rows.
    assert_eq!(told(&served, json!({"tokens": true}))["tokens"], found["tokens"]);
}

#[test]
fn measures_that_cannot_be_taken_are_refused_by_name() {
    let served = serve("llama-tiny");
    let refused = |attention: Value, field: &str, part: &str| {
        let error = ask(&served, attention).refused(400);
        assert_eq!(error["param"], field, "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    };
    let measures = |names: Value| json!({"rows": ["last"], "measures": names});
    refused(measures(json!(["mass", "weight"])), "palimpsest.measures[1]", "value_norm");
    refused(measures(json!(["mass", "mass"])), "palimpsest.measures[1]", "again");
    let of_answer = json!({"rows": ["answer"], "measures": ["output_norm"]});
    refused(of_answer, "palimpsest.measures[0]", "of the prompt's rows");
    refused(json!({"rows": ["last"], "selected": "yes"}), "palimpsest.selected", "boolean");
    for rows in [json!([]), json!(["each"])] {
        refused(
            json!({"rows": rows, "selected": true}),
            "palimpsest.selected",
            "name a span, last or answer",
        );
    }
    // Nothing is said of the generated tokens as keys.
    let of_answer = told(&served, json!({"rows": ["answer", "question"], "selected": true}));
    let columns = of_answer["spans"].as_array().unwrap();
    let generated = columns.iter().position(|span| span["label"] == "generated").unwrap();
    for layer in of_answer["selected"].as_array().unwrap() {
        let row = layer[0].as_array().unwrap();
        assert!(row.len() == columns.len() && row[generated].is_null() && row[0] == 1.0, "{row:?}");
    }
    let targets = |target: Value| json!({"targets": [target]});
    refused(targets(json!({"token": 1 << 30})), "palimpsest.targets[0].token", "token ids are 0 to");
    refused(
        targets(json!({"token": "Thursday and Friday"})),
        "palimpsest.targets[0].token",
        "tokens of the model",
    );
    refused(targets(json!({"token": 1, "position": 4096})), "palimpsest.targets[0].position", "4096");
    let over = json!({"targets": [{"token": 1}], "spans": [{"label": "fig", "message": 0, "part": 0, "start": 4, "end": 7}]});
    refused(over, "palimpsest.targets", "share no token");
}
