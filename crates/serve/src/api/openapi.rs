//! `/openapi.json`.
//!
//! A static file completed with model-specific parts: names, token ids, layers, authentication. Tests compare it with the routes and the
//! deserialised fields.

use serde_json::{Value, json};

use super::app::App;
use super::error::ApiError;

const FILE: &str = include_str!("openapi.json");

pub fn openapi(app: &App) -> Result<Value, ApiError> {
    let mut file: Value =
        serde_json::from_str(FILE).map_err(|error| ApiError::internal(format!("openapi.json: {error}")))?;
    let (name, spec) = (app.model.name(), &app.model.spec);
    let schema = |of: &str| format!("/components/schemas/{of}");
    let security = if app.guard.needs_key() { json!([{"key": []}]) } else { json!([]) };
    for (place, value) in [
        ("/info/version".to_owned(), json!(env!("CARGO_PKG_VERSION"))),
        ("/security".to_owned(), security),
        (schema("Model/enum"), json!([name])),
        (schema("EmbeddingModel/enum"), json!([app.embedder.name(), name])),
        (schema("TokenId/maximum"), json!(spec.vocab.saturating_sub(1))),
        (schema("Layer/maximum"), json!(spec.layers.len().saturating_sub(1))),
    ] {
        match file.pointer_mut(&place) {
            Some(found) => *found = value,
            None => return Err(ApiError::internal(format!("This is a bug: openapi.json has no {place}"))),
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::attention_request::{AttentionRequest, CausesOptions, RangeRequest, ScoreRequest};
    use super::super::chat::{self, ChatRequest};
    use super::super::common::{Common, StreamOptions};
    use super::super::completions::{self, CompletionRequest};
    use super::super::embeddings::EmbeddingRequest;
    use super::super::http;
    use super::super::json::{Neutral, OF_CLIENTS, names_of};
    use super::super::sent::{ContentPart, DocumentField, Message};
    use super::super::tokens::{DetokenizeRequest, TokenizeRequest};
    use super::*;
    use palimpsest_run::observe::TokenTarget;

    fn file() -> Value {
        let Ok(file) = serde_json::from_str(FILE) else { panic!("openapi.json is no JSON") };
        file
    }

    #[test]
    fn the_file_has_the_fields_that_are_read_and_no_others() {
        let file = file();
        let of = |neutral: &[Neutral]| {
            neutral.iter().flat_map(|(names, _)| *names).map(|name| (*name).to_owned()).collect::<Vec<_>>()
        };
        let of_messages = ["function_call", "audio", "refusal"].map(str::to_owned).to_vec();
        for (schema, read) in [
            ("ChatRequest", [names_of::<Common>(), names_of::<ChatRequest>(), of(&chat::NEUTRAL)].concat()),
            (
                "CompletionRequest",
                [names_of::<Common>(), names_of::<CompletionRequest>(), of(&completions::NEUTRAL)].concat(),
            ),
            ("EmbeddingRequest", [names_of::<EmbeddingRequest>(), of(&[OF_CLIENTS])].concat()),
            ("Message", [names_of::<Message>(), of_messages].concat()),
            ("Part", names_of::<ContentPart>()),
            ("Document", names_of::<DocumentField>()),
            ("CausesRequest", names_of::<CausesOptions>()),
            ("AttentionRequest", names_of::<AttentionRequest>()),
            ("ScoreRequest", names_of::<ScoreRequest>()),
            ("Target", names_of::<TokenTarget>()),
            ("Range", names_of::<RangeRequest>()),
            ("StreamOptions", names_of::<StreamOptions>()),
            ("TokenizeRequest", names_of::<TokenizeRequest>()),
            ("DetokenizeRequest", names_of::<DetokenizeRequest>()),
        ] {
            let schema = &file["components"]["schemas"][schema];
            let properties = schema["properties"].as_object();
            let told: BTreeSet<&String> = properties.into_iter().flatten().map(|(name, _)| name).collect();
            assert_eq!(told, read.iter().collect(), "{schema}");
            // Unknown fields are refused unless null.
            assert_eq!(schema["additionalProperties"], json!({"type": "null"}));
        }
    }

    #[test]
    fn the_file_has_the_paths_that_are_routed_and_no_others() {
        let file = file();
        let told: BTreeSet<&str> =
            file["paths"].as_object().into_iter().flatten().map(|(path, _)| path.as_str()).collect();
        let routed: Vec<String> = http::PATHS.into_iter().map(|(path, _)| path.replace("{*", "{")).collect();
        assert_eq!(told, routed.iter().map(String::as_str).collect());
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_schema_is_used() {
        let file = file();
        let text = file.to_string();
        let mut referenced = BTreeSet::new();
        for rest in text.split("{\"$ref\":\"#").skip(1) {
            let place = rest.split('"').next().unwrap_or_default();
            assert!(file.pointer(place).is_some(), "{place}");
            referenced.insert(place.to_owned());
        }
        for kind in ["schemas", "responses"] {
            for (name, _) in file["components"][kind].as_object().into_iter().flatten() {
                let place = format!("/components/{kind}/{name}");
                assert!(referenced.contains(&place), "{place}");
            }
        }
    }
}
