//! R2 to R7 of the code's variant, following the public code.
//!
//! R2 finds eight entries; conflicting hits of a slot form one bundle. The best hit of each bundle, the primary hit, drives the next steps.
//! R3 also sees all entries of up to six slots: those the probe names, the three nearest to its premise, and those of two unsettled primary
//! hits. R4 runs if the verdict is OUTDATED, the premise is unsafe, nothing is usable, or a plan has no strong item. R5 runs if nothing was
//! found, the verdict is unsure or UNRESOLVED, a strong hit stands beside one that is not current, or such a hit meets an OUTDATED or
//! unsafe premise. R5 sees more entries that are not current but may not name them; then R4 runs again. R6 grounds plans, and decisions
//! whose premise is not settled; R7 constrains plans only.
//!
//! R4 searches twice with the probe and its proposition: entries that are not current, then all entries by text only. For each search a
//! model selects the entries that would change the answer. R4 takes five bundles of different slots, not-current ones first; their active
//! items become usable unless blocked, and the rest explains.
//!
//! Left out: a repeated R5 with no new input (same result at temperature 0), and the public code's word list that turns other probes into
//! decisions. The ranking of usable items is kept: recovered, of slots the probe names, strong, near.

use serde::Deserialize;
use serde_json::json;

use super::probe::{Reading, lines};
use super::retrieve::{Entry, Hit, add, among, bundles, entries, entry, not_current, primary};
use super::verify::{Fact, Premise, Verdict};
use super::{Readout, context, memories};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::settings::Switch;
use crate::memory::cupmem::store::Item;
use palimpsest_data::ground::order::unique;

/// Verdicts below this confidence are verified again.
const SURE: f64 = 0.45;
/// Extra entries for R5 that are not current.
const AGAIN: usize = 6;
/// Slots that R3 sees in full; how many by nearness to the premise, and by unsettled hits.
const WHOLE: usize = 6;
const NEAR: usize = 3;
const UNSETTLED: usize = 2;
const VALUES: usize = 2;
/// Entries of R4's two searches, and bundles it takes.
const RECOVERED_FORMER: usize = 5;
const RECOVERED: usize = 8;
const TAKEN: usize = 5;
/// Facts of different slots, and further facts.
const DECISIVE: usize = 5;
const OTHERS: usize = 3;

struct Evidence {
    hits: Vec<Hit>,
    primary: Vec<Hit>,
    slots: Vec<Slot>,
    /// Retrieved entries and all entries of the full slots.
    shown: Vec<Hit>,
}

impl Reading<'_, '_> {
    pub fn read_as_code(mut self) -> Result<Readout, Stop> {
        let (store, settings) = (self.store, self.asker.settings);
        self.parsed = std::mem::take(&mut self.parsed).completed(self.query.text);
        let evidence = self.evidence()?;
        let verifies = !settings.lacks(Switch::NoVerifier);
        let mut verdict = match verifies {
            false => Verdict::unverified(store, &evidence.hits),
            true => self.verify_as_code(Step::Verify, &evidence, &[])?,
        };
        let mut lacks = self.lacks_basis(&evidence, &verdict);
        let mut recovered = self.recover_where(lacks, &mut verdict)?;
        let again = self.more(&evidence, &verdict)?;
        if verifies && !again.is_empty() {
            verdict = self.verify_as_code(Step::VerifyAgain, &evidence, &again)?;
            lacks = self.lacks_basis(&evidence, &verdict);
            recovered = self.recover_where(lacks, &mut verdict)?;
        }
        verdict.facts = self.facts(&verdict, &evidence, &recovered);
        let unsettled = verdict.status != Premise::Supported || lacks;
        let plans = self.parsed.is_planning();
        let grounds = plans || (!self.parsed.options.is_empty() && unsettled);
        let grounding = grounds.then(|| self.ground(&verdict, &recovered)).transpose()?;
        let constraints = plans.then(|| self.constrain(&verdict, grounding.as_ref())).transpose()?;
        for entry in recovered.iter().filter_map(|hit| entry(store, &hit.id)) {
            let (list, name) = match entry {
                Entry::Marker(marker) => (&mut verdict.unknown_slots, marker.slot.to_string()),
                Entry::Item(item) if !item.is_active() => (&mut verdict.historical, item.id.clone()),
                Entry::Item(_) => continue,
            };
            if !list.contains(&name) {
                list.push(name);
            }
        }
        let mut hits = evidence.shown;
        recovered.retain(|hit| !among(&hits, &hit.id));
        hits.extend(recovered);
        Ok(Readout {
            memories: memories(store, &hits, &verdict),
            pieces: context(store, &verdict, grounding.as_ref(), constraints.as_ref()),
            premise_safe: verdict.premise_safe,
        })
    }

    fn evidence(&mut self) -> Result<Evidence, Stop> {
        let store = self.store;
        let sought = self.parsed.search_text(self.query.text, true);
        let hits = self.nearest(entries(store), &sought, self.asker.settings.retrieved(), true)?;
        let primary = primary(store, &hits);
        let named: Vec<Slot> = self.named_slots();
        let near = self.near_slots(&named)?;
        let unsettled = primary.iter().filter_map(|hit| entry(store, &hit.id));
        let unsettled = unsettled.filter(|entry| entry.standing() < 4).take(UNSETTLED);
        let unsettled = unsettled.map(|entry| entry.slot().clone());
        let mut slots = unique(named.into_iter().chain(near).chain(unsettled));
        slots.truncate(WHOLE);
        let mut shown = hits.clone();
        for whole in entries(store).into_iter().filter(|entry| slots.contains(entry.slot())) {
            add(&mut shown, whole);
        }
        Ok(Evidence { hits, primary, slots, shown })
    }

    fn named_slots(&self) -> Vec<Slot> {
        unique(self.parsed.slots.iter().filter_map(|slot| Slot::parse(slot)))
    }

    /// The slots nearest to the premise that are neither empty nor named.
    fn near_slots(&mut self, named: &[Slot]) -> Result<Vec<Slot>, Stop> {
        let (store, parsed) = (self.store, &self.parsed);
        let mut slots = unique(entries(store).into_iter().map(|entry| entry.slot().clone()));
        slots.retain(|slot| !named.contains(slot));
        let text = |slot: &Slot| {
            let of_slot = |active: bool| {
                let items = store.items.iter().filter(move |i| i.slot == *slot && i.is_active() == active);
                items.take(VALUES).map(|item| item.value.clone())
            };
            let marker = store.marker(slot).map(|marker| marker.reason.clone());
            let values: Vec<String> = of_slot(true).chain(of_slot(false)).chain(marker).collect();
            format!("{} {}\n{}", slot.domain(), slot.name(), values.join("\n"))
        };
        let said = [parsed.old_premise.as_str(), &parsed.proposition, self.query.text];
        let premise = lines(said.into_iter().chain(parsed.slots.iter().map(String::as_str)));
        let near = self.asker.nearest(slots, text, &premise, NEAR)?;
        Ok(near.into_iter().map(|(slot, _)| slot).collect())
    }

    fn allows(&self, evidence: &Evidence, id: &str) -> bool {
        let whole = || entry(self.store, id).is_some_and(|entry| evidence.slots.contains(entry.slot()));
        among(&evidence.primary, id) || whole()
    }

    fn verify_as_code(&mut self, step: Step, evidence: &Evidence, more: &[Hit]) -> Result<Verdict, Stop> {
        let verdict = self.verify(step, &evidence.shown, more)?;
        Ok(verdict.settled_as_code(self.store, |id| self.allows(evidence, id)))
    }

    fn lacks_basis(&self, evidence: &Evidence, verdict: &Verdict) -> bool {
        let strong = |id: &String| {
            let named = self.allows(evidence, id) && !verdict.blocked.contains(id);
            named && entry(self.store, id).is_some_and(|entry| entry.standing() == 4)
        };
        verdict.status == Premise::Outdated
            || !verdict.premise_safe
            || verdict.usable.is_empty()
            || (self.parsed.is_planning() && !verdict.usable.iter().any(strong))
    }

    /// Extra entries for R5; empty if R5 is skipped.
    fn more(&mut self, evidence: &Evidence, verdict: &Verdict) -> Result<Vec<Hit>, Stop> {
        let (store, query) = (self.store, self.query.text);
        let primary: Vec<Entry<'_>> =
            evidence.primary.iter().filter_map(|hit| entry(store, &hit.id)).collect();
        let former = primary.iter().any(|entry| !entry.is_active());
        let strong = primary.iter().any(|entry| entry.standing() == 4);
        let unsettled = verdict.status != Premise::Supported || !verdict.premise_safe;
        let conflict = former && (strong || unsettled);
        let doubt = primary.is_empty() || verdict.confidence < SURE || verdict.status == Premise::Unresolved;
        let mut rest = not_current(store);
        rest.retain(|entry| !among(&evidence.primary, &entry.id()));
        let mut all = if conflict {
            let said = [query, &self.parsed.proposition, &self.parsed.old_premise].map(str::to_owned);
            let unsettled = primary.iter().filter(|entry| entry.standing() < 4).flat_map(Entry::ended);
            let centred: Vec<String> = said.into_iter().chain(unsettled).collect();
            self.nearest(rest.clone(), &lines(centred.iter().map(String::as_str)), AGAIN, true)?
        } else if doubt {
            self.nearest(not_current(store), query, AGAIN, true)?
        } else {
            return Ok(Vec::new());
        };
        if all.is_empty() {
            return Ok(all);
        }
        let sought = self.parsed.search_text(query, true);
        for hit in self.nearest(rest, &sought, AGAIN, true)? {
            if !among(&all, &hit.id) {
                all.push(hit);
            }
        }
        Ok(all)
    }

    /// R4, if the verdict lacks a basis. Extends the usable items; returns the recovered hits, best first.
    fn recover_where(&mut self, lacks: bool, verdict: &mut Verdict) -> Result<Vec<Hit>, Stop> {
        #[derive(Deserialize)]
        struct Reply {
            keep: Vec<String>,
        }
        let store = self.store;
        if self.asker.settings.lacks(Switch::NoRecovery) || !lacks {
            return Ok(Vec::new());
        }
        let sought = lines([self.query.text, &self.parsed.proposition]);
        let mut kept: Vec<Hit> = Vec::new();
        for (pool, most, named) in
            [(not_current(store), RECOVERED_FORMER, true), (entries(store), RECOVERED, false)]
        {
            let found = self.nearest(pool, &sought, most, named)?;
            if found.is_empty() {
                continue;
            }
            let data = json!({
                "query": self.query.text,
                "basis": self.parsed.basis,
                "premise_safe": verdict.premise_safe,
                "bundles": bundles(store, &found, false),
                "ids": found.iter().map(|hit| &hit.id).collect::<Vec<_>>(),
            });
            let reply: Reply = self.asker.ask(Step::Recover, &data)?;
            let known = unique(reply.keep).into_iter().filter_map(|id| found.iter().find(|hit| hit.id == id));
            let mut of_search = primary(store, &known.cloned().collect::<Vec<_>>());
            of_search.sort_by(|a, b| {
                let standing = |hit: &Hit| entry(store, &hit.id).map(|entry| entry.standing());
                (standing(b).cmp(&standing(a)))
                    .then(b.score.unwrap_or_default().total_cmp(&a.score.unwrap_or_default()))
            });
            kept.extend(of_search);
        }
        let (mut taken, mut slots): (Vec<Hit>, Vec<_>) = (Vec::new(), Vec::new());
        for hit in kept {
            let Some(entry) = entry(store, &hit.id) else { continue };
            if entry.is_active() && verdict.blocked.contains(&hit.id) {
                continue;
            }
            if entry.is_active() && !verdict.usable.contains(&hit.id) {
                verdict.usable.push(hit.id.clone());
            }
            if !slots.contains(&entry.slot()) {
                slots.push(entry.slot());
                taken.push(hit);
            }
            if taken.len() == TAKEN {
                break;
            }
        }
        Ok(taken)
    }

    /// Facts from usable items: the best of each slot, then others.
    fn facts(&self, verdict: &Verdict, evidence: &Evidence, recovered: &[Hit]) -> Vec<Fact> {
        let named = self.named_slots();
        let score = |id: &str| {
            let mut hits = evidence.shown.iter().chain(recovered).filter(|hit| hit.id == id);
            hits.find_map(|hit| hit.score).unwrap_or(f64::NEG_INFINITY)
        };
        let mut usable: Vec<&Item> = verdict.usable.iter().filter_map(|id| self.store.item(id)).collect();
        usable.sort_by(|a, b| {
            let rank = |item: &Item| {
                (among(recovered, &item.id), named.contains(&item.slot), Entry::Item(item).standing())
            };
            rank(b).cmp(&rank(a)).then(score(&b.id).total_cmp(&score(&a.id)))
        });
        let mut slots = Vec::new();
        let (first, others): (Vec<&Item>, Vec<&Item>) = usable.into_iter().partition(|item| {
            let new = !slots.contains(&&item.slot) && slots.len() < DECISIVE;
            slots.extend(new.then_some(&item.slot));
            new
        });
        first.into_iter().chain(others.into_iter().take(OTHERS)).map(Fact::of).collect()
    }
}
