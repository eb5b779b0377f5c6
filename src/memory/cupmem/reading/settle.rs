//! A verdict of the code's variant, held to the store.
//!
//! Ids that may not be named are dropped. OUTDATED makes the premise unsafe, UNRESOLVED with an unknown slot too; OUTDATED without grounds is UNRESOLVED,
//! and unsafe all the same; an unsafe UNRESOLVED with outdated items and without support is OUTDATED. What OUTDATED names as outdated is blocked, and
//! its support is usable where it is not blocked. A SUPPORTED without usable items may rest on its support. Facts are the usable items' own words.

use super::super::schema::Slot;
use super::super::store::Store;
use super::verify::{Premise, Verdict};
use crate::ground::order::unique;

/// Most confidence of an OUTDATED without grounds, and least of an UNRESOLVED that is OUTDATED.
const UNGROUNDED: f64 = 0.65;
const GROUNDED: f64 = 0.75;

/// Holds a verdict to the store; `allowed` says which ids it may name.
pub fn settle(mut verdict: Verdict, store: &Store, allowed: impl Fn(&str) -> bool) -> Verdict {
    verdict.confidence = super::super::shapes::clamped(verdict.confidence);
    let named = |ids: &mut Vec<String>, active: bool| {
        let may = |id: &String| allowed(id) && store.item(id).is_some_and(|item| item.is_active() || !active);
        *ids = unique(ids.drain(..).filter(may));
    };
    let Verdict { supporting, outdated, usable, blocked, historical, .. } = &mut verdict;
    [supporting, usable].into_iter().for_each(|ids| named(ids, true));
    [outdated, blocked, historical].into_iter().for_each(|ids| named(ids, false));
    let slots =
        verdict.unknown_slots.iter().filter_map(|slot| Slot::parse(slot.trim_start_matches("marker:")));
    let marked = |slot: &Slot| store.marker(slot).is_some_and(|marker| allowed(&marker.id()));
    verdict.unknown_slots = unique(slots.filter(marked).map(|slot| slot.to_string()));
    status(&mut verdict);
    permissions(&mut verdict);
    verdict.facts.clear();
    verdict
}

fn status(verdict: &mut Verdict) {
    let Verdict { outdated, blocked, historical, unknown_slots, supporting, .. } = &*verdict;
    let grounded = [outdated, blocked, historical, unknown_slots].iter().any(|list| !list.is_empty());
    let against = !outdated.is_empty() && supporting.is_empty();
    match verdict.status {
        Premise::Outdated => {
            verdict.premise_safe = false;
            if !grounded {
                verdict.status = Premise::Unresolved;
                verdict.confidence = verdict.confidence.min(UNGROUNDED);
            }
        }
        Premise::Unresolved => {
            verdict.premise_safe &= verdict.unknown_slots.is_empty();
            if against && !verdict.premise_safe {
                verdict.status = Premise::Outdated;
                verdict.confidence = verdict.confidence.max(GROUNDED);
            }
        }
        Premise::Supported => {}
    }
}

fn permissions(verdict: &mut Verdict) {
    let Verdict { status, supporting, outdated, usable, blocked, historical, premise_safe, .. } = verdict;
    if *status == Premise::Outdated {
        *blocked = unique(blocked.drain(..).chain(outdated.iter().cloned()));
        *usable = unique(usable.drain(..).chain(supporting.iter().cloned()));
    }
    usable.retain(|id| !blocked.contains(id));
    if *status == Premise::Outdated {
        let former = historical.drain(..).chain(blocked.iter().cloned());
        *historical = unique(former.filter(|id| !usable.contains(id)));
    }
    if *status == Premise::Unresolved && !*premise_safe && !outdated.is_empty() {
        *status = Premise::Outdated;
        *blocked = unique(blocked.drain(..).chain(outdated.iter().cloned()));
        *historical = unique(historical.drain(..).chain(blocked.iter().cloned()));
    }
    if *status == Premise::Supported && usable.is_empty() {
        usable.clone_from(supporting);
    }
}
