//! A probe being read, in its parsed form (R1). R2 retrieves store entries for it and bundles them by slot with their status.
//!
//! Entries are active and stale items and active markers. A slot is in conflict if it has a marker, or a stale item beside an active one;
//! it is shown as one bundle. In the paper's variant the bundle holds the retrieved entries, all active items of the slot and its marker;
//! other slots show only what was retrieved (our choice, the paper is silent). `code.rs` describes the code's variant.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::memory::cupmem::asking::{Asker, Stop};
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::store::{Item, Link, Marker, Store};
use palimpsest_data::ground::order::unique;

/// Links shown per stale item, latest sessions first.
const LINKS: usize = 2;

#[derive(Clone, Copy)]
pub struct Query<'a> {
    pub text: &'a str,
    /// Time of the question. The code's prompts omit it.
    pub as_of: Option<&'a str>,
}

pub struct Reading<'a, 'm> {
    pub asker: &'a mut Asker<'m>,
    pub store: &'a Store,
    pub query: Query<'a>,
    pub parsed: Parsed,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Parsed {
    /// `validity_check`, `premise_laden` or `task_planning` in the code's variant; free text in the paper's.
    pub intent: String,
    pub slots: Vec<String>,
    pub proposition: String,
    /// A former state the probe presupposes.
    pub old_premise: String,
    /// Current states the answer depends on.
    pub basis: String,
    pub action: String,
    pub goal: String,
    pub options: Vec<String>,
    /// A situation the probe presupposes without saying so.
    pub hidden_setup: String,
    pub presuppositions: Vec<String>,
}

impl Parsed {
    /// Fills empty fields as the public code does.
    pub fn complete(&mut self, query: &str) {
        let first = |parts: &[&String]| {
            let mut parts = parts.iter().filter(|part| !part.is_empty());
            parts.next().map(|part| (*part).clone()).unwrap_or_default()
        };
        let query = &query.to_owned();
        if self.is_planning() {
            self.action = first(&[&self.action, &self.proposition, query]);
            self.goal = first(&[&self.goal, &self.action]);
        }
        self.hidden_setup = first(&[&self.hidden_setup, &self.old_premise]);
        self.basis = first(&[&self.basis, &self.action, &self.proposition, query]);
    }

    pub fn is_planning(&self) -> bool {
        self.intent == "task_planning"
    }

    /// Search text: the premise, then the probe. The code's variant appends slots and presuppositions.
    pub fn search_text(&self, query: &str, is_code: bool) -> String {
        let premise = [&self.old_premise, &self.hidden_setup, &self.proposition].map(String::as_str);
        let slots = self.slots.iter().map(String::as_str);
        let presupposed = self.presuppositions.iter().map(String::as_str);
        match is_code {
            true => lines(premise.into_iter().chain([query]).chain(slots).chain(presupposed)),
            false => lines(premise.into_iter().chain(presupposed).chain([query])),
        }
    }
}

/// Joins distinct non-empty texts by newlines.
pub fn lines<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    unique(parts.into_iter().map(str::trim).filter(|part| !part.is_empty())).join("\n")
}

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
