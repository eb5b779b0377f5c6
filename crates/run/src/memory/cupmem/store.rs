//! The store: items, updates, markers, links and session records. Nothing is deleted.
//!
//! Items change only through [`Store::refine`], [`Store::archive`], [`Store::end`] and [`Store::weaken`], which append to the item's
//! history. [`Store::archive`] rejects evidence that is not later than the item. Cleared markers stay, with the time of clearing.

use std::path::Path;

use palimpsest_core::digest::sha256;
use std::io::ErrorKind;

use palimpsest_core::files::io_remedy;
use palimpsest_data::ground::folder;
use serde::{Deserialize, Serialize};

use super::schema::Slot;
use super::settings::Step;
use crate::memory::system::protocol::{Source, Status};
use palimpsest_data::ground::order::{entry, sorted_unique};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub session: String,
    /// From 0, in writing order.
    pub index: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub session: String,
    pub turns: Vec<usize>,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strength {
    Strong,
    Weak,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    /// Same proposition, reworded or with more evidence.
    Refined,
    Replaced,
    Invalidated,
    Unknown,
    Weakened,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub kind: ChangeKind,
    pub at: Moment,
    pub step: Step,
    pub updates: Vec<String>,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// `item-0`, in writing order.
    pub id: String,
    pub slot: Slot,
    pub value: String,
    pub status: Status,
    pub strength: Strength,
    pub confidence: f64,
    pub created: Moment,
    pub last_updated: Moment,
    pub evidence: Vec<Evidence>,
    pub updates: Vec<String>,
    pub history: Vec<Change>,
}

impl Item {
    pub fn is_active(&self) -> bool {
        self.status == Status::Active
    }

    pub fn is_strong(&self) -> bool {
        self.strength == Strength::Strong
    }

    /// Search text: the proposition; in the code's variant also slot and status.
    pub fn searched(&self, is_code: bool) -> String {
        let status = if self.is_active() { "active" } else { "stale" };
        searched(is_code, &self.slot, &self.value, status)
    }

    pub fn archived(&self) -> Option<&Change> {
        let archives =
            |kind| matches!(kind, ChangeKind::Replaced | ChangeKind::Invalidated | ChangeKind::Unknown);
        self.history.iter().rev().find(|change| archives(change.kind))
    }
}

fn searched(is_code: bool, slot: &Slot, text: &str, status: &str) -> String {
    match is_code {
        true => format!("{} {}\n{text}\n{status}", slot.domain(), slot.name()),
        false => text.to_owned(),
    }
}

pub fn sources(evidence: &[Evidence]) -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::new();
    for Evidence { session, turns, .. } in evidence {
        let new = || Source { session: session.clone(), turns: Vec::new() };
        let source = entry(&mut sources, |source| source.session == *session, new);
        source.turns = sorted_unique(source.turns.drain(..).chain(turns.iter().copied()));
    }
    sources
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Observed,
    Upstream,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// `update-0`, in writing order.
    pub id: String,
    pub slot: Slot,
    pub value: String,
    pub kind: Kind,
    pub confidence: f64,
    pub at: Moment,
    pub evidence: Vec<Evidence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
}

impl Update {
    pub fn searched(&self, is_code: bool) -> String {
        searched(is_code, &self.slot, &self.value, "")
    }
}

/// A slot whose former default is unsafe and has no replacement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Marker {
    pub slot: Slot,
    pub reason: String,
    pub by: Vec<String>,
    pub at: Moment,
    /// When a new state or marker replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<Moment>,
}

impl Marker {
    /// Search text: the reason; in the code's variant also the slot.
    pub fn searched(&self, is_code: bool) -> String {
        searched(is_code, &self.slot, &self.reason, "unknown")
    }

    pub fn id(&self) -> String {
        format!("marker:{}", self.slot)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Relation {
    Support,
    Successor,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    pub item: String,
    pub update: String,
    pub relation: Relation,
    pub reason: String,
    pub at: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub step: Step,
    /// Id of the span, update, item, domain or slot.
    pub about: String,
    pub decision: String,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    pub at: Moment,
    pub notes: Vec<Note>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Store {
    pub sessions: Vec<SessionRecord>,
    pub items: Vec<Item>,
    pub updates: Vec<Update>,
    pub markers: Vec<Marker>,
    pub links: Vec<Link>,
}

pub const FILE: &str = "cupmem.json";

impl Store {
    pub fn item(&self, id: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    pub fn update(&self, id: &str) -> Option<&Update> {
        self.updates.iter().find(|update| update.id == id)
    }

    pub fn active(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.is_active())
    }

    pub fn stale(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| !item.is_active())
    }

    pub fn active_in(&self, slot: &Slot) -> Vec<&Item> {
        self.active().filter(|item| item.slot == *slot).collect()
    }

    pub fn standing(&self) -> impl Iterator<Item = &Marker> {
        self.markers.iter().filter(|marker| marker.cleared.is_none())
    }

    pub fn marker(&self, slot: &Slot) -> Option<&Marker> {
        self.standing().find(|marker| marker.slot == *slot)
    }

    /// Adds an item and clears the slot's marker. Returns its id.
    pub fn add(&mut self, slot: &Slot, value: &str, update: &Update, change: Change) -> String {
        let id = format!("item-{}", self.items.len());
        self.clear_marker(slot, &change.at);
        self.items.push(Item {
            id: id.clone(),
            slot: slot.clone(),
            value: value.to_owned(),
            status: Status::Active,
            strength: Strength::Strong,
            confidence: update.confidence,
            created: change.at.clone(),
            last_updated: change.at.clone(),
            evidence: update.evidence.clone(),
            updates: change.updates.clone(),
            history: vec![change],
        });
        id
    }

    /// Updates value and evidence of an active item and clears the slot's marker. False if there is no such item.
    pub fn refine(&mut self, id: &str, update: &Update, change: Change) -> bool {
        let Some(item) = self.items.iter_mut().find(|item| item.id == id && item.is_active()) else {
            return false;
        };
        let before = std::mem::replace(&mut item.value, update.value.clone());
        item.strength = Strength::Strong;
        item.confidence = item.confidence.max(update.confidence);
        item.last_updated = change.at.clone();
        item.evidence.extend(update.evidence.iter().cloned());
        item.updates.extend(change.updates.iter().cloned());
        let (slot, at) = (item.slot.clone(), change.at.clone());
        item.history.push(Change { before: Some(before), ..change });
        self.clear_marker(&slot, &at);
        true
    }

    /// Archives an active item older than the change's session.
    pub fn archive(&mut self, id: &str, change: Change) -> Result<(), String> {
        match self.item(id) {
            Some(item) if item.is_active() && item.created.index >= change.at.index => {
                Err(format!("{id} is not older than {}", change.at.session))
            }
            _ => self.end(id, change),
        }
    }

    /// Archives an active item of any age. Only the code's variant ends items of the same session.
    pub fn end(&mut self, id: &str, change: Change) -> Result<(), String> {
        let item = self.items.iter_mut().find(|item| item.id == id);
        let item = item.ok_or_else(|| format!("there is no {id}"))?;
        if item.status == Status::Stale {
            return Err(format!("{id} is stale already"));
        }
        item.status = Status::Stale;
        item.history.push(change);
        Ok(())
    }

    /// Weakens an active item older than the evidence's session; weak items are unchanged.
    pub fn weaken(&mut self, id: &str, change: Change) -> Result<(), String> {
        let older = |item: &&mut Item| item.is_active() && item.created.index < change.at.index;
        let item = self.items.iter_mut().find(|item| item.id == id).filter(older);
        let item = item.ok_or_else(|| format!("{id} is not active, or not older than the session"))?;
        if item.is_strong() {
            item.strength = Strength::Weak;
            item.last_updated = change.at.clone();
            item.history.push(change);
        }
        Ok(())
    }

    /// Marks a slot unknown. `anew` replaces an active marker, which is kept otherwise.
    pub fn mark(&mut self, slot: &Slot, change: &Change, anew: bool) {
        if anew {
            self.clear_marker(slot, &change.at);
        }
        if self.marker(slot).is_none() {
            let Change { at, updates, reason, .. } = change.clone();
            self.markers.push(Marker { slot: slot.clone(), reason, by: updates, at, cleared: None });
        }
    }

    fn clear_marker(&mut self, slot: &Slot, at: &Moment) {
        let standing = |marker: &&mut Marker| marker.slot == *slot && marker.cleared.is_none();
        for marker in self.markers.iter_mut().filter(standing) {
            marker.cleared = Some(at.clone());
        }
    }

    pub fn fingerprint(&self) -> String {
        sha256(serde_json::to_vec(self).unwrap_or_default())
    }

    pub fn save(&self, folder: &Path) -> Result<(), String> {
        let path = folder.join(FILE);
        let bytes = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        let written = std::fs::create_dir_all(folder).and_then(|()| folder::write(folder, FILE, &bytes));
        written.map_err(|error| format!("cannot write {}: {error}{}", path.display(), io_remedy(&error)))
    }

    pub fn load(folder: &Path) -> Result<Self, String> {
        let path = folder.join(FILE);
        let read = folder::read(folder, FILE);
        let bytes = read.and_then(|bytes| bytes.ok_or_else(|| ErrorKind::NotFound.into()));
        let bytes =
            bytes.map_err(|error| format!("cannot read {}: {error}{}", path.display(), io_remedy(&error)))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            let path = path.display();
            format!("{path} is no saved CUPMem store ({error}); remove it and write the history again")
        })
    }
}
