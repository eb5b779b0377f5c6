//! Estimates CUPMem's model calls by step, and their prompt tokens, before a run.
//!
//! [`Rates`] gives the mean contents of a session and a probe. The defaults are assumptions, not measurements: they follow from the limits
//! of the steps (two spans, two proposals, four links), for sessions with few updates and, as in STALE, mostly outdated premises.
//! Instructions are counted from the templates at [`CHARS_A_TOKEN`].

use std::collections::BTreeMap;

use super::prompts::{self, shape};
use super::settings::{Settings, Step, Switch};
use super::writing::SHOWN;

/// Characters per token of English prose.
pub const CHARS_A_TOKEN: f64 = 4.0;
/// The user's share of a session's tokens; the code shows no other turns.
const USER_SHARE: f64 = 0.25;
/// Prompt tokens per item, update or span, with its id and slot.
const ENTRY: f64 = 35.0;
const QUERY: f64 = 60.0;

/// Mean rates per session or probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub spanning: f64,
    /// Share of sessions with an accepted candidate; the rest end after W2.
    pub updating: f64,
    pub candidates: f64,
    /// Lanes of directly touched domains per updating session; in the paper's variant those with older items.
    pub direct_lanes: f64,
    pub affected_lanes: f64,
    /// Updating sessions without any older item: the first.
    pub first: f64,
    pub lane_items: f64,
    /// Adjudicated proposals per updating session with older items.
    pub proposals: f64,
    /// Stale items compared per updating session (W9).
    pub links: f64,
    /// Recoveries (R4) per probe: one, or two after R5.
    pub lacking: f64,
    /// Share of probes verified again (R5).
    pub unsure: f64,
    pub planning: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Rates {
            spanning: 1.0,
            updating: 0.9,
            candidates: 2.0,
            direct_lanes: 1.5,
            affected_lanes: 1.5,
            first: 1.0,
            lane_items: 6.0,
            proposals: 2.0,
            links: 4.0,
            lacking: 1.4,
            unsure: 0.7,
            planning: 1.0 / 3.0,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    pub calls: BTreeMap<Step, f64>,
    pub prompt_tokens: f64,
}

impl Estimate {
    pub fn total(&self) -> f64 {
        self.calls.values().sum()
    }
}

pub fn estimate(
    settings: &Settings,
    sessions: usize,
    session_tokens: f64,
    probes: usize,
    rates: &Rates,
) -> Result<Estimate, String> {
    let (sessions, probes) = (sessions as f64, probes as f64);
    let is_code = settings.is_code();
    let unless = |switch| if settings.lacks(switch) { 0.0 } else { 1.0 };
    let decides = unless(Switch::ReadoutOnly);
    let code = if is_code { 1.0 } else { 0.0 };
    let updating = sessions * rates.updating;
    let with_older = (updating - rates.first).max(0.0);
    let links = if settings.links() { with_older * rates.links } else { 0.0 };
    let domains = rates.direct_lanes + rates.affected_lanes * unless(Switch::NoAffected);
    let with_lanes = if is_code { updating } else { with_older };
    let lanes = with_lanes * domains + with_older * unless(Switch::NoGlobal);
    let probes = probes * unless(Switch::StoreOnly);
    let planning = code * probes * rates.planning;
    // An append-only store has no former entries, so R4 searches once.
    let recoveries = code * probes * (1.0 + decides) * rates.lacking * unless(Switch::NoRecovery);
    let verifies = unless(Switch::NoVerifier);

    // Two spans, the updates, and each step's extra data.
    let change = ENTRY * (2.0 + rates.candidates);
    let around = 2.0 * SHOWN as f64 * ENTRY;
    let retrieved = settings.retrieved() as f64 * ENTRY;
    let said = if is_code { session_tokens * USER_SHARE } else { session_tokens };
    // (step, calls, data tokens per call).
    let steps = [
        (Step::Spans, sessions, said),
        (Step::Candidates, sessions * rates.spanning, ENTRY * (2.0 + rates.lane_items)),
        (Step::LocalUpdate, decides * updating * rates.candidates, ENTRY + around),
        (Step::Affected, decides * updating * unless(Switch::NoAffected), change),
        (Step::Proposals, decides * lanes, change + ENTRY * rates.lane_items),
        (Step::Adjudicate, decides * with_older * rates.proposals, change + around),
        (Step::Links, links, 2.0 * ENTRY),
        (Step::Parse, probes, QUERY),
        (Step::Verify, probes * verifies, QUERY + 2.0 * retrieved),
        (Step::Recover, recoveries, QUERY + 2.0 * retrieved),
        (Step::VerifyAgain, code * probes * rates.unsure * verifies, QUERY + 2.0 * retrieved),
        (Step::Ground, planning, QUERY + retrieved),
        (Step::Constraints, planning, QUERY + retrieved),
        (Step::Answer, probes, QUERY + retrieved),
    ];
    let mut calls = BTreeMap::new();
    let mut prompt_tokens = 0.0;
    for (step, expected, data) in steps.into_iter().filter(|(_, expected, _)| *expected > 0.0) {
        let instructions = prompts::instructions(step, settings, &shape(step, settings))?;
        let fixed = instructions.chars().count() as f64 / CHARS_A_TOKEN;
        prompt_tokens += expected * (fixed + data);
        calls.insert(step, expected);
    }
    Ok(Estimate { calls, prompt_tokens })
}
