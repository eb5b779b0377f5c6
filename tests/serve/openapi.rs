//! `/openapi.json` describes this server; the tests of each module compare its fields with the code.

use serde_json::{Value, json};

use super::{Setting, fixture, serve, serve_path};

#[test]
fn every_path_of_the_file_takes_its_method_and_no_other() {
    let served = serve("llama-tiny");
    let file = served.get("/openapi.json").ok();
    assert_eq!(file["openapi"], "3.1.0");
    for (path, item) in file["paths"].as_object().unwrap() {
        let path = path.replace("{model}", "llama-tiny");
        let methods: Vec<&String> = item.as_object().unwrap().keys().collect();
        let (got, posted) = (served.get(&path), served.post_bytes(&path, b"x"));
        match methods.as_slice() {
            [method] if *method == "get" => {
                assert_eq!((got.status, posted.status), (200, 405), "{path}");
                assert!(item["get"]["responses"].get("200").is_some());
            }
            [method] if *method == "post" => assert_eq!((got.status, posted.status), (405, 400), "{path}"),
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn what_depends_on_the_model_is_this_models() {
    let served = serve("llama-tiny");
    let file = served.get("/openapi.json").ok();
    let schema = |name: &str| &file["components"]["schemas"][name];
    assert_eq!(file["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(schema("Model")["enum"], json!(["llama-tiny"]));
    assert_eq!(schema("EmbeddingModel")["enum"], json!(["all-minilm-l6-v2", "llama-tiny"]));
    // The bounds are those enforced on requests.
    for (body, refused) in [
        (json!({"prompt": [schema("TokenId")["maximum"]], "max_tokens": 1}), false),
        (json!({"prompt": [schema("TokenId")["maximum"].as_u64().unwrap() + 1], "max_tokens": 1}), true),
    ] {
        assert_eq!(served.complete(body.clone()).status == 400, refused, "{body}");
    }
    let layer = schema("Layer")["maximum"].as_u64().unwrap();
    for (layer, refused) in [(layer, false), (layer + 1, true)] {
        let asked = json!({"rows": ["last"], "layers": [layer]});
        let body = json!({"messages": super::user("x"), "max_tokens": 1, "palimpsest": asked});
        assert_eq!(served.chat(body).status == 400, refused, "{layer}");
    }
}

#[test]
fn the_key_is_in_the_file_where_the_server_has_one() {
    let none: Value = serve("llama-tiny").get("/openapi.json").ok();
    assert_eq!(none["security"], json!([]));
    let keyed = Setting { key: Some("a-key-of-this-test"), ..Setting::default() };
    let served = serve_path(&fixture("llama-tiny"), keyed);
    assert_eq!(served.get("/openapi.json").status, 401);
    let asked =
        served.agent.get(served.url("/openapi.json")).header("authorization", "Bearer a-key-of-this-test");
    let text = asked.call().unwrap().body_mut().read_to_string().unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(file["security"], json!([{"key": []}]));
    let open: Vec<&str> = (file["paths"].as_object().unwrap().iter())
        .filter(|(_, item)| item["get"]["security"] == json!([]))
        .map(|(path, _)| path.as_str())
        .collect();
    assert_eq!(open, ["/", "/health", "/ready"]);
    assert!(open.iter().all(|path| served.get(path).status == 200));
}
