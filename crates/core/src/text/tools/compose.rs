//! The plain layout: functions, calls and results as text of ordinary messages, for chat templates that know none of them.
//!
//! Documented in `docs/serve.md`. What a client wrote stays in one piece, so that its place in the text is known.

use std::ops::Range;

use super::{ChatTurn, Speaker, Tool, ToolLayout};

/// A message with what a client wrote of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Composed {
    /// The message: of the system, the user or the assistant, without calls.
    pub turn: ChatTurn,
    /// The client's messages that its content is made of, in order.
    pub parts: Vec<ContentSource>,
}

/// A piece of a composed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentSource {
    /// The client's message.
    pub message: usize,
    /// Bytes of the composed content.
    pub bytes: Range<usize>,
}

impl Composed {
    fn new(role: Speaker) -> Self {
        Composed { turn: ChatTurn::new(role, ""), parts: Vec::new() }
    }

    fn push_own(&mut self, message: usize, text: &str) {
        let start = self.turn.content.len();
        self.turn.content.push_str(text);
        self.parts.push(ContentSource { message, bytes: start..self.turn.content.len() });
    }

    fn push_text(&mut self, text: &str) {
        self.turn.content.push_str(text);
    }

    /// Parts a text from what comes before it.
    fn part(&mut self, with: &str) {
        if !self.turn.content.is_empty() {
            self.push_text(with);
        }
    }
}

/// The messages in the plain layout; `tools` are told in the system message, where there are any.
pub fn compose(turns: &[ChatTurn], tools: &[Tool]) -> Vec<Composed> {
    let mut composed: Vec<Composed> = Vec::new();
    let mut told = tools.is_empty();
    if !told && turns.first().is_none_or(|turn| turn.role != Speaker::System) {
        let mut system = Composed::new(Speaker::System);
        system.push_text(&introduction(tools));
        composed.push(system);
        told = true;
    }
    let mut result_before = false;
    for (i, turn) in turns.iter().enumerate() {
        let is_result = turn.role == Speaker::Tool;
        // Results of several calls are one message: many templates want the speakers to take turns.
        if let (true, true, Some(last)) = (is_result, result_before, composed.last_mut()) {
            last.push_text("\n");
            push_result(last, i, turn);
            continue;
        }
        let mut one = Composed::new(if is_result { Speaker::User } else { turn.role });
        if is_result {
            push_result(&mut one, i, turn);
        } else if !turn.content.is_empty() || turn.calls.is_empty() {
            one.push_own(i, &turn.content);
        }
        if !is_result {
            (one.turn.name, one.turn.thought) = (turn.name.clone(), turn.thought.clone());
        }
        if !turn.calls.is_empty() {
            one.part("\n");
            one.push_text(&ToolLayout::PLAIN.calls.write(&turn.calls));
        }
        if !told && turn.role == Speaker::System {
            one.part("\n\n");
            one.push_text(&introduction(tools));
            told = true;
        }
        composed.push(one);
        result_before = is_result;
    }
    composed
}

fn push_result(message: &mut Composed, i: usize, turn: &ChatTurn) {
    message.push_text("<tool_response>\n");
    message.push_own(i, &turn.content);
    message.push_text("\n</tool_response>");
}

/// The text that tells a model of functions.
fn introduction(tools: &[Tool]) -> String {
    let list: Vec<String> = tools.iter().map(|tool| tool.json().to_string()).collect();
    format!(
        "You can call functions. Each line between the tags describes one:\n<tools>\n{}\n</tools>\n\nA call is written so, with \
         arguments that fit the function's parameters, and several may follow each other:\n<tool_call>\n{{\"name\": \"the \
         function\", \"arguments\": {{\"a parameter\": \"its value\"}}}}\n</tool_call>\nIts result comes in <tool_response> tags. \
         Where no function helps, answer in words.",
        list.join("\n")
    )
}
