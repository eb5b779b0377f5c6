//! A model's own chat template: messages to the exact text that the model was trained on.
//!
//! Templates are Jinja as transformers runs it (`jinja`). A template is foreign code: it runs with bounded steps and output. It must
//! not decide anything about prompts beyond their format; wording lives in [`Templates`](super::Templates). One that cannot be rendered
//! fails by its line; a layout of ours takes its place only where it raises or leaves something out.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::civil::{DateTime, date};
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, context};

use super::message::{Document, Message, MessageRole};
use super::thoughts::Thinking;
use super::tools::{ChatTurn, Speaker};
use super::{GgufTokenizer, TextError, Tokenizer, jinja, sandbox};

/// The date that [`ChatTemplate::render`] gives to templates that print today's: fixed, so that runs can be repeated.
pub const DEFAULT_DATE: DateTime = date(2025, 1, 1).at(12, 0, 0, 0);

/// The layout for base models, which come without a template: the role as a heading, the text, a blank line.
const PLAIN: &str = "{{ bos_token }}{% for message in messages %}\
    {{ '### ' ~ message.role.capitalize() ~ '\\n' ~ message.content ~ '\\n\\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '### Assistant\\n' }}{% endif %}";

/// Openings of turns in [`PLAIN`]: a base model that goes on behind its answer writes the next one.
const PLAIN_TURNS: [&str; 3] = ["### User", "### Assistant", "### System"];

/// The text between folded system text and the first user message.
pub const FOLD_SEPARATOR: &str = "\n\n";

/// Tokens that open, part and close turns in the formats of the known models. A template that writes one of them is meant
/// for a vocabulary that holds it. (Names like `<|user|>` are missing: some models were trained on them as plain text.)
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

/// A compiled chat template with the special tokens it writes.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    env: Environment<'static>,
    name: String,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    plain: bool,
    folds_system: bool,
    /// Further variables that it is rendered with.
    variables: BTreeMap<&'static str, Value>,
    thinking: Thinking,
}

impl ChatTemplate {
    /// Compiles `source`. `name` is what errors call it; `bos` and `eos` are the texts of those tokens, where the model
    /// has them. The template is tried once: on a user message alone, which must work, and with a system message; where the template
    /// raises (`raise_exception`) or drops it, system text is folded into the first user message from then on. A template that writes
    /// one of the two tokens where the model has none is refused; one that asks first is not.
    pub fn new(name: &str, source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, TextError> {
        let mut env = jinja::environment()?;
        sandbox::add_template(&mut env, name, jinja::without_generation_tags(source))?;
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

    /// Our layout for a model without a template, documented in `docs/prompts.md`; `bos` is written first where given.
    pub fn plain(bos: Option<&str>) -> Result<Self, TextError> {
        let bos = bos.unwrap_or_default();
        Self::new("(plain layout)", PLAIN, Some(bos), None)
    }

    /// The template of a model folder: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json` (a string,
    /// or a list of named ones of which `default` is taken), else the plain layout.
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

    /// The template of a GGUF file, or the plain layout where it holds none.
    pub fn from_gguf(metadata: &GgufTokenizer) -> Result<Self, TextError> {
        let (bos, eos) = (metadata.token(metadata.bos), metadata.token(metadata.eos));
        match &metadata.chat_template {
            Some(source) => Self::new("tokenizer.chat_template of the GGUF file", source, bos, eos),
            None => Self::plain(bos.filter(|_| metadata.add_bos.unwrap_or(metadata.model == "llama"))),
        }
    }

    /// Its name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The source as given. It decides the prompt, so it belongs into a run's identity.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of the beginning-of-sequence token; empty where there is none.
    pub fn bos(&self) -> &str {
        self.bos.as_deref().unwrap_or_default()
    }

    /// The text of the end-of-sequence token, where there is one.
    pub fn eos(&self) -> Option<&str> {
        self.eos.as_deref()
    }

    /// True if this is our layout for a base model.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Strings that end an answer in this layout, where no token does: what opens a turn in the plain one.
    pub fn stop_strings(&self) -> Vec<String> {
        let turns: &[&str] = if self.plain { &PLAIN_TURNS } else { &[] };
        turns.iter().map(|&turn| turn.to_owned()).collect()
    }

    /// True if it shows [`Document`]s that it is given.
    ///
    /// # Errors
    /// It fails on them other than by raising.
    pub fn takes_documents(&self) -> Result<bool, TextError> {
        const MARK: &str = "palimpsest-probe";
        let document = Document { title: "title".to_owned(), text: MARK.to_owned() };
        let user = ChatTurn::from(&hello(MessageRole::User));
        if !self.source.contains("documents") {
            return Ok(false);
        }
        let text = unless_raised(self.render_turns(&[user], &[], &[document], true))?;
        Ok(text.is_some_and(|text| text.contains(MARK)))
    }

    /// True if system text goes into the first user message, because the template takes no system role.
    pub fn folds_system(&self) -> bool {
        self.folds_system
    }

    /// Its switches for thoughts.
    pub fn thinking(&self) -> &Thinking {
        &self.thinking
    }

    /// Renders with this variable from now on.
    pub(super) fn set(&mut self, variable: &'static str, value: Value) {
        self.variables.insert(variable, value);
    }

    /// The same template with a variable.
    pub(super) fn with(&self, variable: &'static str, value: Value) -> Self {
        let mut other = self.clone();
        other.set(variable, value);
        other
    }

    /// The text of `messages`, with [`DEFAULT_DATE`] for templates that print today's. `add_generation_prompt` ends it with
    /// the opening of an assistant turn.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, TextError> {
        self.render_on(messages, add_generation_prompt, DEFAULT_DATE)
    }

    /// As [`render`](Self::render), on a given date: for a case, when its question is asked.
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

    /// The text of a conversation with functions, which the template itself lists and whose calls and results it writes, and with
    /// documents that it shows. `tools` are as [`Tool::json`](super::Tool::json) gives them. Without any of these it is that of
    /// [`Self::render`].
    ///
    /// # Errors
    /// The template lacks the switch.
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
            // Templates that take no system text know neither names nor thoughts.
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
        let listed: Vec<Value> = (messages.iter())
            .map(|message| {
                let role = match message.role {
                    MessageRole::System => "system",
                    MessageRole::User => "user",
                    MessageRole::Assistant => "assistant",
                };
                context! { role, content => &message.content }
            })
            .collect();
        let bytes = messages.iter().map(|message| message.content.len()).sum();
        self.render_values(listed.into(), (().into(), ().into()), bytes, add_generation_prompt, now)
    }

    /// Renders messages, functions and documents as the template reads them, which hold `bytes` bytes of text.
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
        sandbox::render(&self.env, &self.name, variables, bytes)
    }

    /// Refuses a tokeniser that lacks a special token which the template writes: the model would read its name letter by
    /// letter. Looks for the beginning- and end-of-sequence tokens and for those that part turns in the known formats.
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

    /// A template that writes a token which the model does not have is meant for another model, or its configuration is
    /// incomplete. Undefined variables print as nothing in transformers; here, for this once, that is an error.
    fn refuse_missing_tokens(&self) -> Result<(), TextError> {
        let missing = [("bos_token", self.bos.is_none()), ("eos_token", self.eos.is_none())];
        for (variable, _) in missing.into_iter().filter(|&(_, missing)| missing) {
            let mut strict = self.clone();
            strict.env.set_undefined_behavior(UndefinedBehavior::SemiStrict);
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

    /// Decides once whether the template takes a system message.
    fn probe(&mut self) -> Result<(), TextError> {
        const MARK: &str = "palimpsest-probe";
        let user = hello(MessageRole::User);
        self.render_as_is(std::slice::from_ref(&user), true, DEFAULT_DATE)?;
        let system = Message { role: MessageRole::System, content: MARK.to_owned() };
        let taken = self.render_as_is(&[system, user], true, DEFAULT_DATE);
        self.folds_system = match taken {
            Ok(text) => !text.contains(MARK),
            // Other errors go to the caller that sends a system text.
            Err(error) => error.is_raised(),
        };
        Ok(())
    }
}

/// A rendering; `None` where the template refused it itself, by `raise_exception`.
pub(super) fn unless_raised(rendered: Result<String, TextError>) -> Result<Option<String>, TextError> {
    match rendered {
        Err(error) if error.is_raised() => Ok(None),
        rendered => rendered.map(Some),
    }
}

fn hello(role: MessageRole) -> Message {
    Message { role, content: "Hello".to_owned() }
}

/// A special token as a template sees it: undefined where the model has none, as in transformers.
fn token(text: Option<&str>) -> Value {
    text.map_or(Value::UNDEFINED, Value::from)
}

/// Moves system text to the front of the first user message (a new one where there is none).
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
