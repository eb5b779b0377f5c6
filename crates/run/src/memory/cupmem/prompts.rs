//! Prompt templates of the steps: instructions (system message, constant, so that servers can cache the prefix) and data (user message);
//! and the JSON schemas of the replies, which follow the instructions for servers that do not enforce them.
//!
//! The wording is ours. All properties of a schema are required and no others allowed, as strict servers demand; a missing value is `null`.
//! Numbers are unbounded, since servers differ in what they enforce; they are clamped when parsed.

use std::sync::LazyLock;

use minijinja::UndefinedBehavior;
use minijinja::value::Serde;
use palimpsest_core::digest::sha256;
use palimpsest_core::text::sandbox::Sandbox;
use serde_json::{Map, Value, json};

use super::schema::LISTING;
use super::settings::{Settings, Step, Switch};
use crate::chat::{Message, MessageRole};

const BORDER: &str = "\n=====\n";

/// R5 uses R3's template.
const FILES: [(Step, &str); 13] = [
    (Step::Spans, include_str!("prompts/W1-spans.j2")),
    (Step::Candidates, include_str!("prompts/W2-candidates.j2")),
    (Step::LocalUpdate, include_str!("prompts/W3-local-update.j2")),
    (Step::Affected, include_str!("prompts/W4-affected.j2")),
    (Step::Proposals, include_str!("prompts/W5-proposals.j2")),
    (Step::Adjudicate, include_str!("prompts/W6-adjudicate.j2")),
    (Step::Links, include_str!("prompts/W9-links.j2")),
    (Step::Parse, include_str!("prompts/R1-parse.j2")),
    (Step::Verify, include_str!("prompts/R3-verify.j2")),
    (Step::Recover, include_str!("prompts/R4-recover.j2")),
    (Step::Ground, include_str!("prompts/R6-ground.j2")),
    (Step::Constraints, include_str!("prompts/R7-constraints.j2")),
    (Step::Answer, include_str!("prompts/R8-answer.j2")),
];

const REPLY: &str = "\n\nReply with one JSON object and nothing else. It follows this JSON schema:\n";

static TEMPLATES: LazyLock<Result<Sandbox, String>> = LazyLock::new(|| {
    // Strict: an undefined variable is an error.
    let mut env = Sandbox::new(UndefinedBehavior::Strict).map_err(|error| error.to_string())?;
    for (step, source) in FILES {
        let (instructions, data) = source
            .split_once(BORDER)
            .ok_or_else(|| format!("the template of {step} has no part for data"))?;
        for (part, source) in [("instructions", instructions), ("data", data)] {
            env.add_template(&format!("{step}.{part}"), source.to_owned())
                .map_err(|error| error.to_string())?;
        }
    }
    Ok(env)
});

pub fn instructions(step: Step, settings: &Settings, shape: &Value) -> Result<String, String> {
    let of = json!({
        "code": settings.is_code(),
        "may_be_unknown": !settings.lacks(Switch::NoUnknown),
        "schema": LISTING,
    });
    Ok(format!("{}{REPLY}{shape}", render(step, "instructions", &of)?))
}

pub fn messages(
    step: Step,
    settings: &Settings,
    data: &Value,
    shape: &Value,
) -> Result<Vec<Message>, String> {
    Ok(vec![
        Message { role: MessageRole::System, content: instructions(step, settings, shape)? },
        Message { role: MessageRole::User, content: render(step, "data", data)? },
    ])
}

fn render(step: Step, part: &str, values: &Value) -> Result<String, String> {
    let step = if step == Step::VerifyAgain { Step::Verify } else { step };
    let env = TEMPLATES.as_ref().map_err(Clone::clone)?;
    let bytes = values.to_string().len();
    let values = minijinja::Value::from(Serde(values));
    let text = env.render(&format!("{step}.{part}"), values, bytes);
    text.map(|text| text.trim().to_owned()).map_err(|error| error.to_string())
}

pub fn digest() -> String {
    let all: Vec<&str> = FILES.iter().map(|(_, source)| *source).chain([REPLY]).collect();
    sha256(all.join("\n"))
}

/// Schema of a step's reply. Lists are bounded to stop a model that repeats itself.
pub fn shape(step: Step, settings: &Settings) -> Value {
    let is_code = settings.is_code();
    let unless_unknown = |words: &str, unknown: &str| match settings.lacks(Switch::NoUnknown) {
        true => words.to_owned(),
        false => format!("{words}|{unknown}"),
    };
    expanded(&match step {
        Step::Spans => json!({ "spans": [24, {
            "turns": [8, "integer"], "text": "string", "type": "state|support|noise|past_future", "slots": [3, "string"],
            "scope": "current|past|future|mixed", "salience": "number", "strength": "weak|medium|strong",
            "change": "none|weak|medium|strong",
        }] }),
        Step::Candidates => json!({ "candidates": [8, {
            "domain": "string", "slot": "string", "value": "string", "source": "explicit|inferred", "kind": "observed|upstream",
            "confidence": "number", "spans": [8, "string"],
        }] }),
        Step::LocalUpdate => json!({
            "decision": if is_code { "ADD|REFINE|REPLACE|NO_OP|INVALIDATE" } else { "ADD|REFINE|REPLACE|NO_OP" },
            "target": "string?", "reason": "string",
        }),
        Step::Affected => json!({ "affected": [3, {
            "domain": "string", "reason": "string", "confidence": "number",
        }] }),
        Step::Proposals if is_code => json!({ "proposals": [3, {
            "slot": "string", "item": "string?", "value": "string", "updates": [8, "string"], "spans": [8, "string"],
            "reason": "string", "confidence": "number",
        }] }),
        Step::Proposals => json!({ "proposals": [3, {
            "item": "string", "value": "string", "updates": [8, "string"], "spans": [8, "string"], "reason": "string",
            "confidence": "number",
        }] }),
        Step::Adjudicate if is_code => json!({
            "decision": unless_unknown("INDIRECT_INVALIDATE|WEAK_CHALLENGE|NO_OP", "SET_UNKNOWN_CURRENT"),
            "target": "string?", "reason": "string",
        }),
        Step::Adjudicate => json!({
            "decision": unless_unknown("KEEP|STALE|REPLACE", "UNKNOWN"), "target": "string?", "value": "string?",
            "reason": "string",
        }),
        Step::Links => json!({ "relation": "SUPPORT|SUCCESSOR|NONE", "reason": "string" }),
        Step::Parse if is_code => json!({
            "intent": "validity_check|premise_laden|task_planning", "slots": [4, "string"], "proposition": "string",
            "old_premise": "string", "basis": "string", "action": "string", "goal": "string", "options": [6, "string"],
            "hidden_setup": "string", "presuppositions": [6, "string"],
        }),
        Step::Parse => json!({
            "intent": "string", "presuppositions": [6, "string"], "basis": "string", "action": "string",
        }),
        Step::Verify | Step::VerifyAgain => json!({
            "status": "SUPPORTED|OUTDATED|UNRESOLVED", "confidence": "number", "supporting": [16, "string"],
            "outdated": [16, "string"], "usable": [16, "string"], "blocked": [16, "string"], "historical": [16, "string"],
            "unknown_slots": [6, "string"], "facts": [8, { "text": "string", "items": [4, "string"] }],
            "premise_safe": "boolean",
        }),
        Step::Recover => json!({ "keep": [8, "string"], "reason": "string" }),
        Step::Ground => json!({
            "decision": "PROCEED|ADJUST|BLOCK|ASK", "decisive": [2, "string"], "blocking": [2, "string"],
            "supporting": [1, "string"], "facts": [4, "string"],
        }),
        Step::Constraints => json!({
            "must": [4, "string"], "must_not": [4, "string"], "open": [4, "string"],
        }),
        Step::Answer => json!({ "answer": "string" }),
        Step::Arbitrate | Step::Apply => Value::Null,
    })
}

/// Expands the short form: objects by fields, lists as `[most, element]`, enums as `a|b`, types by name, `?` for nullable.
fn expanded(short: &Value) -> Value {
    match short {
        Value::Object(fields) => {
            let required: Vec<&String> = fields.keys().collect();
            let properties: Map<String, Value> =
                fields.iter().map(|(name, short)| (name.clone(), expanded(short))).collect();
            json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
        }
        Value::Array(_) => json!({ "type": "array", "items": expanded(&short[1]), "maxItems": short[0] }),
        Value::String(words) if words.contains('|') => {
            json!({ "type": "string", "enum": words.split('|').collect::<Vec<_>>() })
        }
        Value::String(name) => match name.strip_suffix('?') {
            Some(name) => json!({ "type": [name, "null"] }),
            None => json!({ "type": name }),
        },
        other => other.clone(),
    }
}
