//! R2 to R7 of the code's variant, as the public code goes about a probe.
//!
//! R2 finds eight entries. Hits of a slot in conflict are one bundle, whose best hit stands for it; what matters for the next steps is these hits, the
//! primary ones. Beside them R3 sees all entries of up to six slots: those that the probe names, the three nearest to its premise, and those of two
//! primary hits that are not settled. R4 runs where the verdict is OUTDATED, the premise unsafe, nothing usable, or a plan rests on no strong item.
//! R5 runs where nothing was found, the verdict is unsure or UNRESOLVED, a strong hit stands beside one that is not current, or such a hit beside an
//! OUTDATED or unsafe premise; it sees more of what is not current, without being able to name it, and R4 runs again after it. R6 grounds plans, and
//! other probes with choices whose premise is not settled; R7 bounds plans alone.
//!
//! Left out: a repeated R5 that would see nothing new (at temperature 0 it would say the same), and the public code's list of words by which other probes
//! count as decisions. Of its ranking of usable items the order is kept: those recovered, of slots that the probe names, strong, near.

use super::super::asking::{Asker, Unreachable};
use super::super::model::Step;
use super::super::schema::Slot;
use super::super::settings::Switch;
use super::super::store::Store;
use super::answer;
use super::ground::{self, Grounding};
use super::parse::{Parsed, Query, lines};
use super::readout::{Readout, memories};
use super::recover::recover;
use super::retrieve::{Entry, Hit, entries, entry, nearest, not_current, primary};
use super::settle::settle;
use super::stop::{Stop, readable};
use super::verify::{self, Fact, Premise, Verdict};
use crate::ground::order::unique;

/// Below this a verdict is verified again.
const SURE: f64 = 0.45;
/// Entries that are not current and are shown to R5 besides.
const AGAIN: usize = 6;
/// Slots that R3 sees whole; of these, such as are near the premise, and such as are of hits that are not settled.
const WHOLE: usize = 6;
const NEAR: usize = 3;
const UNSETTLED: usize = 2;
/// Active and stale values in the search text of a slot.
const VALUES: usize = 2;
/// Facts of different slots, and others.
const DECISIVE: usize = 5;
const OTHERS: usize = 3;

/// R2 to R7.
pub fn read(asker: &mut Asker<'_>, store: &Store, query: Query<'_>, parsed: Parsed) -> Result<Readout, Stop> {
    let settings = asker.settings;
    let parsed = parsed.completed(query.text);
    let sought = parsed.search_text(query.text, true);
    let hits = nearest(asker, entries(store), &sought, settings.variant.retrieved(), true)?;
    let evidence = Evidence::of(asker, store, query, &parsed, hits)?;
    let verifies = !settings.lacks(Switch::NoVerifier);
    let mut verdict = match verifies {
        false => verify::unverified(store, &evidence.hits),
        true => evidence.verify(asker, Step::Verify, store, query, &parsed, &[])?,
    };
    let mut lacks = evidence.lacks_basis(store, &parsed, &verdict);
    let mut recovered = recovery(asker, store, query, &parsed, lacks, &mut verdict)?;
    let again = evidence.more(asker, store, query, &parsed, &verdict)?;
    if verifies && !again.is_empty() {
        verdict = evidence.verify(asker, Step::VerifyAgain, store, query, &parsed, &again)?;
        lacks = evidence.lacks_basis(store, &parsed, &verdict);
        recovered = recovery(asker, store, query, &parsed, lacks, &mut verdict)?;
    }
    verdict.facts = facts(store, &verdict, &parsed, &evidence, &recovered);
    let unsettled = verdict.status != Premise::Supported || lacks;
    let grounding: Option<Grounding> = match parsed.is_planning() || (parsed.has_choices() && unsettled) {
        true => Some(ground::ground(asker, store, query, &parsed, &verdict, &recovered)?),
        false => None,
    };
    let constraints = match parsed.is_planning() {
        true => Some(readable(ground::constrain(asker, store, query, &verdict, grounding.as_ref()))?),
        false => None,
    };
    explain(store, &recovered, &mut verdict);
    let mut hits = evidence.shown;
    recovered.retain(|hit| !hits.iter().any(|shown| shown.id == hit.id));
    hits.extend(recovered);
    Ok(Readout {
        memories: memories(store, &hits, &verdict),
        pieces: answer::context(store, &verdict, grounding.as_ref(), constraints.as_ref()),
        premise_safe: verdict.premise_safe,
    })
}

/// R4, where the verdict lacks a basis.
fn recovery(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    parsed: &Parsed,
    lacks: bool,
    verdict: &mut Verdict,
) -> Result<Vec<Hit>, Stop> {
    if asker.settings.lacks(Switch::NoRecovery) || !lacks {
        return Ok(Vec::new());
    }
    recover(asker, store, query, parsed, verdict)
}

/// Tells what was recovered and is not current.
fn explain(store: &Store, recovered: &[Hit], verdict: &mut Verdict) {
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
}

/// The usable items' own words, the best first: of each slot the best, then others.
fn facts(
    store: &Store,
    verdict: &Verdict,
    parsed: &Parsed,
    evidence: &Evidence,
    recovered: &[Hit],
) -> Vec<Fact> {
    let named: Vec<Slot> = parsed.slots.iter().filter_map(|slot| Slot::parse(slot)).collect();
    let mut usable: Vec<_> = verdict.usable.iter().filter_map(|id| store.item(id)).collect();
    let score = |id: &str| {
        let hits = evidence.shown.iter().chain(recovered);
        hits.filter(|hit| hit.id == id).find_map(|hit| hit.score).unwrap_or(f64::NEG_INFINITY)
    };
    usable.sort_by(|a, b| {
        let rank = |item: &super::super::store::Item| {
            let found = recovered.iter().any(|hit| hit.id == item.id);
            (found, named.contains(&item.slot), Entry::Item(item).standing())
        };
        rank(b).cmp(&rank(a)).then(score(&b.id).total_cmp(&score(&a.id)))
    });
    let mut slots = Vec::new();
    let (first, others): (Vec<_>, Vec<_>) = usable.into_iter().partition(|item| {
        let new = !slots.contains(&&item.slot) && slots.len() < DECISIVE;
        slots.extend(new.then_some(&item.slot));
        new
    });
    let told = first.into_iter().chain(others.into_iter().take(OTHERS));
    told.map(|item| Fact { text: item.value.clone(), items: vec![item.id.clone()] }).collect()
}

/// The entries that a probe is verified against.
struct Evidence {
    hits: Vec<Hit>,
    primary: Vec<Hit>,
    slots: Vec<Slot>,
    /// The entries found, and all of these slots.
    shown: Vec<Hit>,
    sought: String,
}

impl Evidence {
    fn of(
        asker: &mut Asker<'_>,
        store: &Store,
        query: Query<'_>,
        parsed: &Parsed,
        hits: Vec<Hit>,
    ) -> Result<Evidence, Unreachable> {
        let primary = primary(store, &hits);
        let named: Vec<Slot> = unique(parsed.slots.iter().filter_map(|slot| Slot::parse(slot)));
        let near = near_slots(asker, store, query, parsed, &named)?;
        let unsettled = primary.iter().filter_map(|hit| entry(store, &hit.id));
        let unsettled =
            unsettled.filter(|entry| entry.standing() < 4).take(UNSETTLED).map(|e| e.slot().clone());
        let mut slots = unique(named.into_iter().chain(near).chain(unsettled));
        slots.truncate(WHOLE);
        let mut shown = hits.clone();
        for whole in entries(store).into_iter().filter(|entry| slots.contains(entry.slot())) {
            if !shown.iter().any(|hit| hit.id == whole.id()) {
                shown.push(Hit { id: whole.id(), score: None });
            }
        }
        Ok(Evidence { hits, primary, slots, shown, sought: parsed.search_text(query.text, true) })
    }

    /// May a verdict name it?
    fn allows(&self, store: &Store, id: &str) -> bool {
        let whole = || entry(store, id).is_some_and(|entry| self.slots.contains(entry.slot()));
        self.primary.iter().any(|hit| hit.id == id) || whole()
    }

    fn verify(
        &self,
        asker: &mut Asker<'_>,
        step: Step,
        store: &Store,
        query: Query<'_>,
        parsed: &Parsed,
        more: &[Hit],
    ) -> Result<Verdict, Stop> {
        let verdict = readable(verify::ask(asker, step, store, query, parsed, (&self.shown, more)))?;
        Ok(settle(verdict, store, |id| self.allows(store, id)))
    }

    /// Does a verdict leave an answer without the basis that it needs?
    fn lacks_basis(&self, store: &Store, parsed: &Parsed, verdict: &Verdict) -> bool {
        let strong = |id: &String| {
            let entry = entry(store, id).filter(|_| self.allows(store, id) && !verdict.blocked.contains(id));
            entry.is_some_and(|entry| entry.standing() == 4)
        };
        verdict.status == Premise::Outdated
            || !verdict.premise_safe
            || verdict.usable.is_empty()
            || (parsed.is_planning() && !verdict.usable.iter().any(strong))
    }

    /// What R5 sees besides; nothing where it is not to run.
    fn more(
        &self,
        asker: &mut Asker<'_>,
        store: &Store,
        query: Query<'_>,
        parsed: &Parsed,
        verdict: &Verdict,
    ) -> Result<Vec<Hit>, Unreachable> {
        let primary: Vec<Entry<'_>> = self.primary.iter().filter_map(|hit| entry(store, &hit.id)).collect();
        let former = primary.iter().any(|entry| !entry.is_active());
        let strong = primary.iter().any(|entry| entry.standing() == 4);
        let unsettled = verdict.status != Premise::Supported || !verdict.premise_safe;
        let conflict = former && (strong || unsettled);
        let doubt = primary.is_empty() || verdict.confidence < SURE || verdict.status == Premise::Unresolved;
        if !conflict && !doubt {
            return Ok(Vec::new());
        }
        let rest = || {
            let mut rest = not_current(store);
            rest.retain(|entry| !self.primary.iter().any(|hit| hit.id == entry.id()));
            rest
        };
        let more = if conflict {
            let said = [query.text, &parsed.proposition, &parsed.old_premise].map(str::to_owned);
            let unsettled = primary.iter().filter(|entry| entry.standing() < 4).flat_map(Entry::ended);
            let centred: Vec<String> = said.into_iter().chain(unsettled).collect();
            nearest(asker, rest(), &lines(centred.iter().map(String::as_str)), AGAIN, true)?
        } else {
            nearest(asker, not_current(store), query.text, AGAIN, true)?
        };
        if more.is_empty() {
            return Ok(more);
        }
        let around = nearest(asker, rest(), &self.sought, AGAIN, true)?;
        let mut all = more;
        for hit in around {
            if !all.iter().any(|known| known.id == hit.id) {
                all.push(hit);
            }
        }
        Ok(all)
    }
}

/// The slots that are nearest to a probe's premise, of those that hold anything and are not named.
fn near_slots(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    parsed: &Parsed,
    named: &[Slot],
) -> Result<Vec<Slot>, Unreachable> {
    let slots = unique(entries(store).into_iter().map(|entry| entry.slot().clone()));
    let slots: Vec<Slot> = slots.into_iter().filter(|slot| !named.contains(slot)).collect();
    let text = |slot: &Slot| {
        let of_slot = |active: bool| {
            let items = store.items.iter().filter(move |i| i.slot == *slot && i.is_active() == active);
            items.take(VALUES).map(|item| item.value.clone())
        };
        let marker = store.marker(slot).map(|marker| marker.reason.clone());
        let values: Vec<String> = of_slot(true).chain(of_slot(false)).chain(marker).collect();
        format!("{} {}\n{}", slot.domain(), slot.name(), values.join("\n"))
    };
    let slot_names = parsed.slots.iter().map(String::as_str);
    let premise =
        lines([parsed.old_premise.as_str(), &parsed.proposition, query.text].into_iter().chain(slot_names));
    let near = asker.nearest(slots, text, &premise, NEAR)?;
    Ok(near.into_iter().map(|(slot, _)| slot).collect())
}
