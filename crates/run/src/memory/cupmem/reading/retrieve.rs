//! R2: retrieves store entries for a probe and bundles them by slot with their status.
//!
//! Entries are active and stale items and active markers. A slot is in conflict if it has a marker, or a stale item beside an active one;
//! it is shown as one bundle. In the paper's variant the bundle holds the retrieved entries, all active items of the slot and its marker;
//! other slots show only what was retrieved (our choice, the paper is silent). `code.rs` describes the code's variant.

use serde_json::{Value, json};

use super::probe::Reading;
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::store::{Item, Link, Marker, Store, Strength};
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
            Entry::Item(item) if item.is_active() && item.strength == Strength::Strong => 4,
            Entry::Item(item) if item.is_active() => 3,
            Entry::Item(_) => 2,
            Entry::Marker(_) => 1,
        }
    }

    pub fn ended(&self) -> Vec<String> {
        let reason = match self {
            Entry::Item(item) => item.archived().map(|change| change.reason.clone()),
            Entry::Marker(_) => None,
        };
        [self.text(true)].into_iter().chain(reason).collect()
    }

    pub fn is_active(&self) -> bool {
        self.standing() > 2
    }
}

pub fn entries(store: &Store) -> Vec<Entry<'_>> {
    store.items.iter().map(Entry::Item).chain(store.standing().map(Entry::Marker)).collect()
}

pub fn not_current(store: &Store) -> Vec<Entry<'_>> {
    entries(store).into_iter().filter(|entry| !entry.is_active()).collect()
}

pub fn entry<'s>(store: &'s Store, id: &str) -> Option<Entry<'s>> {
    entries(store).into_iter().find(|entry| entry.id() == id)
}

#[derive(Debug, Clone)]
pub struct Hit {
    pub id: String,
    /// Greater is nearer; `None` for entries added by their bundle.
    pub score: Option<f64>,
}

pub fn among(hits: &[Hit], id: &str) -> bool {
    hits.iter().any(|hit| hit.id == id)
}

impl Reading<'_, '_> {
    /// Nearest entries by proposition or reason; if `named`, also by slot and status.
    pub fn nearest(
        &mut self,
        entries: Vec<Entry<'_>>,
        query: &str,
        most: usize,
        named: bool,
    ) -> Result<Vec<Hit>, Stop> {
        let found = self.asker.nearest(entries, |entry| entry.text(named), query, most)?;
        Ok(found.into_iter().map(|(entry, score)| Hit { id: entry.id(), score: Some(score) }).collect())
    }
}

/// Adds the active items of slots in conflict.
pub fn complete(store: &Store, hits: &mut Vec<Hit>) {
    let found: Vec<Entry<'_>> = entries(store).into_iter().filter(|entry| among(hits, &entry.id())).collect();
    for slot in unique(found.iter().map(Entry::slot)) {
        if in_conflict(store, slot, &found) {
            let active = store.active_in(slot).into_iter().map(Entry::Item);
            for entry in active.chain(store.marker(slot).map(Entry::Marker)) {
                add(hits, entry);
            }
        }
    }
}

pub fn add(hits: &mut Vec<Hit>, entry: Entry<'_>) {
    let id = entry.id();
    if !among(hits, &id) {
        hits.push(Hit { id, score: None });
    }
}

fn in_conflict(store: &Store, slot: &Slot, found: &[Entry<'_>]) -> bool {
    let stale = found.iter().any(|entry| entry.slot() == slot && entry.standing() == 2);
    store.marker(slot).is_some() || (stale && !store.active_in(slot).is_empty())
}

/// Hits grouped by slot as prompts show them, in the order of the hits. `dated` (paper's variant) adds the start dates of states.
pub fn bundles(store: &Store, hits: &[Hit], dated: bool) -> Value {
    let found: Vec<Entry<'_>> = hits.iter().filter_map(|hit| entry(store, &hit.id)).collect();
    let bundle = |slot: &Slot| {
        let items = found.iter().filter_map(|entry| match entry {
            Entry::Item(item) if item.slot == *slot => Some(*item),
            _ => None,
        });
        let (active, stale): (Vec<&Item>, Vec<&Item>) = items.partition(|item| item.is_active());
        json!({
            "slot": slot,
            "conflict": in_conflict(store, slot, &found),
            "active": active.into_iter().map(|item| current(item, dated)).collect::<Vec<_>>(),
            "stale": stale.into_iter().map(|item| former(store, item, dated)).collect::<Vec<_>>(),
            "unknown": store.marker(slot).map(|marker| &marker.reason),
        })
    };
    unique(found.iter().map(Entry::slot)).into_iter().map(bundle).collect()
}

fn current(item: &Item, dated: bool) -> Value {
    json!({
        "id": item.id,
        "value": item.value,
        "weak": item.strength == Strength::Weak,
        "since": item.created.time.as_ref().filter(|_| dated),
    })
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
    let mut written =
        updates.filter_map(|id| store.update(id)?.item.as_deref()).filter_map(|id| store.item(id));
    written.find(|new| new.slot == item.slot && new.is_active())
}

fn best<'s>(store: &'s Store, item: &Item) -> Option<&'s Item> {
    store.active_in(&item.slot).into_iter().max_by(|a, b| {
        let is_strong = |item: &Item| item.strength == Strength::Strong;
        (is_strong(a).cmp(&is_strong(b)))
            .then(a.confidence.total_cmp(&b.confidence))
            .then(a.last_updated.index.cmp(&b.last_updated.index))
    })
}

/// One hit per bundle: the nearest, ties to the most current. A slot is bundled if its hits include a marker, or a stale and an active
/// item.
pub fn primary(store: &Store, hits: &[Hit]) -> Vec<Hit> {
    let found: Vec<(&Hit, Entry<'_>)> =
        hits.iter().filter_map(|hit| Some((hit, entry(store, &hit.id)?))).collect();
    let mut out: Vec<Hit> = Vec::new();
    let mut done: Vec<&Slot> = Vec::new();
    for (hit, entry) in &found {
        let slot = entry.slot();
        let mut of_slot: Vec<_> = found.iter().filter(|(_, entry)| entry.slot() == slot).collect();
        let has = |standing: &[u8]| of_slot.iter().any(|(_, entry)| standing.contains(&entry.standing()));
        if !(has(&[1]) || has(&[2]) && has(&[3, 4])) {
            out.push((*hit).clone());
        } else if !done.contains(&slot) {
            done.push(slot);
            of_slot.sort_by(|(a, of_a), (b, of_b)| {
                let near = |hit: &Hit| hit.score.unwrap_or_default();
                near(b).total_cmp(&near(a)).then(of_b.standing().cmp(&of_a.standing()))
            });
            out.extend(of_slot.first().map(|(hit, _)| (*hit).clone()));
        }
    }
    out
}
