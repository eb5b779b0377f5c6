//! Writing, a session at a time: W1 to W9.
//!
//! A session's decisions read the store as it was before the session; then all of them apply to a copy, which takes the store's place. A model that
//! cannot be asked leaves the store as it was.
//!
//! Choices where the sources are silent: all candidates that W2 accepts count as updates for W4 to W6, those that W3 finds to be known already
//! included; the domains touched directly are those of the candidates and of the slots that spans hint at; a step whose replies cannot be read is
//! left out and told as an event.

pub mod action;
pub mod adjudicate;
pub mod affected;
pub mod apply;
pub mod arbitrate;
pub mod candidates;
pub mod links;
pub mod local_update;
pub mod proposals;
pub mod spans;

use std::collections::{BTreeMap, BTreeSet};

use action::{Act, Action};
use local_update::Local;

use super::asking::{Asker, Fault, Unreachable};
use super::model::Step;
use super::schema::DOMAINS;
use super::settings::Switch;
use super::store::{Moment, Note, SessionRecord, Store, Update, sources};
use crate::memory::system::protocol::{LookedAt, Op, SessionInput, WriteEvent};

/// A session written.
pub struct Written {
    /// The store afterwards.
    pub store: Store,
    /// The change.
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
///
/// # Errors
/// [`Unreachable`].
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
        let hinted = spans::hinted(spans);
        let touched = |domain: &&str| {
            hinted.contains(domain) || self.updates.iter().any(|u| u.slot.domain() == *domain)
        };
        let direct: Vec<&'static str> =
            DOMAINS.iter().map(|(domain, _)| *domain).filter(|domain| touched(domain)).collect();
        if !asker.settings.lacks(Switch::NoAffected) {
            let found = affected::find(asker, &self.updates, spans, &direct, &mut self.notes)?;
            self.affected = self.or_fault(found);
        }
        let change = proposals::Change {
            at,
            updates: &self.updates,
            spans,
            direct: &direct,
            affected: &self.affected,
        };
        let proposed = proposals::find(asker, store, &change, &mut self.notes)?;
        self.looked_at.extend(proposed.looked_at);
        self.faults.extend(proposed.faults);
        for proposal in &proposed.kept {
            let verdict = adjudicate::decide(asker, store, proposal, &self.updates, &mut self.notes)?;
            match verdict {
                Ok(verdict) => {
                    self.asked.insert(proposal.item.clone());
                    self.looked_at.extend(verdict.asked);
                    self.actions.extend(verdict.action);
                }
                Err(fault) => self.faults.push(fault),
            }
        }
        Ok(())
    }

    /// W7 to W9.
    fn apply(mut self, asker: &mut Asker<'_>, store: &Store, at: Moment) -> Result<Written, Unreachable> {
        let arbitrated = match asker.settings.adjudicates() {
            true => arbitrate::arbitrate(std::mem::take(&mut self.actions)),
            // An append-only store keeps every candidate, single slots included.
            false => arbitrate::Arbitrated { kept: std::mem::take(&mut self.actions), dropped: Vec::new() },
        };
        for (action, why) in &arbitrated.dropped {
            self.notes.push(Note {
                step: Step::Arbitrate,
                about: action.target.clone().unwrap_or_else(|| action.slot.to_string()),
                decision: format!("{} of {} dropped", local_update::act_name(action.act), action.step),
                reason: (*why).to_owned(),
            });
        }
        let mut after = store.clone();
        let kept = &arbitrated.kept;
        let applied = apply::apply(&mut after, asker.settings, &at, &self.updates, kept, &mut self.notes);
        if asker.settings.links() {
            let (archived, affected) = (&applied.archived, &self.affected);
            let (links, faults) = links::find(asker, &after, &at, archived, affected, &mut self.notes)?;
            after.links.extend(links);
            self.faults.extend(faults);
        }
        let events = self.events(applied.events, &after);
        after.sessions.push(SessionRecord { at, notes: self.notes });
        Ok(Written { store: after, events })
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
