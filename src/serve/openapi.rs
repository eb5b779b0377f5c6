//! `/openapi.json`: what is served, for programs that read it.
//!
//! The file beside this one says everything but what depends on the model: names, token ids, layers, and whether there is a key.
//! Tests hold it against the routes and against the fields that the code reads.

use serde_json::{Value, json};

use super::app::App;
use super::error::ApiError;

const FILE: &str = include_str!("openapi.json");

/// The description of this server.
///
/// # Errors
/// None that can happen: the file is JSON.
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

    use super::super::fields::NotServed;
    use super::super::{attention_request, chat, common, completions, embeddings, http, score, sent, tokens};
    use super::*;

    fn file() -> Value {
        let Ok(file) = serde_json::from_str(FILE) else { panic!("openapi.json is no JSON") };
        file
    }

    fn names<'a>(fields: &[&'a str], not_yet: &'a [NotServed]) -> BTreeSet<&'a str> {
        fields.iter().copied().chain(not_yet.iter().map(|(name, _)| *name)).collect()
    }

    #[test]
    fn the_file_has_the_fields_that_are_read_and_no_others() {
        let file = file();
        let both = [&common::SHARED[..], &common::IGNORED].concat();
        let chat_fields = [&both[..], &chat::OWN].concat();
        let completion_fields = [&both[..], &completions::OWN].concat();
        let embedding_fields = [&embeddings::OWN[..], &common::IGNORED].concat();
        let message_fields = [&sent::MESSAGE_FIELDS[..], &sent::MESSAGE_NOT_YET].concat();
        for (schema, read) in [
            ("ChatRequest", names(&chat_fields, &chat::NOT_YET)),
            ("CompletionRequest", names(&completion_fields, &completions::NOT_YET)),
            ("EmbeddingRequest", names(&embedding_fields, &[])),
            ("Message", names(&message_fields, &[])),
            ("Part", names(&sent::PART_FIELDS, &[])),
            ("AttentionRequest", names(&attention_request::FIELDS, &[])),
            ("ScoreRequest", names(&score::request::SCORE_FIELDS, &[])),
            ("Range", names(&attention_request::RANGE_FIELDS, &[])),
            ("StreamOptions", names(&common::STREAM_FIELDS, &[])),
            ("TokenizeRequest", names(&tokens::TOKENIZE_FIELDS, &[])),
            ("DetokenizeRequest", names(&tokens::DETOKENIZE_FIELDS, &[])),
        ] {
            let properties = file["components"]["schemas"][schema]["properties"].as_object();
            let told: BTreeSet<&str> =
                properties.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            assert_eq!(told, read, "{schema}");
            // What nobody reads is refused, unless it is null.
            assert_eq!(
                file["components"]["schemas"][schema]["additionalProperties"],
                json!({"type": "null"})
            );
        }
    }

    #[test]
    fn the_file_has_the_paths_that_are_routed_and_no_others() {
        let file = file();
        let told: BTreeSet<&str> =
            file["paths"].as_object().into_iter().flatten().map(|(path, _)| path.as_str()).collect();
        let routed: Vec<String> =
            http::routes().into_iter().map(|(path, _)| path.replace("{*", "{")).collect();
        assert_eq!(told, routed.iter().map(String::as_str).collect());
        for (path, item) in file["paths"].as_object().into_iter().flatten() {
            let method = if http::POSTED.contains(&path.as_str()) { "post" } else { "get" };
            assert_eq!(
                item.as_object().map(|item| item.keys().map(String::as_str).collect::<Vec<_>>()),
                Some(vec![method]),
                "{path}"
            );
        }
        let counted: BTreeSet<&str> = http::PATHS.into_iter().chain(["/v1/models/{model}"]).collect();
        assert_eq!(told, counted);
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
