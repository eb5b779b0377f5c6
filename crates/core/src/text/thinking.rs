//! Detects a chat template's thinking support by rendering it, not by the model's name.

use jiff::civil::DateTime;

use super::TextError;
use super::chat_template::{ChatTemplate, DEFAULT_DATE, MARK, message};
use super::message::{Message, MessageRole};
use super::thoughts::{
    CHANNEL, CLOSE, FINAL, MESSAGE, OPEN, ReasoningEffort, Thinking, ThinkingMode, ThoughtFormat, Thoughts,
};

/// Variables that switch thinking, in the order tried.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];
const EFFORT: &str = "reasoning_effort";

impl ChatTemplate {
    /// Applies a thinking mode; `None` if the template has no thoughts, [`TextError::Thinking`] if it does not support the mode.
    pub fn with_thinking(
        &self,
        mode: ThinkingMode,
        effort: Option<ReasoningEffort>,
    ) -> Result<(ChatTemplate, Option<Thoughts>), TextError> {
        let refused = |problem| Err(TextError::Thinking { template: self.name().to_owned(), problem });
        let Thinking { format, switch, effort: reads_effort } = *self.thinking();
        let mut set = self.clone();
        if let Some(effort) = effort {
            if !reads_effort {
                return refused("does not read `reasoning_effort`; leave it out");
            }
            set.set(EFFORT, effort.name().into());
        }
        let Some(format) = format else {
            return match mode {
                ThinkingMode::On => refused("has no thoughts to switch on; leave thinking off"),
                ThinkingMode::Auto | ThinkingMode::Off => Ok((set, None)),
            };
        };
        let on = match (mode, switch) {
            (ThinkingMode::Off, None) => {
                return refused("has no switch for thoughts, so its model always thinks; leave thinking on");
            }
            (ThinkingMode::On, _) | (ThinkingMode::Auto, None) => true,
            (ThinkingMode::Off | ThinkingMode::Auto, Some(_)) => false,
        };
        if let Some(switch) = switch {
            set.set(switch, on.into());
        }
        let opened = on && set.tail().is_some_and(|tail| opens(&tail));
        Ok((set, Some(Thoughts { format, on, opened })))
    }

    /// Renders up to the start of an answer without a thought: by the template's switch, an empty thought, or the answer channel.
    pub fn render_past_thought(&self, messages: &[Message]) -> Result<String, TextError> {
        self.render_past_thought_on(messages, DEFAULT_DATE)
    }

    /// [`render_past_thought`](Self::render_past_thought) with a given date.
    pub fn render_past_thought_on(&self, messages: &[Message], now: DateTime) -> Result<String, TextError> {
        let Thinking { format, switch, .. } = *self.thinking();
        let (Some(format), None) = (format, switch) else {
            let (off, _) = self.with_thinking(ThinkingMode::Auto, None)?;
            return off.render_on(messages, true, now);
        };
        let mut text = self.render_on(messages, true, now)?;
        match format {
            ThoughtFormat::Channels => text.push_str("<|channel|>final<|message|>"),
            ThoughtFormat::Tags => {
                if !opens(&text) {
                    text.push_str("<think>\n");
                }
                text.push_str("\n</think>\n\n");
            }
        }
        Ok(text)
    }

    pub(super) fn find_thinking(&self) -> Thinking {
        let switch = SWITCHES.into_iter().find(|switch| {
            let tail = |on: bool| self.with(switch, on.into()).tail();
            match (tail(true), tail(false)) {
                // Templates without the variable render the same text both times.
                (Some(on), Some(off)) => on != off && !opens(&off) && (opens(&on) || closes(&off)),
                _ => false,
            }
        });
        let text = |effort: ReasoningEffort| {
            self.with(EFFORT, effort.name().into()).render(&[message(MessageRole::User, MARK)], true).ok()
        };
        let effort = text(ReasoningEffort::Low) != text(ReasoningEffort::High);
        let tags =
            || switch.is_some() || self.tail().is_some_and(|tail| opens(&tail)) || self.drops_thoughts();
        let format = match self.answers_in_channel() {
            true => Some(ThoughtFormat::Channels),
            false => tags().then_some(ThoughtFormat::Tags),
        };
        Thinking { format, switch, effort }
    }

    /// Text after a user message, with the generation prompt.
    fn tail(&self) -> Option<String> {
        let text = self.render(&[message(MessageRole::User, MARK)], true).ok()?;
        text.rsplit_once(MARK).map(|(_, tail)| tail.to_owned())
    }

    /// Renders this answer as history, followed by a question.
    fn history_of(&self, answer: &str) -> Option<String> {
        let user = message(MessageRole::User, "Hello");
        let history = [user.clone(), message(MessageRole::Assistant, answer), user];
        self.render_on(&history, true, DEFAULT_DATE).ok()
    }

    fn answers_in_channel(&self) -> bool {
        let text = self.history_of(MARK);
        text.as_deref().and_then(|text| text.split_once(MARK)).is_some_and(|(before, _)| {
            before.rsplit_once(CHANNEL).is_some_and(|(_, header)| header == format!("{FINAL}{MESSAGE}"))
        })
    }

    /// True if the template drops thoughts from earlier answers, as thinking models' templates do.
    fn drops_thoughts(&self) -> bool {
        let thought = "palimpsest-thought";
        let text = self.history_of(&format!("{OPEN}\n{thought}\n{CLOSE}\n\n{MARK}"));
        text.is_some_and(|text| text.contains(MARK) && !text.contains(thought))
    }
}

fn opens(tail: &str) -> bool {
    tail.trim_end().ends_with(OPEN)
}

fn closes(tail: &str) -> bool {
    tail.trim_end().ends_with(CLOSE)
}
