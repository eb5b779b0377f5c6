//! W9, of the code's variant alone: stale items that an update continues or succeeds.
//!
//! Every accepted update is held against stale items: one that did something, and one that wrote nothing itself but that an applied verdict rests on.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::shapes::{object, one_of, text, word};
use super::super::store::{Item, Link, Moment, Note, Relation, Store, Update};
use super::candidates::{in_slot, updates_listed};

/// Stale items that an update is held against.
pub const MOST: usize = 4;
/// Of these, such as are only near by similarity.
const GLOBAL: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Found {
    Support,
    Successor,
    None,
}

#[derive(Debug, Deserialize)]
struct Reply {
    relation: Found,
    reason: String,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    object([("relation", one_of(&["SUPPORT", "SUCCESSOR", "NONE"])), ("reason", text())])
}

/// The stale items that a session's updates are compared with.
pub struct Ends<'a> {
    pub at: &'a Moment,
    pub accepted: &'a BTreeSet<String>,
    /// Items that verdicts of the session ended.
    pub fresh: &'a [String],
    pub affected: &'a [&'static str],
}

/// Links of a session's updates, judged one by one, and the faults on the way.
pub fn find(
    asker: &mut Asker<'_>,
    store: &Store,
    ends: &Ends<'_>,
    notes: &mut Vec<Note>,
) -> Result<(Vec<Link>, Vec<Fault>), Unreachable> {
    let (mut links, mut faults) = (Vec::new(), Vec::new());
    for update in store.updates.iter().filter(|update| ends.accepted.contains(&update.id)) {
        for item in candidates(asker, store, update, ends)? {
            let data = json!({
                "update": updates_listed(std::slice::from_ref(update)),
                "item": in_slot(item),
                "archived": item.archived().map(|change| &change.reason),
            });
            let reply: Reply = match asker.ask(Step::Links, &data, &reply_shape())? {
                Ok(reply) => reply,
                Err(fault) => {
                    faults.push(fault);
                    continue;
                }
            };
            notes.push(Note {
                step: Step::Links,
                about: format!("{} and {}", update.id, item.id),
                decision: word(reply.relation),
                reason: reply.reason.clone(),
            });
            let relation = match reply.relation {
                Found::Support => Relation::Support,
                Found::Successor => Relation::Successor,
                Found::None => continue,
            };
            let (item, update) = (item.id.clone(), update.id.clone());
            links.push(Link { item, update, relation, reason: reply.reason, at: ends.at.clone() });
        }
    }
    Ok((links, faults))
}

/// The nearest of the items that verdicts ended, then of the slot, then of affected domains, then of all; all of them older than the session.
fn candidates<'s>(
    asker: &mut Asker<'_>,
    store: &'s Store,
    update: &Update,
    ends: &Ends<'_>,
) -> Result<Vec<&'s Item>, Unreachable> {
    let query = update.searched(true);
    let mut chosen: Vec<&Item> = Vec::new();
    type OfGroup<'a> = &'a dyn Fn(&Item) -> bool;
    let groups: [(OfGroup<'_>, usize); 4] = [
        (&|item| ends.fresh.contains(&item.id), MOST),
        (&|item| item.slot == update.slot, MOST),
        (&|item| ends.affected.contains(&item.slot.domain()), MOST),
        (&|_| true, GLOBAL),
    ];
    for (at, (of_group, most)) in groups.into_iter().enumerate() {
        let known = |item: &Item| chosen.iter().any(|known| known.id == item.id);
        // Items of the slot that were already chosen still count towards the limit, as in the public code.
        let free = |item: &Item| at == 1 || !known(item);
        let older = store.stale().filter(|item| item.created.index < ends.at.index);
        let group: Vec<&Item> = older.filter(|item| of_group(item) && free(item)).collect();
        let nearest =
            asker.nearest(group, |item| item.searched(true), &query, most.min(MOST - chosen.len()))?;
        let new: Vec<&Item> = nearest.into_iter().map(|(item, _)| item).filter(|item| !known(item)).collect();
        chosen.extend(new);
    }
    Ok(chosen)
}
