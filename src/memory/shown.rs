//! Memories become the history that a probe is shown: a segment a memory, by rank, with the role of the evidence that it was written from.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;

use super::system::protocol::{ContextPiece, Memory};
use super::system::rows::SearchRow;
use super::system::{MemoryContext, Show};
use super::view::{View, part};
use crate::data::{Case, Evidence, History, Keep, Probe, Segment, Turn};

/// The kind of a segment that holds one memory: the name of its span is `memory[RANK]`.
pub const MEMORY: &str = "memory";
/// The kind of a segment of text between memories, in a system's own wording.
pub const CONTEXT: &str = "context";
/// The role of a memory written from evidence of several roles.
pub const MIXED: &str = "mixed";

/// The role of the turn of a segment that a system worded itself.
const NATIVE: &str = "native";

/// The case as `probe` is shown it under `shown`.
pub(super) fn view(
    case: &Case,
    probe: &Probe,
    shown: &MemoryContext,
    found: Result<SearchRow, String>,
) -> View {
    let of = |history: History, evidence: Vec<Evidence>, ids: Vec<String>| {
        let keep = Keep::Ranked(history.segments.iter().map(|segment| segment.index).collect());
        let mut view = part(case, history, vec![probe.clone()], keep);
        view.evidence = evidence;
        view.stretches.clear();
        view.probes.iter_mut().for_each(|probe| probe.evidence.clear());
        View { case: view, segments: Some(Vec::new()), memories: Some(ids), answered: None, refused: None }
    };
    let nothing = || History { segments: Vec::new(), query_time: case.history.query_time };
    let refused = |why: String| View { refused: Some(why), ..of(nothing(), Vec::new(), Vec::new()) };
    let SearchRow { mut memories, parts, readback, readback_failed, answer, answer_failed, failed, .. } =
        match found {
            Ok(row) => row,
            Err(why) => return refused(why),
        };
    if let Some(failed) = failed {
        return refused(failed.message);
    }
    let system = &shown.system;
    match shown.show {
        Show::Answer => {
            return match answer {
                Some(answer) => View { answered: Some(answer), ..of(nothing(), Vec::new(), ids(&memories)) },
                None => refused(match answer_failed {
                    Some(failed) => failed.message,
                    None => format!(
                        "the memory system {system} gives no answers of its own; drop --memory-show answer"
                    ),
                }),
            };
        }
        Show::Perfect => match readback {
            Some(written) => memories = written,
            None => {
                return refused(match readback_failed {
                    Some(failed) => format!("no perfect retrieval: {}", failed.message),
                    None => format!(
                        "the memory system {system} does not tell which memories it wrote from which session, so there is no perfect \
                         retrieval"
                    ),
                });
            }
        },
        Show::Ranked | Show::Native => memories.truncate(shown.k),
    }
    let roles = roles(case, probe);
    let evidence = (memories.iter().enumerate())
        .filter_map(|(rank, memory)| Some(Evidence::segment(role(memory, &roles)?, rank)))
        .collect();
    let ids = ids(&memories);
    let segments = match (shown.show, parts) {
        (Show::Native, Some(parts)) => native(parts, &memories),
        (Show::Native, None) => {
            return refused(format!(
                "the memory system {system} has no wording of its own (`search` returns no `parts`); drop --memory-show native"
            ));
        }
        _ => memories.into_iter().enumerate().map(|(rank, memory)| worded(rank, memory)).collect(),
    };
    let shown: BTreeSet<usize> = segments.iter().map(|segment: &Segment| segment.index).collect();
    let evidence: Vec<Evidence> = evidence;
    let evidence = evidence.into_iter().filter(|one: &Evidence| shown.contains(&one.place.segment)).collect();
    of(History { segments, query_time: case.history.query_time }, evidence, ids)
}

fn ids(memories: &[Memory]) -> Vec<String> {
    memories.iter().map(|memory| memory.id.clone()).collect()
}

/// The roles of the evidence in each session, by its label.
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

/// The role of a memory by its sources: none without evidence among them.
fn role(memory: &Memory, roles: &BTreeMap<String, BTreeSet<&str>>) -> Option<String> {
    let sources = memory.sources.iter().flatten().filter_map(|source| roles.get(&source.session)).flatten();
    let all: BTreeSet<&str> = sources.copied().collect();
    match all.len() {
        0 => None,
        1 => all.first().map(|role| (*role).to_owned()),
        _ => Some(MIXED.to_owned()),
    }
}

/// A memory as memory.j2 words it.
fn worded(rank: usize, memory: Memory) -> Segment {
    let time = memory.time.as_deref().and_then(time);
    Segment { kind: MEMORY.to_owned(), index: rank, time, turns: vec![Turn::new("", memory.text)] }
}

/// A date or a time as systems write it: ISO 8601, with or without a time of day and an offset, which is dropped.
fn time(text: &str) -> Option<DateTime> {
    let text = text.trim();
    text.parse().ok().or_else(|| text.get(..19)?.parse().ok())
}

/// The pieces of a system's own wording; those between memories, and further pieces of one memory, are numbered after the memories.
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
