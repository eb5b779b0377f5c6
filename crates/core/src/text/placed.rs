//! Locates message contents in a rendered conversation. Renders twice, with short markers and with the real contents, and requires both to
//! agree, so locations are exact even if messages quote each other. Used by the server.

use std::ops::Range;

use serde_json::Value;

use super::{ChatTemplate, ChatTurn, Document, TextError};

/// A rendered conversation with the location of its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Rendered text, with the generation prompt.
    pub text: String,
    /// One per message.
    pub contents: Vec<ContentPlace>,
    /// One per document.
    pub documents: Vec<ContentPlace>,
}

/// Location of a message's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentPlace {
    /// Byte range in the text.
    pub bytes: Range<usize>,
    /// Leading white-space bytes dropped by the template.
    pub cut: usize,
}

impl ContentPlace {
    /// Byte in the text of a byte of the content.
    pub fn at(&self, byte: usize) -> usize {
        (self.bytes.start + byte.saturating_sub(self.cut)).min(self.bytes.end)
    }
}

impl ChatTemplate {
    /// [`ChatTemplate::render_turns`] with the location of each message's content. Templates may trim contents but not alter them
    /// otherwise. A message of calls only has an empty location. Fails with [`TextError::Placement`] or [`TextError::Altered`].
    pub fn place(
        &self,
        turns: &[ChatTurn],
        tools: &[Value],
        documents: &[Document],
    ) -> Result<Placed, TextError> {
        let text = self.render_turns(turns, tools, documents, true)?;
        let is_placed = |turn: &ChatTurn| !turn.content.is_empty() || turn.calls.is_empty();
        let marked: Vec<ChatTurn> = (turns.iter().enumerate())
            .map(|(i, turn)| match is_placed(turn) {
                true => ChatTurn { content: marker(i), ..turn.clone() },
                false => turn.clone(),
            })
            .collect();
        let mark = |(i, one): (usize, &Document)| Document { text: marker(turns.len() + i), ..one.clone() };
        let marked_documents: Vec<Document> = documents.iter().enumerate().map(mark).collect();
        let skeleton = self.render_turns(&marked, tools, &marked_documents, true)?;
        let failed = || TextError::Altered { name: self.name().to_owned(), what: "message" };
        let all = turns.len() + documents.len();
        // 1. Marker positions, in text order.
        let mut places = Vec::with_capacity(turns.len());
        for i in (0..all).filter(|&i| turns.get(i).is_none_or(is_placed)) {
            let marker = marker(i);
            let mut found = skeleton.match_indices(&marker).map(|(at, _)| at);
            match (found.next(), found.count()) {
                (Some(at), 0) => places.push((at, at + marker.len(), i)),
                (first, more) => {
                    let count = usize::from(first.is_some()) + more;
                    let name = self.name().to_owned();
                    let what = if i < turns.len() { "message" } else { "document" };
                    return Err(TextError::Placement { name, what, count });
                }
            }
        }
        places.sort_unstable();
        // 2. Match the real text piece by piece.
        let mut contents = vec![ContentPlace { bytes: 0..0, cut: 0 }; all];
        let (mut at, mut reached) = (0, 0);
        for (nth, &(start, end, i)) in places.iter().enumerate() {
            let before = skeleton.get(reached..start).unwrap_or_default();
            at += text
                .get(at..)
                .and_then(|rest| rest.strip_prefix(before))
                .map(|_| before.len())
                .ok_or_else(failed)?;
            let next = places.get(nth + 1).map_or(skeleton.len(), |next| next.0);
            let after = skeleton.get(end..next).unwrap_or_default();
            let content = match turns.get(i) {
                Some(turn) => turn.content.as_str(),
                None => documents.get(i - turns.len()).map(|one| one.text.as_str()).unwrap_or_default(),
            };
            let rest = text.get(at..).unwrap_or_default();
            let (start_cut, end_cut) = (content.trim_start(), content.trim_end());
            let lead = content.len() - start_cut.len();
            let candidates = [(content, 0), (content.trim(), lead), (end_cut, 0), (start_cut, lead)];
            let fits = |shown: &str| rest.strip_prefix(shown).is_some_and(|rest| rest.starts_with(after));
            let (shown, cut) = candidates.into_iter().find(|(shown, _)| fits(shown)).ok_or_else(failed)?;
            contents[i] = ContentPlace { bytes: at..at + shown.len(), cut };
            (at, reached) = (at + shown.len(), end);
        }
        match text.get(at..) == skeleton.get(reached..) {
            true => {
                let documents = contents.split_off(turns.len());
                Ok(Placed { text, contents, documents })
            }
            false => Err(failed()),
        }
    }
}

// Private-use characters, which no text contains and no template strips.
fn marker(message: usize) -> String {
    format!("\u{F0005}{message}\u{F0005}")
}
