//! The estimate of cost against counted calls.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::cost::{Rates, estimate};
use super::super::model::Step;
use super::super::{Settings, Switch};
use super::script::{SCOPE, World, candidate, parsed, span, verdict};
use crate::memory::system::protocol::MemorySystem;

const WORK: &str = "current_workload";
const GOAL: &str = "short_horizon_goal";
const COMMUTE: &str = "transport_access_condition";

/// Six sessions, each of which writes a state of work and one of travel, affects the goals of the first, ends an older state of travel and weakens one of work.
fn counted(settings: &Settings, sessions: usize, probes: usize) -> BTreeMap<Step, f64> {
    let mut world = World::new(settings.clone());
    for n in 0..sessions {
        let mut candidates =
            vec![candidate(WORK, &format!("Task {n}"), 0.8), candidate(COMMUTE, &format!("Pass {n}"), 0.8)];
        if n == 0 {
            candidates.push(candidate(GOAL, "Wants to run", 0.8));
        }
        world.script.on(Step::Spans, json!({ "spans": [span("it", json!({}))] }));
        world.script.on(Step::Candidates, json!({ "candidates": candidates }));
        if settings.adjudicates() {
            let goals = json!({ "domain": "current_focus_and_goals", "reason": "busy", "confidence": 0.9 });
            world.script.on(Step::Affected, json!({ "affected": [goals] }));
        }
        if n > 0 && settings.adjudicates() {
            // Items 0 to 2 are the first session's, each later session writes two more: travel's is the second.
            let travel = if n == 1 { 1 } else { 2 * n };
            world.script.proposes(&[("item-0", 0.5)]).proposes(&[(&format!("item-{travel}"), 0.5)]);
            // As many lanes without a proposal as there are besides.
            for switch in [Switch::NoAffected, Switch::NoGlobal] {
                if !settings.lacks(switch) {
                    world.script.proposes(&[]);
                }
            }
            // Of equal proposals the paper's variant takes the first, work's, and the code's the last.
            let (first, second) = match settings.is_code() {
                true => ("INDIRECT_INVALIDATE", "WEAK_CHALLENGE"),
                false => ("KEEP", "STALE"),
            };
            world.script.judges(first, None).judges(second, None);
        }
        world.write();
    }
    for n in 0..probes {
        world.script.on(Step::Parse, parsed(json!({ "intent": "task_planning" })));
        // The first probe's premise is unsafe, so that its basis is looked for, it is verified again, and looked for again.
        let last = &world.store().active().last().unwrap().id;
        if n == 0 {
            world.script.verifies(json!({ "usable": [last], "premise_safe": false }));
        } else {
            world.script.on(Step::Verify, verdict(json!({ "status": "SUPPORTED", "usable": [last] })));
        }
        world.system.answer(SCOPE, &format!("What now{}", "?".repeat(n + 1)), None).unwrap();
    }
    world.script.counts().into_iter().map(|(step, count)| (step, count as f64)).collect()
}

#[test]
fn the_estimate_of_a_fixed_script_is_what_it_takes() {
    let (sessions, probes) = (6, 3);
    for words in [
        "code",
        "paper",
        "no-affected",
        "no-global",
        "no-links",
        "no-recovery",
        "no-verifier",
        "readout-only",
    ] {
        let settings = Settings::parse(words).unwrap();
        let counted = counted(&settings, sessions, probes);
        let rates = Rates {
            spanning: 1.0,
            updating: 1.0,
            candidates: 13.0 / 6.0,
            // The code's variant asks about the first session's too: three domains, one of them its goal's.
            direct_lanes: if settings.is_code() { 13.0 / 6.0 } else { 2.0 },
            affected_lanes: if settings.is_code() { 5.0 / 6.0 } else { 1.0 },
            first: 1.0,
            proposals: 2.0,
            // Of travel the fresh one and all of its slot, four at most; of work the fresh one and two near ones.
            links: ((1.0 + 2.0 + 3.0 + 4.0 + 4.0) + (1.0 + 2.0 + 3.0 + 3.0 + 3.0)) / 5.0,
            lacking: match words {
                "no-verifier" => 0.0,
                "readout-only" => 1.0 / 3.0,
                _ => 2.0 / 3.0,
            },
            unsure: if words == "readout-only" { 0.0 } else { 1.0 / 3.0 },
            planning: 1.0,
            ..Rates::default()
        };
        let estimated = estimate(&settings, sessions, 1000.0, probes, &rates).unwrap();
        let rounded: BTreeMap<Step, f64> =
            estimated.calls.iter().map(|(step, calls)| (*step, calls.round())).collect();
        assert_eq!(rounded, counted, "{words}");
        assert!((estimated.total() - counted.values().sum::<f64>()).abs() < 1e-6, "{words}");
    }
}

#[test]
fn prompt_tokens_grow_with_sessions_and_fall_with_switches() {
    let tokens = |words: &str, sessions, session_tokens| {
        let settings = Settings::parse(words).unwrap();
        estimate(&settings, sessions, session_tokens, 3, &Rates::default()).unwrap().prompt_tokens
    };
    let whole = tokens("code", 50, 3000.0);
    assert!(tokens("code", 100, 3000.0) > 1.9 * whole);
    for words in ["no-links", "no-affected", "no-global", "readout-only", "no-verifier", "no-recovery"] {
        assert!(tokens(words, 50, 3000.0) < whole, "{words}");
    }
    let more = tokens("code", 50, 4000.0) - whole;
    assert!((more - 50.0 * 250.0).abs() < 1e-6, "a quarter of a session is the user's: {more}");
    assert!((tokens("paper", 1, 4000.0) - tokens("paper", 1, 3000.0) - 1000.0).abs() < 1e-6);
    // The paper's price comes to some 2.2 million prompt tokens an instance: far from it, a constant would be wrong.
    assert!((2e5..5e6).contains(&whole), "{whole}");
}
