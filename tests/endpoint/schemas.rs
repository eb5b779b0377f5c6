//! Replies constrained by schemas, and embeddings.

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

#[test]
fn e14_a_batch_that_a_server_refuses_is_sent_in_halves() {
    let texts = ["a", "bb", "ccc"];
    let vectors = |texts: &[&str]| {
        let row = |(index, text): (usize, &&str)| json!({ "index": index, "embedding": [text.len()] });
        let rows: Vec<Value> = texts.iter().enumerate().map(row).collect();
        Scripted::Reply("200 OK", "", json!({ "data": rows }).to_string())
    };
    for (line, said, halves) in [
        ("400 Bad Request", "batch size is invalid, it should not be larger than 2.: input.contents", true),
        ("413 Payload Too Large", "Payload Too Large", true),
        ("422 Unprocessable Entity", "batch size 3 > maximum allowed batch size 2", true),
        ("400 Bad Request", "Your Batch has 121138 tokens after truncation", true),
        ("400 Bad Request", "it included too many instances", true),
        ("400 Bad Request", "there is no model of this name", false),
        ("401 Unauthorized", "no key, no batch", false),
        ("422 Unprocessable Entity", "input must be a string", false),
    ] {
        let refusal = super::status(line, &json!({ "error": { "message": said } }).to_string());
        let server = serve(vec![refusal, vectors(&texts[..1]), vectors(&texts[1..])]);
        let reply = server.endpoint(0).embeddings(&texts);
        let sent: Vec<Value> = server.seen().iter().map(|request| body(request)["input"].clone()).collect();
        match halves {
            true => {
                assert_eq!(reply.unwrap(), [[1.0], [2.0], [3.0]], "{said}");
                assert_eq!(sent, [json!(texts), json!(["a"]), json!(["bb", "ccc"])], "{said}");
            }
            false => {
                assert!(reply.unwrap_err().to_string().contains(said), "{said}");
                assert_eq!(sent.len(), 1, "{said}");
            }
        }
    }
    let server = serve(vec![super::status("400 Bad Request", "this batch is too long")]);
    assert!(server.endpoint(0).embeddings(&["one"]).is_err(), "one text has no halves");
}
