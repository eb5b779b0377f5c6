//! R3 and R5: does the probe's premise hold against what the store says is current?
//!
//! The reply is held to the store.
//!
//! - In the paper's variant ids that were not shown are dropped; a stale item supports nothing current and is not usable; OUTDATED without grounds is
//!   UNRESOLVED, UNRESOLVED with outdated items and without support is OUTDATED. A fact must rest on a shown item that is usable.
//! - In the code's ids that may not be named are dropped. OUTDATED makes the premise unsafe, UNRESOLVED with an unknown slot too; OUTDATED without grounds
//!   is UNRESOLVED, and unsafe all the same; an unsafe UNRESOLVED with outdated items and without support is OUTDATED. What OUTDATED names as outdated
//!   is blocked, and its support is usable where it is not blocked. A SUPPORTED without usable items may rest on its support. Facts are the usable
//!   items' own words.

use serde::Deserialize;
use serde_json::json;

use super::probe::Reading;
use super::retrieve::{Hit, among, bundles};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::shapes::clamped;
use crate::memory::cupmem::store::{Item, Store};
use palimpsest_data::ground::order::unique;

/// Most confidence of an OUTDATED without grounds, and least of an UNRESOLVED that is OUTDATED.
const UNGROUNDED: f64 = 0.65;
const GROUNDED: f64 = 0.75;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Premise {
    Supported,
    Outdated,
    /// Memory does not say.
    Unresolved,
}

/// A current fact, in words that an answer may use, with the items that it rests on.
#[derive(Deserialize)]
pub struct Fact {
    pub text: String,
    pub items: Vec<String>,
}

impl Fact {
    /// An item's own words.
    pub fn of(item: &Item) -> Self {
        Fact { text: item.value.clone(), items: vec![item.id.clone()] }
    }
}

#[derive(Deserialize)]
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

impl Reading<'_, '_> {
    /// Asks for a verdict on what is shown; of `evidence` its former states and markers are shown apart.
    pub fn verify(&mut self, step: Step, hits: &[Hit], evidence: &[Hit]) -> Result<Verdict, Stop> {
        let (is_code, parsed) = (self.asker.settings.is_code(), &self.parsed);
        let data = json!({
            "query": self.query.text,
            "as_of": self.query.as_of.filter(|_| !is_code),
            "presuppositions": parsed.presuppositions,
            "old_premise": parsed.old_premise,
            "basis": parsed.basis,
            "bundles": bundles(self.store, hits, !is_code),
            "evidence": bundles(self.store, evidence, false),
        });
        self.asker.ask(step, &data)
    }
}

impl Verdict {
    /// The verdict without a verifier: retrieved active items are usable, retrieved stale ones history, and markers stand.
    pub fn unverified(store: &Store, hits: &[Hit]) -> Self {
        let ids = |active: bool| {
            let of = |hit: &&Hit| store.item(&hit.id).is_some_and(|item| item.is_active() == active);
            hits.iter().filter(of).map(|hit| hit.id.clone()).collect::<Vec<_>>()
        };
        let marked = store.standing().filter(|marker| among(hits, &marker.id()));
        Verdict {
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
        }
        .with_facts(store)
    }

    /// Items that an answer must not take as current: outdated, blocked, historical.
    pub fn former(&self) -> Vec<String> {
        unique(self.outdated.iter().chain(&self.blocked).chain(&self.historical).cloned())
    }

    /// The values of usable items, where no fact is given.
    fn with_facts(mut self, store: &Store) -> Self {
        if self.facts.is_empty() {
            self.facts = self.usable.iter().filter_map(|id| store.item(id)).map(Fact::of).collect();
        }
        self
    }

    /// The unknown slots whose markers may be named.
    fn marked(&self, store: &Store, allowed: impl Fn(&str) -> bool) -> Vec<String> {
        let slots = self.unknown_slots.iter();
        let slots = slots.filter_map(|slot| Slot::parse(slot.trim_start_matches("marker:")));
        let marked = |slot: &Slot| store.marker(slot).is_some_and(|marker| allowed(&marker.id()));
        slots.filter(marked).map(|slot| slot.to_string()).collect()
    }

    fn has_grounds(&self) -> bool {
        let grounds = [&self.outdated, &self.blocked, &self.historical, &self.unknown_slots];
        grounds.iter().any(|list| !list.is_empty())
    }

    /// Held to the store as the paper's variant does it.
    pub fn settled(mut self, store: &Store, hits: &[Hit]) -> Self {
        self.confidence = clamped(self.confidence);
        let shown = |id: &String| among(hits, id) && store.item(id).is_some();
        let Verdict { supporting, outdated, usable, blocked, historical, .. } = &mut self;
        for list in [&mut *supporting, &mut *outdated, &mut *usable, &mut *blocked, &mut *historical] {
            *list = unique(list.drain(..).filter(shown));
        }
        for list in [supporting, &mut *usable] {
            let is_stale = |id: &mut String| store.item(id).is_some_and(|item| !item.is_active());
            let stale: Vec<String> = list.extract_if(.., is_stale).collect();
            *historical = unique(historical.drain(..).chain(stale));
        }
        usable.retain(|id| !blocked.contains(id) && !outdated.contains(id));
        // A slot may be unknown only where its marker was shown.
        self.unknown_slots = self.marked(store, |id| among(hits, id));
        self.status = match self.status {
            Premise::Outdated if !self.has_grounds() => Premise::Unresolved,
            Premise::Unresolved if !self.outdated.is_empty() && self.supporting.is_empty() => {
                Premise::Outdated
            }
            status => status,
        };
        self.premise_safe &= self.status != Premise::Outdated;
        for fact in &mut self.facts {
            fact.items.retain(|id| self.usable.contains(id));
        }
        self.facts.retain(|fact| !fact.items.is_empty() && !fact.text.trim().is_empty());
        self.with_facts(store)
    }

    /// Held to the store as the code's variant does it; `allowed` says which ids it may name.
    pub fn settled_as_code(mut self, store: &Store, allowed: impl Fn(&str) -> bool) -> Self {
        self.confidence = clamped(self.confidence);
        let named = |ids: &mut Vec<String>, active: bool| {
            let may =
                |id: &String| allowed(id) && store.item(id).is_some_and(|item| item.is_active() || !active);
            *ids = unique(ids.drain(..).filter(may));
        };
        let Verdict { supporting, outdated, usable, blocked, historical, .. } = &mut self;
        [supporting, usable].into_iter().for_each(|ids| named(ids, true));
        [outdated, blocked, historical].into_iter().for_each(|ids| named(ids, false));
        self.unknown_slots = unique(self.marked(store, &allowed));
        self.settle_status();
        self.settle_permissions();
        self.facts.clear();
        self
    }

    fn settle_status(&mut self) {
        match self.status {
            Premise::Outdated => {
                self.premise_safe = false;
                if !self.has_grounds() {
                    self.status = Premise::Unresolved;
                    self.confidence = self.confidence.min(UNGROUNDED);
                }
            }
            Premise::Unresolved => {
                self.premise_safe &= self.unknown_slots.is_empty();
                let against = !self.outdated.is_empty() && self.supporting.is_empty();
                if against && !self.premise_safe {
                    self.status = Premise::Outdated;
                    self.confidence = self.confidence.max(GROUNDED);
                }
            }
            Premise::Supported => {}
        }
    }

    fn settle_permissions(&mut self) {
        fn extend(list: &mut Vec<String>, more: &[String]) {
            *list = unique(list.drain(..).chain(more.iter().cloned()));
        }
        let Verdict { status, supporting, outdated, usable, blocked, historical, premise_safe, .. } = self;
        if *status == Premise::Outdated {
            extend(blocked, outdated);
            extend(usable, supporting);
        }
        usable.retain(|id| !blocked.contains(id));
        if *status == Premise::Outdated {
            extend(historical, blocked);
            historical.retain(|id| !usable.contains(id));
        }
        if *status == Premise::Unresolved && !*premise_safe && !outdated.is_empty() {
            *status = Premise::Outdated;
            extend(blocked, outdated);
            extend(historical, blocked);
        }
        if *status == Premise::Supported && usable.is_empty() {
            usable.clone_from(supporting);
        }
    }
}
