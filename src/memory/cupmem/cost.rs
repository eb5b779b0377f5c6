//! The cost of CUPMem, before it begins: calls by step, and tokens of their prompts.
//!
//! A session's course depends on what is said in it, so [`Rates`] says how much of each thing a session and a probe bring. The defaults are assumptions,
//! not measurements: they follow from the bounds of the steps (two spans, two proposals, four links), with sessions that mostly say little, and
//! probes most of whose premises are outdated, as STALE's are. Instructions are counted from the templates themselves, at [`CHARS_A_TOKEN`].

use std::collections::BTreeMap;

use serde_json::Value;

use super::model::Step;
use super::prompts;
use super::reading::{answer, ground, parse, recover, verify};
use super::settings::{Settings, Switch};
use super::writing::{adjudicate, affected, candidates, code, links, local_update, proposals, spans};

/// Characters of English prose to a token.
pub const CHARS_A_TOKEN: f64 = 4.0;
/// Of a session's tokens, those of the user's turns: the code shows no others.
pub const USER_SHARE: f64 = 0.25;
/// Tokens of an item, an update or a span as prompts show it, its id and slot included.
pub const ENTRY: f64 = 35.0;
/// Tokens of a probe.
pub const QUERY: f64 = 60.0;

/// Rates of a history's contents: means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub spanning: f64,
    /// Of sessions, those with an accepted candidate; the rest end after W2.
    pub updating: f64,
    pub candidates: f64,
    /// Lanes of domains touched directly of an updating session; in the paper's variant those with older items.
    pub direct_lanes: f64,
    pub affected_lanes: f64,
    /// Updating sessions that find no older item at all: the first.
    pub first: f64,
    pub lane_items: f64,
    /// Proposals that are adjudicated, of an updating session that has older items.
    pub proposals: f64,
    /// Stale items that the updates of an updating session are held against, all together.
    pub links: f64,
    /// Times that a probe's basis is looked for: once or, after a second verification, twice.
    pub lacking: f64,
    /// Of probes, those that are verified again.
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

/// The expected cost of a history.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Calls of each step that is asked at all.
    pub calls: BTreeMap<Step, f64>,
    pub prompt_tokens: f64,
}

impl Estimate {
    /// All calls.
    pub fn total(&self) -> f64 {
        self.calls.values().sum()
    }
}

/// The estimate for a history of so many sessions of so many tokens each, and so many probes.
pub fn estimate(
    settings: &Settings,
    sessions: usize,
    session_tokens: f64,
    probes: usize,
    rates: &Rates,
) -> Result<Estimate, String> {
    let mut calls = BTreeMap::new();
    let mut prompt_tokens = 0.0;
    for step in Step::ASKING {
        let expected = calls_of(step, settings, sessions as f64, probes as f64, rates);
        if expected > 0.0 {
            let instructions = prompts::instructions(step, settings, &shape_of(step, settings))?;
            let fixed = instructions.chars().count() as f64 / CHARS_A_TOKEN;
            prompt_tokens += expected * (fixed + data_of(step, settings, session_tokens, rates));
            calls.insert(step, expected);
        }
    }
    Ok(Estimate { calls, prompt_tokens })
}

fn calls_of(step: Step, settings: &Settings, sessions: f64, probes: f64, rates: &Rates) -> f64 {
    let updating = sessions * rates.updating;
    let with_older = (updating - rates.first).max(0.0);
    let decides = if settings.adjudicates() { 1.0 } else { 0.0 };
    let probes = if settings.lacks(Switch::StoreOnly) { 0.0 } else { probes };
    let code = if settings.is_code() { 1.0 } else { 0.0 };
    let unless = |switch| if settings.lacks(switch) { 0.0 } else { 1.0 };
    match step {
        Step::Spans => sessions,
        Step::Candidates => sessions * rates.spanning,
        Step::LocalUpdate => decides * updating * rates.candidates,
        Step::Affected => decides * updating * unless(Switch::NoAffected),
        Step::Proposals => {
            let domains = rates.direct_lanes + rates.affected_lanes * unless(Switch::NoAffected);
            let of_domains = if settings.is_code() { updating } else { with_older };
            decides * (of_domains * domains + with_older * unless(Switch::NoGlobal))
        }
        Step::Adjudicate => decides * with_older * rates.proposals,
        Step::Links if settings.links() => with_older * rates.links,
        Step::Parse | Step::Answer => probes,
        Step::Verify => probes * unless(Switch::NoVerifier),
        // An append-only store has nothing that is not current to search first.
        Step::Recover => code * probes * (1.0 + decides) * rates.lacking * unless(Switch::NoRecovery),
        Step::VerifyAgain => code * probes * rates.unsure * unless(Switch::NoVerifier),
        Step::Ground | Step::Constraints => code * probes * rates.planning,
        Step::Links | Step::Arbitrate | Step::Apply => 0.0,
    }
}

/// Tokens of a call's data.
fn data_of(step: Step, settings: &Settings, session_tokens: f64, rates: &Rates) -> f64 {
    // Two spans, the updates, and what each step shows besides.
    let change = ENTRY * (2.0 + rates.candidates);
    let around = 2.0 * local_update::SHOWN as f64 * ENTRY;
    let retrieved = settings.variant.retrieved() as f64 * ENTRY;
    match step {
        Step::Spans if settings.is_code() => session_tokens * USER_SHARE,
        Step::Spans => session_tokens,
        Step::Candidates => ENTRY * (2.0 + rates.lane_items),
        Step::LocalUpdate => ENTRY + around,
        Step::Affected => change,
        Step::Proposals => change + ENTRY * rates.lane_items,
        Step::Adjudicate => change + around,
        Step::Links => 2.0 * ENTRY,
        Step::Parse => QUERY,
        Step::Verify | Step::VerifyAgain | Step::Recover => QUERY + 2.0 * retrieved,
        Step::Ground | Step::Constraints | Step::Answer => QUERY + retrieved,
        Step::Arbitrate | Step::Apply => 0.0,
    }
}

fn shape_of(step: Step, settings: &Settings) -> Value {
    let is_code = settings.is_code();
    match step {
        Step::Spans => spans::reply_shape(),
        Step::Candidates => candidates::reply_shape(),
        Step::LocalUpdate => local_update::reply_shape(is_code),
        Step::Affected => affected::reply_shape(),
        Step::Proposals if is_code => code::proposals::reply_shape(),
        Step::Proposals => proposals::reply_shape(),
        Step::Adjudicate if is_code => code::adjudicate::reply_shape(settings),
        Step::Adjudicate => adjudicate::reply_shape(settings),
        Step::Links => links::reply_shape(),
        Step::Parse => parse::reply_shape(is_code),
        Step::Verify | Step::VerifyAgain => verify::reply_shape(),
        Step::Recover => recover::reply_shape(),
        Step::Ground => ground::grounding_shape(),
        Step::Constraints => ground::constraints_shape(),
        Step::Answer => answer::reply_shape(),
        Step::Arbitrate | Step::Apply => Value::Null,
    }
}
