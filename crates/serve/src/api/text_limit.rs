//! Refuses oversized texts by byte length, before tokenising.

use super::error::ApiError;
use palimpsest_core::text::{ChatTemplate, Message, MessageRole};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimit {
    context: usize,
    /// Maximum bytes per token, if known.
    longest: Option<usize>,
    bytes: usize,
}

impl TextLimit {
    pub fn new(context: usize, longest: Option<usize>, bytes: usize) -> Self {
        TextLimit { context, longest, bytes }
    }

    /// Refuses a text that must exceed the context or the tokenising memory.
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

/// True if the template renders user text of all turns.
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
        let limit = TextLimit::new(10, Some(7), usize::MAX);
        assert!(limit.check("prompt", 70).is_ok());
        let Err(error) = limit.check("prompt", 71) else { panic!("it has 11 tokens") };
        assert_eq!((error.code, error.param.as_deref()), (Some("context_length_exceeded"), Some("prompt")));
        assert!(
            error.message.contains("11 tokens") && error.message.contains("70 bytes"),
            "{}",
            error.message
        );
        let unknown = TextLimit::new(10, None, 1000);
        assert!(unknown.check("prompt", 1000).is_ok());
        let Err(error) = unknown.check("prompt", 1001) else { panic!("it is too long to be read") };
        assert!(error.message.contains("at most 1000"), "{}", error.message);
    }
}
