//! R2: the entries of the store that a probe is held against, in bundles by slot that say what is current.
//!
//! Entries are items, active and stale, and markers that stand. A slot in conflict, with a stale item beside an active one or with a marker, is shown as
//! one bundle. In the paper's variant it shows the entries found, all its active items, and its marker; other slots show what was found alone
//! (a choice where the paper is silent). What the code shows besides is said in `code.rs`.

use serde::Serialize;

use super::super::asking::{Asker, Unreachable};
use super::super::schema::Slot;
use super::super::store::{Item, Link, Marker, Store, Strength};
use crate::ground::order::unique;

/// Links of a stale item that are shown, of the last sessions.
const LINKS: usize = 2;

/// An entry of the store.
#[derive(Debug, Clone, Copy)]
pub enum Entry<'s> {
    Item(&'s Item),
    Marker(&'s Marker),
}

impl<'s> Entry<'s> {
    /// Its id.
    pub fn id(&self) -> String {
        match self {
            Entry::Item(item) => item.id.clone(),
            Entry::Marker(marker) => marker.id(),
        }
    }

    /// Its slot.
    pub fn slot(&self) -> &'s Slot {
        match self {
            Entry::Item(item) => &item.slot,
            Entry::Marker(marker) => &marker.slot,
        }
    }

    /// Proposition or reason; where `named` with the slot.
    fn text(&self, named: bool) -> String {
        match self {
            Entry::Item(item) => item.searched(named),
            Entry::Marker(marker) => marker.searched(named),
        }
    }

    /// Its place among what an answer may rest on: a strong item, a weak one, a stale one, a marker.
    pub fn standing(&self) -> u8 {
        match self {
            Entry::Item(item) if item.is_active() && item.strength == Strength::Strong => 4,
            Entry::Item(item) if item.is_active() => 3,
            Entry::Item(_) => 2,
            Entry::Marker(_) => 1,
        }
    }

    /// Its value, and why it was archived.
    pub fn ended(&self) -> Vec<String> {
        let reason = match self {
            Entry::Item(item) => item.archived().map(|change| change.reason.clone()),
            Entry::Marker(_) => None,
        };
        [self.text(true)].into_iter().chain(reason).collect()
    }

    /// Is it a current state?
    pub fn is_active(&self) -> bool {
        matches!(self, Entry::Item(item) if item.is_active())
    }
}

/// All entries, in the order of writing.
pub fn entries(store: &Store) -> Vec<Entry<'_>> {
    store.items.iter().map(Entry::Item).chain(store.standing().map(Entry::Marker)).collect()
}

/// Stale items and markers.
pub fn not_current(store: &Store) -> Vec<Entry<'_>> {
    entries(store).into_iter().filter(|entry| !entry.is_active()).collect()
}

/// An entry found, with its score.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    pub id: String,
    /// Greater is nearer; `None` for an entry that came with its bundle.
    pub score: Option<f64>,
}

/// The nearest of some entries by proposition or reason; where `named` also by slot and status.
pub fn nearest(
    asker: &mut Asker<'_>,
    entries: Vec<Entry<'_>>,
    query: &str,
    most: usize,
    named: bool,
) -> Result<Vec<Hit>, Unreachable> {
    let found = asker.nearest(entries, |entry| entry.text(named), query, most)?;
    Ok(found.into_iter().map(|(entry, score)| Hit { id: entry.id(), score: Some(score) }).collect())
}

/// Adds to hits the active items of slots in conflict.
pub fn complete(store: &Store, hits: &mut Vec<Hit>) {
    let found: Vec<Entry<'_>> =
        entries(store).into_iter().filter(|entry| hits.iter().any(|hit| hit.id == entry.id())).collect();
    for slot in slots(&found).into_iter().filter(|slot| in_conflict(store, slot, &found)) {
        let marker = store.marker(slot).map(Entry::Marker);
        let active = store.active_in(slot).into_iter().map(Entry::Item);
        for id in active.chain(marker).map(|entry| entry.id()) {
            if !hits.iter().any(|hit| hit.id == id) {
                hits.push(Hit { id, score: None });
            }
        }
    }
}

/// Slots of entries, each once, in order.
fn slots<'s>(entries: &[Entry<'s>]) -> Vec<&'s Slot> {
    unique(entries.iter().map(Entry::slot))
}

/// Has a slot a marker, or a stale entry among those found beside an active item?
fn in_conflict(store: &Store, slot: &Slot, found: &[Entry<'_>]) -> bool {
    let of_slot = || found.iter().filter(|entry| entry.slot() == slot);
    let stale = of_slot().any(|entry| matches!(entry, Entry::Item(item) if !item.is_active()));
    store.marker(slot).is_some() || (stale && !store.active_in(slot).is_empty())
}

/// A slot's entries as prompts show them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bundle {
    pub slot: Slot,
    /// Does it hold what is no longer current beside what is, or a marker?
    pub conflict: bool,
    pub active: Vec<Active>,
    pub stale: Vec<Stale>,
    /// Why the slot is unknown, where it is.
    pub unknown: Option<String>,
}

/// A current state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Active {
    pub id: String,
    pub value: String,
    pub weak: bool,
    /// When it was first seen, where that is told.
    pub since: Option<String>,
}

/// A former state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stale {
    pub id: String,
    pub value: String,
    pub archived: String,
    pub links: Vec<String>,
    pub replacement: Option<String>,
}

/// The entries of hits by slot, in the order of the hits. `dated`, as in the paper's variant, tells since when states hold.
pub fn bundles(store: &Store, hits: &[Hit], dated: bool) -> Vec<Bundle> {
    let all = entries(store);
    let by_id = |hit: &Hit| all.iter().find(|entry| entry.id() == hit.id).copied();
    let found: Vec<Entry<'_>> = hits.iter().filter_map(by_id).collect();
    let bundle = |slot: &Slot| {
        let items = found.iter().filter_map(|entry| match entry {
            Entry::Item(item) if item.slot == *slot => Some(*item),
            _ => None,
        });
        let (active, stale): (Vec<&Item>, Vec<&Item>) = items.partition(|item| item.is_active());
        Bundle {
            slot: slot.clone(),
            conflict: in_conflict(store, slot, &found),
            active: active.into_iter().map(|item| shown(item, dated)).collect(),
            stale: stale.into_iter().map(|item| former(store, item, dated)).collect(),
            unknown: store.marker(slot).map(|marker| marker.reason.clone()),
        }
    };
    slots(&found).into_iter().map(bundle).collect()
}

fn shown(item: &Item, dated: bool) -> Active {
    let since = item.created.time.clone().filter(|_| dated);
    let weak = item.strength == Strength::Weak;
    Active { id: item.id.clone(), value: item.value.clone(), weak, since }
}

fn former(store: &Store, item: &Item, dated: bool) -> Stale {
    // The last session's first.
    let mut links: Vec<&Link> = store.links.iter().filter(|link| link.item == item.id).collect();
    links.sort_by_key(|link| std::cmp::Reverse(link.at.index));
    let told = |link: &&Link| {
        let value = store.update(&link.update).map(|update| update.value.as_str()).unwrap_or_default();
        format!("{value} ({})", link.reason)
    };
    let change = item.archived();
    let replacement = if dated { written(store, item) } else { best(store, item) };
    Stale {
        id: item.id.clone(),
        value: item.value.clone(),
        archived: change.map(|change| change.reason.clone()).unwrap_or_default(),
        links: links.iter().take(LINKS).map(told).collect(),
        replacement: replacement.map(|new| new.value.clone()),
    }
}

/// The active item that the archiving update wrote in the same slot.
fn written<'s>(store: &'s Store, item: &Item) -> Option<&'s Item> {
    let updates = item.archived().into_iter().flat_map(|change| &change.updates);
    let written = updates.filter_map(|id| store.update(id)?.item.as_deref()).filter_map(|id| store.item(id));
    written.into_iter().find(|new| new.slot == item.slot && new.is_active())
}

/// The slot's best active item: a strong one, the surest, the latest.
fn best<'s>(store: &'s Store, item: &Item) -> Option<&'s Item> {
    store.active_in(&item.slot).into_iter().max_by(|a, b| {
        let rank = |item: &Item| (item.strength == Strength::Strong, item.last_updated.index);
        let ((a_strong, a_last), (b_strong, b_last)) = (rank(a), rank(b));
        a_strong.cmp(&b_strong).then(a.confidence.total_cmp(&b.confidence)).then(a_last.cmp(&b_last))
    })
}

/// An entry by its id.
pub fn entry<'s>(store: &'s Store, id: &str) -> Option<Entry<'s>> {
    entries(store).into_iter().find(|entry| entry.id() == id)
}

/// The hits that stand for their bundles. Hits of a slot with a marker among them, or with a stale and an active one, are one bundle; the nearest
/// stands for it, of equally near ones the most current.
pub fn primary(store: &Store, hits: &[Hit]) -> Vec<Hit> {
    let found: Vec<(&Hit, Entry<'_>)> =
        hits.iter().filter_map(|hit| Some((hit, entry(store, &hit.id)?))).collect();
    let in_conflict = |slot: &Slot| {
        let of_slot = || found.iter().map(|(_, entry)| entry).filter(|entry| entry.slot() == slot);
        let has = |standing: &[u8]| of_slot().any(|entry| standing.contains(&entry.standing()));
        has(&[1]) || (has(&[2]) && has(&[3, 4]))
    };
    let mut out: Vec<Hit> = Vec::new();
    let mut done: Vec<&Slot> = Vec::new();
    for (hit, entry) in &found {
        let slot = entry.slot();
        if !in_conflict(slot) {
            out.push((*hit).clone());
        } else if !done.contains(&slot) {
            done.push(slot);
            let mut of_slot: Vec<_> = found.iter().filter(|(_, entry)| entry.slot() == slot).collect();
            of_slot.sort_by(|(a, of_a), (b, of_b)| {
                let near = |hit: &Hit| hit.score.unwrap_or_default();
                near(b).total_cmp(&near(a)).then(of_b.standing().cmp(&of_a.standing()))
            });
            out.extend(of_slot.first().map(|(hit, _)| (*hit).clone()));
        }
    }
    out
}
