//! A case of the built-in sample, session by session.

use serde_json::json;

use super::super::Settings;
use super::super::model::Step;
use super::script::{SCOPE, World, candidate, span};
use crate::benchmarks::{SampleSpec, stale};
use crate::memory::system::protocol::{MemorySystem, SessionInput, TurnInput};

#[test]
fn a_case_of_the_sample_is_written_and_probed() {
    let spec = SampleSpec { seed: 1, segments: None };
    let case = &stale::sample::cases(spec).unwrap()[0];
    for words in ["code", "paper", "readout-only"] {
        let mut world = World::new(Settings::parse(words).unwrap());
        for segment in &case.history.segments {
            let session = SessionInput {
                id: format!("{}[{}]", segment.kind, segment.index),
                time: segment.time.map(|time| time.to_string()),
                turns: (segment.turns.iter().enumerate())
                    .map(|(id, turn)| TurnInput {
                        id,
                        role: turn.role.clone(),
                        content: turn.content.clone(),
                    })
                    .collect(),
            };
            let first = &session.turns[0].content;
            let words: String = first.split_inclusive(' ').take(6).collect();
            world.script.on(Step::Spans, json!({ "spans": [span(words.trim(), json!({}))] }));
            let said = candidate("current_primary_focus", &format!("Asks: {}", words.trim()), 0.8);
            world.script.on(Step::Candidates, json!({ "candidates": [said] }));
            let events = world.system.ingest(SCOPE, &session).unwrap().unwrap();
            assert!(!events.is_empty(), "{}", session.id);
        }
        let sessions = case.history.segments.len();
        assert_eq!((world.store().sessions.len(), world.store().items.len()), (sessions, sessions));
        for probe in &case.probes {
            let found = world.system.search(SCOPE, &probe.query, 20, None).unwrap();
            assert!(found.parts.is_some());
            let answer = world.system.answer(SCOPE, &probe.query, None).unwrap();
            assert_eq!(answer.text, "An answer.");
        }
        let evidence: Vec<String> =
            case.evidence.iter().map(|e| format!("session[{}]", e.place.segment)).collect();
        assert_eq!(world.system.readback(SCOPE, &evidence).unwrap().len(), evidence.len());
        assert!(super::super::show(world.store()).contains("current_primary_focus"));
    }
}
