//! What must hold for: replies held to schemas, and embeddings.

use serde_json::{Value, json};

use palimpsest::chat::ChatModel;

use super::{SAMPLING, Scripted, hello, ok, serve};

fn body(request: &str) -> Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_schema_is_sent_as_a_strict_response_format_until_it_is_taken_back() {
    let server = serve(vec![ok("{}", "stop"), ok("{}", "stop"), ok("yes", "stop")]);
    let mut endpoint = server.endpoint(0);
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    endpoint.hold_to(Some(("W1", &schema)));
    endpoint.reply(&hello(), &SAMPLING).unwrap();
    endpoint.hold_to(Some(("W2", &schema)));
    endpoint.reply(&hello(), &SAMPLING).unwrap();
    endpoint.hold_to(None);
    endpoint.reply(&hello(), &SAMPLING).unwrap();
    let formats: Vec<Value> = server.seen().iter().map(|r| body(r)["response_format"].clone()).collect();
    let named = |name| json!({ "type": "json_schema", "json_schema": { "name": name, "strict": true, "schema": schema } });
    assert_eq!(formats, [named("W1"), named("W2"), Value::Null]);
}

#[test]
fn embeddings_come_in_the_order_of_their_texts_or_not_at_all() {
    let reply = |data: Value| Scripted::Reply("200 OK", "", json!({ "data": data }).to_string());
    let vector = |index: usize, x: f32| json!({ "index": index, "embedding": [x, 0.5] });
    let server = serve(vec![reply(json!([vector(1, 2.0), vector(0, 1.0)])), reply(json!([vector(0, 1.0)]))]);
    let endpoint = server.endpoint(0);
    assert_eq!(endpoint.embeddings(&["a", "b"]).unwrap(), [[1.0, 0.5], [2.0, 0.5]]);
    assert_eq!(body(&server.seen()[0]), json!({ "model": "some/model", "input": ["a", "b"] }));
    assert!(server.seen()[0].starts_with("POST /v1/embeddings "));
    let short = endpoint.embeddings(&["a", "b"]).unwrap_err();
    assert!(short.to_string().contains("1 vectors for 2 texts"), "{short}");
}
