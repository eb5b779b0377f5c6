//! W9: stale items that an update continues or succeeds.

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

/// Links of a session's updates, judged one by one, and the faults on the way.
///
/// # Errors
/// [`Unreachable`].
pub fn find(
    asker: &mut Asker<'_>,
    store: &Store,
    at: &Moment,
    archived: &[String],
    affected: &[&'static str],
    notes: &mut Vec<Note>,
) -> Result<(Vec<Link>, Vec<Fault>), Unreachable> {
    let (mut links, mut faults) = (Vec::new(), Vec::new());
    // Updates that wrote nothing have no part in what is current.
    for update in store.updates.iter().filter(|u| u.at == *at && u.item.is_some()) {
        for item in candidates(asker, store, update, archived, affected)? {
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
            links.push(Link { item, update, relation, reason: reply.reason, at: at.clone() });
        }
    }
    Ok((links, faults))
}

/// Freshly archived items, then those of the slot, then of affected domains, then the nearest of all.
fn candidates<'s>(
    asker: &mut Asker<'_>,
    store: &'s Store,
    update: &Update,
    archived: &[String],
    affected: &[&'static str],
) -> Result<Vec<&'s Item>, Unreachable> {
    let stale: Vec<&Item> = store.stale().collect();
    let mut chosen: Vec<&Item> = Vec::new();
    let mut take = |items: &mut dyn Iterator<Item = &'s Item>| {
        for item in items {
            if chosen.len() < MOST && !chosen.iter().any(|known| known.id == item.id) {
                chosen.push(item);
            }
        }
    };
    // The latest first within each.
    let latest = || stale.iter().rev().copied();
    take(&mut latest().filter(|item| archived.contains(&item.id)));
    take(&mut latest().filter(|item| item.slot == update.slot));
    take(&mut latest().filter(|item| affected.contains(&item.slot.domain())));
    let chosen_ids: Vec<String> = chosen.iter().map(|item| item.id.clone()).collect();
    let rest: Vec<&Item> = stale.into_iter().filter(|item| !chosen_ids.contains(&item.id)).collect();
    let room = GLOBAL.min(MOST - chosen.len());
    let nearest = asker.nearest(rest, |item| &item.value, &update.value, room)?;
    chosen.extend(nearest.into_iter().map(|(item, _)| item));
    Ok(chosen)
}
