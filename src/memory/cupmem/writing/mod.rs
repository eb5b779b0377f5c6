//! Writing, a session at a time: W1 to W9.
//!
//! A session's decisions read the store as it was before the session; then all of them apply to a copy, which takes the store's place. A model that
//! cannot be asked leaves the store as it was.
//!
//! In the code's variant an update that W3 calls a NO_OP, or could not decide on, drives nothing further: where all are, the session ends there. Choices
//! where the paper is silent: all candidates that W2 accepts count as updates for W4 to W6; the domains touched directly are those of the candidates
//! and of the slots that spans hint at; a step whose replies cannot be read is left out and told as an event.

pub mod action;
pub mod adjudicate;
pub mod affected;
pub mod apply;
pub mod arbitrate;
pub mod candidates;
pub mod code;
pub mod links;
pub mod local_update;
pub mod proposals;
pub mod spans;

use std::collections::{BTreeMap, BTreeSet};

use action::{Act, Action};
use adjudicate::Verdict;
use arbitrate::Arbitrated;
use local_update::Local;
use proposals::{Change, Proposed};

use super::asking::{Asker, Fault, Unreachable};
use super::model::Step;
use super::schema::{DOMAINS, Slot};
use super::settings::Switch;
use super::store::{Moment, Note, SessionRecord, Store, Update, sources};
use crate::ground::order::unique;
use crate::memory::system::protocol::{LookedAt, Op, SessionInput, WriteEvent};

/// A session written.
pub struct Written {
    pub store: Store,
    pub events: Vec<WriteEvent>,
}

/// Results of a session's steps.
#[derive(Default)]
struct Session {
    notes: Vec<Note>,
    faults: Vec<Fault>,
    updates: Vec<Update>,
    locals: BTreeMap<String, Local>,
    actions: Vec<Action>,
    affected: Vec<&'static str>,
    /// Items that stood in a lane or as context, and those that a decision was asked about.
    looked_at: BTreeSet<String>,
    asked: BTreeSet<String>,
}

/// Writes a session.
pub fn write(asker: &mut Asker<'_>, store: &Store, session: &SessionInput) -> Result<Written, Unreachable> {
    let at = store.next_moment(&session.id, session.time.as_deref());
    let mut of = Session::default();
    let spans = spans::find(asker, session, &mut of.notes)?;
    let spans = of.or_fault(spans);
    if !spans.is_empty() {
        let updates = candidates::find(asker, store, &at, &spans, &mut of.notes)?;
        of.updates = of.or_fault(updates);
    }
    if !of.updates.is_empty() {
        if asker.settings.adjudicates() {
            of.decide(asker, store, &at, &spans)?;
        } else {
            let reason = "the store is append-only";
            let add = |update: &Update| Action::of_update(Act::Add, update, None, reason.to_owned());
            of.actions = of.updates.iter().map(add).collect();
        }
    }
    of.apply(asker, store, at)
}

impl Session {
    fn or_fault<T: Default>(&mut self, found: Result<T, Fault>) -> T {
        found.unwrap_or_else(|fault| {
            self.faults.push(fault);
            T::default()
        })
    }

    /// W3 to W6.
    fn decide(
        &mut self,
        asker: &mut Asker<'_>,
        store: &Store,
        at: &Moment,
        spans: &[spans::Span],
    ) -> Result<(), Unreachable> {
        for update in &self.updates {
            match local_update::decide(asker, store, update)? {
                Ok(local) => {
                    self.notes.push(Note {
                        step: Step::LocalUpdate,
                        about: update.id.clone(),
                        decision: local.decision.clone(),
                        reason: local.reason.clone(),
                    });
                    self.actions.extend(local.action.clone());
                    self.locals.insert(update.id.clone(), local);
                }
                Err(fault) => self.faults.push(fault),
            }
        }
        let is_code = asker.settings.is_code();
        let decided = |id: &str| self.locals.get(id).is_some_and(|local| local.action.is_some());
        let mut driving = self.updates.clone();
        driving.retain(|update| !is_code || decided(&update.id));
        if driving.is_empty() {
            return Ok(());
        }
        let direct = direct(&driving, spans, is_code);
        if !asker.settings.lacks(Switch::NoAffected) {
            let found = affected::find(asker, &driving, spans, &direct, &mut self.notes)?;
            self.affected = self.or_fault(found);
        }
        let affected = self.affected.clone();
        let change = Change { at, updates: &driving, spans, direct: &direct, affected: &affected };
        if is_code {
            let proposed = code::proposals::find(asker, store, &change, &mut self.notes)?;
            for proposal in self.kept(proposed) {
                let verdict = code::adjudicate::decide(asker, store, &proposal, &driving, &mut self.notes)?;
                self.judged(verdict);
            }
        } else {
            let proposed = proposals::find(asker, store, &change, &mut self.notes)?;
            for proposal in self.kept(proposed) {
                let verdict = adjudicate::decide(asker, store, &proposal, &driving, &mut self.notes)?;
                self.judged(verdict);
            }
        }
        Ok(())
    }

    fn kept<P>(&mut self, proposed: Proposed<P>) -> Vec<P> {
        self.looked_at.extend(proposed.looked_at);
        self.faults.extend(proposed.faults);
        proposed.kept
    }

    fn judged(&mut self, verdict: Result<Verdict, Fault>) {
        match verdict {
            Ok(verdict) => {
                self.asked.extend(verdict.asked);
                self.looked_at.extend(verdict.context);
                self.actions.extend(verdict.action);
            }
            Err(fault) => self.faults.push(fault),
        }
    }

    /// W7 to W9.
    fn apply(mut self, asker: &mut Asker<'_>, store: &Store, at: Moment) -> Result<Written, Unreachable> {
        let mut after = store.clone();
        let actions = std::mem::take(&mut self.actions);
        let events = match asker.settings.adjudicates() {
            // An append-only store keeps every candidate, single slots included.
            false => apply::apply(&mut after, &at, &self.updates, &actions, &mut self.notes),
            true if asker.settings.is_code() => self.apply_in_order(asker, &mut after, &at, &actions)?,
            true => {
                let Arbitrated { kept, dropped } = arbitrate::arbitrate(actions);
                let dropped = dropped.iter().map(|(action, why)| dropped_note(action, why));
                self.notes.extend(dropped);
                apply::apply(&mut after, &at, &self.updates, &kept, &mut self.notes)
            }
        };
        let events = self.events(events, &after);
        after.sessions.push(SessionRecord { at, notes: self.notes });
        Ok(Written { store: after, events })
    }

    /// W7 to W9 of the code's variant.
    fn apply_in_order(
        &mut self,
        asker: &mut Asker<'_>,
        after: &mut Store,
        at: &Moment,
        actions: &[Action],
    ) -> Result<Vec<WriteEvent>, Unreachable> {
        let suppressed = code::arbitrate::suppressed(actions);
        let dropped =
            suppressed.iter().filter_map(|(place, why)| Some(dropped_note(actions.get(*place)?, why)));
        self.notes.extend(dropped);
        let (settings, updates) = (asker.settings, &self.updates);
        let applied = code::apply::apply(after, settings, at, updates, actions, &suppressed, &mut self.notes);
        if asker.settings.links() {
            let (accepted, fresh) = (&applied.accepted, applied.fresh.as_slice());
            let ends = links::Ends { at, accepted, fresh, affected: &self.affected };
            let (links, faults) = links::find(asker, after, &ends, &mut self.notes)?;
            after.links.extend(links);
            self.faults.extend(faults);
        }
        Ok(applied.events)
    }

    /// The events of a session: each update's with the items considered for it, ends of older items, and steps that failed.
    fn events(&self, mut events: Vec<WriteEvent>, after: &Store) -> Vec<WriteEvent> {
        for update in &self.updates {
            let wrote = after.update(&update.id).and_then(|known| known.item.as_deref());
            let looked_at = self.considered(update);
            let of_update = |event: &&mut WriteEvent| {
                matches!(event.op, Op::Add | Op::Update) && event.memory.as_deref() == wrote
            };
            if let Some(event) = events.iter_mut().filter(|_| wrote.is_some()).find(of_update) {
                event.looked_at = Some(looked_at);
                continue;
            }
            let local = self.locals.get(&update.id);
            let reason = local.map(|local| format!("W3: {}: {}", local.decision, local.reason));
            events.push(WriteEvent {
                op: Op::None,
                memory: local.and_then(|local| local.target.clone()),
                text: Some(update.value.clone()),
                previous: None,
                sources: Some(sources(&update.evidence)),
                looked_at: Some(looked_at),
                reason,
            });
        }
        events.extend(self.faults.iter().map(|fault| WriteEvent {
            op: Op::None,
            memory: None,
            text: None,
            previous: None,
            sources: None,
            looked_at: None,
            reason: Some(format!("error: {fault}")),
        }));
        events
    }

    /// The items that stood in a prompt about an update, and whether a decision was asked about each: as a target of W3, or in W6.
    fn considered(&self, update: &Update) -> Vec<LookedAt> {
        let local = self.locals.get(&update.id);
        let asked: BTreeSet<&String> =
            local.iter().flat_map(|local| &local.asked).chain(&self.asked).collect();
        let context = local.iter().flat_map(|local| &local.context);
        let all: BTreeSet<&String> = context.chain(&self.looked_at).chain(asked.iter().copied()).collect();
        all.into_iter().map(|id| LookedAt { memory: id.clone(), gated: Some(asked.contains(id)) }).collect()
    }
}

/// Domains touched directly: of updates, and of the slots that spans hint at; in the code's variant in this order, else in the schema's.
fn direct(updates: &[Update], spans: &[spans::Span], is_code: bool) -> Vec<&'static str> {
    let of_updates = updates.iter().map(|update| update.slot.domain());
    let of_spans = spans.iter().flat_map(|span| &span.slots).map(Slot::domain);
    let mut direct = unique(of_updates.chain(of_spans));
    if !is_code {
        direct.sort_by_key(|name| DOMAINS.iter().position(|(domain, _)| domain == name));
    }
    direct
}

fn dropped_note(action: &Action, why: &str) -> Note {
    Note {
        step: Step::Arbitrate,
        about: action.target.clone().unwrap_or_else(|| action.slot.to_string()),
        decision: format!("{} of {} dropped", local_update::act_name(action.act), action.step),
        reason: why.to_owned(),
    }
}
