//! JSON schemas of the replies.
//!
//! All properties are required and no others allowed, as strict servers demand; a missing value is `null`. Numbers are unbounded, since
//! servers differ in what they enforce; they are clamped when parsed.

use serde_json::{Map, Value, json};

use super::model::Step;
use super::settings::{Settings, Switch};

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
        Step::LocalUpdate => {
            let words =
                if is_code { "ADD|REFINE|REPLACE|NO_OP|INVALIDATE" } else { "ADD|REFINE|REPLACE|NO_OP" };
            json!({ "decision": words, "target": "string?", "reason": "string" })
        }
        Step::Affected => {
            json!({ "affected": [3, { "domain": "string", "reason": "string", "confidence": "number" }] })
        }
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
        Step::Constraints => {
            json!({ "must": [4, "string"], "must_not": [4, "string"], "open": [4, "string"] })
        }
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

/// Checks enum values, for servers that enforce no schema. Types are checked by serde.
pub fn check(reply: &Value, shape: &Value) -> Result<(), String> {
    match (reply, shape.get("enum"), shape.get("properties"), shape.get("items")) {
        (Value::String(word), Some(Value::Array(words)), ..) => match words.contains(reply) {
            true => Ok(()),
            false => Err(format!("`{word}` is none of {}", Value::from(words.clone()))),
        },
        (Value::Null, ..) if shape["type"] == "string" => {
            Err("invalid type: null, expected a string".to_owned())
        }
        (Value::Object(fields), _, Some(shapes), _) => fields
            .iter()
            .filter_map(|(name, field)| Some((field, shapes.get(name)?)))
            .try_for_each(|(field, shape)| check(field, shape)),
        (Value::Array(elements), .., Some(shape)) => elements.iter().try_for_each(|e| check(e, shape)),
        _ => Ok(()),
    }
}

/// Clamps to [0, 1].
pub fn clamped(number: f64) -> f64 {
    if number.is_finite() { number.clamp(0.0, 1.0) } else { 0.0 }
}
