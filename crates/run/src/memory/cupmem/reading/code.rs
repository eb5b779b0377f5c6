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

use super::retrieve::{Entry, Hit, Reading, add, among, bundles, entries, lines, not_current, primary};
use super::verify::{Fact, Premise, Verdict};
use super::{Readout, context, memories};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::settings::{Step, Switch};
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

struct Evidence<'s> {
    hits: Vec<Hit<'s>>,
    primary: Vec<Hit<'s>>,
    slots: Vec<Slot>,
    /// Retrieved entries and all entries of the full slots.
    shown: Vec<Hit<'s>>,
}

impl Evidence<'_> {
    /// True if a verdict may name the id.
    fn allows(&self, id: &str) -> bool {
        let whole = |hit: &Hit<'_>| self.slots.contains(hit.entry.slot());
        among(&self.primary, id) || self.shown.iter().any(|hit| whole(hit) && hit.entry.id() == id)
    }
}

impl<'a> Reading<'a, '_> {
    pub fn read_as_code(mut self) -> Result<Readout, Stop> {
        let (store, settings) = (self.store, self.asker.settings);
        self.parsed.complete(self.query.text);
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
        for hit in &recovered {
            let (list, name) = match hit.entry {
                Entry::Marker(marker) => (&mut verdict.unknown_slots, marker.slot.to_string()),
                Entry::Item(item) if !item.is_active() => (&mut verdict.historical, item.id.clone()),
                Entry::Item(_) => continue,
            };
            if !list.contains(&name) {
                list.push(name);
            }
        }
        let mut hits = evidence.shown;
        add(&mut hits, recovered);
        Ok(Readout {
            memories: memories(&hits, &verdict),
            pieces: context(store, &verdict, grounding.as_ref(), constraints.as_ref()),
            premise_safe: verdict.premise_safe,
        })
    }

    fn evidence(&mut self) -> Result<Evidence<'a>, Stop> {
        let store = self.store;
        let sought = self.parsed.search_text(self.query.text, true);
        let hits = self.nearest(entries(store), &sought, self.asker.settings.retrieved(), true)?;
        let primary = primary(&hits);
        let named = self.named_slots();
        let near = self.near_slots(&named)?;
        let unsettled = primary.iter().map(|hit| hit.entry).filter(|entry| entry.standing() < 4);
        let unsettled = unsettled.take(UNSETTLED).map(|entry| entry.slot().clone());
        let mut slots = unique(named.into_iter().chain(near).chain(unsettled));
        slots.truncate(WHOLE);
        let mut shown = hits.clone();
        let whole = entries(store).into_iter().filter(|entry| slots.contains(entry.slot()));
        add(&mut shown, whole.map(|entry| Hit { entry, score: None }));
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

    fn verify_as_code(
        &mut self,
        step: Step,
        evidence: &Evidence<'_>,
        more: &[Hit<'_>],
    ) -> Result<Verdict, Stop> {
        let verdict = self.verify(step, &evidence.shown, more)?;
        Ok(verdict.settled_as_code(self.store, |id| evidence.allows(id)))
    }

    fn lacks_basis(&self, evidence: &Evidence<'_>, verdict: &Verdict) -> bool {
        let strong = |id: &String| {
            let item = self.store.item(id).filter(|item| item.is_active() && item.is_strong());
            item.is_some() && evidence.allows(id) && !verdict.blocked.contains(id)
        };
        verdict.status == Premise::Outdated
            || !verdict.premise_safe
            || verdict.usable.is_empty()
            || (self.parsed.is_planning() && !verdict.usable.iter().any(strong))
    }

    /// Extra entries for R5; empty if R5 is skipped.
    fn more(&mut self, evidence: &Evidence<'_>, verdict: &Verdict) -> Result<Vec<Hit<'a>>, Stop> {
        let (store, query, primary) = (self.store, self.query.text, &evidence.primary);
        let former = primary.iter().any(|hit| !hit.entry.is_active());
        let strong = primary.iter().any(|hit| hit.entry.standing() == 4);
        let unsettled = verdict.status != Premise::Supported || !verdict.premise_safe;
        let conflict = former && (strong || unsettled);
        let doubt = primary.is_empty() || verdict.confidence < SURE || verdict.status == Premise::Unresolved;
        let mut rest = not_current(store);
        rest.retain(|entry| !among(primary, &entry.id()));
        let mut all = if conflict {
            let said = [query, &self.parsed.proposition, &self.parsed.old_premise].map(str::to_owned);
            let unsettled = primary.iter().filter(|hit| hit.entry.standing() < 4);
            let centred = said.into_iter().chain(unsettled.flat_map(|hit| hit.entry.ended()));
            let centred: Vec<String> = centred.collect();
            self.nearest(rest.clone(), &lines(centred.iter().map(String::as_str)), AGAIN, true)?
        } else if doubt {
            self.nearest(not_current(store), query, AGAIN, true)?
        } else {
            return Ok(Vec::new());
        };
        if !all.is_empty() {
            let sought = self.parsed.search_text(query, true);
            add(&mut all, self.nearest(rest, &sought, AGAIN, true)?);
        }
        Ok(all)
    }

    /// R4, if the verdict lacks a basis. Extends the usable items; returns the recovered hits, best first.
    fn recover_where(&mut self, lacks: bool, verdict: &mut Verdict) -> Result<Vec<Hit<'a>>, Stop> {
        #[derive(Deserialize)]
        struct Reply {
            keep: Vec<String>,
        }
        let store = self.store;
        if self.asker.settings.lacks(Switch::NoRecovery) || !lacks {
            return Ok(Vec::new());
        }
        let sought = lines([self.query.text, &self.parsed.proposition]);
        let mut kept: Vec<Hit<'_>> = Vec::new();
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
                "ids": found.iter().map(|hit| hit.entry.id()).collect::<Vec<_>>(),
            });
            let reply: Reply = self.asker.ask(Step::Recover, &data)?;
            let hit = |id: String| found.iter().find(|hit| hit.entry.id() == id).copied();
            let mut of_search = primary(&unique(reply.keep).into_iter().filter_map(hit).collect::<Vec<_>>());
            of_search.sort_by(|a, b| {
                (b.entry.standing().cmp(&a.entry.standing()))
                    .then(b.score.unwrap_or_default().total_cmp(&a.score.unwrap_or_default()))
            });
            kept.extend(of_search);
        }
        let mut taken: Vec<Hit<'_>> = Vec::new();
        for hit in kept {
            let (id, slot) = (hit.entry.id(), hit.entry.slot());
            if hit.entry.is_active() {
                if verdict.blocked.contains(&id) {
                    continue;
                }
                if !verdict.usable.contains(&id) {
                    verdict.usable.push(id);
                }
            }
            if !taken.iter().any(|known| known.entry.slot() == slot) {
                taken.push(hit);
            }
            if taken.len() == TAKEN {
                break;
            }
        }
        Ok(taken)
    }

    /// Facts from usable items: the best of each slot, then others.
    fn facts(&self, verdict: &Verdict, evidence: &Evidence<'_>, recovered: &[Hit<'_>]) -> Vec<Fact> {
        let named = self.named_slots();
        let score = |id: &str| {
            let mut hits = evidence.shown.iter().chain(recovered).filter(|hit| hit.entry.id() == id);
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
