//! R3 and R5: does the probe's premise hold against what the store says is current?
//!
//! The reply is held to the store. Here as the paper's variant does it: ids that were not shown are dropped; a stale item supports nothing current and
//! is not usable; OUTDATED without grounds is UNRESOLVED, UNRESOLVED with outdated items and without support is OUTDATED. A fact must rest on a shown
//! item that is usable. The code's variant has rules of its own (`settle.rs`).

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::schema::Slot;
use super::super::shapes::{array, boolean, clamped, object, one_of, share, text};
use super::super::store::{Item, Store};
use super::parse::{Parsed, Query};
use super::retrieve::{Hit, bundles};

/// The state of a premise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Premise {
    Supported,
    Outdated,
    /// Memory does not say.
    Unresolved,
}

/// A current fact, with the items that it rests on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Fact {
    /// In words that an answer may use.
    pub text: String,
    pub items: Vec<String>,
}

/// The verdict on a premise.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Verdict {
    pub status: Premise,
    /// From 0 to 1.
    pub confidence: f64,
    pub supporting: Vec<String>,
    /// Items that it rests on and that no longer hold.
    pub outdated: Vec<String>,
    /// Items that an answer may rest on.
    pub usable: Vec<String>,
    /// Items that it must not.
    pub blocked: Vec<String>,
    pub historical: Vec<String>,
    pub unknown_slots: Vec<String>,
    pub facts: Vec<Fact>,
    /// May an answer take the premise for granted?
    pub premise_safe: bool,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    let ids = || array(text(), 16);
    let fact = object([("text", text()), ("items", array(text(), 4))]);
    object([
        ("status", one_of(&["SUPPORTED", "OUTDATED", "UNRESOLVED"])),
        ("confidence", share()),
        ("supporting", ids()),
        ("outdated", ids()),
        ("usable", ids()),
        ("blocked", ids()),
        ("historical", ids()),
        ("unknown_slots", array(text(), 6)),
        ("facts", array(fact, 8)),
        ("premise_safe", boolean()),
    ])
}

/// Asks for a verdict, and holds it to the store as the paper's variant does.
pub fn verify(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    parsed: &Parsed,
    hits: &[Hit],
) -> Result<Result<Verdict, Fault>, Unreachable> {
    let verdict = ask(asker, Step::Verify, store, query, parsed, (hits, &[]))?;
    Ok(verdict.map(|verdict| settle(verdict, store, hits)))
}

/// Asks for a verdict on what is shown; of `evidence` its former states and markers are shown apart.
pub fn ask(
    asker: &mut Asker<'_>,
    step: Step,
    store: &Store,
    query: Query<'_>,
    parsed: &Parsed,
    (hits, evidence): (&[Hit], &[Hit]),
) -> Result<Result<Verdict, Fault>, Unreachable> {
    let is_code = asker.settings.is_code();
    let data = json!({
        "query": query.text,
        "as_of": query.as_of.filter(|_| !is_code),
        "presuppositions": parsed.presuppositions,
        "old_premise": parsed.old_premise,
        "basis": parsed.basis,
        "bundles": bundles(store, hits, !is_code),
        "evidence": bundles(store, evidence, false),
    });
    asker.ask(step, &data, &reply_shape())
}

/// The verdict without a verifier: retrieved active items are usable, retrieved stale ones history, and markers stand.
pub fn unverified(store: &Store, hits: &[Hit]) -> Verdict {
    let ids = |active: bool| {
        let of = |hit: &&Hit| store.item(&hit.id).is_some_and(|item| item.is_active() == active);
        hits.iter().filter(of).map(|hit| hit.id.clone()).collect::<Vec<_>>()
    };
    let marked = store.standing().filter(|marker| hits.iter().any(|hit| hit.id == marker.id()));
    let verdict = Verdict {
        status: Premise::Unresolved,
        confidence: 1.0,
        supporting: Vec::new(),
        outdated: Vec::new(),
        usable: ids(true),
        blocked: Vec::new(),
        historical: ids(false),
        unknown_slots: marked.map(|marker| marker.slot.to_string()).collect(),
        facts: Vec::new(),
        premise_safe: true,
    };
    with_facts(verdict, store)
}

/// Holds a verdict to the store.
fn settle(mut verdict: Verdict, store: &Store, hits: &[Hit]) -> Verdict {
    verdict.confidence = clamped(verdict.confidence);
    let shown = |id: &String| hits.iter().any(|hit| hit.id == *id);
    let is_stale = |id: &String| store.item(id).is_some_and(|item| !item.is_active());
    let Verdict { supporting, outdated, usable, blocked, historical, .. } = &mut verdict;
    for list in [&mut *supporting, outdated, usable, blocked, historical] {
        list.retain(|id| shown(id) && store.item(id).is_some());
        let mut seen: Vec<String> = Vec::new();
        list.retain(|id| {
            !seen.contains(id) && {
                seen.push(id.clone());
                true
            }
        });
    }
    for list in [supporting, usable] {
        let stale: Vec<String> = list.extract_if(.., |id| is_stale(id)).collect();
        for id in stale {
            if !historical.contains(&id) {
                historical.push(id);
            }
        }
    }
    let (blocked, outdated) = (&verdict.blocked, &verdict.outdated);
    verdict.usable.retain(|id| !blocked.contains(id) && !outdated.contains(id));
    // A slot may be unknown only where its marker was shown.
    let marked =
        |slot: &Slot| store.marker(slot).is_some_and(|marker| hits.iter().any(|hit| hit.id == marker.id()));
    verdict.unknown_slots = (verdict.unknown_slots.iter())
        .filter_map(|slot| Slot::parse(slot.trim_start_matches("marker:")))
        .filter(marked)
        .map(|slot| slot.to_string())
        .collect();
    let grounds = [&verdict.outdated, &verdict.blocked, &verdict.historical, &verdict.unknown_slots];
    let has_grounds = grounds.iter().any(|list| !list.is_empty());
    verdict.status = match verdict.status {
        Premise::Outdated if !has_grounds => Premise::Unresolved,
        Premise::Unresolved if !verdict.outdated.is_empty() && verdict.supporting.is_empty() => {
            Premise::Outdated
        }
        status => status,
    };
    if verdict.status == Premise::Outdated {
        verdict.premise_safe = false;
    }
    let usable = verdict.usable.clone();
    for fact in &mut verdict.facts {
        fact.items.retain(|id| usable.contains(id));
    }
    verdict.facts.retain(|fact| !fact.items.is_empty() && !fact.text.trim().is_empty());
    with_facts(verdict, store)
}

/// The values of usable items, where no fact is given.
pub fn with_facts(mut verdict: Verdict, store: &Store) -> Verdict {
    if verdict.facts.is_empty() {
        let items = verdict.usable.iter().filter_map(|id| store.item(id));
        let fact = |item: &Item| Fact { text: item.value.clone(), items: vec![item.id.clone()] };
        verdict.facts = items.map(fact).collect();
    }
    verdict
}
