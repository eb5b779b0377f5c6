//! History of one answer: shown and dropped sessions with texts, roles and tokens.

use std::collections::BTreeMap;

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;
use serde::Serialize;

use super::attention::session_spans;
use super::folder::Folder;
use palimpsest_data::case::Turn;
use palimpsest_data::prompt::SegmentNumbers;
use palimpsest_run::memory::shown::MEMORY;
use palimpsest_run::memory::system::Show;
use palimpsest_run::memory::system::case_rows::MemoryRows;
use palimpsest_run::memory::system::protocol::Memory;
use palimpsest_run::runs::plan::PlannedEvidence;
use palimpsest_run::runs::store::{ShownCase, ShownSegment};

#[derive(Debug, Clone, Default, Serialize)]
pub struct Session {
    /// Span name: `session[3]`, `memory[0]`.
    pub label: String,
    /// Original index; rank of a memory.
    pub index: usize,
    kind: String,
    /// Number in its heading in the prompt, where headings count from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    heading: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    /// Role of evidence inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    holds: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<[usize; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<usize>,
    shown: bool,
    dropped: bool,
    evidence: Vec<Marked>,
    /// Absent if no file has the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    turns: Option<Vec<Turn>>,
}

/// The kind whose built-in templates show a number.
const SESSION: &str = "session";

/// A piece of evidence in a session.
#[derive(Debug, Clone, Serialize)]
struct Marked {
    role: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<usize>,
    /// UTF-16 range in the turn, as JavaScript counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    chars: Option<[usize; 2]>,
}

impl Marked {
    fn of(evidence: &PlannedEvidence, segment: Option<&ShownSegment>) -> Self {
        let chars = || {
            let (turn, bytes) = (segment?.turns.get(evidence.turn?)?, evidence.bytes.as_ref()?);
            let at = |byte: usize| Some(turn.content.get(..byte)?.encode_utf16().count());
            Some([at(bytes.start)?, at(bytes.end)?])
        };
        Marked { role: evidence.role.clone(), turn: evidence.turn, chars: chars() }
    }
}

/// Sessions of a row in the order of the prompt.
pub fn sessions(
    (folder, row): (&Folder, usize),
    store: Option<&AttentionStore>,
    history: Option<&ShownCase>,
    memory: Option<&MemoryRows>,
) -> Vec<Session> {
    let mut sessions = memories((folder, row), memory);
    sessions.extend(of_history((folder, row), history));
    let Some(store) = store else { return sessions };
    let keys = &store.keys;
    for key in session_spans(store) {
        let span = &keys[key];
        let at = sessions.iter().position(|session| session.label == span.label);
        let at = at.unwrap_or_else(|| {
            let kind = span.label.split('[').next().unwrap_or_default().to_owned();
            let (label, index) = (span.label.clone(), span.segment().unwrap_or(0));
            sessions.push(Session { label, index, kind, ..Session::default() });
            sessions.len() - 1
        });
        let is_inside =
            |one: &&Span| one.overlay && one.role.is_some() && span.start <= one.start && one.end <= span.end;
        let session = &mut sessions[at];
        session.span = Some(key);
        session.tokens = Some([span.start, span.end]);
        session.shown = true;
        session.role = span.role.clone().or(session.role.take());
        let holds = keys.iter().find(is_inside).and_then(|one| one.role.clone());
        session.holds = holds.or(session.holds.take());
    }
    // Prompt order; dropped sessions follow their predecessor in the history.
    let mut last = 0;
    let mut placed: Vec<(usize, Session)> = Vec::new();
    for session in sessions {
        last = session.tokens.map_or(last, |tokens| tokens[0]);
        placed.push((last, session));
    }
    placed.sort_by_key(|(place, _)| *place);
    let mut sessions: Vec<Session> = placed.into_iter().map(|(_, session)| session).collect();
    let numbers = match &folder.run.header.identity {
        identity if identity.version.starts_with("0.1.") => SegmentNumbers::Original,
        identity => identity.context.numbers,
    };
    let in_prompt = sessions.iter_mut().filter(|session| session.tokens.is_some() && session.kind != MEMORY);
    for (place, session) in in_prompt.enumerate() {
        session.heading = numbers.of(place, session.index).filter(|_| session.kind == SESSION);
    }
    sessions
}

fn of_history((folder, row): (&Folder, usize), history: Option<&ShownCase>) -> Vec<Session> {
    let ((case, probe, condition), answer) = (folder.named(row), folder.answer(row));
    let evidence: Vec<&PlannedEvidence> = case.evidence_of(probe).collect();
    let of_memory = condition.memory.is_some();
    let dropped = answer.map(|answer| answer.dropped_sessions.as_slice()).filter(|_| !of_memory);
    let dropped = dropped.unwrap_or_default();
    let mut all: BTreeMap<usize, Option<&ShownSegment>> = BTreeMap::new();
    all.extend(evidence.iter().map(|one| (one.segment, None)));
    all.extend(dropped.iter().map(|index| (*index, None)));
    let segments = history.iter().flat_map(|history| &history.segments);
    all.extend(segments.map(|segment| (segment.index, Some(segment))));
    let of = |(index, segment): (usize, Option<&ShownSegment>)| {
        let own = || evidence.iter().filter(|one| one.segment == index);
        let role = |whole: bool| own().find(|one| one.turn.is_none() == whole).map(|one| one.role.clone());
        let word = || folder.benchmark.segment.to_owned();
        let kind = segment.map_or_else(word, |segment| segment.kind.clone());
        let shows = !of_memory && answer.is_some_and(|answer| answer.shows(index));
        Session {
            label: format!("{kind}[{index}]"),
            index,
            kind,
            time: segment.and_then(|segment| segment.time).map(|time| time.to_string()),
            role: role(true),
            holds: role(false),
            shown: shows && segment.is_some(),
            dropped: dropped.contains(&index),
            evidence: own().map(|one| Marked::of(one, segment)).collect(),
            turns: segment.map(|segment| segment.turns.clone()),
            ..Session::default()
        }
    };
    all.into_iter().map(of).collect()
}

fn memories((folder, row): (&Folder, usize), memory: Option<&MemoryRows>) -> Vec<Session> {
    let (_, probe, condition) = folder.named(row);
    let (Some(context), Some(answer)) = (&condition.memory, folder.answer(row)) else { return Vec::new() };
    let search = memory.and_then(|rows| rows.search(&probe.id));
    let list: &[Memory] = match (context.show, search) {
        (_, None) => &[],
        (Show::Perfect, Some(row)) => row.readback.as_deref().unwrap_or_default(),
        (_, Some(row)) => &row.memories,
    };
    let of = |(rank, id): (usize, &String)| {
        let known = list.iter().find(|memory| memory.id == *id);
        let turn = |memory: &Memory| Turn { role: MEMORY.to_owned(), content: memory.text.clone() };
        Session {
            label: format!("{MEMORY}[{rank}]"),
            index: rank,
            kind: MEMORY.to_owned(),
            time: known.and_then(|memory| memory.time.clone()),
            shown: true,
            turns: known.map(|memory| vec![turn(memory)]),
            ..Session::default()
        }
    };
    // Dropped memories keep their ranks.
    let ranks = (0..).filter(|rank| !answer.dropped_sessions.contains(rank));
    ranks.zip(answer.memories.as_deref().unwrap_or_default()).map(of).collect()
}
