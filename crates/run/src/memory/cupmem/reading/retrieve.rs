//! R2: retrieves store entries for a probe and bundles them by slot with their status.
//!
//! Entries are active and stale items and active markers. A slot is in conflict if it has a marker, or a stale item beside an active one;
//! it is shown as one bundle. In the paper's variant the bundle holds the retrieved entries, all active items of the slot and its marker;
//! other slots show only what was retrieved (our choice, the paper is silent). `code.rs` describes the code's variant.

use serde_json::{Value, json};

use super::probe::Reading;
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::store::{Item, Link, Marker, Store};
use palimpsest_data::ground::order::unique;

/// Links shown per stale item, latest sessions first.
const LINKS: usize = 2;

#[derive(Clone, Copy)]
pub enum Entry<'s> {
    Item(&'s Item),
    Marker(&'s Marker),
}

impl<'s> Entry<'s> {
    pub fn id(&self) -> String {
        match self {
            Entry::Item(item) => item.id.clone(),
            Entry::Marker(marker) => marker.id(),
        }
    }

    pub fn slot(&self) -> &'s Slot {
        match self {
            Entry::Item(item) => &item.slot,
            Entry::Marker(marker) => &marker.slot,
        }
    }

    /// Proposition or reason; with the slot if `named`.
    fn text(&self, named: bool) -> String {
        match self {
            Entry::Item(item) => item.searched(named),
            Entry::Marker(marker) => marker.searched(named),
        }
    }

    /// Rank as evidence: 4 strong active item, 3 weak active item, 2 stale item, 1 marker.
    pub fn standing(&self) -> u8 {
        match self {
            Entry::Item(item) if item.is_active() => 3 + u8::from(item.is_strong()),
            Entry::Item(_) => 2,
            Entry::Marker(_) => 1,
        }
    }

    pub fn is_active(&self) -> bool {
        self.standing() > 2
    }

    /// Search text, and the reason why an item was archived.
    pub fn ended(&self) -> Vec<String> {
        let reason = match self {
            Entry::Item(item) => item.archived().map(|change| change.reason.clone()),
            Entry::Marker(_) => None,
        };
        [self.text(true)].into_iter().chain(reason).collect()
    }
}

pub fn entries(store: &Store) -> Vec<Entry<'_>> {
    store.items.iter().map(Entry::Item).chain(store.standing().map(Entry::Marker)).collect()
}

pub fn not_current(store: &Store) -> Vec<Entry<'_>> {
    entries(store).into_iter().filter(|entry| !entry.is_active()).collect()
}

#[derive(Clone, Copy)]
pub struct Hit<'s> {
    pub entry: Entry<'s>,
    /// Greater is nearer; `None` for entries added by their bundle.
    pub score: Option<f64>,
}

pub fn among(hits: &[Hit<'_>], id: &str) -> bool {
    hits.iter().any(|hit| hit.entry.id() == id)
}

/// Adds the hits that are not there.
pub fn add<'s>(hits: &mut Vec<Hit<'s>>, more: impl IntoIterator<Item = Hit<'s>>) {
    for hit in more {
        if !among(hits, &hit.entry.id()) {
            hits.push(hit);
        }
    }
}

impl<'a> Reading<'a, '_> {
    /// Nearest entries by proposition or reason; if `named`, also by slot and status.
    pub fn nearest(
        &mut self,
        entries: Vec<Entry<'a>>,
        query: &str,
        most: usize,
        named: bool,
    ) -> Result<Vec<Hit<'a>>, Stop> {
        let found = self.asker.nearest(entries, |entry| entry.text(named), query, most)?;
        Ok(found.into_iter().map(|(entry, score)| Hit { entry, score: Some(score) }).collect())
    }
}

/// Adds the active items of slots in conflict, in the order of the store.
pub fn complete<'s>(store: &'s Store, hits: &mut Vec<Hit<'s>>) {
    let found = hits.clone();
    let mut all = entries(store);
    all.retain(|entry| among(&found, &entry.id()));
    for slot in unique(all.iter().map(Entry::slot)) {
        if in_conflict(store, slot, &found) {
            let active = store.active_in(slot).into_iter().map(Entry::Item);
            let entries = active.chain(store.marker(slot).map(Entry::Marker));
            add(hits, entries.map(|entry| Hit { entry, score: None }));
        }
    }
}

fn in_conflict(store: &Store, slot: &Slot, found: &[Hit<'_>]) -> bool {
    let stale = found.iter().any(|hit| hit.entry.slot() == slot && hit.entry.standing() == 2);
    store.marker(slot).is_some() || (stale && !store.active_in(slot).is_empty())
}

/// Hits grouped by slot as prompts show them, in the order of the hits. `dated` (paper's variant) adds the start dates of states.
pub fn bundles(store: &Store, hits: &[Hit<'_>], dated: bool) -> Value {
    let bundle = |slot: &Slot| {
        let items = hits.iter().filter_map(|hit| match hit.entry {
            Entry::Item(item) if item.slot == *slot => Some(item),
            _ => None,
        });
        let (active, stale): (Vec<&Item>, Vec<&Item>) = items.partition(|item| item.is_active());
        let current = |item: &&Item| {
            let since = item.created.time.as_ref().filter(|_| dated);
            json!({ "id": item.id, "value": item.value, "weak": !item.is_strong(), "since": since })
        };
        json!({
            "slot": slot,
            "conflict": in_conflict(store, slot, hits),
            "active": active.iter().map(current).collect::<Vec<_>>(),
            "stale": stale.into_iter().map(|item| former(store, item, dated)).collect::<Vec<_>>(),
            "unknown": store.marker(slot).map(|marker| &marker.reason),
        })
    };
    unique(hits.iter().map(|hit| hit.entry.slot())).into_iter().map(bundle).collect()
}

fn former(store: &Store, item: &Item, dated: bool) -> Value {
    let mut links: Vec<&Link> = store.links.iter().filter(|link| link.item == item.id).collect();
    links.sort_by_key(|link| std::cmp::Reverse(link.at.index));
    let told = |link: &&Link| {
        let value = store.update(&link.update).map(|update| update.value.as_str()).unwrap_or_default();
        format!("{value} ({})", link.reason)
    };
    let replacement = if dated { written(store, item) } else { best(store, item) };
    json!({
        "id": item.id,
        "value": item.value,
        "archived": item.archived().map(|change| change.reason.as_str()).unwrap_or_default(),
        "links": links.iter().take(LINKS).map(told).collect::<Vec<_>>(),
        "replacement": replacement.map(|new| &new.value),
    })
}

/// The active item that replaced this one in the same slot.
fn written<'s>(store: &'s Store, item: &Item) -> Option<&'s Item> {
    let updates = item.archived().into_iter().flat_map(|change| &change.updates);
    let mut written = updates.filter_map(|id| store.item(store.update(id)?.item.as_deref()?));
    written.find(|new| new.slot == item.slot && new.is_active())
}

fn best<'s>(store: &'s Store, item: &Item) -> Option<&'s Item> {
    store.active_in(&item.slot).into_iter().max_by(|a, b| {
        (a.is_strong().cmp(&b.is_strong()))
            .then(a.confidence.total_cmp(&b.confidence))
            .then(a.last_updated.index.cmp(&b.last_updated.index))
    })
}

/// One hit per bundle: the nearest, ties to the most current. A slot is bundled if its hits include a marker, or a stale and an active
/// item.
pub fn primary<'s>(hits: &[Hit<'s>]) -> Vec<Hit<'s>> {
    let mut out: Vec<Hit<'_>> = Vec::new();
    let mut done: Vec<&Slot> = Vec::new();
    for hit in hits {
        let slot = hit.entry.slot();
        let mut of_slot: Vec<Hit<'_>> = hits.iter().copied().filter(|hit| hit.entry.slot() == slot).collect();
        let has = |standing: &[u8]| of_slot.iter().any(|hit| standing.contains(&hit.entry.standing()));
        if !(has(&[1]) || has(&[2]) && has(&[3, 4])) {
            out.push(*hit);
        } else if !done.contains(&slot) {
            done.push(slot);
            of_slot.sort_by(|a, b| {
                let near = |hit: &Hit<'_>| hit.score.unwrap_or_default();
                near(b).total_cmp(&near(a)).then(b.entry.standing().cmp(&a.entry.standing()))
            });
            out.extend(of_slot.first());
        }
    }
    out
}
