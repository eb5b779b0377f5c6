//! Keys stay with their servers and out of all that servers say.
use serde_json::json;

use palimpsest::chat::ChatModel;
use palimpsest::chat::endpoint::Endpoint;

use super::{KEY, SAMPLING, Scripted, hello, keyed, ok, patience, serve, status};

#[test]
fn a_server_that_repeats_the_key_puts_it_into_no_answer() {
    let slashed = "sk/very+secret";
    let escaped = r"sk\/very\u002Bsecret";
    let body = json!({
        "model": KEY,
        "choices": [{
            "message": {"role": "assistant", "content": format!("Bearer {KEY}."), "reasoning": format!("it is {KEY}")},
            "finish_reason": "stop"
        }],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "user": KEY}
    });
    let server = serve(vec![status("200 OK", &body.to_string())]);
    let reply = server.endpoint(0).reply(&hello(), &SAMPLING).unwrap();
    assert_eq!((reply.text.as_str(), reply.thought.as_deref()), ("Bearer [key].", Some("it is [key]")));
    assert_eq!((reply.prompt_tokens, reply.completion_tokens), (Some(11), Some(3)));

    let body =
        format!(r#"{{"choices": [{{"message": {{"content": "{escaped}"}}, "finish_reason": "stop"}}]}}"#);
    let server = serve(vec![status("200 OK", &body)]);
    let mut endpoint = keyed(&server.address(), slashed, patience(0)).unwrap();
    assert_eq!(endpoint.reply(&hello(), &SAMPLING).unwrap().text, "[key]");

    // A reply that is JSON escapes once more.
    let text = format!(r#"{{"fact": "{escaped}"}}"#);
    let message = json!({"content": text, "reasoning": text});
    let body = json!({"choices": [{"message": message, "finish_reason": "stop"}]}).to_string();
    let server = serve(vec![status("200 OK", &body)]);
    let mut endpoint = keyed(&server.address(), slashed, patience(0)).unwrap();
    let reply = endpoint.reply(&hello(), &SAMPLING).unwrap();
    assert_eq!(reply.text, r#"{"fact": "[key]"}"#);
    assert_eq!(reply.thought, Some(reply.text));

    // What keeps no secret may be a word of an answer.
    for word in ["none", "EMPTY"] {
        let server = serve(vec![ok(&format!("{word} of it"), "stop")]);
        let mut endpoint = keyed(&server.address(), word, patience(0)).unwrap();
        assert_eq!(endpoint.reply(&hello(), &SAMPLING).unwrap().text, format!("{word} of it"));
        assert!(server.seen()[0].to_lowercase().contains(&format!("bearer {}", word.to_lowercase())));
    }
}

#[test]
fn a_reply_that_is_passed_on_is_as_it_came_but_for_the_key() {
    let body = format!("data: {{\"n\": 1.50, \"key\": \"{KEY}\"}}\n\n");
    let headers = "Content-Type: text/event-stream\r\n";
    let server = serve(vec![Scripted::Reply("418 I'm a teapot", headers, body)]);
    let passed = server.endpoint(0).pass("chat/completions", Some(b"{}")).unwrap();
    assert_eq!((passed.status, passed.content_type.as_str()), (418, "text/event-stream"));
    assert_eq!(String::from_utf8(passed.body).unwrap(), "data: {\"n\": 1.50, \"key\": \"[key]\"}\n\n");
    assert!(server.seen()[0].starts_with("POST /v1/chat/completions HTTP/1.1"));
}

#[test]
fn a_redirect_is_not_followed_and_its_address_shows_no_key() {
    let elsewhere = serve(vec![ok("caught", "stop")]);
    let to = format!("Location: {}?key={KEY}\r\n", elsewhere.address().replace("#some/model", "/chat"));
    let server = serve(vec![Scripted::Reply("307 Temporary Redirect", to.leak(), String::new())]);
    let error = server.endpoint(3).reply(&hello(), &SAMPLING).unwrap_err().to_string();
    assert!(error.contains("redirected to http://127.0.0.1") && error.contains("key=[key]"), "{error}");
    assert!(!error.contains(KEY) && elsewhere.seen().is_empty(), "{error}");
}

#[test]
fn a_server_that_wants_a_key_is_told_with_the_flag() {
    let server = serve(vec![status("401 Unauthorized", "no")]);
    let mut endpoint = Endpoint::new(&server.address(), None, patience(0)).unwrap();
    let error = endpoint.reply(&hello(), &SAMPLING).unwrap_err().to_string();
    for part in
        ["no key was sent", "PALIMPSEST_API_KEY", "--key 127.0.0.1=VARIABLE", "OPENAI_API_KEY goes to"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!server.seen()[0].to_lowercase().contains("authorization"));
}
