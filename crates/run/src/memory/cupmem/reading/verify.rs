//! R3 and R5 verify the probe's premise against the current state in the store. R6 decides whether to proceed with a plan, and R7 constrains
//! its answer. Verdicts are reconciled with the store:
//!
//! - Paper's variant: ids that were not shown are dropped. A stale item supports nothing current and is not usable. OUTDATED without
//!   grounds becomes UNRESOLVED; UNRESOLVED with outdated items and no support becomes OUTDATED. A fact must rest on a shown, usable item.
//! - Code's variant: ids that may not be named are dropped. The premise is unsafe if OUTDATED, or UNRESOLVED with an unknown slot. OUTDATED
//!   without grounds becomes UNRESOLVED but stays unsafe; an unsafe UNRESOLVED with outdated items and no support becomes OUTDATED. Items
//!   that OUTDATED names as outdated are blocked; its support is usable unless blocked. SUPPORTED without usable items may use its support.
//!   Facts quote the usable items.
//!
//! R6 may name items that are usable or were recovered by R4, but not blocked or historical ones. Proceeding without any ground becomes
//! BLOCK if the premise is unsafe, otherwise a question. If nothing can ground a plan, no model is asked.

use serde::Deserialize;
use serde_json::{Value, json};

use super::retrieve::{Entry, Hit, Reading, among, bundles};
use crate::memory::cupmem::asking::{Stop, clamped};
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::settings::Step;
use crate::memory::cupmem::store::{Item, Store};
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::words::folded;

/// Maximum confidence of an ungrounded OUTDATED; minimum confidence of an UNRESOLVED turned OUTDATED.
const UNGROUNDED: f64 = 0.65;
const GROUNDED: f64 = 0.75;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Premise {
    Supported,
    Outdated,
    #[default]
    Unresolved,
}

#[derive(Deserialize)]
pub struct Fact {
    pub text: String,
    pub items: Vec<String>,
}

impl Fact {
    pub fn of(item: &Item) -> Self {
        Fact { text: item.value.clone(), items: vec![item.id.clone()] }
    }
}

#[derive(Default, Deserialize)]
pub struct Verdict {
    pub status: Premise,
    /// In [0, 1].
    pub confidence: f64,
    pub supporting: Vec<String>,
    /// Items of the premise that no longer hold.
    pub outdated: Vec<String>,
    pub usable: Vec<String>,
    pub blocked: Vec<String>,
    pub historical: Vec<String>,
    pub unknown_slots: Vec<String>,
    pub facts: Vec<Fact>,
    /// True if an answer may accept the premise.
    pub premise_safe: bool,
}

impl Reading<'_, '_> {
    /// Asks for a verdict on `hits`. Former states and markers of `evidence` are listed separately.
    pub fn verify(&mut self, step: Step, hits: &[Hit<'_>], evidence: &[Hit<'_>]) -> Result<Verdict, Stop> {
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
    /// The verdict without a verifier: retrieved active items are usable, retrieved stale ones are history, markers count.
    pub fn unverified(store: &Store, hits: &[Hit<'_>]) -> Self {
        let mut verdict = Verdict { confidence: 1.0, premise_safe: true, ..Verdict::default() };
        for hit in hits {
            match hit.entry {
                Entry::Item(item) if item.is_active() => verdict.usable.push(item.id.clone()),
                Entry::Item(item) => verdict.historical.push(item.id.clone()),
                Entry::Marker(_) => {}
            }
        }
        let marked = store.standing().filter(|marker| among(hits, &marker.id()));
        verdict.unknown_slots = marked.map(|marker| marker.slot.to_string()).collect();
        verdict.with_facts(store)
    }

    /// Items not to be taken as current: outdated, blocked or historical.
    pub fn former(&self) -> Vec<String> {
        unique(self.outdated.iter().chain(&self.blocked).chain(&self.historical).cloned())
    }

    fn with_facts(mut self, store: &Store) -> Self {
        if self.facts.is_empty() {
            self.facts = self.usable.iter().filter_map(|id| store.item(id)).map(Fact::of).collect();
        }
        self
    }

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

    /// Reconciles with the store, paper's variant.
    pub fn settled(mut self, store: &Store, hits: &[Hit<'_>]) -> Self {
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
        // A slot may be unknown only if its marker was shown.
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

    /// Reconciles with the store, code's variant. `allowed` tests whether an id may be named.
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

/// Limits on decisive, blocking and supporting items, and on facts.
const DECISIVE: usize = 2;
const BLOCKING: usize = 2;
const SUPPORTING: usize = 1;
const FACTS: usize = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Course {
    Proceed,
    Adjust,
    Block,
    #[default]
    Ask,
}

impl Course {
    pub fn words(self) -> &'static str {
        match self {
            Course::Proceed => "go ahead as asked",
            Course::Adjust => "go ahead with changes",
            Course::Block => "do not go ahead",
            Course::Ask => "ask the user first",
        }
    }
}

#[derive(Default, Deserialize)]
pub struct Grounding {
    pub decision: Course,
    decisive: Vec<String>,
    blocking: Vec<String>,
    supporting: Vec<String>,
    pub facts: Vec<String>,
}

#[derive(Deserialize)]
pub struct Constraints {
    pub must: Vec<String>,
    pub must_not: Vec<String>,
    pub open: Vec<String>,
}

impl Reading<'_, '_> {
    pub fn ground(&mut self, verdict: &Verdict, recovered: &[Hit<'_>]) -> Result<Grounding, Stop> {
        let store = self.store;
        if verdict.usable.is_empty() && recovered.is_empty() && verdict.unknown_slots.is_empty() {
            return Ok(Grounding::default());
        }
        let explains = |hit: &Hit<'_>| match hit.entry {
            Entry::Item(item) if !verdict.usable.contains(&item.id) => Some(item.id.clone()),
            _ => None,
        };
        let explaining: Vec<String> = recovered.iter().filter_map(explains).collect();
        let mut data = self.basis(verdict, &explaining);
        data["goal"] = json!(self.parsed.goal);
        data["options"] = json!(self.parsed.options);
        let mut grounding: Grounding = self.asker.ask(Step::Ground, &data)?;
        let refused = |id: &String| verdict.blocked.contains(id) || verdict.historical.contains(id);
        let Grounding { decision, decisive, blocking, supporting, facts } = &mut grounding;
        for (list, most) in
            [(&mut *decisive, DECISIVE), (&mut *blocking, BLOCKING), (&mut *supporting, SUPPORTING)]
        {
            *list = unique(list.drain(..));
            list.retain(|id| (verdict.usable.contains(id) || explaining.contains(id)) && !refused(id));
            list.truncate(most);
        }
        let refused = verdict.blocked.iter().chain(&verdict.historical).filter_map(|id| store.item(id));
        let refused: Vec<String> = refused.map(|item| folded(&item.value)).collect();
        let repeats = |fact: &String| {
            let fact = folded(fact);
            refused.iter().any(|old| fact.contains(old) || old.contains(&fact))
        };
        facts.retain(|fact| !fact.trim().is_empty() && !repeats(fact));
        facts.truncate(FACTS);
        let groundless = [&*decisive, blocking, supporting, facts].iter().all(|list| list.is_empty());
        if groundless && matches!(decision, Course::Proceed | Course::Adjust) {
            let unsafe_premise = verdict.status == Premise::Outdated || !verdict.premise_safe;
            *decision = if unsafe_premise { Course::Block } else { Course::Ask };
        }
        Ok(grounding)
    }

    pub fn constrain(
        &mut self,
        verdict: &Verdict,
        grounding: Option<&Grounding>,
    ) -> Result<Constraints, Stop> {
        let mut data = self.basis(verdict, &[]);
        data["course"] = json!(grounding.map(|grounding| grounding.decision.words()));
        self.asker.ask(Step::Constraints, &data)
    }

    fn basis(&self, verdict: &Verdict, explaining: &[String]) -> Value {
        let items = |lists: &[&[String]]| -> Value {
            let items = lists.iter().copied().flatten().filter_map(|id| self.store.item(id));
            items.map(|item| json!({ "id": item.id, "value": item.value })).collect()
        };
        json!({
            "query": self.query.text,
            "premise_safe": verdict.premise_safe,
            "usable": items(&[&verdict.usable]),
            "not_current": items(&[&verdict.outdated, &verdict.blocked, &verdict.historical, explaining]),
            "facts": verdict.facts.iter().map(|fact| &fact.text).collect::<Vec<_>>(),
            "unknown": verdict.unknown_slots,
        })
    }
}
