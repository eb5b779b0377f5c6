//! Built-in sample: one invented history with questions on every relation and subtype, in the released format.

use super::reader::{HISTORY_FILE, INSTANCES_FILE};
use crate::benchmarks::{SampleError, SampleSpec};

pub(super) const SESSIONS: usize = 24;

/// Sorted; independent of the seed.
pub(super) fn files(spec: SampleSpec) -> Result<Vec<(String, Vec<u8>)>, SampleError> {
    if let Some(asked) = spec.segments.filter(|asked| *asked != SESSIONS) {
        return Err(SampleError(format!(
            "the sample of {} has one history of {SESSIONS} sessions, and {asked} were asked for; leave --sessions out",
            super::terms::TITLE
        )));
    }
    let file = |name: &str, text: &str| (format!("persona_0/{name}"), text.as_bytes().to_vec());
    Ok(vec![
        file(INSTANCES_FILE, include_str!("bench_instances.json")),
        file(HISTORY_FILE, include_str!("history_sessions.json")),
    ])
}
