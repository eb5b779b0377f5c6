//! W5 of the paper's variant: older items that the updates may have made untrue, lane by lane, merged by item.
//!
//! A lane a domain touched directly, one a domain affected, and a global one: the active items outside both that are nearest to the updates, of all
//! where there are none outside. Only items older than the session stand in lanes. A lane without items asks nothing.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::settings::Switch;
use super::super::shapes::{array, clamped, object, share, text};
use super::super::store::{Item, Moment, Note, Store, Update};
use super::candidates::{in_slot, same, updates_listed};
use super::spans::{Span, listed};

/// Items of the global lane.
pub const GLOBAL: usize = 4;
/// Proposals of a lane.
pub const A_LANE: usize = 3;

#[derive(Debug, Deserialize)]
struct Reply {
    proposals: Vec<Found>,
}

#[derive(Debug, Deserialize)]
struct Found {
    item: String,
    value: String,
    updates: Vec<String>,
    spans: Vec<String>,
    reason: String,
    confidence: f64,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    let proposal = object([
        ("item", text()),
        ("value", text()),
        ("updates", array(text(), 8)),
        ("spans", array(text(), 8)),
        ("reason", text()),
        ("confidence", share()),
    ]);
    object([("proposals", array(proposal, A_LANE))])
}

/// A kind of lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LaneKind {
    Direct,
    Affected,
    Global,
}

/// Items that are looked through together.
struct Lane<'s> {
    kind: LaneKind,
    name: &'static str,
    items: Vec<&'s Item>,
}

/// An older item that may no longer hold.
#[derive(Debug, Clone)]
pub struct Proposal {
    pub item: String,
    /// The updates that may have ended it.
    pub updates: Vec<String>,
    /// The reasons of all lanes that propose it.
    pub reason: String,
    pub confidence: f64,
    exact: bool,
    matches: bool,
    concrete: bool,
    lanes: BTreeSet<&'static str>,
    kinds: BTreeSet<LaneKind>,
}

/// The outcome of a session's lanes.
#[derive(Debug)]
pub struct Proposed<P> {
    pub kept: Vec<P>,
    /// All active items that stood in a lane.
    pub looked_at: Vec<String>,
    pub faults: Vec<Fault>,
}

impl<P> Default for Proposed<P> {
    fn default() -> Self {
        Proposed { kept: Vec::new(), looked_at: Vec::new(), faults: Vec::new() }
    }
}

/// The contents of lanes.
pub struct Change<'a> {
    pub at: &'a Moment,
    pub updates: &'a [Update],
    pub spans: &'a [Span],
    pub direct: &'a [&'static str],
    pub affected: &'a [&'static str],
}

/// The proposals of a session, and a note for each that was made.
pub fn find(
    asker: &mut Asker<'_>,
    store: &Store,
    change: &Change<'_>,
    notes: &mut Vec<Note>,
) -> Result<Proposed<Proposal>, Unreachable> {
    let mut proposed = Proposed::default();
    let mut merged: Vec<Proposal> = Vec::new();
    for lane in lanes(asker, store, change)? {
        for item in &lane.items {
            if !proposed.looked_at.contains(&item.id) {
                proposed.looked_at.push(item.id.clone());
            }
        }
        let data = json!({
            "updates": updates_listed(change.updates),
            "spans": listed(change.spans),
            "lane": lane.name,
            "items": lane.items.iter().map(|item| in_slot(item)).collect::<Vec<_>>(),
            "former": [],
            "unknown": [],
        });
        match asker.ask::<Reply>(Step::Proposals, &data, &reply_shape())? {
            Ok(reply) => {
                for found in reply.proposals.into_iter().take(A_LANE) {
                    merge(&mut merged, found, &lane, change, notes);
                }
            }
            Err(fault) => proposed.faults.push(fault),
        }
    }
    merged.sort_by(|a, b| rank(b).cmp(&rank(a)).then(b.confidence.total_cmp(&a.confidence)));
    proposed.kept = merged;
    Ok(proposed)
}

fn lanes<'s>(
    asker: &mut Asker<'_>,
    store: &'s Store,
    change: &Change<'_>,
) -> Result<Vec<Lane<'s>>, Unreachable> {
    let older: Vec<&Item> = store.active().filter(|item| item.created.index < change.at.index).collect();
    let of_domain = |kind, name: &'static str| {
        let items = older.iter().copied().filter(|item| item.slot.domain() == name).collect();
        Lane { kind, name, items }
    };
    let direct = change.direct.iter().map(|name| of_domain(LaneKind::Direct, name));
    let affected = change.affected.iter().map(|name| of_domain(LaneKind::Affected, name));
    let mut lanes: Vec<Lane<'s>> = direct.chain(affected).collect();
    if !asker.settings.lacks(Switch::NoGlobal) {
        let outside = |item: &&&Item| {
            !change.direct.iter().chain(change.affected).any(|domain| item.slot.domain() == *domain)
        };
        let mut pool: Vec<&Item> = older.iter().filter(outside).copied().collect();
        if pool.is_empty() {
            pool = older;
        }
        let query: Vec<&str> = change.updates.iter().map(|update| update.value.as_str()).collect();
        let nearest = asker.nearest(pool, |item| item.value.clone(), &query.join("\n"), GLOBAL)?;
        let items = nearest.into_iter().map(|(item, _)| item).collect();
        lanes.push(Lane { kind: LaneKind::Global, name: "all other domains", items });
    }
    lanes.retain(|lane| !lane.items.is_empty());
    Ok(lanes)
}

fn merge(
    merged: &mut Vec<Proposal>,
    found: Found,
    lane: &Lane<'_>,
    change: &Change<'_>,
    notes: &mut Vec<Note>,
) {
    let exact = lane.items.iter().find(|item| item.id == found.item.trim());
    let matching = lane.items.iter().find(|item| same(&item.value, &found.value));
    let mut updates: Vec<String> = found.updates;
    updates.retain(|id| change.updates.iter().any(|update| update.id == *id));
    let mut note = |about: &str, decision: &str, reason: &str| {
        let (about, decision, reason) = (about.to_owned(), decision.to_owned(), reason.to_owned());
        notes.push(Note { step: Step::Proposals, about, decision, reason });
    };
    let Some(item) = exact.or(matching) else {
        return note(&found.item, "dropped", "the lane holds no such item");
    };
    if updates.is_empty() {
        // Spans speak for the updates that rest on them, else all updates do.
        let words = |update: &&Update| {
            let spans = change.spans.iter().filter(|span| found.spans.contains(&span.id));
            update.evidence.iter().any(|evidence| spans.clone().any(|span| span.evidence == *evidence))
        };
        updates = change.updates.iter().filter(words).map(|update| update.id.clone()).collect();
    }
    if updates.is_empty() {
        updates = change.updates.iter().map(|update| update.id.clone()).collect();
    }
    note(&item.id, &format!("proposed in the lane of {}", lane.name), &found.reason);
    let matches = same(&item.value, &found.value);
    let confidence = clamped(found.confidence);
    let concrete = is_concrete(&found.value);
    match merged.iter_mut().find(|known| known.item == item.id) {
        Some(known) => {
            known.updates.extend(updates);
            known.updates.sort();
            known.updates.dedup();
            known.reason = format!("{}; {}", known.reason, found.reason);
            known.confidence = known.confidence.max(confidence);
            known.exact |= exact.is_some();
            known.matches |= matches;
            known.concrete |= concrete;
            known.lanes.insert(lane.name);
            known.kinds.insert(lane.kind);
        }
        None => merged.push(Proposal {
            item: item.id.clone(),
            updates,
            reason: found.reason,
            confidence,
            exact: exact.is_some(),
            matches,
            concrete,
            lanes: BTreeSet::from([lane.name]),
            kinds: BTreeSet::from([lane.kind]),
        }),
    }
}

/// A value of three words or more, or with a figure, says something particular [ours: the sources say "concrete" and no more].
fn is_concrete(value: &str) -> bool {
    value.split_whitespace().count() >= 3 || value.chars().any(|c| c.is_ascii_digit())
}

/// The grounds on which proposals are kept, in order; greater is better.
fn rank(proposal: &Proposal) -> [usize; 7] {
    let of = |kind| usize::from(proposal.kinds.contains(&kind));
    [
        usize::from(proposal.exact),
        usize::from(proposal.matches),
        usize::from(proposal.concrete),
        proposal.lanes.len(),
        proposal.kinds.len(),
        of(LaneKind::Global),
        of(LaneKind::Direct),
    ]
}
