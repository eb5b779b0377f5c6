//! Endpoints that think, and those that fail: exact rows.

use palimpsest::chat::endpoint::EndpointThinking;
use palimpsest_core::text::ReasoningEffort;
use serde_json::{Value, json};

use super::*;

/// A chat completion with this message.
fn said(message: &Value, finish: &str) -> Scripted {
    let body = json!({
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3}
    });
    Scripted::Reply("200 OK", "", body.to_string())
}

fn content(text: &str, finish: &str) -> Scripted {
    said(&json!({ "role": "assistant", "content": text }), finish)
}

/// Rows of a case's three probes without the case's own fields, and the requests.
pub(super) fn rows(script: Vec<Scripted>, retries: usize) -> (Vec<Value>, usize) {
    rows_told(EndpointThinking::default(), script, retries)
}

/// Same for an endpoint with this thinking setting.
fn rows_told(told: EndpointThinking, script: Vec<Scripted>, retries: usize) -> (Vec<Value>, usize) {
    let all = cases(1);
    let root = tempfile::tempdir().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let plan = Selection::of_all(&STALE).plan(&all).unwrap();
    let mut store = RunStore::open_or_create(root.path(), &header(None), plan).unwrap();
    let server = serve(script);
    let mut endpoint = server.endpoint(retries).thinking(told);
    let mut subject = ChatSubject::new(vec![&mut endpoint], SAMPLING, |_| Ok(()), shown);
    // An unreachable endpoint ends the run; its rows are written.
    let _ = run(&mut store, all.into_iter().map(Ok), &mut Memory::new(&STALE, 0), &mut subject, &stop, false);
    drop(store);
    let text = std::fs::read_to_string(root.path().join("answers.jsonl")).unwrap();
    let address = format!("endpoint http://127.0.0.1:{}/v1/chat/completions model some/model", server.port);
    let row = |line: &str| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        let fields = row.as_object_mut().unwrap();
        for field in ["case", "probe", "labels", "query"] {
            assert!(fields.remove(field).is_some(), "{field}");
        }
        if let Some(error) = fields.get("error").and_then(Value::as_str) {
            let error = error.replace(&address, "ENDPOINT");
            fields.insert("error".to_owned(), error.into());
        }
        row
    };
    (text.lines().map(row).collect(), server.seen().len())
}

fn answer(text: &str, thought: Option<&str>) -> Value {
    let mut row = json!({
        "answer": text, "stop": "end_of_turn", "prompt_tokens": 11, "completion_tokens": 3, "dropped_sessions": [0]
    });
    if let Some(thought) = thought {
        row["thought"] = thought.into();
    }
    row
}

const CUT: &str = "the budget for thinking ended before the answer; give a larger --max-thinking, or --thinking off where the model can";

#[test]
fn an_endpoint_that_thinks_has_its_thoughts_kept_apart_from_its_answers() {
    let (found, _) = rows(
        vec![
            said(&json!({ "content": "In Oslo.", "reasoning_content": " Rome?\n" }), "stop"),
            said(&json!({ "content": "In Oslo.", "reasoning": "Rome?", "reasoning_content": null }), "stop"),
            content("<think>\nRome?\n</think>\n\n In Oslo. \n", "stop"),
        ],
        0,
    );
    assert_eq!(found, vec![answer("In Oslo.", Some("Rome?")); 3]);

    let (found, _) = rows(
        vec![
            content("Rome?\n</think>\n\nIn Oslo.", "stop"),
            // Unchanged: it contains no thought.
            content(" In <think>Oslo</think>. ", "stop"),
            said(&json!({ "content": "<think>b</think>c", "reasoning": "a" }), "stop"),
        ],
        0,
    );
    let expected = [
        answer("In Oslo.", Some("Rome?")),
        answer(" In <think>Oslo</think>. ", None),
        answer("c", Some("a\n\nb")),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_thought_that_was_cut_off_is_an_error_and_no_answer() {
    let cut = |thought: &str, error: &str| {
        json!({
            "thought": thought, "prompt_tokens": 11, "completion_tokens": 3, "dropped_sessions": [0], "error": error,
            "cut": true
        })
    };
    let (found, asked) = rows(
        vec![
            content("<think>Rome? Or", "length"),
            said(&json!({ "content": null, "reasoning_content": "Rome? Or" }), "length"),
            said(&json!({ "content": "", "reasoning": "Rome? Or" }), "stop"),
        ],
        5,
    );
    let only = "the model ended its turn inside its thought, without an answer; give --thinking off where the model can, or \
                another temperature";
    assert_eq!(found, [cut("Rome? Or", CUT), cut("Rome? Or", CUT), cut("Rome? Or", only)]);
    assert_eq!(asked, 3, "the same would come again");
}

#[test]
fn endpoints_that_die_slow_down_or_refuse_leave_exact_rows() {
    let body =
        json!({ "choices": [{ "message": { "content": "In Oslo." }, "finish_reason": "stop" }] }).to_string();
    let error = |said: &str| json!({ "dropped_sessions": [], "error": format!("ENDPOINT: {said}") });

    // 1. Half a JSON, then a whole one; then half of one twice.
    let half = || Scripted::Half(body.clone(), true);
    let (found, asked) = rows(vec![half(), ok("fine", "stop"), half(), half(), ok("again", "stop")], 1);
    let said = found[1]["error"].as_str().unwrap().to_owned();
    assert!(
        said.starts_with("ENDPOINT: the connection broke (") && said.ends_with("; look at the server's log"),
        "{said}"
    );
    assert_eq!(found[1].as_object().unwrap().len(), 2, "{said}");
    assert_eq!((&found[0], &found[2]), (&answer("fine", None), &answer("again", None)));
    assert_eq!(asked, 5);

    // 2. A temporary rate limit, and a permanent one.
    let limit = || Scripted::Reply("429 Too Many Requests", "Retry-After: 1\r\n", "slow down".to_owned());
    let (found, asked) = rows(vec![limit(), ok("fine", "stop"), limit(), limit(), ok("again", "stop")], 1);
    let limited = error(
        "status 429: slow down; the server limits the rate or the quota is used up; start the same command again later",
    );
    assert_eq!(found, [answer("fine", None), limited, answer("again", None)]);
    assert_eq!(asked, 5);

    // 3. A rejection is not retried, and the run ends after three.
    let (found, asked) = rows((0..4).map(|_| status("400 Bad Request", "too long")).collect(), 3);
    let refused = error(
        "status 400: too long; the server refuses this request: is the context too long for the model?",
    );
    assert_eq!(found, vec![refused; 3]);
    assert_eq!(asked, 3);
}

#[test]
fn what_is_said_about_thoughts_is_sent_and_nothing_where_nothing_is_said() {
    let kwargs = json!({ "enable_thinking": false, "x": [1] });
    let server = serve(vec![ok("fine", "stop")]);
    let thinking = EndpointThinking {
        on: false,
        chat_template_kwargs: kwargs.as_object().unwrap().clone(),
        reasoning_effort: Some(ReasoningEffort::Low),
        max_tokens: 100,
    };
    server.endpoint(0).thinking(thinking).reply(&hello(), &SAMPLING).unwrap();
    let seen = server.seen();
    let body: Value = serde_json::from_str(seen[0].split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["chat_template_kwargs"], kwargs);
    assert_eq!((&body["reasoning_effort"], &body["max_tokens"]), (&json!("low"), &json!(132)));
}

/// The server's template opened the thought and the token limit came before its end: the reply has no marker.
#[test]
fn a_reply_that_was_cut_without_a_marker_is_no_answer_where_the_model_was_told_to_think() {
    let told = |on: bool| EndpointThinking { on, ..EndpointThinking::default() };
    let script = || {
        vec![
            content("Rome was long ago, and then", "length"),
            // Thoughts split by the server, and marked ones, are recognised.
            said(&json!({ "content": "In Os", "reasoning_content": "Rome?" }), "length"),
            content("Rome?</think>In Os", "length"),
        ]
    };
    let (found, _) = rows_told(told(true), script(), 0);
    let cut = json!({ "thought": "Rome was long ago, and then", "prompt_tokens": 11, "completion_tokens": 3,
        "dropped_sessions": [0], "error": CUT, "cut": true });
    let mut limited = answer("In Os", Some("Rome?"));
    limited["stop"] = "max_new_tokens".into();
    assert_eq!(found, [cut, limited.clone(), limited]);

    // A truncated reply of a model without a thinking setting is an answer.
    let (found, _) = rows_told(told(false), script(), 0);
    assert_eq!(
        (&found[0]["answer"], &found[0]["stop"]),
        (&json!("Rome was long ago, and then"), &json!("max_new_tokens"))
    );
    // A reply that ended its turn is an answer without a thought.
    let (found, _) = rows_told(told(true), (0..3).map(|_| content("In Oslo.", "stop")).collect(), 0);
    assert_eq!(found, vec![answer("In Oslo.", None); 3]);
    // Templates that disable thinking write an empty thought, which is not part of the answer.
    let (found, _) = rows((0..3).map(|_| content("<think>\n\n</think>\n\nIn Oslo.", "stop")).collect(), 0);
    assert_eq!(found, vec![answer("In Oslo.", None); 3]);
}
