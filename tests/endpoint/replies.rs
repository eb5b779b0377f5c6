//! Replies of real servers and gateways: errors under status 200, truncated answers, non-strict JSON, rejected parameters, missing token
//! counts.

use palimpsest::runs::cost::MeanCost;
use palimpsest::runs::store::RunFolder;
use serde_json::{Value, json};

use super::thoughts::rows;
use super::*;

fn body(body: &Value) -> Scripted {
    status("200 OK", &body.to_string())
}

fn choice(choice: &Value) -> Scripted {
    body(&json!({ "choices": [choice] }))
}

/// The reply or error after these, and the number of requests.
fn replied(script: Vec<Scripted>, retries: usize) -> (Result<Reply, String>, usize) {
    let server = serve(script);
    let reply = server.endpoint(retries).reply(&hello(), &SAMPLING).map_err(|error| error.to_string());
    (reply, server.seen().len())
}

#[test]
fn e05_an_answer_that_the_provider_broke_off_is_asked_for_again_and_then_an_error() {
    let half = |finish: &str| json!({"message": {"content": "The user still"}, "finish_reason": finish});
    let mut broken: Vec<Value> = [
        "error",
        "abort",
        "aborted",
        "cancelled",
        "canceled",
        "insufficient_system_resource",
        "network_error",
        "ERROR",
    ]
    .map(half)
    .to_vec();
    for (finish, error) in [
        ("error", json!({"code": 502, "message": "Provider disconnected"})),
        ("stop", json!({"code": 502, "message": "Provider disconnected"})),
        ("stop", json!({"message": "Provider disconnected"})),
        ("length", json!("upstream")),
    ] {
        let mut choice = half(finish);
        choice["error"] = error;
        broken.push(choice);
    }
    for half in broken {
        let (reply, asked) = replied(vec![choice(&half), ok("whole", "stop")], 1);
        assert_eq!((reply.unwrap().text.as_str(), asked), ("whole", 2), "{half}");
        let (reply, asked) = replied(vec![choice(&half), choice(&half)], 1);
        let error = reply.unwrap_err();
        let quoted = ["The user still", "disconnected", "upstream"].iter().any(|words| error.contains(words));
        assert!(quoted && asked == 2, "{half}: {error}");
    }
    // As a row of a run.
    let (found, _) = rows((0..3).map(|_| choice(&half("error"))).collect(), 0);
    for row in found {
        assert!(
            row.get("answer").is_none() && row["error"].as_str().unwrap().contains("finish_reason error")
        );
    }
    // Permanent errors are not retried.
    let mut lasting = half("error");
    lasting["error"] = json!({"code": 400, "message": "no such image"});
    let (reply, asked) = replied(vec![choice(&lasting), ok("whole", "stop")], 1);
    assert!(reply.unwrap_err().contains("status 400") && asked == 1);
}

#[test]
fn e06_an_error_in_the_body_of_a_reply_is_an_error_of_its_code() {
    for (error, code) in [
        (json!({"error": {"message": "Rate limit exceeded", "code": 429}, "user_id": "u"}), "status 429"),
        (json!({"error": {"message": "slow", "code": "408"}}), "status 408"),
        (json!({"error": {"message": "down", "code": 503.0}, "choices": []}), "status 503"),
        (json!({"error": "loading", "status": 503}), "status 503"),
        (json!([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}]), "status 429"),
        (json!({"object": "error", "message": "the queue is full, an \"error\"", "code": 500}), "status 500"),
        (json!({"error": {"type": "overloaded_error", "message": "Overloaded"}}), "the reply is an error"),
        (json!({"error": "request timed out"}), "the reply is an error"),
    ] {
        let (reply, asked) = replied(vec![body(&error), ok("Fine.", "stop")], 1);
        assert_eq!((reply.unwrap().text.as_str(), asked), ("Fine.", 2), "{error}");
        let (reply, _) = replied(vec![body(&error)], 0);
        let told = reply.unwrap_err();
        assert!(told.contains(code), "{error}: {told}");
    }
    for (error, code) in [
        (json!({"error": {"message": "bad key", "code": 401}}), "--key 127.0.0.1=VARIABLE"),
        (json!({"error": {"message": "no such model", "code": 404}}), "status 404"),
        (json!({"error": "Unexpected endpoint or method."}), "Unexpected endpoint"),
        (
            json!({"error": {"message": "bad", "code": 400}, "choices": [{"message": {"content": "x"}}]}),
            "status 400",
        ),
    ] {
        let (reply, asked) = replied(vec![body(&error), ok("never", "stop")], 3);
        let told = reply.unwrap_err();
        assert!(told.contains(code) && asked == 1, "{error}: {told}");
    }
    // Retry-After applies under every status.
    let wait = json!({"error": {"code": 429}}).to_string();
    let server = serve(vec![Scripted::Reply("200 OK", "Retry-After: 1\r\n", wait), ok("Fine.", "stop")]);
    let patience = Patience { longest_delay: Duration::from_secs(5), ..patience(1) };
    let begun = std::time::Instant::now();
    let reply = keyed(&server.address(), KEY, patience).unwrap().reply(&hello(), &SAMPLING).unwrap();
    assert!(reply.text == "Fine." && begun.elapsed() >= Duration::from_secs(1));
    // Also if the prompt is too long.
    let long = body(&json!({"error": {"message": "x", "code": "context_length_exceeded"}}));
    let server = serve(vec![long]);
    assert!(server.endpoint(0).reply(&hello(), &SAMPLING).unwrap_err().too_long);
}

#[test]
fn everything_of_a_reply_but_its_text_is_optional() {
    let usage = |prompt: &str, completion: &str| {
        format!(
            "{{\"choices\":[{{\"message\":{{\"content\":\"Fine.\"}}}}],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion}}}}}"
        )
    };
    let with = |more: &str| format!("{{\"choices\":[{{\"message\":{{\"content\":\"Fine.\"}},{more}}}]}}");
    for (body, text, tokens) in [
        // Half a surrogate pair, as a token limit leaves it, and whole pairs.
        (r#"{"choices":[{"finish_reason":"length","message":{"content":"Enjoy \ud83d"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#.to_owned(), "Enjoy \u{fffd}", (Some(1), Some(2))),
        (r#"{"choices":[{"message":{"content":"\ude00 \ud83d\ude00 \\ud83d"}}]}"#.to_owned(), "\u{fffd} \u{1f600} \\ud83d", (None, None)),
        (r#"{"id":"\udfff","choices":[{"message":{"content":"Fine."}}]}"#.to_owned(), "Fine.", (None, None)),
        // A byte order mark, blank lines, raw control characters, numbers outside JSON.
        ("\u{feff}".to_owned() + &usage("10", "5"), "Fine.", (Some(10), Some(5))),
        ("\n\n  \n".to_owned() + &usage("10", "5"), "Fine.", (Some(10), Some(5))),
        ("{\"choices\":[{\"message\":{\"content\":\"a\nb\"}}]}".to_owned(), "a\nb", (None, None)),
        (with("\"logprobs\":{\"content\":[{\"logprob\":-Infinity},{\"logprob\":NaN}]}"), "Fine.", (None, None)),
        (format!("[{}]", usage("10", "5")), "Fine.", (Some(10), Some(5))),
        // Token counts.
        (usage("10.0", "5.0"), "Fine.", (Some(10), Some(5))),
        (usage("\"10\"", "5"), "Fine.", (Some(10), Some(5))),
        (usage("null", "null"), "Fine.", (None, None)),
        (usage("-1", "2.5"), "Fine.", (None, None)),
        (usage("{}", "7"), "Fine.", (None, Some(7))),
        (r#"{"choices":[{"message":{"content":"Fine."}}],"usage":"none"}"#.to_owned(), "Fine.", (None, None)),
        (r#"{"choices":[{"message":{"content":"Fine."}}],"usage":[],"error":null}"#.to_owned(), "Fine.", (None, None)),
        // Fields of unusual types.
        (with("\"finish_reason\":{\"type\":\"stop\"}"), "Fine.", (None, None)),
        (with("\"finish_reason\":7,\"index\":\"0\",\"error\":{}"), "Fine.", (None, None)),
        (r#"{"choices":[{"message":{"content":"Fine.","refusal":false,"reasoning":{"a":1}}}]}"#.to_owned(), "Fine.", (None, None)),
        (r#"{"choices":[{"message":{"content":[{"type":"image","text":3},"Fi",{"type":"text","text":"ne."}]}}]}"#.to_owned(), "Fine.", (None, None)),
        (r#"{"choices":[{"message":{"content":{"type":"text","text":"Fine."}}}]}"#.to_owned(), "Fine.", (None, None)),
    ] {
        let (reply, _) = replied(vec![status("200 OK", &body)], 0);
        let reply = reply.unwrap_or_else(|error| panic!("{body}: {error}"));
        assert_eq!((reply.text.as_str(), (reply.prompt_tokens, reply.completion_tokens)), (text, tokens), "{body}");
    }
    // Finish reasons for the token limit and for a content filter.
    for (finish, content, stop) in [
        ("length", "Fi", StopReason::MaxNewTokens),
        ("max_tokens", "Fi", StopReason::MaxNewTokens),
        ("MAX_TOKENS", "Fi", StopReason::MaxNewTokens),
        ("model_length", "Fi", StopReason::MaxNewTokens),
        ("eos", "Fi", StopReason::EndOfTurn),
        ("tool_calls", "Fi", StopReason::EndOfTurn),
        ("SAFETY", "", StopReason::Refused),
        ("sensitive", "", StopReason::Refused),
        ("refusal", "", StopReason::Refused),
    ] {
        let (reply, _) =
            replied(vec![choice(&json!({"message": {"content": content}, "finish_reason": finish}))], 0);
        assert_eq!(reply.unwrap().stop, stop, "{finish}");
    }
    // Without text it is no answer.
    let call = json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    for (message, said) in [
        (json!({"content": "Let me look.", "tool_calls": call}), "call of a tool"),
        (json!({"content": null, "tool_calls": call}), "call of a tool"),
        (json!({"content": null}), "no content"),
        (json!({"content": 7}), "no content"),
        (json!("Fine."), "no content"),
    ] {
        let (reply, asked) =
            replied(vec![choice(&json!({"message": message, "finish_reason": "tool_calls"}))], 2);
        let error = reply.unwrap_err();
        assert!(error.contains(said) && asked == 1, "{message}: {error}");
    }
    // An empty reply is told apart from one that is no reply.
    for (content, is_empty) in [(json!(""), true), (json!(null), true), (json!([]), true), (json!(7), false)]
    {
        let body = choice(&json!({"message": {"content": content}, "finish_reason": "stop"}));
        let error = serve(vec![body]).endpoint(0).reply(&hello(), &SAMPLING).unwrap_err();
        assert_eq!(error.is_empty, is_empty, "{content}: {error}");
    }
    // Keep-alive lines and no reply after them.
    let (reply, asked) = replied(vec![status("200 OK", "\n\n \n"), ok("whole", "stop")], 1);
    assert_eq!((reply.unwrap().text.as_str(), asked), ("whole", 2));
}

const TEMPERATURE: &str = r#"{"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.", "type": "invalid_request_error", "param": "temperature", "code": "unsupported_value"}}"#;
const MAX_TOKENS: &str = r#"{"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "param": "max_tokens", "code": "unsupported_parameter"}}"#;
const SEED: &str = r#"{"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 3}]}"#;

/// Body of a request.
fn sent(request: &str) -> Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn e08_a_parameter_that_is_refused_by_name_is_left_out_from_then_on() {
    let refused = |body: &str| status("400 Bad Request", body);
    let server = serve(vec![
        refused(MAX_TOKENS),
        refused(TEMPERATURE),
        status("422 Unprocessable Entity", SEED),
        ok("first", "stop"),
        ok("second", "stop"),
        ok("third", "stop"),
    ]);
    let mut endpoint = server.endpoint(0);
    assert!(endpoint.refused_parameters().is_empty());
    let mut clone = endpoint.clone();
    assert_eq!(endpoint.reply(&hello(), &SAMPLING).unwrap().text, "first");
    assert_eq!(clone.reply(&hello(), &SAMPLING).unwrap().text, "second");
    assert_eq!(endpoint.reply(&hello(), &SAMPLING).unwrap().text, "third");
    assert_eq!(clone.refused_parameters(), ["temperature", "seed"]);
    let keys = |request: &String| {
        let body = sent(request);
        body.as_object().unwrap().keys().skip(2).cloned().collect::<Vec<String>>()
    };
    let seen: Vec<Vec<String>> = server.seen().iter().map(keys).collect();
    assert_eq!(seen[0], ["temperature", "top_p", "seed", "max_tokens"]);
    assert_eq!(seen[1], ["temperature", "top_p", "seed", "max_completion_tokens"]);
    assert_eq!(seen[2], ["top_p", "seed", "max_completion_tokens"]);
    assert_eq!(seen[3..], [["top_p", "max_completion_tokens"]; 3].map(|keys| keys.map(str::to_owned)));

    // Under status 200, without a code, in another server's words.
    for (refusal, left) in [
        (
            status(
                "200 OK",
                r#"{"error": {"code": 400, "message": "Unknown name \"seed\": Cannot find field."}}"#,
            ),
            "seed",
        ),
        (status("200 OK", r#"{"error": "unsupported parameter: top_p"}"#), "top_p"),
        (refused("`temperature` and `top_p` cannot both be specified for this model."), "top_p"),
        (refused("Input validation error: `temperature` must be strictly positive"), "temperature"),
    ] {
        let server = serve(vec![refusal, ok("fine", "stop")]);
        let mut endpoint = server.endpoint(0);
        assert_eq!(endpoint.reply(&hello(), &SAMPLING).unwrap().text, "fine");
        assert_eq!(endpoint.refused_parameters(), [left]);
    }
    // An out-of-range value is the caller's error; a change that did not help is not remembered.
    let hot = Sampling { temperature: 3.0, ..SAMPLING };
    let server = serve(vec![refused("Invalid 'temperature': expected a value <= 2, but got 3 instead.")]);
    let mut endpoint = server.endpoint(0);
    let error = endpoint.reply(&hello(), &hot).unwrap_err().to_string();
    assert!(error.contains("got 3 instead") && error.contains("change the parameter"), "{error}");
    assert_eq!(server.seen().len(), 1);
    let server = serve(vec![refused(TEMPERATURE), refused("no such model"), ok("fine", "stop")]);
    let mut endpoint = server.endpoint(0);
    assert!(endpoint.reply(&hello(), &SAMPLING).unwrap_err().to_string().contains("no such model"));
    assert!(endpoint.refused_parameters().is_empty());
    // Stop strings that the server ignores are applied here.
    let server = serve(vec![
        refused("Unsupported parameter: 'stop' is not supported."),
        ok("fine\n### User", "length"),
    ]);
    let mut endpoint = server.endpoint(0).stopping_at(vec!["###".to_owned()]);
    let reply = endpoint.reply(&hello(), &SAMPLING).unwrap();
    assert_eq!((reply.text.as_str(), reply.stop), ("fine\n", StopReason::EndOfTurn));

    // Rows of a run record it.
    let script = vec![refused(TEMPERATURE), ok("a", "stop"), ok("b", "stop"), ok("c", "stop")];
    let (found, asked) = rows(script, 0);
    assert_eq!((found.len(), asked), (3, 4));
    assert!(found.iter().all(|row| row["refused_parameters"] == json!(["temperature"])));
}

/// Mean cost of a run of three questions, in words, without the seconds.
fn cost(usages: [Value; 3]) -> (String, String) {
    let all = cases(1);
    let root = tempfile::tempdir().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let plan = Selection::of_all(&STALE).plan(&all).unwrap();
    let mut store = RunStore::open_or_create(root.path(), &header(None), plan).unwrap();
    let reply = |usage| {
        body(
            &json!({"choices": [{"message": {"content": "Fine."}, "finish_reason": "stop"}], "usage": usage}),
        )
    };
    let server = serve(usages.map(reply).into());
    let mut endpoint = server.endpoint(0);
    let mut subject = ChatSubject::new(vec![&mut endpoint], SAMPLING, |_| Ok(()), shown);
    run(&mut store, all.into_iter().map(Ok), &mut Memory::new(&STALE, 0), &mut subject, &stop, false)
        .unwrap();
    drop(store);
    let words = MeanCost::of_answers(&RunFolder::read(root.path()).unwrap().costs).unwrap().to_string();
    let file = std::fs::read_to_string(root.path().join("costs.jsonl")).unwrap();
    (words.rsplit_once(", ").unwrap().0.to_owned(), file)
}

#[test]
fn e12_tokens_that_are_not_told_are_not_zero() {
    let told = json!({"prompt_tokens": 10, "completion_tokens": 5});
    let null = json!({"prompt_tokens": null, "completion_tokens": null});
    let zero = json!({"prompt_tokens": 0, "completion_tokens": 0});
    let half = json!({"prompt_tokens": 10});
    for (usages, words) in [
        ([&null, &null, &null], "tokens not told"),
        ([&Value::Null, &Value::Null, &Value::Null], "tokens not told"),
        ([&told, &null, &told], "at least 20 tokens prefilled, at least 10 generated"),
        ([&told, &told, &told], "30 tokens prefilled, 15 generated"),
        // Servers that do not count report zeros.
        ([&zero, &zero, &zero], "tokens not told"),
        ([&half, &half, &half], "30 tokens prefilled, those generated not told"),
        ([&half, &told, &half], "30 tokens prefilled, at least 5 generated"),
    ] {
        let (found, file) = cost(usages.map(Value::clone));
        assert_eq!(found, words);
        let untold = usages.iter().filter(|usage| usage["completion_tokens"] != 5).count();
        assert_eq!(file.matches("\"tokens_generated\":null").count(), untold, "{file}");
    }
}
