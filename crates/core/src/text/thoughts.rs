//! Separates thoughts from answers by the models' markers: `<think>` and `</think>`, or GPT-OSS's channels, where `final` is the answer.
//! Used by the local engine, for thinking budgets, and by endpoints, whose replies may contain thoughts.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{StreamDecoder, TextError, Tokenizer};

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";
pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
/// Ends of a channel's message.
const MESSAGE_ENDS: [&str; 4] = ["<|end|>", "<|return|>", "<|call|>", START];
/// The answer's channel.
pub(super) const FINAL: &str = "final";

/// Bytes before a token that may contain the start of an end marker; longer than any channel header.
const WINDOW: usize = 512;

/// True if a model is to think before it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum ThinkingMode {
    /// Off where the chat template can switch it off, else on where the model thinks
    #[default]
    Auto,
    /// On; refused where the chat template has no thoughts
    On,
    /// Off; refused where the chat template cannot switch thoughts off
    Off,
}

/// The effort of thinking, for templates that read `reasoning_effort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum ReasoningEffort {
    /// `low`
    Low,
    /// `medium`
    Medium,
    /// `high`
    High,
}

impl ReasoningEffort {
    /// The value for templates and endpoints.
    pub fn name(self) -> &'static str {
        match self {
            ReasoningEffort::Low => "low",
            ReasoningEffort::Medium => "medium",
            ReasoningEffort::High => "high",
        }
    }
}

/// Thought markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThoughtFormat {
    /// `<think>...</think>`, then the answer.
    Tags,
    /// Messages in channels; `final` is the answer.
    Channels,
}

/// Thinking support of a chat template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Thinking {
    /// Markers; `None` without thoughts.
    pub format: Option<ThoughtFormat>,
    /// Variable that switches thinking, if any.
    pub switch: Option<&'static str>,
    /// True if the template reads `reasoning_effort`.
    pub effort: bool,
}

/// Thinking state after [`ChatTemplate::with_thinking`](super::ChatTemplate::with_thinking).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thoughts {
    /// Markers.
    pub format: ThoughtFormat,
    /// True if thinking is on.
    pub on: bool,
    /// True if the prompt ends inside a thought, so the reply has no opening marker.
    pub opened: bool,
}

/// A reply split into thought and answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Thought without markers, trimmed; `None` if empty or absent.
    pub thought: Option<String>,
    /// Answer, trimmed; `None` if generation ended inside the thought.
    pub answer: Option<String>,
}

enum ReplyState<'t> {
    /// Too short to tell.
    Undecided,
    /// The thought so far.
    Thought(Cow<'t, str>),
    /// The answer so far, after its thought.
    Answer { thought: Cow<'t, str>, answer: &'t str },
}

impl ThoughtFormat {
    fn read(self, text: &str, opened: bool) -> ReplyState<'_> {
        match self {
            ThoughtFormat::Tags => read_tags(text, opened),
            ThoughtFormat::Channels => read_channels(text),
        }
    }

    /// True if a text inside a thought contains the marker after which the answer starts.
    fn ends_in(self, text: &str) -> bool {
        match self {
            ThoughtFormat::Tags => text.contains(CLOSE),
            ThoughtFormat::Channels => text
                .split(CHANNEL)
                .skip(1)
                .any(|part| part.trim_start().starts_with(FINAL) && part.contains(MESSAGE)),
        }
    }
}

fn read_tags(text: &str, opened: bool) -> ReplyState<'_> {
    let begun = text.trim_start();
    let inside = match begun.strip_prefix(OPEN) {
        Some(inside) => inside,
        None if opened => text,
        None if OPEN.starts_with(begun) => return ReplyState::Undecided,
        None => return ReplyState::Answer { thought: "".into(), answer: text },
    };
    match inside.split_once(CLOSE) {
        Some((thought, answer)) => ReplyState::Answer { thought: thought.trim().into(), answer },
        None => ReplyState::Thought(inside.trim().into()),
    }
}

fn read_channels(text: &str) -> ReplyState<'_> {
    let begun = text.trim_start();
    if let Some(answer) = begun.strip_prefix(MESSAGE) {
        return ReplyState::Answer { thought: "".into(), answer };
    }
    if !begun.starts_with(CHANNEL) {
        let short = [CHANNEL, MESSAGE].iter().any(|marker| marker.starts_with(begun));
        return if short {
            ReplyState::Undecided
        } else {
            ReplyState::Answer { thought: "".into(), answer: text }
        };
    }
    let mut thoughts: Vec<&str> = Vec::new();
    let mut rest = begun;
    while let Some((_, after)) = rest.split_once(CHANNEL) {
        let Some((header, content)) = after.split_once(MESSAGE) else { break };
        if header.trim_start().starts_with(FINAL) {
            return ReplyState::Answer { thought: joined(&thoughts).into(), answer: content };
        }
        let end = MESSAGE_ENDS.iter().filter_map(|end| content.find(end)).min().unwrap_or(content.len());
        let (thought, after) = content.split_at(end);
        thoughts.push(thought.trim());
        rest = after;
    }
    ReplyState::Thought(joined(&thoughts).into())
}

/// Joins messages of several channels into one thought.
fn joined(thoughts: &[&str]) -> String {
    thoughts.iter().copied().filter(|thought| !thought.is_empty()).collect::<Vec<_>>().join("\n\n")
}

impl Split {
    fn new(thought: &str, answer: Option<&str>) -> Self {
        let thought = thought.trim();
        Split {
            thought: (!thought.is_empty()).then(|| thought.to_owned()),
            answer: answer.map(|answer| answer.trim().to_owned()),
        }
    }

    /// Splits a reply with a leading thought. If the prompt opened the thought, only its closing marker is needed.
    pub fn of_text(text: &str) -> Self {
        let begun = text.trim_start();
        let format = match begun.starts_with(CHANNEL) {
            true => ThoughtFormat::Channels,
            false => ThoughtFormat::Tags,
        };
        let opened = !text.contains(OPEN) && text.matches(CLOSE).count() == 1;
        match format.read(text, opened) {
            ReplyState::Undecided => Split::new("", Some(text)),
            ReplyState::Thought(thought) => Split::new(&thought, None),
            ReplyState::Answer { thought, answer } => Split::new(&thought, Some(answer)),
        }
    }
}

impl Split {
    /// [`Split::of_text`] for text of unknown origin: without a marker it is returned unchanged as the answer.
    pub fn of_foreign(text: &str) -> Self {
        let split = Split::of_text(text);
        match &split.answer {
            Some(answer) if answer == text.trim() => Split { thought: None, answer: Some(text.to_owned()) },
            _ => split,
        }
    }

    /// True if a text contains a thought marker.
    pub fn is_marked(text: &str) -> bool {
        [OPEN, CLOSE, CHANNEL].iter().any(|marker| text.contains(marker))
    }
}

impl Thoughts {
    /// Splits a reply.
    pub fn split(&self, tokenizer: &Arc<Tokenizer>, tokens: &[u32]) -> Result<Split, TextError> {
        let mut reader = ThoughtReader::new(*self, Arc::clone(tokenizer));
        let before = tokens.iter().position(|&token| {
            reader.push(token);
            reader.place() == ReplyPhase::Answer
        });
        // The answer without special tokens; the thought's markers need them.
        let plain = |tokens: &[u32]| tokenizer.decode(tokens, true);
        let Some(before) = before else {
            let text = tokenizer.decode(tokens, false)?;
            return Ok(match self.format.read(&text, self.opened) {
                ReplyState::Thought(thought) => Split::new(&thought, None),
                ReplyState::Undecided | ReplyState::Answer { .. } => Split::new("", Some(&plain(tokens)?)),
            });
        };
        let (first, rest) = tokens.split_at(before + 1);
        Ok(match self.beginning(tokenizer, first)? {
            Some((thought, answer)) if reader.thought() > 0 => {
                Split::new(&thought, Some(&format!("{answer}{}", plain(rest)?)))
            }
            _ => Split::new("", Some(&plain(tokens)?)),
        })
    }

    /// The leading thought, trimmed, and the answer's start, given tokens up to the thought's end; `None` before the answer.
    fn beginning(
        &self,
        tokenizer: &Tokenizer,
        tokens: &[u32],
    ) -> Result<Option<(String, String)>, TextError> {
        let text = tokenizer.decode(tokens, false)?;
        Ok(match self.format.read(&text, self.opened) {
            ReplyState::Answer { thought, answer } => Some((thought.into_owned(), answer.to_owned())),
            ReplyState::Undecided | ReplyState::Thought(_) => None,
        })
    }
}

/// Phase of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyPhase {
    /// At the start: a thought or the answer may follow.
    Undecided,
    /// In the thought.
    Thought,
    /// In the answer.
    Answer,
}

/// Tracks a reply's phase token by token.
#[derive(Debug, Clone)]
pub struct ThoughtReader {
    thoughts: Thoughts,
    decoder: StreamDecoder<Arc<Tokenizer>>,
    /// Text before the answer, special tokens included.
    text: String,
    tokens: usize,
    place: ReplyPhase,
    thought: usize,
}

impl ThoughtReader {
    /// Starts at the beginning of a reply.
    pub fn new(thoughts: Thoughts, tokenizer: Arc<Tokenizer>) -> Self {
        let place = if thoughts.opened { ReplyPhase::Thought } else { ReplyPhase::Undecided };
        let decoder = StreamDecoder::new(tokenizer);
        ThoughtReader { thoughts, decoder, text: String::new(), tokens: 0, place, thought: 0 }
    }

    /// Appends a token. Undecodable tokens are ignored here; decoding the whole reply reports them.
    pub fn push(&mut self, token: u32) {
        if self.place == ReplyPhase::Answer {
            return;
        }
        self.tokens += 1;
        let mut window = self.text.len().saturating_sub(WINDOW);
        self.text.push_str(&self.decoder.push(token).unwrap_or_default().shown());
        let format = self.thoughts.format;
        if self.place == ReplyPhase::Undecided {
            self.place = match format.read(&self.text, self.thoughts.opened) {
                // A partial character cannot continue a marker.
                ReplyState::Undecided if self.decoder.holds() => ReplyPhase::Answer,
                ReplyState::Undecided => ReplyPhase::Undecided,
                ReplyState::Thought(_) => ReplyPhase::Thought,
                ReplyState::Answer { .. } => ReplyPhase::Answer,
            };
            // Marker and whole thought in one token.
            if self.place == ReplyPhase::Answer && (self.text.contains(CLOSE) || self.text.contains(MESSAGE))
            {
                self.thought = self.tokens;
            }
            return;
        }
        while !self.text.is_char_boundary(window) {
            window -= 1;
        }
        if self.text.get(window..).is_some_and(|text| format.ends_in(text)) {
            self.place = ReplyPhase::Answer;
            self.thought = self.tokens;
        }
    }

    /// Ends the reply, possibly within a character.
    pub fn finish(&mut self) {
        self.text.push_str(&self.decoder.finish());
    }

    /// The thought so far, trimmed, and the start of the answer, if any.
    pub fn read(&self) -> (Cow<'_, str>, Option<&str>) {
        match self.thoughts.format.read(&self.text, self.thoughts.opened) {
            ReplyState::Undecided => ("".into(), None),
            ReplyState::Thought(thought) => (thought, None),
            ReplyState::Answer { thought, answer } => (thought, Some(answer)),
        }
    }

    /// Rest of a partial opening marker.
    pub fn rest_of_marker(&self) -> String {
        let marker = match self.thoughts.format {
            ThoughtFormat::Tags => OPEN,
            ThoughtFormat::Channels => CHANNEL,
        };
        marker.strip_prefix(self.text.trim_start()).unwrap_or(marker).to_owned()
    }

    /// Answer text inside the token that ended the thought, if there was a thought.
    pub fn answer_begun(&self) -> Option<String> {
        (self.thought > 0).then(|| self.read().1.unwrap_or_default().to_owned())
    }

    /// Current phase.
    pub fn place(&self) -> ReplyPhase {
        self.place
    }

    /// In the answer: number of thought tokens before it, markers included.
    pub fn thought(&self) -> usize {
        self.thought
    }
}
