//! W5: proposes older states that the updates may have invalidated, lane by lane, then merges the proposals.
//!
//! Lanes: one per directly touched domain, one per affected domain, and a global lane of the active items outside both nearest to the
//! updates (of all items if none is outside).
//!
//! - Paper's variant: lanes hold items older than the session; empty lanes are skipped; a proposal names an item. All merged proposals are
//!   adjudicated.
//! - Code's variant: a lane holds slots, is asked even if nothing older is known, and shows active, stale and unknown states. The global
//!   lane holds the slots of the nearest items. A proposal names a slot and optionally an item. Two are adjudicated.

use serde::Deserialize;
use serde_json::json;

use super::{Session, Span, ids, listed, not_current, spans_listed, updates_listed};
use crate::memory::cupmem::asking::{Stop, clamped};
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::settings::{Step, Switch};
use crate::memory::cupmem::store::{Item, Update};
use palimpsest_data::ground::order::{sorted_unique, unique};
use palimpsest_data::ground::words::folded;

/// Seed items of the global lane.
const GLOBAL: usize = 4;
/// Proposals per lane, paper's variant.
const A_LANE: usize = 3;
/// Adjudicated proposals per session, code's variant.
const KEPT: usize = 2;
/// Code's variant: spans in the global lane's query; lane reasons in a merged proposal's query.
const SPANS: usize = 6;
const REASONS: usize = 3;

#[derive(Deserialize)]
struct Reply {
    proposals: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    /// Code's variant only.
    #[serde(default)]
    slot: String,
    item: Option<String>,
    value: String,
    updates: Vec<String>,
    spans: Vec<String>,
    reason: String,
    confidence: f64,
}

/// Lane kinds in the merge order of the code's variant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LaneKind {
    Affected,
    Direct,
    Global,
}

struct Lane<'s> {
    kind: LaneKind,
    name: &'static str,
    /// Code's variant only.
    slots: Vec<Slot>,
    items: Vec<&'s Item>,
}

pub struct Proposal {
    pub slot: Slot,
    /// The active item; optional in the code's variant.
    pub item: Option<String>,
    pub value: String,
    pub updates: Vec<String>,
    pub reason: String,
    pub confidence: f64,
    number: usize,
    reasons: Vec<String>,
    lanes: Vec<(LaneKind, &'static str)>,
    /// Item named by id; match quality of the value; whether the value is concrete. The code's variant decides them after merging.
    exact: bool,
    matched: usize,
    concrete: bool,
}

impl Proposal {
    fn key(&self) -> (&Slot, Option<&str>, Option<String>) {
        (&self.slot, self.item.as_deref(), self.item.is_none().then(|| bare(&self.value)))
    }

    /// Search text in the code's variant.
    pub fn searched(&self) -> String {
        let (slot, item) = (&self.slot, self.item.as_deref().unwrap_or_default());
        format!("{} {}\n{item}\n{}\n{}", slot.domain(), slot.name(), self.value, self.reason)
    }

    fn merge(&mut self, other: Proposal, is_code: bool) {
        let updates = self.updates.drain(..).chain(other.updates);
        self.updates = if is_code { unique(updates) } else { sorted_unique(updates) };
        self.reasons.extend(other.reasons);
        if is_code {
            self.reasons = unique(self.reasons.drain(..));
        }
        let told = if is_code { REASONS } else { usize::MAX };
        self.reason = self.reasons.iter().take(told).cloned().collect::<Vec<_>>().join("; ");
        self.confidence = self.confidence.max(other.confidence);
        self.lanes = unique(self.lanes.drain(..).chain(other.lanes));
        self.exact |= other.exact;
        self.matched = self.matched.max(other.matched);
        self.concrete |= other.concrete;
        if is_code && is_placeholder(&self.value) && !is_placeholder(&other.value) {
            self.value = other.value;
        }
    }

    /// Ranking criteria in order; greater is better.
    fn rank(&self) -> [usize; 7] {
        let kinds = unique(self.lanes.iter().map(|(kind, _)| *kind));
        let of = |kind| usize::from(kinds.contains(&kind));
        [
            usize::from(self.exact),
            self.matched,
            usize::from(self.concrete),
            self.lanes.len(),
            kinds.len(),
            of(LaneKind::Global),
            of(LaneKind::Direct),
        ]
    }
}

impl<'a> Session<'a, '_> {
    pub(super) fn find_proposals(&mut self, updates: &[Update]) -> Result<Vec<Proposal>, Stop> {
        let is_code = self.asker.settings.is_code();
        let mut found: Vec<Proposal> = Vec::new();
        let lanes = self.lanes(updates)?;
        for lane in &lanes {
            let (former, unknown) = not_current(self.store, |slot| lane.slots.contains(slot));
            let data = json!({
                "updates": updates_listed(updates),
                "spans": spans_listed(&self.spans),
                "lane": lane.name,
                "items": listed(lane.items.iter().copied()),
                "former": former,
                "unknown": unknown,
            });
            self.looked_at.extend(ids(lane.items.iter().copied()));
            let reply = self.asker.ask::<Reply>(Step::Proposals, &data).map(|reply| reply.proposals);
            let most = if is_code { usize::MAX } else { A_LANE };
            for one in self.or_fault(reply)?.into_iter().take(most) {
                let named = one.item.clone().unwrap_or_else(|| one.slot.clone());
                let accepted = self.accept(one, lane, updates, found.len());
                match &accepted {
                    Err(why) => self.note(Step::Proposals, &named, "dropped", why),
                    Ok(one) => {
                        let about = one.item.as_ref().filter(|_| !is_code).unwrap_or(&named);
                        let decision = format!("proposed in the lane of {}", lane.name);
                        self.note(Step::Proposals, about, &decision, &one.reason);
                    }
                }
                found.extend(accepted.ok());
            }
        }
        if is_code {
            found.sort_by_key(|proposal| proposal.lanes.first().copied());
        }
        let mut merged: Vec<Proposal> = Vec::new();
        for proposal in found {
            match merged.iter_mut().find(|known| known.key() == proposal.key()) {
                Some(known) => known.merge(proposal, is_code),
                None => merged.push(proposal),
            }
        }
        if is_code {
            self.keep_best(&mut merged, &lanes, updates);
        } else {
            merged.sort_by(|a, b| b.rank().cmp(&a.rank()).then(b.confidence.total_cmp(&a.confidence)));
        }
        Ok(merged)
    }

    fn lanes(&mut self, updates: &[Update]) -> Result<Vec<Lane<'a>>, Stop> {
        let (store, at, is_code) = (self.store, self.at.index, self.asker.settings.is_code());
        let known: Vec<&Item> = store.active().filter(|item| is_code || item.created.index < at).collect();
        let named: Vec<&'static str> = self.direct.iter().chain(&self.affected).copied().collect();
        let of_domain = |kind, name: &'static str| {
            let items = known.iter().copied().filter(|item| item.slot.domain() == name).collect();
            let slots = Slot::all().filter(|slot| is_code && slot.domain() == name).collect();
            Lane { kind, name, slots, items }
        };
        let direct = self.direct.iter().map(|name| of_domain(LaneKind::Direct, name));
        let affected = self.affected.iter().map(|name| of_domain(LaneKind::Affected, name));
        let mut lanes: Vec<Lane<'a>> = direct.chain(affected).collect();
        if !is_code {
            lanes.retain(|lane| !lane.items.is_empty());
        }
        if self.asker.settings.lacks(Switch::NoGlobal) {
            return Ok(lanes);
        }
        let outside = |item: &&Item| !named.contains(&item.slot.domain());
        let mut pool: Vec<&Item> = known.iter().copied().filter(outside).collect();
        if pool.is_empty() {
            pool = known;
        }
        let mut query: Vec<String> = updates.iter().map(|update| update.searched(is_code)).collect();
        if is_code {
            query.extend(self.spans.iter().take(SPANS).map(|span| span.evidence.text.clone()));
            query.extend(named.iter().map(|name| (*name).to_owned()));
        }
        let nearest = self.asker.nearest(pool, |item| item.searched(is_code), &query.join("\n"), GLOBAL)?;
        let mut items: Vec<&Item> = nearest.into_iter().map(|(item, _)| item).collect();
        let mut slots = Vec::new();
        if is_code {
            slots = unique(items.iter().map(|item| item.slot.clone()));
            items = store.active().filter(|item| slots.contains(&item.slot)).collect();
        }
        if !items.is_empty() {
            lanes.push(Lane { kind: LaneKind::Global, name: "all other domains", slots, items });
        }
        Ok(lanes)
    }

    /// Validates a proposal, or says why it is dropped. In the paper's variant it names an item, and without updates it rests on those of
    /// its spans, otherwise on all. In the code's it names a slot; an item outside the lane is removed.
    fn accept(
        &self,
        found: Found,
        lane: &Lane<'_>,
        updates: &[Update],
        number: usize,
    ) -> Result<Proposal, &'static str> {
        let Found { slot, item, mut value, updates: mut of, spans, mut reason, confidence } = found;
        let named = item.unwrap_or_default();
        let exact = lane.items.iter().copied().find(|item| item.id == named.trim());
        let spans: Vec<&Span> = self.spans.iter().filter(|span| spans.contains(&span.id)).collect();
        of.retain(|id| updates.iter().any(|update| update.id == *id));
        let (slot, item) = if self.asker.settings.is_code() {
            let slot = Slot::parse(&slot).ok_or("the schema has no such slot")?;
            if of.is_empty() {
                return Err("it names no update of the session");
            }
            if spans.is_empty() {
                return Err("it names no span of the session");
            }
            if reason.trim().is_empty() {
                return Err("it has no reason");
            }
            of = unique(of);
            (value, reason) = (value.trim().to_owned(), reason.trim().to_owned());
            (slot, exact)
        } else {
            let matching = || lane.items.iter().copied().find(|item| folded(&item.value) == folded(&value));
            let item = exact.or_else(matching).ok_or("the lane holds no such item")?;
            let rests = |update: &&Update| {
                update.evidence.iter().any(|evidence| spans.iter().any(|span| span.evidence == *evidence))
            };
            let ids = |update: &Update| update.id.clone();
            if of.is_empty() {
                of = updates.iter().filter(rests).map(ids).collect();
            }
            if of.is_empty() {
                of = updates.iter().map(ids).collect();
            }
            (item.slot.clone(), Some(item))
        };
        Ok(Proposal {
            slot,
            item: item.map(|item| item.id.clone()),
            updates: of,
            confidence: clamped(confidence),
            number,
            reasons: vec![reason.clone()],
            reason,
            lanes: vec![(lane.kind, lane.name)],
            exact: exact.is_some(),
            matched: usize::from(item.is_some_and(|item| folded(&item.value) == folded(&value))),
            // Three words or a digit: our reading of "concrete".
            concrete: value.split_whitespace().count() >= 3 || value.chars().any(|c| c.is_ascii_digit()),
            value,
        })
    }

    /// Keeps the best proposals of the code's variant: by rank, confidence, then whether an older state exists. Ties go to the later.
    fn keep_best(&mut self, merged: &mut Vec<Proposal>, lanes: &[Lane<'_>], updates: &[Update]) {
        let in_lanes = |item: &&Item| {
            lanes.iter().flat_map(|lane| &lane.slots).any(|slot| slot.domain() == item.slot.domain())
        };
        let in_scope: Vec<&Item> = self.store.active().filter(in_lanes).collect();
        let mut ranked = Vec::new();
        for mut proposal in merged.drain(..) {
            let of_slot = || in_scope.iter().filter(|item| item.slot == proposal.slot);
            let of_domain = || in_scope.iter().filter(|item| item.slot.domain() == proposal.slot.domain());
            let concrete = !is_placeholder(&proposal.value);
            let matching = |item: &&Item| concrete && matches(&proposal.value, &item.value);
            let matched = match of_slot().any(matching) {
                true => 2,
                false => usize::from(of_domain().any(matching)),
            };
            let exact = of_slot().any(|item| proposal.item.as_ref() == Some(&item.id));
            // A slot first filled by its own update has no older default.
            let occupied = of_slot().next().is_some();
            let mut triggers = updates.iter().filter(|update| proposal.updates.contains(&update.id));
            let fresh = triggers.any(|update| update.slot == proposal.slot) && !occupied;
            let older = [!(fresh && proposal.item.is_none()), occupied, of_domain().next().is_some()];
            (proposal.exact, proposal.matched, proposal.concrete) = (exact, matched, concrete);
            ranked.push((proposal.rank(), older, proposal));
        }
        ranked.sort_by(|(rank, older, a), (rank_b, older_b, b)| {
            (rank_b.cmp(rank))
                .then(b.confidence.total_cmp(&a.confidence))
                .then(older_b.cmp(older))
                .then(b.number.cmp(&a.number))
        });
        merged.extend(ranked.into_iter().map(|(.., proposal)| proposal));
        for over in merged.drain(KEPT.min(merged.len())..) {
            let about = over.item.unwrap_or_else(|| over.slot.to_string());
            let reason = format!("a session adjudicates {KEPT} proposals");
            self.note(Step::Proposals, &about, "dropped", &reason);
        }
    }
}

/// True if one value contains the other, ignoring case, spaces and punctuation.
fn matches(a: &str, b: &str) -> bool {
    let (a, b) = (bare(a), bare(b));
    !a.is_empty() && !b.is_empty() && (a.contains(&b) || b.contains(&a))
}

fn bare(text: &str) -> String {
    let kept = folded(text)
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == '_' || c.is_whitespace())
        .collect::<String>();
    kept.trim().to_owned()
}

/// Anything else counts as concrete.
fn is_placeholder(value: &str) -> bool {
    ["", "unknown", "n/a", "na", "none", "not available"].contains(&folded(value).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_match_where_one_holds_the_other_and_all_but_placeholders_are_concrete() {
        let cycles = matches("Cycles to work.", "cycles  TO work on most days");
        assert!(cycles && matches("a cycle-path", "Cyclepath"));
        assert!(!matches("Cycles", "Drives") && !matches("?!", "Drives"));
        for word in ["", " N/A ", "none", "Unknown", "na", "not  available"] {
            assert!(is_placeholder(word), "{word}");
        }
        assert!(!is_placeholder("?") && !is_placeholder("car"));
    }
}
