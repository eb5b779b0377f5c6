//! The part of a case that a probe is shown. Turns memories into a history: one segment per memory, by rank, with the role of the evidence behind
//! it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;

use super::system::protocol::{ContextPiece, Memory};
use super::system::rows::SearchRow;
use super::system::{MemoryContext, Show};
use palimpsest_data::case::{Case, Evidence, History, JudgeOnly, Keep, Probe, Segment, Turn};

/// Segment kind of a memory. Its span is named `memory[RANK]`.
pub const MEMORY: &str = "memory";
/// Segment kind of native context between memories.
pub const CONTEXT: &str = "context";
/// Role of a memory whose sources have several roles.
pub const MIXED: &str = "mixed";

const NATIVE: &str = "native";

/// A case restricted to one context and the probes that share it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// Contains only the shown history, its evidence, and these probes.
    pub case: Case,
    /// Original indices of the shown segments, in order; `None` for the whole history.
    pub segments: Option<Vec<usize>>,
    /// Ids of the shown memories by rank, with a memory system.
    pub memories: Option<Vec<String>>,
    /// The memory system's own answer; the model is not asked.
    pub answered: Option<String>,
    /// Why no context is available.
    pub refused: Option<String>,
}

/// A case with another history and some of its probes.
pub(super) fn part(arranged: &Case, history: History, probes: Vec<Probe>, keep: Keep) -> Case {
    // Drop judge data of other probes: with one view per probe it would grow quadratically.
    let of_probe = |probe: &Probe| Some((probe.id.clone(), arranged.judge.of_probes.get(&probe.id)?.clone()));
    let judge = JudgeOnly {
        notes: arranged.judge.notes.clone(),
        of_probes: probes.iter().filter_map(of_probe).collect(),
    };
    let mut case = Case {
        id: arranged.id.clone(),
        labels: arranged.labels.clone(),
        history,
        evidence: arranged.evidence.clone(),
        stretches: arranged.stretches.clone(),
        probes,
        judge,
        keep,
        flags: Vec::new(),
    };
    case.forget_hidden_evidence();
    case
}

pub(super) fn view(
    case: &Case,
    probe: &Probe,
    shown: &MemoryContext,
    found: Result<SearchRow, String>,
) -> View {
    let view = found.and_then(|row| of_row(case, probe, shown, row));
    view.unwrap_or_else(|why| View { refused: Some(why), ..of_memories(case, probe, &[]) })
}

/// A view without context.
fn of_memories(case: &Case, probe: &Probe, memories: &[Memory]) -> View {
    let history = History { segments: Vec::new(), query_time: case.history.query_time };
    let mut case = part(case, history, vec![probe.clone()], Keep::Ranked(Vec::new()));
    case.stretches.clear();
    let memories = memories.iter().map(|memory| memory.id.clone()).collect();
    View { case, segments: Some(Vec::new()), memories: Some(memories), ..View::default() }
}

fn of_row(case: &Case, probe: &Probe, shown: &MemoryContext, row: SearchRow) -> Result<View, String> {
    let system = &shown.system;
    let SearchRow { mut memories, parts, readback, readback_failed, answer, answer_failed, failed, .. } = row;
    if let Some(failed) = failed {
        return Err(failed.message);
    }
    match shown.show {
        Show::Answer => {
            let none = || {
                format!("the memory system {system} gives no answers of its own; drop --memory-show answer")
            };
            let answer = answer.ok_or_else(|| answer_failed.map_or_else(none, |failed| failed.message))?;
            return Ok(View { answered: Some(answer), ..of_memories(case, probe, &memories) });
        }
        Show::Perfect => {
            memories = readback.ok_or_else(|| match readback_failed {
                Some(failed) => format!("no perfect retrieval: {}", failed.message),
                None => format!(
                    "the memory system {system} does not tell which memories it wrote from which session, so there is no perfect \
                     retrieval"
                ),
            })?;
        }
        Show::Ranked | Show::Native => memories.truncate(shown.k),
    }
    let roles = roles(case, probe);
    let with_role = |(rank, memory)| Some(Evidence::segment(role(memory, &roles)?, rank));
    let mut evidence: Vec<Evidence> = memories.iter().enumerate().filter_map(with_role).collect();
    let mut view = of_memories(case, probe, &memories);
    let segments: Vec<Segment> = match (shown.show, parts) {
        (Show::Native, Some(parts)) => native(parts, &memories),
        (Show::Native, None) => {
            return Err(format!(
                "the memory system {system} has no wording of its own (`search` returns no `parts`); drop --memory-show native"
            ));
        }
        _ => memories.into_iter().enumerate().map(|(rank, memory)| worded(rank, memory)).collect(),
    };
    evidence.retain(|one| segments.iter().any(|segment| segment.index == one.place.segment));
    view.case.keep = Keep::Ranked(segments.iter().map(|segment| segment.index).collect());
    view.case.history.segments = segments;
    view.case.evidence = evidence;
    Ok(view)
}

/// Roles of the evidence in each session, by session label.
fn roles<'a>(case: &'a Case, probe: &'a Probe) -> BTreeMap<String, BTreeSet<&'a str>> {
    let mut roles: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for evidence in case.evidence_of(probe) {
        let of = |segment: &&Segment| segment.index == evidence.place.segment;
        if let Some(segment) = case.history.segments.iter().find(of) {
            roles.entry(segment.label()).or_default().insert(&evidence.role);
        }
    }
    roles
}

/// `None` if no source holds evidence.
fn role(memory: &Memory, roles: &BTreeMap<String, BTreeSet<&str>>) -> Option<String> {
    let sources = memory.sources.iter().flatten().filter_map(|source| roles.get(&source.session)).flatten();
    let all: BTreeSet<&str> = sources.copied().collect();
    match all.len() {
        0 => None,
        1 => all.first().map(|role| (*role).to_owned()),
        _ => Some(MIXED.to_owned()),
    }
}

/// Renders a memory with memory.j2.
fn worded(rank: usize, memory: Memory) -> Segment {
    let time = memory.time.as_deref().and_then(time);
    Segment { kind: MEMORY.to_owned(), index: rank, time, turns: vec![Turn::new("", memory.text)] }
}

/// Parses ISO 8601 dates and times; an offset is dropped.
fn time(text: &str) -> Option<DateTime> {
    let text = text.trim();
    text.parse().ok().or_else(|| text.get(..19)?.parse().ok())
}

/// Native context pieces. Text between memories and further pieces of one memory are numbered after the memories.
fn native(parts: Vec<ContextPiece>, memories: &[Memory]) -> Vec<Segment> {
    let mut seen = BTreeSet::new();
    let mut next = memories.len();
    let pieces = parts.into_iter().filter(|piece| !piece.text.trim().is_empty());
    let segment = |piece: ContextPiece| {
        let rank = piece.memory.and_then(|id| memories.iter().position(|memory| memory.id == id));
        let (kind, index) = match rank.filter(|&rank| seen.insert(rank)) {
            Some(rank) => (MEMORY, rank),
            None => {
                next += 1;
                (CONTEXT, next - 1)
            }
        };
        Segment { kind: kind.to_owned(), index, time: None, turns: vec![Turn::new(NATIVE, piece.text)] }
    };
    pieces.map(segment).collect()
}
