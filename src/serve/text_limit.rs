//! Texts that cannot fit are refused by their bytes, before they are cut into tokens.

use std::sync::Arc;

use serde_json::Value;

use super::app::App;
use super::error::ApiError;
use palimpsest_core::text::{ChatTemplate, Message, MessageRole};

/// The limit on texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimit {
    context: usize,
    /// Most bytes that a token stands for, where that is known.
    longest: Option<usize>,
    /// Most bytes that are cut into tokens.
    pub bytes: usize,
}

impl TextLimit {
    /// Of a context of so many tokens, each of which stands for at most `longest` bytes.
    pub fn new(context: usize, longest: Option<usize>) -> Self {
        TextLimit { context, longest, bytes: usize::MAX }
    }

    /// Refuses a text of so many bytes that has more tokens than the context holds, or that takes too much memory to be read.
    pub fn check(&self, field: &str, bytes: usize) -> Result<(), ApiError> {
        let TextLimit { context, longest, bytes: most } = *self;
        let message = match longest {
            Some(longest) if bytes.div_ceil(longest) > context => format!(
                "the text of `{field}` has {bytes} bytes, which are {} tokens at least, and the context holds {context}; shorten it, \
                 to {} bytes at the very most",
                bytes.div_ceil(longest),
                context.saturating_mul(longest).min(most)
            ),
            _ if bytes > most => {
                format!(
                    "the text of `{field}` has {bytes} bytes, and at most {most} are read at once; shorten it"
                )
            }
            _ => return Ok(()),
        };
        Err(ApiError { code: Some("context_length_exceeded"), ..ApiError::field(field, message) })
    }
}

/// Refuses a conversation whose users say more than fits, before anything is made of it.
pub fn messages_fit(app: &Arc<App>, body: &Value) -> Result<(), ApiError> {
    let Some(messages) = body["messages"].as_array() else { return Ok(()) };
    // Templates may leave white space around a content out.
    let bytes = |content: &Value| match content {
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.map(|text| text.trim().len()).sum()
        }
        content => content.as_str().map_or(0, |text| text.trim().len()),
    };
    let of_users = messages.iter().filter(|message| message["role"] == "user");
    let bytes: usize = of_users.map(|message| bytes(&message["content"])).sum();
    let fits = app.model.limit.check("messages", bytes);
    if fits.is_err() && app.model.shows_users() { fits } else { Ok(()) }
}

/// Refuses a text under this name, or one of several, that is longer than fits.
pub fn texts_fit(app: &Arc<App>, body: &Value, field: &str) -> Result<(), ApiError> {
    match &body[field] {
        Value::String(text) => app.model.limit.check(field, text.len()),
        Value::Array(list) => {
            let mut texts = list.iter().enumerate().filter_map(|(i, value)| Some((i, value.as_str()?)));
            texts.try_for_each(|(i, text)| app.model.limit.check(&format!("{field}[{i}]"), text.len()))
        }
        _ => Ok(()),
    }
}

/// True if a chat template shows what users say, earlier turns among it.
pub fn shows_users(template: &ChatTemplate) -> bool {
    let said = ["palimpsest-one", "palimpsest-two", "palimpsest-three"];
    let message = |role, content: &str| Message { role, content: content.to_owned() };
    let messages = [
        message(MessageRole::User, said[0]),
        message(MessageRole::Assistant, said[1]),
        message(MessageRole::User, said[2]),
    ];
    template.render(&messages, true).is_ok_and(|text| text.contains(said[0]) && text.contains(said[2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_refused_only_where_its_longest_tokens_are_too_many() {
        let limit = TextLimit::new(10, Some(7));
        assert!(limit.check("prompt", 70).is_ok());
        let Err(error) = limit.check("prompt", 71) else { panic!("it has 11 tokens") };
        assert_eq!((error.code, error.param.as_deref()), (Some("context_length_exceeded"), Some("prompt")));
        assert!(
            error.message.contains("11 tokens") && error.message.contains("70 bytes"),
            "{}",
            error.message
        );
        let unknown = TextLimit { bytes: 1000, ..TextLimit::new(10, None) };
        assert!(unknown.check("prompt", 1000).is_ok());
        let Err(error) = unknown.check("prompt", 1001) else { panic!("it is too long to be read") };
        assert!(error.message.contains("at most 1000"), "{}", error.message);
    }
}
