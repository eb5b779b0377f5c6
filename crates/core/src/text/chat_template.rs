//! Renders messages with a model's chat template. Templates are Jinja as run by transformers (`jinja`), sandboxed with bounded steps and
//! output. Errors name the line. The plain layout is used only if a template raises or drops content. Prompt wording is decided elsewhere.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::civil::{DateTime, date};
use minijinja::value::Serde;
use minijinja::{Error, ErrorKind, UndefinedBehavior, Value, context};

use super::message::{Document, Message, MessageRole};
use super::sandbox::Sandbox;
use super::thoughts::Thinking;
use super::tools::{ChatTurn, Speaker};
use super::{GgufTokenizer, TextError, Tokenizer, jinja};

/// Fixed date of [`ChatTemplate::render`], so prompts are reproducible.
pub const DEFAULT_DATE: DateTime = date(2025, 1, 1).at(12, 0, 0, 0);

/// Placeholder content for test renderings.
pub(super) const MARK: &str = "palimpsest-probe";

/// Layout for base models without a template.
const PLAIN: &str = "{{ bos_token }}{% for message in messages %}\
    {{ '### ' ~ message.role.capitalize() ~ '\\n' ~ message.content ~ '\\n\\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '### Assistant\\n' }}{% endif %}";

/// Turn headings in [`PLAIN`]; a base model that continues past its answer writes one.
const PLAIN_TURNS: [&str; 3] = ["### User", "### Assistant", "### System"];

/// Separates folded system text from the first user message.
pub const FOLD_SEPARATOR: &str = "\n\n";

/// Turn markers of known models; a template's vocabulary must have those it writes. (Some models use `<|user|>` as plain text.)
pub(super) const MARKERS: [&str; 17] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "[gMASK]",
    "<sop>",
    "]~!b[",
    "]~b]",
    "[e~[",
];

/// A compiled chat template and its special tokens.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    env: Sandbox,
    name: String,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    plain: bool,
    folds_system: bool,
    /// Extra template variables.
    variables: BTreeMap<&'static str, Value>,
    thinking: Thinking,
}

impl ChatTemplate {
    /// Compiles `source`; `name` is used in errors, `bos` and `eos` are the special tokens' texts, if any. Test-renders a user message,
    /// which must succeed, and a system message; if the template raises (`raise_exception`) or drops it, system text is folded into the
    /// first user message. Fails if the template writes `bos` or `eos` unconditionally and the model has none.
    pub fn new(name: &str, source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, TextError> {
        let mut env = jinja::environment()?;
        env.add_template(name, jinja::without_generation_tags(source))?;
        let mut template = ChatTemplate {
            env,
            name: name.to_owned(),
            source: source.to_owned(),
            bos: bos.map(str::to_owned),
            eos: eos.map(str::to_owned),
            plain: source == PLAIN,
            folds_system: false,
            variables: BTreeMap::new(),
            thinking: Thinking::default(),
        };
        template.refuse_missing_tokens()?;
        template.probe()?;
        template.thinking = template.find_thinking();
        Ok(template)
    }

    /// The plain layout (`docs/data.md`), starting with `bos` if given.
    pub fn plain(bos: Option<&str>) -> Result<Self, TextError> {
        let bos = bos.unwrap_or_default();
        Self::new("(plain layout)", PLAIN, Some(bos), None)
    }

    /// Folder's template: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json` (string or `default` of a list), else
    /// plain.
    pub fn from_folder(dir: &Path) -> Result<Self, TextError> {
        let path = dir.join("tokenizer_config.json");
        let config: serde_json::Value = match read_if_there(&path)? {
            None => serde_json::Value::Null,
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| TextError::Json { path: path.clone(), reason: error.to_string() })?,
        };
        let token = |key: &str| {
            let value = config.get(key)?;
            value.as_str().or_else(|| value.get("content")?.as_str())
        };
        let (bos, eos) = (token("bos_token"), token("eos_token"));
        let jinja = dir.join("chat_template.jinja");
        if let Some(source) = read_if_there(&jinja)? {
            return Self::new(&jinja.display().to_string(), &source, bos, eos);
        }
        let name = format!("{} (chat_template)", path.display());
        match config.get("chat_template") {
            None | Some(serde_json::Value::Null) => Self::plain(bos),
            Some(serde_json::Value::String(source)) => Self::new(&name, source, bos, eos),
            Some(serde_json::Value::Array(named)) => {
                let source = (named.iter())
                    .find(|entry| entry.get("name").and_then(|name| name.as_str()) == Some("default"))
                    .and_then(|entry| entry.get("template")?.as_str());
                let source = source.ok_or_else(|| TextError::Json {
                    path: path.clone(),
                    reason: "chat_template is a list without an entry named \"default\"".to_owned(),
                })?;
                Self::new(&name, source, bos, eos)
            }
            Some(_) => Err(TextError::Json {
                path,
                reason: "chat_template is neither a string nor a list of named templates".to_owned(),
            }),
        }
    }

    /// A GGUF file's template, else the plain layout.
    pub fn from_gguf(metadata: &GgufTokenizer) -> Result<Self, TextError> {
        let (bos, eos) = (metadata.token(metadata.bos), metadata.token(metadata.eos));
        match &metadata.chat_template {
            Some(source) => Self::new("tokenizer.chat_template of the GGUF file", source, bos, eos),
            None => Self::plain(bos.filter(|_| metadata.add_bos.unwrap_or(metadata.model == "llama"))),
        }
    }

    /// Name used in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Template source; part of a run's identity.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Text of the BOS token; empty if none.
    pub fn bos(&self) -> &str {
        self.bos.as_deref().unwrap_or_default()
    }

    /// Text of the EOS token, if any.
    pub fn eos(&self) -> Option<&str> {
        self.eos.as_deref()
    }

    /// True for the plain layout.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Stop strings of the plain layout, which has no end token.
    pub fn stop_strings(&self) -> Vec<String> {
        let turns: &[&str] = if self.plain { &PLAIN_TURNS } else { &[] };
        turns.iter().map(|&turn| turn.to_owned()).collect()
    }

    /// True if the template renders [`Document`]s. Fails on errors other than raising.
    pub fn takes_documents(&self) -> Result<bool, TextError> {
        let document = Document { title: "title".to_owned(), text: MARK.to_owned() };
        let user = ChatTurn::from(&hello(MessageRole::User));
        if !self.source.contains("documents") {
            return Ok(false);
        }
        let text = unless_raised(self.render_turns(&[user], &[], &[document], true))?;
        Ok(text.is_some_and(|text| text.contains(MARK)))
    }

    /// True if system text is folded into the first user message.
    pub fn folds_system(&self) -> bool {
        self.folds_system
    }

    /// Thinking support.
    pub fn thinking(&self) -> &Thinking {
        &self.thinking
    }

    pub(super) fn set(&mut self, variable: &'static str, value: Value) {
        self.variables.insert(variable, value);
    }

    pub(super) fn with(&self, variable: &'static str, value: Value) -> Self {
        let mut other = self.clone();
        other.set(variable, value);
        other
    }

    /// Renders `messages` with [`DEFAULT_DATE`]. `add_generation_prompt` appends the start of an assistant turn.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, TextError> {
        self.render_on(messages, add_generation_prompt, DEFAULT_DATE)
    }

    /// [`render`](Self::render) with a given date.
    pub fn render_on(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        now: DateTime,
    ) -> Result<String, TextError> {
        if self.folds_system {
            return self.render_as_is(&fold(messages), add_generation_prompt, now);
        }
        self.render_as_is(messages, add_generation_prompt, now)
    }

    /// Renders a conversation with functions, calls, results and documents. `tools` are in the format of [`Tool::json`](super::Tool::json).
    /// Without any of these, same as [`Self::render`]. Fails if the template lacks the switch.
    pub fn render_turns(
        &self,
        turns: &[ChatTurn],
        tools: &[serde_json::Value],
        documents: &[Document],
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        let message = |turn: &ChatTurn| {
            let role = match turn.role {
                Speaker::System => MessageRole::System,
                Speaker::User => MessageRole::User,
                Speaker::Assistant => MessageRole::Assistant,
                Speaker::Tool => return None,
            };
            // Templates without a system role support neither names nor thoughts.
            let bare = self.folds_system || (turn.name.is_none() && turn.thought.is_none());
            (turn.calls.is_empty() && bare).then(|| Message { role, content: turn.content.clone() })
        };
        if tools.is_empty()
            && documents.is_empty()
            && let Some(messages) = turns.iter().map(message).collect::<Option<Vec<_>>>()
        {
            return self.render(&messages, add_generation_prompt);
        }
        let listed: Vec<serde_json::Value> = turns.iter().map(ChatTurn::json).collect();
        let bytes: usize = listed.iter().chain(tools).map(|value| value.to_string().len()).sum();
        let bytes = bytes + documents.iter().map(|one| one.title.len() + one.text.len()).sum::<usize>();
        let tools = match tools {
            [] => Value::from(()),
            tools => Value::from(Serde(tools)),
        };
        let documents = match documents {
            [] => Value::from(()),
            documents => Value::from(Serde(documents)),
        };
        let beside = (tools, documents);
        self.render_values(Value::from(Serde(&listed)), beside, bytes, add_generation_prompt, DEFAULT_DATE)
    }

    fn render_as_is(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        now: DateTime,
    ) -> Result<String, TextError> {
        let bytes = messages.iter().map(|message| message.content.len()).sum();
        let listed = Value::from(Serde(messages));
        self.render_values(listed, (().into(), ().into()), bytes, add_generation_prompt, now)
    }

    /// `bytes`: total input size, for the output limit.
    fn render_values(
        &self,
        messages: Value,
        (tools, documents): (Value, Value),
        bytes: usize,
        add_generation_prompt: bool,
        now: DateTime,
    ) -> Result<String, TextError> {
        let strftime_now = Value::from_function(move |format: &str| -> Result<String, Error> {
            jiff::fmt::strtime::format(format, now)
                .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
        });
        let variables = context! {
            messages,
            add_generation_prompt,
            bos_token => token(self.bos.as_deref()),
            eos_token => token(self.eos.as_deref()),
            tools,
            documents,
            strftime_now,
            ..Value::from_pairs(self.variables.clone())
        };
        self.env.render(&self.name, variables, bytes)
    }

    /// Fails if the template writes BOS, EOS or a turn marker that the tokeniser lacks: the model would read it as letters.
    pub fn check_tokens(&self, tokenizer: &Tokenizer) -> Result<(), TextError> {
        let text = self.render(&[hello(MessageRole::System), hello(MessageRole::User)], true)?;
        let own = [self.bos.as_deref(), self.eos.as_deref()]
            .into_iter()
            .flatten()
            .filter(|token| !token.is_empty());
        for token in own.chain(MARKERS) {
            if text.contains(token) && tokenizer.count(token)? != 1 {
                return Err(TextError::MissingToken { template: self.name.clone(), token: token.to_owned() });
            }
        }
        Ok(())
    }

    /// Undefined variables print as nothing in transformers; here an unconditional `bos_token` or `eos_token` without a value is an error.
    fn refuse_missing_tokens(&self) -> Result<(), TextError> {
        let missing = [("bos_token", self.bos.is_none()), ("eos_token", self.eos.is_none())];
        for (variable, _) in missing.into_iter().filter(|&(_, missing)| missing) {
            let mut strict = self.clone();
            strict.env.env().set_undefined_behavior(UndefinedBehavior::SemiStrict);
            let renders = |template: &Self| {
                template.render_as_is(&[hello(MessageRole::User)], true, DEFAULT_DATE).is_ok()
            };
            let without = renders(&strict);
            match variable {
                "bos_token" => strict.bos = Some(String::new()),
                _ => strict.eos = Some(String::new()),
            }
            if !without && renders(&strict) {
                return Err(TextError::UndefinedToken { template: self.name.clone(), variable });
            }
        }
        Ok(())
    }

    /// Tests once whether the template accepts a system message.
    fn probe(&mut self) -> Result<(), TextError> {
        let user = hello(MessageRole::User);
        self.render_as_is(std::slice::from_ref(&user), true, DEFAULT_DATE)?;
        let system = message(MessageRole::System, MARK);
        let taken = self.render_as_is(&[system, user], true, DEFAULT_DATE);
        self.folds_system = match taken {
            Ok(text) => !text.contains(MARK),
            // Other errors surface when a system message is rendered.
            Err(error) => error.is_raised(),
        };
        Ok(())
    }
}

/// Maps `raise_exception` to `None`.
pub(super) fn unless_raised(rendered: Result<String, TextError>) -> Result<Option<String>, TextError> {
    match rendered {
        Err(error) if error.is_raised() => Ok(None),
        rendered => rendered.map(Some),
    }
}

pub(super) fn message(role: MessageRole, content: &str) -> Message {
    Message { role, content: content.to_owned() }
}

fn hello(role: MessageRole) -> Message {
    message(role, "Hello")
}

/// Undefined if the model lacks the token, as in transformers.
fn token(text: Option<&str>) -> Value {
    text.map_or(Value::UNDEFINED, Value::from)
}

/// Prepends system text to the first user message, adding one if needed.
fn fold(messages: &[Message]) -> Vec<Message> {
    let is_system = |message: &&Message| message.role == MessageRole::System;
    let system: Vec<&str> =
        messages.iter().filter(is_system).map(|message| message.content.as_str()).collect();
    let mut rest: Vec<Message> = messages.iter().filter(|message| !is_system(message)).cloned().collect();
    if system.is_empty() {
        return rest;
    }
    let system = system.join(FOLD_SEPARATOR);
    match rest.first_mut() {
        Some(first) if first.role == MessageRole::User => {
            first.content = format!("{system}{FOLD_SEPARATOR}{}", first.content);
        }
        _ => rest.insert(0, Message { role: MessageRole::User, content: system }),
    }
    rest
}

fn read_if_there(path: &Path) -> Result<Option<String>, TextError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_owned(), source }),
    }
}
