//! Converts a case to the protocol's sessions, and digests dumps.

use super::protocol::{Memory, SessionInput, TurnInput};
use palimpsest_core::digest::sha256;
use palimpsest_data::case::{Case, Probe};

pub(super) fn sessions_of(case: &Case) -> Vec<SessionInput> {
    let session = |segment: &palimpsest_data::case::Segment| SessionInput {
        id: segment.label(),
        time: segment.time.map(|time| time.to_string()),
        turns: segment
            .turns
            .iter()
            .enumerate()
            .map(|(id, turn)| TurnInput { id, role: turn.role.clone(), content: turn.content.clone() })
            .collect(),
    };
    case.history.segments.iter().map(session).collect()
}

pub(super) fn evidence_sessions(case: &Case, probe: &Probe) -> Vec<String> {
    let segments = case.history.segments.iter();
    let held = segments.filter(|segment| case.evidence_of(probe).any(|e| e.place.segment == segment.index));
    held.map(palimpsest_data::case::Segment::label).collect()
}

/// Independent of order.
pub(super) fn digest(memories: &[Memory]) -> String {
    let mut lines: Vec<String> =
        memories.iter().map(|memory| serde_json::to_string(memory).unwrap_or_default()).collect();
    lines.sort_unstable();
    sha256(lines.join("\n"))
}
