//! W5: slots whose default the updates may have made unsafe, and the item that is meant where one is named; lane by lane, merged by item or by
//! slot and value, ranked, and cut to two.
//!
//! A lane a domain touched directly and a domain affected, asked also where nothing older is known; and a global one: the slots of the four active
//! items outside both that are nearest to the updates, of all where there are none outside. A lane shows what is active, stale and unknown in it.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::super::asking::{Asker, Unreachable};
use super::super::super::model::Step;
use super::super::super::schema::Slot;
use super::super::super::settings::Switch;
use super::super::super::shapes::{array, clamped, object, share, text, text_or_null};
use super::super::super::store::{Item, Note, Store};
use super::super::candidates::{in_slot, not_current, updates_listed};
use super::super::proposals::{A_LANE, Change, GLOBAL, Proposed};
use super::super::spans::listed;
use crate::ground::order::unique;

/// Proposals of a session that are adjudicated.
pub const KEPT: usize = 2;
/// Spans in the query of the global lane, and reasons of lanes in that of a merged proposal.
const SPANS: usize = 6;
const REASONS: usize = 3;

#[derive(Debug, Deserialize)]
struct Reply {
    proposals: Vec<Found>,
}

#[derive(Debug, Deserialize)]
struct Found {
    slot: String,
    item: Option<String>,
    value: String,
    updates: Vec<String>,
    spans: Vec<String>,
    reason: String,
    confidence: f64,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    let proposal = object([
        ("slot", text()),
        ("item", text_or_null()),
        ("value", text()),
        ("updates", array(text(), 8)),
        ("spans", array(text(), 8)),
        ("reason", text()),
        ("confidence", share()),
    ]);
    object([("proposals", array(proposal, A_LANE))])
}

/// A kind of lane, in the order in which their proposals are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LaneKind {
    Affected,
    Direct,
    Global,
}

/// A part of the store that is looked through.
struct Lane<'s> {
    kind: LaneKind,
    name: &'static str,
    slots: Vec<Slot>,
    active: Vec<&'s Item>,
}

/// A default that may no longer hold.
#[derive(Debug, Clone)]
pub struct Proposal {
    pub slot: Slot,
    /// The active item that is meant, where one is named.
    pub hint: Option<String>,
    /// The value that is in question, as the proposal words it.
    pub value: String,
    /// The updates that put it in question.
    pub updates: Vec<String>,
    /// The reasons of the lanes that propose it.
    pub reason: String,
    pub confidence: f64,
    /// In the order of the lanes' replies.
    number: usize,
    reasons: Vec<String>,
    lanes: Vec<(LaneKind, &'static str)>,
}

impl Proposal {
    /// Key by which proposals of the same default are merged.
    fn key(&self) -> (&Slot, Option<&str>, Option<String>) {
        let value = self.hint.is_none().then(|| plain(&self.value));
        (&self.slot, self.hint.as_deref(), value)
    }

    /// The text that the store is searched by for it.
    pub fn searched(&self) -> String {
        let (slot, hint) = (&self.slot, self.hint.as_deref().unwrap_or_default());
        format!("{} {}\n{hint}\n{}\n{}", slot.domain(), slot.name(), self.value, self.reason)
    }

    fn merge(&mut self, other: Proposal) {
        self.updates = unique(self.updates.drain(..).chain(other.updates));
        self.reasons = unique(self.reasons.drain(..).chain(other.reasons));
        self.reason = self.reasons.iter().take(REASONS).cloned().collect::<Vec<_>>().join("; ");
        self.confidence = self.confidence.max(other.confidence);
        self.lanes = unique(self.lanes.drain(..).chain(other.lanes));
        if is_placeholder(&self.value) && !is_placeholder(&other.value) {
            self.value = other.value;
        }
    }
}

/// The proposals of a session that are kept, best first, and a note for each that was made.
pub fn find(
    asker: &mut Asker<'_>,
    store: &Store,
    change: &Change<'_>,
    notes: &mut Vec<Note>,
) -> Result<Proposed<Proposal>, Unreachable> {
    let mut proposed = Proposed::default();
    let mut found: Vec<Proposal> = Vec::new();
    let lanes = lanes(asker, store, change)?;
    for lane in &lanes {
        let (former, unknown) = not_current(store, |slot| lane.slots.contains(slot));
        let data = json!({
            "updates": updates_listed(change.updates),
            "spans": listed(change.spans),
            "lane": lane.name,
            "items": lane.active.iter().map(|item| in_slot(item)).collect::<Vec<_>>(),
            "former": former,
            "unknown": unknown,
        });
        proposed.looked_at.extend(lane.active.iter().map(|item| item.id.clone()));
        match asker.ask::<Reply>(Step::Proposals, &data, &reply_shape())? {
            Ok(reply) => {
                for one in reply.proposals {
                    let about = one.item.clone().unwrap_or_else(|| one.slot.clone());
                    let accepted = accept(one, lane, change, found.len());
                    let (decision, reason) = match &accepted {
                        Ok(one) => (format!("proposed in the lane of {}", lane.name), one.reason.clone()),
                        Err(why) => ("dropped".to_owned(), (*why).to_owned()),
                    };
                    notes.push(Note { step: Step::Proposals, about, decision, reason });
                    found.extend(accepted.ok());
                }
            }
            Err(fault) => proposed.faults.push(fault),
        }
    }
    found.sort_by_key(|proposal| proposal.lanes.first().copied());
    let mut merged: Vec<Proposal> = Vec::new();
    for proposal in found {
        match merged.iter_mut().find(|known| known.key() == proposal.key()) {
            Some(known) => known.merge(proposal),
            None => merged.push(proposal),
        }
    }
    let in_scope: Vec<&Item> = store
        .active()
        .filter(|item| lanes.iter().flat_map(|lane| &lane.slots).any(|s| s.domain() == item.slot.domain()))
        .collect();
    let rank = |proposal: &Proposal| rank(proposal, &in_scope, change);
    merged.sort_by(|a, b| {
        let ((before, after), (b_before, b_after)) = (rank(a), rank(b));
        (b_before.cmp(&before))
            .then(b.confidence.total_cmp(&a.confidence))
            .then(b_after.cmp(&after))
            .then(b.number.cmp(&a.number))
    });
    for over in merged.drain(KEPT.min(merged.len())..) {
        let about = over.hint.unwrap_or_else(|| over.slot.to_string());
        let reason = format!("a session adjudicates {KEPT} proposals");
        notes.push(Note { step: Step::Proposals, about, decision: "dropped".to_owned(), reason });
    }
    proposed.kept = merged;
    Ok(proposed)
}

fn lanes<'s>(
    asker: &mut Asker<'_>,
    store: &'s Store,
    change: &Change<'_>,
) -> Result<Vec<Lane<'s>>, Unreachable> {
    let lane = |kind, name, slots: Vec<Slot>| {
        let active = store.active().filter(|item| slots.contains(&item.slot)).collect();
        Lane { kind, name, slots, active }
    };
    let of_domain = |kind, name: &'static str| {
        lane(kind, name, Slot::all().filter(|slot| slot.domain() == name).collect())
    };
    let direct = change.direct.iter().map(|name| of_domain(LaneKind::Direct, name));
    let affected = change.affected.iter().map(|name| of_domain(LaneKind::Affected, name));
    let mut lanes: Vec<Lane<'s>> = direct.chain(affected).collect();
    if !asker.settings.lacks(Switch::NoGlobal) {
        let named = || change.direct.iter().chain(change.affected);
        let outside = |item: &&Item| !named().any(|domain| item.slot.domain() == *domain);
        let mut pool: Vec<&Item> = store.active().filter(outside).collect();
        if pool.is_empty() {
            pool = store.active().collect();
        }
        let updates = change.updates.iter().map(|update| update.searched(true));
        let spans = change.spans.iter().take(SPANS).map(|span| span.evidence.text.clone());
        let query: Vec<String> = updates.chain(spans).chain(named().map(|name| (*name).to_owned())).collect();
        let nearest = asker.nearest(pool, |item| item.searched(true), &query.join("\n"), GLOBAL)?;
        let slots = unique(nearest.into_iter().map(|(item, _)| item.slot.clone()));
        if !slots.is_empty() {
            lanes.push(lane(LaneKind::Global, "all other domains", slots));
        }
    }
    Ok(lanes)
}

/// A proposal of a lane, or why it is dropped. An item that is none of the lane's active ones is left off, and the slot alone remains.
fn accept(
    found: Found,
    lane: &Lane<'_>,
    change: &Change<'_>,
    number: usize,
) -> Result<Proposal, &'static str> {
    let slot = Slot::parse(&found.slot).ok_or("the schema has no such slot")?;
    let mut updates = unique(found.updates);
    updates.retain(|id| change.updates.iter().any(|update| update.id == *id));
    if updates.is_empty() {
        return Err("it names no update of the session");
    }
    if !found.spans.iter().any(|id| change.spans.iter().any(|span| span.id == *id)) {
        return Err("it names no span of the session");
    }
    let reason = found.reason.trim().to_owned();
    if reason.is_empty() {
        return Err("it has no reason");
    }
    let named = found.item.as_deref().map(str::trim);
    let hint = lane.active.iter().find(|item| named == Some(item.id.as_str())).map(|item| item.id.clone());
    Ok(Proposal {
        slot,
        hint,
        value: found.value.trim().to_owned(),
        updates,
        confidence: clamped(found.confidence),
        number,
        reasons: vec![reason.clone()],
        reason,
        lanes: vec![(lane.kind, lane.name)],
    })
}

/// The grounds on which proposals are kept, in order, before their confidence and after it; greater is better. Of equal ones the later is kept.
fn rank(proposal: &Proposal, in_scope: &[&Item], change: &Change<'_>) -> ([usize; 7], [bool; 3]) {
    let of_slot = || in_scope.iter().filter(|item| item.slot == proposal.slot);
    let of_domain = || in_scope.iter().filter(|item| item.slot.domain() == proposal.slot.domain());
    let exact = of_slot().any(|item| proposal.hint.as_ref() == Some(&item.id));
    let matching = |item: &&&Item| !is_placeholder(&proposal.value) && matches(&proposal.value, &item.value);
    let matched = if of_slot().any(|item| matching(&item)) {
        2
    } else {
        usize::from(of_domain().any(|item| matching(&item)))
    };
    let kinds = unique(proposal.lanes.iter().map(|(kind, _)| *kind));
    let of = |kind| usize::from(kinds.contains(&kind));
    let before = [
        usize::from(exact),
        matched,
        usize::from(!is_placeholder(&proposal.value)),
        proposal.lanes.len(),
        kinds.len(),
        of(LaneKind::Global),
        of(LaneKind::Direct),
    ];
    // A slot that its own update has just filled for the first time has no older default.
    let triggers = change.updates.iter().filter(|update| proposal.updates.contains(&update.id));
    let occupied = of_slot().next().is_some();
    let fresh = triggers.into_iter().any(|update| update.slot == proposal.slot) && !occupied;
    (before, [!(fresh && proposal.hint.is_none()), occupied, of_domain().next().is_some()])
}

/// Does one of two values hold the other, but for case, spaces and punctuation?
fn matches(a: &str, b: &str) -> bool {
    let (a, b) = (plain(a), plain(b));
    !a.is_empty() && !b.is_empty() && (a.contains(&b) || b.contains(&a))
}

fn plain(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || *c == '_' || c.is_whitespace());
    kept.collect::<String>().trim().to_owned()
}

/// Is it a word in the place of a value? Whatever else is concrete.
fn is_placeholder(value: &str) -> bool {
    let value = value.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    ["", "unknown", "n/a", "na", "none", "not available"].contains(&value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_match_where_one_holds_the_other_and_all_but_placeholders_are_concrete() {
        assert!(
            matches("Cycles to work.", "cycles  TO work on most days")
                && matches("a cycle-path", "Cyclepath")
        );
        assert!(!matches("Cycles", "Drives") && !matches("?!", "Drives"));
        for word in ["", " N/A ", "none", "Unknown", "na", "not  available"] {
            assert!(is_placeholder(word), "{word}");
        }
        assert!(!is_placeholder("?") && !is_placeholder("car"));
    }
}
