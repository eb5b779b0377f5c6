//! Tool-call layouts of known model families ([`FAMILIES`]), detected by rendering a call with the chat template.

use serde_json::{Map, Value, json};

use super::{ChatTurn, Speaker, Tool, ToolCall};
use crate::text::chat_template::unless_raised;
use crate::text::{ChatTemplate, TextError};

/// Text around call names and arguments; white space may vary. An answer with calls: `open`, calls separated by `between`, `close`. A call:
/// `call`, name, `after_name`, arguments, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallLayout {
    /// Start of the first call; identifies calls.
    pub marker: &'static str,
    /// True if the marker can occur only at the start of the answer.
    pub at_start: bool,
    /// Before the first call.
    pub open: &'static str,
    /// Before a name.
    pub call: &'static str,
    /// Between a name and its arguments.
    pub after_name: &'static str,
    /// Encoding of arguments.
    pub arguments: Arguments,
    /// After arguments.
    pub end: &'static str,
    /// Between two calls.
    pub between: &'static str,
    /// After the last call.
    pub close: &'static str,
    /// True if an answer may contain several calls.
    pub many: bool,
}

/// Encoding of a call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arguments {
    /// A JSON object.
    Json,
    /// One pair of tags each: strings verbatim, other values as JSON.
    Tags {
        /// Before a name.
        key: &'static str,
        /// Between a name and its value.
        after_key: &'static str,
        /// After a value.
        after_value: &'static str,
    },
}

/// JSON in `<tool_call>`: Hermes, Qwen 2.5 and 3, and the plain layout.
const HERMES: CallLayout = CallLayout {
    marker: "<tool_call>",
    at_start: false,
    open: "",
    call: "<tool_call>\n{\"name\": \"",
    after_name: "\", \"arguments\": ",
    arguments: Arguments::Json,
    end: "}\n</tool_call>",
    between: "\n",
    close: "",
    many: true,
};

/// Hermes, Qwen 3 Coder and 3.5, GLM 4.5, MiniMax-M2, Llama 3.1 and later.
pub(super) const FAMILIES: [CallLayout; 5] = [
    HERMES,
    CallLayout {
        call: "<tool_call>\n<function=",
        after_name: ">\n",
        arguments: Arguments::Tags { key: "<parameter=", after_key: ">\n", after_value: "\n</parameter>\n" },
        end: "</function>\n</tool_call>",
        ..HERMES
    },
    CallLayout {
        call: "<tool_call>",
        after_name: "\n",
        arguments: Arguments::Tags {
            key: "<arg_key>",
            after_key: "</arg_key>\n<arg_value>",
            after_value: "</arg_value>\n",
        },
        end: "</tool_call>",
        ..HERMES
    },
    CallLayout {
        marker: "<minimax:tool_call>",
        open: "<minimax:tool_call>\n",
        call: "<invoke name=\"",
        after_name: "\">\n",
        arguments: Arguments::Tags {
            key: "<parameter name=\"",
            after_key: "\">",
            after_value: "</parameter>\n",
        },
        end: "</invoke>\n",
        between: "",
        close: "</minimax:tool_call>",
        ..HERMES
    },
    CallLayout {
        marker: "{\"name\"",
        at_start: true,
        call: "{\"name\": \"",
        after_name: "\", \"parameters\": ",
        end: "}",
        many: false,
        ..HERMES
    },
];

impl CallLayout {
    /// Renders calls.
    pub fn write(&self, calls: &[ToolCall]) -> String {
        let one = |call: &ToolCall| {
            let arguments = match self.arguments {
                Arguments::Json => Value::from(call.arguments.clone()).to_string(),
                Arguments::Tags { key, after_key, after_value } => {
                    let argument = |(name, value): (&String, &Value)| {
                        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                        format!("{key}{name}{after_key}{value}{after_value}")
                    };
                    call.arguments.iter().map(argument).collect()
                }
            };
            format!("{}{}{}{arguments}{}", self.call, call.name, self.after_name, self.end)
        };
        let calls: Vec<String> = calls.iter().map(one).collect();
        format!("{}{}{}", self.open, calls.join(self.between), self.close)
    }
}

/// Tool support of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolLayout {
    /// Layout of calls.
    pub calls: &'static CallLayout,
    /// True if the chat template renders functions, calls and results; else they go into messages ([`compose`](super::compose)).
    pub native: bool,
}

impl ToolLayout {
    /// The plain layout.
    pub const PLAIN: ToolLayout = ToolLayout { calls: &HERMES, native: false };

    /// Detects a template's layout; plain if it omits functions, raises, or uses an unknown layout. Other errors are returned.
    pub fn of(template: &ChatTemplate) -> Result<Self, TextError> {
        const ABOUT: &str = "palimpsest-description";
        const RESULT: &str = "palimpsest-result";
        let Ok(Value::Object(parameters)) = serde_json::from_str(
            r#"{"type": "object", "properties": {"first": {"type": "string"}}, "required": ["first"]}"#,
        ) else {
            return Ok(Self::PLAIN);
        };
        let name = "palimpsest_probe".to_owned();
        let tool =
            Tool { name: name.clone(), description: Some(ABOUT.to_owned()), parameters, strict: false };
        let arguments = Map::from_iter([("first".to_owned(), json!("one"))]);
        let call = ToolCall { id: "call_0".to_owned(), name: name.clone(), arguments };
        let user = ChatTurn::new(Speaker::User, "Hello");
        let asked = ChatTurn { calls: vec![call.clone()], ..ChatTurn::new(Speaker::Assistant, "") };
        let result = ChatTurn {
            call_id: Some(call.id.clone()),
            name: Some(name),
            ..ChatTurn::new(Speaker::Tool, RESULT)
        };
        let tools = [tool.json()];
        let render = |turns: &[ChatTurn]| unless_raised(template.render_turns(turns, &tools, &[], true));
        let lists = render(std::slice::from_ref(&user))?.is_some_and(|text| text.contains(ABOUT));
        if !lists || template.folds_system() {
            return Ok(Self::PLAIN);
        }
        let written = render(&[user, asked, result])?.filter(|text| text.contains(RESULT));
        let Some(written) = written else { return Ok(Self::PLAIN) };
        let written = squeezed(&written);
        let family = FAMILIES
            .iter()
            .find(|family| written.contains(&squeezed(&family.write(std::slice::from_ref(&call)))));
        Ok(family.map_or(Self::PLAIN, |calls| ToolLayout { calls, native: true }))
    }
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}
