//! Asks a model for one step: renders the prompt, sends it, parses the JSON reply and retries.
//!
//! An unparsable reply is retried three times. The retry shows the reply and its error, since a greedy model would repeat itself. Then the
//! step fails: writing continues without it and records an event; reading fails the probe.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::prompts::{self, shape};
use super::settings::{Settings, Step};
use crate::chat::{ChatError, Message, MessageRole, Sampling};
use crate::memory::similar::Similarity;

/// Replies to the messages of a step with a JSON object of the schema; `None` leaves the reply unconstrained.
pub type Complete =
    Box<dyn FnMut(Step, &[Message], Option<&Value>, &Sampling) -> Result<String, ChatError> + Send>;

const RETRIES: usize = 3;

/// Maximum characters of a reply quoted in a retry or an error.
const SHOWN: usize = 2000;
const TOLD: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    #[error("{0}")]
    Unreachable(String),
    #[error("{step}: no readable reply in {} attempts: {reason}", RETRIES + 1)]
    Fault { step: Step, reason: String },
}

pub struct Asker<'a> {
    pub settings: &'a Settings,
    pub complete: &'a mut Complete,
    pub similarity: &'a mut dyn Similarity,
}

impl Asker<'_> {
    pub fn ask<T: DeserializeOwned>(&mut self, step: Step, data: &Value) -> Result<T, Stop> {
        let shape = shape(step, self.settings);
        let mut messages = prompts::messages(step, self.settings, data, &shape).map_err(Stop::Unreachable)?;
        let schema = self.settings.json_schema.then_some(&shape);
        let mut sampling = Sampling {
            temperature: if step == Step::Proposals { 0.30 } else { 0.0 },
            top_p: 1.0,
            seed: self.settings.seed,
            max_new_tokens: self.settings.max_new_tokens,
        };
        let asked = messages.len();
        let mut reason = String::new();
        for attempt in 0..=RETRIES {
            let reply = (self.complete)(step, &messages, schema, &sampling);
            let reply = reply.map_err(|error| Stop::Unreachable(told(&error.to_string())))?;
            match read(&reply, &shape) {
                Ok(value) => return Ok(value),
                Err(fault) => {
                    tracing::warn!("cupmem {step}, attempt {}: {fault}", attempt + 1);
                    messages.truncate(asked);
                    messages.push(Message { role: MessageRole::Assistant, content: cut(&reply, SHOWN) });
                    let again = format!("That could not be read: {fault}. Reply with the JSON object alone.");
                    messages.push(Message { role: MessageRole::User, content: again });
                    reason = format!("{fault}: {}", cut(&reply, TOLD));
                    sampling.seed = sampling.seed.wrapping_add(1);
                }
            }
        }
        Err(Stop::Fault { step, reason })
    }

    pub fn nearest<T>(
        &mut self,
        entries: Vec<T>,
        text: impl Fn(&T) -> String,
        query: &str,
        most: usize,
    ) -> Result<Vec<(T, f64)>, Stop> {
        if entries.is_empty() || most == 0 {
            return Ok(Vec::new());
        }
        let texts: Vec<String> = entries.iter().map(&text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let scores = self.similarity.scores(&texts, query).map_err(Stop::Unreachable)?;
        let mut ranked: Vec<(T, f64)> = entries.into_iter().zip(scores).collect();
        // Entries come in writing order. With a stable sort ties go to the later, which is the likelier default.
        ranked.reverse();
        ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        ranked.truncate(most);
        Ok(ranked)
    }
}

/// Extracts the JSON object, which may be fenced or surrounded by prose.
fn read<T: DeserializeOwned>(reply: &str, shape: &Value) -> Result<T, String> {
    let start = reply.find('{').ok_or("it holds no JSON object")?;
    let end = reply.rfind('}').filter(|end| *end > start).ok_or("its JSON object does not end")?;
    let object = reply.get(start..=end).unwrap_or_default();
    let value: Value = serde_json::from_str(object).map_err(|error| error.to_string())?;
    check(&value, shape)?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// Checks enum values, for servers that enforce no schema. Types are checked by serde.
fn check(reply: &Value, shape: &Value) -> Result<(), String> {
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

/// Clamps a number of a reply to [0, 1].
pub fn clamped(number: f64) -> f64 {
    if number.is_finite() { number.clamp(0.0, 1.0) } else { 0.0 }
}

/// Adds the remedy for servers without schema support.
fn told(error: &str) -> String {
    let of_schema = ["response_format", "json_schema"].iter().any(|field| error.contains(field));
    let remedy = if of_schema { "; the setting no-schema sends no JSON schemas" } else { "" };
    format!("{error}{remedy}")
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_found_in_fences_and_between_words_and_a_refused_schema_has_a_remedy() {
        for reply in [r#"{"a": 1}"#, "```json\n{\"a\": 1}\n```", "Here: {\"a\": 1}. Good luck!"] {
            assert_eq!(read::<Value>(reply, &Value::Null), Ok(json!({"a": 1})));
        }
        assert!(read::<Value>("none", &Value::Null).unwrap_err().contains("no JSON"));
        assert!(read::<Value>("{\"a\": 1", &Value::Null).unwrap_err().contains("does not end"));
        assert!(told("400: unknown field response_format").ends_with("no-schema sends no JSON schemas"));
        assert_eq!(told("status 500"), "status 500");
    }
}
