//! History of one answer: shown and dropped sessions with texts, roles and tokens.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fields::Fields;
use super::folder::Folder;
use super::roles::session_spans;
use palimpsest_core::attention::AttentionStore;
use palimpsest_data::case::Turn;
use palimpsest_run::memory::shown::MEMORY;
use palimpsest_run::memory::system::case_rows::MemoryRows;
use palimpsest_run::memory::system::protocol::Memory;
use palimpsest_run::memory::system::{MemoryContext, Show};
use palimpsest_run::runs::plan::PlannedEvidence;
use palimpsest_run::runs::rows::AnswerRow;
use palimpsest_run::runs::store::{ShownCase, ShownSegment};

#[derive(Debug, Clone, Default)]
pub struct Session {
    /// Span name: `session[3]`, `memory[0]`.
    pub label: String,
    /// Original index; rank of a memory.
    pub index: usize,
    kind: String,
    number: Option<usize>,
    time: Option<String>,
    pub role: Option<String>,
    pub holds: Option<String>,
    pub span: Option<usize>,
    pub tokens: Option<[usize; 2]>,
    shown: bool,
    dropped: bool,
    evidence: Vec<PlannedEvidence>,
    /// Absent if no file has the text.
    pub turns: Option<Vec<Turn>>,
}

impl Session {
    pub fn json(&self) -> Value {
        let evidence: Value = self.evidence.iter().map(|one| self.evidence_json(one)).collect();
        json!({"label": self.label, "index": self.index, "kind": self.kind})
            .with("number", self.number)
            .with("time", self.time.as_ref())
            .with("role", self.role.as_ref())
            .with("holds", self.holds.as_ref())
            .with("tokens", self.tokens)
            .with("span", self.span)
            .with("shown", Some(self.shown))
            .with("dropped", Some(self.dropped))
            .with("evidence", Some(evidence))
            .with("turns", self.turns.as_ref())
    }

    fn evidence_json(&self, evidence: &PlannedEvidence) -> Value {
        let mut found = json!({"role": evidence.role});
        let Some(turn) = evidence.turn else { return found };
        found["turn"] = json!(turn);
        let content = self.turns.as_ref().and_then(|turns| turns.get(turn)).map(|turn| turn.content.as_str());
        if let (Some(bytes), Some(content)) = (&evidence.bytes, content) {
            // JavaScript strings are UTF-16.
            let at = |byte: usize| content.get(..byte).map(|text| text.encode_utf16().count());
            if let (Some(from), Some(to)) = (at(bytes.start), at(bytes.end)) {
                found["chars"] = json!([from, to]);
            }
        }
        found
    }
}

#[derive(Debug)]
pub struct Sources<'a> {
    pub folder: &'a Folder,
    pub answer: Option<&'a AnswerRow>,
    pub store: Option<&'a AttentionStore>,
    pub history: Option<&'a ShownCase>,
    pub memory: Option<(&'a MemoryContext, Option<&'a MemoryRows>)>,
}

impl Sources<'_> {
    /// Memories by rank, then history in order.
    pub fn sessions(&self, row: usize) -> Vec<Session> {
        let mut sessions = self.memories(row);
        sessions.extend(self.of_history(row));
        let Some(store) = self.store else { return sessions };
        for key in session_spans(store) {
            let span = &store.keys[key];
            let at = sessions.iter().position(|session| session.label == span.label);
            let at = at.unwrap_or_else(|| {
                let (kind, index) = (kind_of(&span.label), span.segment().unwrap_or(0));
                sessions.push(Session { label: span.label.clone(), index, kind, ..Session::default() });
                sessions.len() - 1
            });
            let inside = |one: &&palimpsest_core::span::Span| {
                one.overlay && one.role.is_some() && span.start <= one.start && one.end <= span.end
            };
            let session = &mut sessions[at];
            session.span = Some(key);
            session.tokens = Some([span.start, span.end]);
            session.shown = true;
            session.role = span.role.clone().or(session.role.take());
            session.holds =
                store.keys.iter().find(inside).and_then(|one| one.role.clone()).or(session.holds.take());
        }
        // Prompt order; dropped sessions follow their predecessor in the history.
        let mut order: BTreeMap<usize, usize> = BTreeMap::new();
        let mut last = 0;
        for (at, session) in sessions.iter().enumerate() {
            last = session.tokens.map_or(last, |tokens| tokens[0]);
            order.insert(at, last);
        }
        let mut sorted: Vec<(usize, Session)> = sessions.into_iter().enumerate().collect();
        sorted.sort_by_key(|(at, _)| (order.get(at).copied(), *at));
        sorted.into_iter().map(|(_, session)| session).collect()
    }

    fn evidence(&self, row: usize) -> Vec<PlannedEvidence> {
        let named = self.folder.named(row);
        named.map(|(case, probe, _)| case.evidence_of(probe).cloned().collect()).unwrap_or_default()
    }

    fn of_history(&self, row: usize) -> Vec<Session> {
        let evidence = self.evidence(row);
        let mut all: BTreeMap<usize, Option<&ShownSegment>> = BTreeMap::new();
        all.extend(evidence.iter().map(|one| (one.segment, None)));
        if self.memory.is_none() {
            let dropped = self.answer.iter().flat_map(|answer| &answer.dropped_sessions);
            all.extend(dropped.map(|index| (*index, None)));
        }
        let segments = self.history.iter().flat_map(|history| &history.segments);
        all.extend(segments.map(|segment| (segment.index, Some(segment))));
        let word = self.folder.benchmark.segment;
        let of = |(index, segment): (usize, Option<&ShownSegment>)| {
            let own: Vec<PlannedEvidence> =
                evidence.iter().filter(|one| one.segment == index).cloned().collect();
            let kind = segment.map_or_else(|| word.to_owned(), |segment| segment.kind.clone());
            let shown = self.memory.is_none() && self.answer.is_some_and(|answer| answer.shows(index));
            let in_order = self.answer.is_some_and(|answer| answer.dropped_sessions.contains(&index));
            Session {
                label: format!("{kind}[{index}]"),
                index,
                kind,
                number: segment.and_then(|segment| segment.number),
                time: segment.and_then(|segment| segment.time).map(|time| time.to_string()),
                role: own.iter().find(|one| one.turn.is_none()).map(|one| one.role.clone()),
                holds: own.iter().find(|one| one.turn.is_some()).map(|one| one.role.clone()),
                shown: shown && segment.is_some(),
                dropped: self.memory.is_none() && in_order,
                evidence: own,
                turns: segment.map(|segment| segment.turns.clone()),
                ..Session::default()
            }
        };
        all.into_iter().map(of).collect()
    }

    fn memories(&self, row: usize) -> Vec<Session> {
        let (Some((context, rows)), Some(answer)) = (self.memory, self.answer) else { return Vec::new() };
        let Some((_, probe, _)) = self.folder.named(row) else { return Vec::new() };
        let search = rows.and_then(|rows| rows.search(&probe.id));
        let list: &[Memory] = match (context.show, search) {
            (_, None) => &[],
            (Show::Perfect, Some(row)) => row.readback.as_deref().unwrap_or_default(),
            (_, Some(row)) => &row.memories,
        };
        let ids = answer.memories.as_deref().unwrap_or_default();
        let of = |(rank, id): (usize, &String)| {
            let known = list.iter().find(|memory| memory.id == *id);
            let turn = |memory: &Memory| Turn { role: MEMORY.to_owned(), content: memory.text.clone() };
            Session {
                label: format!("{MEMORY}[{rank}]"),
                index: rank,
                kind: MEMORY.to_owned(),
                time: known.and_then(|memory| memory.time.clone()),
                shown: !answer.dropped_sessions.contains(&rank),
                dropped: answer.dropped_sessions.contains(&rank),
                turns: known.map(|memory| vec![turn(memory)]),
                ..Session::default()
            }
        };
        let ranks = (0..).filter(|rank| !answer.dropped_sessions.contains(rank));
        ranks.zip(ids).map(of).collect()
    }
}

fn kind_of(label: &str) -> String {
    label.split('[').next().unwrap_or_default().to_owned()
}
