//! `/v1/embeddings`: vectors of the embedder and of the decoder, in all input and output forms.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use palimpsest_core::engine::{Measurement, ThinkingOptions};
use palimpsest_core::model::Phase;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Served, serve};
use crate::left_out;

const EMBEDDER: &str = "all-minilm-l6-v2";

/// Written by `tests/reference/embedding_reference.py` with transformers.
#[derive(Deserialize)]
struct Reference {
    texts: Vec<String>,
    tokens: Vec<usize>,
    vectors: Vec<Vec<f32>>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../fixtures/minilm.json")).unwrap()
}

fn embed(served: &Served, body: Value) -> Value {
    served.post("/v1/embeddings", body).ok()
}

fn vectors(reply: &Value) -> Vec<Vec<f32>> {
    let entries = reply["data"].as_array().unwrap().iter().enumerate();
    let vector = |(i, entry): (usize, &Value)| {
        assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(i)));
        match &entry["embedding"] {
            Value::String(text) => {
                let bytes = STANDARD.decode(text).unwrap();
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
            }
            list => serde_json::from_value(list.clone()).unwrap(),
        }
    };
    entries.map(vector).collect()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn the_embedders_vectors_are_those_of_transformers_whatever_decoder_is_served() {
    if left_out::unless_all(EMBEDDER) {
        return;
    }
    let served = serve("llama-tiny");
    let Reference { texts, tokens, vectors: expected } = reference();
    let reply = embed(&served, json!({"model": EMBEDDER, "input": texts}));
    assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!(EMBEDDER)));
    // One text exceeds the model's limit and is truncated.
    let count: usize = tokens.iter().sum();
    assert_eq!(reply["usage"], json!({"prompt_tokens": count, "total_tokens": count}));
    let found = vectors(&reply);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert!(apart(found, expected) < 1e-4);
    }
    // A single input, and base64: bit-equal to the JSON numbers.
    let alone = vectors(&embed(&served, json!({"model": EMBEDDER, "input": texts[0]})));
    assert!(apart(&alone[0], &expected[0]) < 1e-4);
    let packed = json!({"model": EMBEDDER, "input": texts[0], "encoding_format": "base64"});
    assert_eq!(vectors(&embed(&served, packed)), alone);
    // A truncated vector, normalised like a whole one.
    let short = vectors(&embed(&served, json!({"model": EMBEDDER, "input": texts[0], "dimensions": 96})));
    let length = alone[0][..96].iter().map(|x| x * x).sum::<f32>().sqrt();
    let scaled: Vec<f32> = alone[0][..96].iter().map(|x| x / length).collect();
    assert!(apart(&short[0], &scaled) < 1e-6);
}

#[test]
fn what_cannot_be_embedded_is_refused_with_the_field() {
    if left_out::unless_all(EMBEDDER) {
        return;
    }
    let served = serve("llama-tiny");
    let own = json!({"token_ids": true});
    for (body, field) in [
        (json!({"model": EMBEDDER}), "input"),
        (json!({"model": "llama-tiny", "input": ["a", ""]}), "input[1]"),
        (json!({"model": EMBEDDER, "input": []}), "input"),
        (json!({"model": EMBEDDER, "input": [[1], [99_999]], "palimpsest": own}), "input[1][0]"),
        // Ids of OpenAI's cl100k, as LangChain sends them: within the vocabulary they would be another text.
        (json!({"model": EMBEDDER, "input": [[9906, 1917]]}), "input"),
        (json!({"model": "llama-tiny", "input": [5, 6]}), "input"),
        (json!({"model": EMBEDDER, "input": ["x", [5]]}), "input"),
        (json!({"model": EMBEDDER, "input": [5], "palimpsest": {"token_ids": false}}), "input"),
        (json!({"model": EMBEDDER, "input": [5], "palimpsest": {"token_ids": 1}}), "palimpsest.token_ids"),
        (json!({"model": EMBEDDER, "input": "x", "palimpsest": {"rows": []}}), "palimpsest.rows"),
        (json!({"model": EMBEDDER, "input": [vec![5; 257]], "palimpsest": own}), "input[0]"),
        (json!({"model": EMBEDDER, "input": "x", "dimensions": 385}), "dimensions"),
        (json!({"model": EMBEDDER, "input": "x", "dimensions": 0}), "dimensions"),
        (json!({"model": EMBEDDER, "input": "x", "encoding_format": "hex"}), "encoding_format"),
        (json!({"model": EMBEDDER, "input": "x", "colour": 1}), "colour"),
        (json!({"model": "llama-tiny", "input": [300], "palimpsest": own}), "input[0]"),
        (json!({"model": "llama-tiny", "input": vec![5; 3000], "palimpsest": own}), "input"),
    ] {
        let refused = served.post("/v1/embeddings", body.clone());
        assert_eq!((refused.status, &refused.json["error"]["param"]), (400, &json!(field)), "{body}");
    }
    let unknown = served.post("/v1/embeddings", json!({"model": "gpt-4", "input": "x"}));
    assert_eq!((unknown.status, &unknown.json["error"]["code"]), (404, &json!("model_not_found")));
    // The error names the embedder too, not only the chat model.
    let said = unknown.json["error"]["message"].as_str().unwrap();
    assert!(said.contains("gpt-4") && said.contains(EMBEDDER) && said.contains("llama-tiny"), "{said}");
    let ids = served.post("/v1/embeddings", json!({"model": EMBEDDER, "input": [[9906, 1917]]}));
    let said = ids.json["error"]["message"].as_str().unwrap();
    assert!(said.contains(EMBEDDER) && said.contains("check_embedding_ctx_length=False"), "{said}");
    assert_eq!(ids.json["error"]["code"], "token_ids_not_allowed");
    let answer = served.chat(json!({"model": EMBEDDER, "messages": super::user("x")}));
    assert_eq!(answer.status, 404);
    assert!(answer.json["error"]["message"].as_str().unwrap().contains("/v1/embeddings"), "{}", answer.json);
}

#[test]
fn all_models_are_listed() {
    let served = serve("llama-tiny");
    let models = served.get("/v1/models").ok();
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["llama-tiny", EMBEDDER]);
    for (model, entry) in ids.iter().zip(models["data"].as_array().unwrap()) {
        assert_eq!(&served.get(&format!("/v1/models/{model}")).ok(), entry);
    }
    assert_eq!(models["data"][1]["palimpsest"]["dimensions"], 384);
}

/// Reference, with its own decoder: the whole text in one forward pass.
fn mean_state(name: &str, tokens: &[u32]) -> Vec<f32> {
    let model = super::open(&super::fixture(name), 2048, ThinkingOptions::default());
    let nothing = &mut Measurement::nothing(tokens.len());
    let decoder = model.engine().decoder();
    let cache = &mut decoder.cache(tokens.len()).unwrap();
    let states = decoder.forward(tokens, tokens.len(), cache, Phase::Prefill, nothing).unwrap();
    let states: Vec<Vec<f32>> = states.to_vec2().unwrap();
    let mean = |i: usize| states.iter().map(|state| f64::from(state[i])).sum::<f64>() / states.len() as f64;
    let mean: Vec<f64> = (0..states[0].len()).map(mean).collect();
    let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
    mean.iter().map(|x| (x / length) as f32).collect()
}

#[test]
fn the_decoders_vectors_are_the_means_of_its_final_states() {
    // Softmax attention, linear layers, windows with sinks.
    for name in ["llama-tiny", "qwen35-text-tiny", "gpt-oss-tiny"] {
        let served = serve(name);
        // Longer than a chunk, and one token.
        let texts =
            ["The olive tree was felled in March, they say, and the fig tree stands by the well.", "a"];
        let reply = embed(&served, json!({"input": texts}));
        let found = vectors(&reply);
        let mut count = 0;
        for (text, found) in texts.iter().zip(&found) {
            let tokens = served.post("/tokenize", json!({"prompt": text})).ok()["tokens"].clone();
            let tokens: Vec<u32> = serde_json::from_value(tokens).unwrap();
            count += tokens.len();
            assert!(apart(found, &mean_state(name, &tokens)) < 1e-5, "{name}: {text}");
            // Token ids equal the text, and each text is embedded alone.
            let of_ids =
                vectors(&embed(&served, json!({"input": tokens, "palimpsest": {"token_ids": true}})));
            assert_eq!(&of_ids[0], found, "{name}");
        }
        assert_eq!(reply["usage"]["prompt_tokens"], json!(count));
        assert!(count > 2 * super::CHUNK);
    }
}

#[test]
fn a_decoder_whose_weights_are_damaged_has_no_vectors() {
    let root = tempfile::tempdir().unwrap();
    let folder = super::bad_input::damaged(root.path());
    let served = super::serve_path(&folder, super::Setting::default());
    let failed = served.post("/v1/embeddings", json!({"input": "Hello"}));
    assert_eq!((failed.status, &failed.json["error"]["code"]), (500, &json!("model_not_finite")));
    if !left_out::unless_all(EMBEDDER) {
        embed(&served, json!({"model": EMBEDDER, "input": "Hello"}));
    }
}
