//! Scripted language model and embedder for the conformance test: offline and deterministic.
//!
//! The language model repeats the prompt's statements in the JSON shapes that memory systems ask for. The embedder counts words. They
//! exercise the system's machinery and measure no quality.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use palimpsest_core::digest::sha256;
use serde_json::{Map, Value, json};

use super::http_server::{Handler, HttpServer, Request, Response};
use super::protocol::ModelAddress;
use crate::chat::loose_json::{self, Node};

const LANGUAGE_MODEL: &str = "scripted";
const EMBEDDER: &str = "scripted-embedder";

const DIMENSIONS: usize = 384;

const STATEMENTS: usize = 400;

const CUT: &str = "{\"facts\": [\"it ends in the mid";

pub struct ScriptedModel {
    server: HttpServer,
    chats: Arc<AtomicUsize>,
}

impl ScriptedModel {
    /// A `broken` model replies with truncated JSON.
    pub fn start(broken: bool) -> std::io::Result<Self> {
        let chats = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&chats);
        let handler: Handler = Arc::new(move |request: Request| answer(&request, broken, &counted));
        Ok(ScriptedModel { server: HttpServer::start(handler)?, chats })
    }

    pub fn llm(&self) -> ModelAddress {
        self.address(LANGUAGE_MODEL, None)
    }

    pub fn embedder(&self) -> ModelAddress {
        self.address(EMBEDDER, Some(DIMENSIONS))
    }

    pub fn chats(&self) -> usize {
        self.chats.load(Ordering::Relaxed)
    }

    fn address(&self, model: &str, dimensions: Option<usize>) -> ModelAddress {
        let base_url = format!("{}/v1", self.server.url());
        ModelAddress { base_url, key: "check".to_owned(), model: model.to_owned(), dimensions }
    }
}

fn answer(request: &Request, broken: bool, chats: &AtomicUsize) -> Response {
    let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/v1/chat/completions") => {
            chats.fetch_add(1, Ordering::Relaxed);
            let text = if broken { CUT.to_owned() } else { reply(&asked) };
            if asked["stream"] == true { streamed(&text) } else { chat(&text) }
        }
        ("POST", "/v1/embeddings") => embeddings(&asked),
        ("GET", "/v1/models") => {
            let models = [LANGUAGE_MODEL, EMBEDDER].map(|id| json!({ "id": id, "object": "model" }));
            Response::json(200, &json!({ "object": "list", "data": models }))
        }
        _ => Response::error(404, "the scripted model serves chat completions, embeddings and models"),
    }
}

fn chat(text: &str) -> Response {
    let message = json!({ "role": "assistant", "content": text });
    let words = text.split_whitespace().count();
    Response::json(
        200,
        &json!({
            "id": "scripted", "object": "chat.completion", "created": 0, "model": LANGUAGE_MODEL,
            "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": 1, "completion_tokens": words, "total_tokens": words + 1 },
        }),
    )
}

fn streamed(text: &str) -> Response {
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        let chunk = json!({
            "id": "scripted", "object": "chat.completion.chunk", "created": 0, "model": LANGUAGE_MODEL, "choices": [choice],
        });
        format!("data: {chunk}\n\n")
    };
    let said = chunk(json!({ "role": "assistant", "content": text }), Value::Null);
    let end = chunk(json!({}), "stop".into());
    let body = format!("{said}{end}data: [DONE]\n\n").into_bytes();
    Response { status: 200, content_type: "text/event-stream".to_owned(), body }
}

/// Replies with an instance of the schema, a common object in JSON mode, or plain statements.
fn reply(asked: &Value) -> String {
    let all = messages(asked);
    let last = all.last().map(String::as_str).unwrap_or_default();
    let statements = statements(last);
    let format = &asked["response_format"];
    if let Some(schema) = format["json_schema"].get("schema") {
        return instance(schema, schema, &statements, 0).to_string();
    }
    let wants_json = format["type"] == "json_object" || all.iter().any(|text| text.contains("JSON"));
    if wants_json { usual(&statements).to_string() } else { statements.join("\n") }
}

fn messages(asked: &Value) -> Vec<String> {
    let of = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    };
    asked["messages"].as_array().map(|all| all.iter().map(of).collect()).unwrap_or_default()
}

/// Statements of the last message: the strings of its last list, otherwise its lines, with speakers removed.
fn statements(text: &str) -> Vec<String> {
    let last = text.rmatch_indices('[').find_map(|(at, _)| list(&text[at..]));
    let mut found = last.unwrap_or_else(|| lines(text));
    // The conversation is at the end of a long prompt.
    found.split_off(found.len().saturating_sub(STATEMENTS))
}

/// A list of quoted strings, in JSON or Python syntax. `None` for anything else.
fn list(text: &str) -> Option<Vec<String>> {
    text[1..].trim_start().starts_with(['"', '\'']).then_some(())?;
    let read = loose_json::read(text).filter(|read| read.finished)?;
    let string = |item| if let Node::Text(text) = item { Some(text) } else { None };
    if let Node::Array(items) = read.value { items.into_iter().map(string).collect() } else { None }
}

/// Conversation lines if there are any, otherwise lines that look like sentences.
fn lines(text: &str) -> Vec<String> {
    // Prompts with known memories put the new part last, under such a heading.
    let new =
        text.rsplit_once("New Messages").map_or(text, |(_, new)| new.split("\n## ").next().unwrap_or(new));
    let said = |line: &str| {
        let (speaker, said) = line.trim().split_once(':')?;
        let known = ["user", "assistant", "human", "ai"].contains(&speaker.trim().to_lowercase().as_str());
        (known && !said.trim().is_empty()).then(|| said.trim().to_owned())
    };
    let conversation: Vec<String> = new.lines().filter_map(said).collect();
    if !conversation.is_empty() {
        return conversation;
    }
    let is_sentence = |line: &&str| {
        line.split_whitespace().count() > 2 && !line.starts_with(['#', '{', '}', '[', ']', '"', '`'])
    };
    new.lines().map(str::trim).filter(is_sentence).map(str::to_owned).collect()
}

/// Keys of well-known systems: facts and decisions (mem0), notes and evolution (A-Mem), entries (LightMem).
fn usual(statements: &[String]) -> Value {
    let event = |(at, text): (usize, &String)| json!({ "id": at.to_string(), "text": text, "event": "ADD" });
    let entry = |(at, text): (usize, &String)| json!({ "source_id": at, "fact": text });
    json!({
        "facts": statements,
        "memory": statements.iter().enumerate().map(event).collect::<Vec<_>>(),
        "data": statements.iter().enumerate().map(entry).collect::<Vec<_>>(),
        "keywords": statements.iter().flat_map(|text| text.split_whitespace()).take(5).collect::<Vec<_>>(),
        "context": statements.join(" "),
        "tags": ["note"],
        "should_evolve": false,
        "actions": [],
        "suggested_connections": [],
        "tags_to_update": [],
        "new_context_neighborhood": [],
        "new_tags_neighborhood": [],
        "action": "ignore",
        "entities": [],
        "relations": [],
    })
}

/// Depth limit for recursive schemas.
const DEPTH: usize = 12;

/// Instance of a JSON schema: strings are statements, string lists all of them, enums their first value.
fn instance(schema: &Value, root: &Value, statements: &[String], depth: usize) -> Value {
    if depth > DEPTH {
        return Value::Null;
    }
    let inner = |schema: &Value, statements: &[String]| instance(schema, root, statements, depth + 1);
    if let Some(pointer) = schema["$ref"].as_str() {
        let to = pointer.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return to.map_or(Value::Null, |to| inner(to, statements));
    }
    if let Some(first) = schema["enum"].get(0).or_else(|| schema.get("const")) {
        return first.clone();
    }
    if let Some(first) = ["anyOf", "oneOf", "allOf"].iter().find_map(|key| schema[*key].get(0)) {
        return inner(first, statements);
    }
    match schema["type"].as_str() {
        Some("object") => {
            let properties = schema["properties"].as_object().into_iter().flatten();
            let fields = properties.map(|(name, schema)| (name.clone(), inner(schema, statements)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Some("array") => {
            let each = statements.iter().map(|one| inner(&schema["items"], std::slice::from_ref(one)));
            Value::Array(each.collect())
        }
        Some("string") => statements.join(" ").into(),
        Some("integer") => 1.into(),
        Some("number") => 0.9.into(),
        Some("boolean") => false.into(),
        _ => Value::Null,
    }
}

fn embeddings(asked: &Value) -> Response {
    let texts: Vec<String> = match &asked["input"] {
        Value::String(text) => vec![text.clone()],
        Value::Array(all) => all.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect(),
        _ => return Response::error(400, "`input` is a text or a list of texts"),
    };
    let dimensions = asked["dimensions"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(DIMENSIONS);
    if !(1..=1 << 16).contains(&dimensions) {
        return Response::error(400, "`dimensions` is none that a vector has");
    }
    let encoded = asked["encoding_format"] == "base64";
    let vector = |text: &String| {
        let vector = vector(text, dimensions);
        match encoded {
            true => STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).into(),
            false => json!(vector),
        }
    };
    let data = texts.iter().enumerate();
    let data =
        data.map(|(index, text)| json!({ "object": "embedding", "index": index, "embedding": vector(text) }));
    let data: Vec<Value> = data.collect();
    let usage = json!({ "prompt_tokens": texts.len(), "total_tokens": texts.len() });
    Response::json(200, &json!({ "object": "list", "model": EMBEDDER, "data": data, "usage": usage }))
}

/// Hashed bag of words, L2-normalised.
fn vector(text: &str, dimensions: usize) -> Vec<f32> {
    let mut counts = vec![0.0_f32; dimensions];
    let lower = text.to_lowercase();
    for word in lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let digest = sha256(word);
        let place = u64::from_str_radix(&digest[..12], 16).unwrap_or_default();
        counts[(place % dimensions as u64) as usize] += 1.0;
    }
    let length = counts.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length == 0.0 {
        counts[0] = 1.0;
        return counts;
    }
    counts.iter().map(|x| x / length).collect()
}
