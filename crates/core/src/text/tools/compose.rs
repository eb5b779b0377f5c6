//! Plain layout of functions, calls and results (`docs/serve.md`). Client text stays contiguous, so its location is known.

use std::ops::Range;

use super::{ChatTurn, Speaker, Tool, ToolLayout};

/// A composed message and its client content.
#[derive(Debug, Clone, PartialEq)]
pub struct Composed {
    /// A system, user or assistant message without calls.
    pub turn: ChatTurn,
    /// Sources of the content, in order.
    pub parts: Vec<ContentSource>,
}

/// A client message's part of a composed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentSource {
    /// Index of the client's message.
    pub message: usize,
    /// Byte range in the composed content.
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

    /// Adds a separator unless the content is empty.
    fn part(&mut self, with: &str) {
        if !self.turn.content.is_empty() {
            self.push_text(with);
        }
    }
}

/// Composes messages in the plain layout; `tools` are listed in the system message.
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
        // Merge consecutive results: many templates require alternating roles.
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
