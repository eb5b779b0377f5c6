//! W9 (code's variant only): links accepted updates to stale items that they continue or succeed.
//!
//! An update is accepted if it had an effect, or if an applied verdict rests on it.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::json;

use super::{Session, listed, updates_listed};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::store::{Item, Link, Relation, Store, Update};

/// Stale items compared per update.
const MOST: usize = 4;
/// Limit of those chosen by similarity alone.
const GLOBAL: usize = 2;

#[derive(Deserialize)]
struct Reply {
    relation: String,
    reason: String,
}

impl Session<'_, '_> {
    /// Judges links to stale items of `after` one by one. `fresh` are items ended by verdicts of this session.
    pub(super) fn find_links(
        &mut self,
        after: &Store,
        accepted: &BTreeSet<String>,
        fresh: &[String],
    ) -> Result<Vec<Link>, Stop> {
        let mut links = Vec::new();
        for update in after.updates.iter().filter(|update| accepted.contains(&update.id)) {
            for item in self.linkable(after, update, fresh)? {
                let data = json!({
                    "update": updates_listed([update]),
                    "item": listed([item])[0],
                    "archived": item.archived().map(|change| &change.reason),
                });
                let reply = self.asker.ask::<Reply>(Step::Links, &data).map(Some);
                let Some(Reply { relation, reason }) = self.or_fault(reply)? else { continue };
                self.note(Step::Links, &format!("{} and {}", update.id, item.id), &relation, &reason);
                let relation = match relation.as_str() {
                    "SUPPORT" => Relation::Support,
                    "SUCCESSOR" => Relation::Successor,
                    _ => continue,
                };
                let (item, update, at) = (item.id.clone(), update.id.clone(), self.at.clone());
                links.push(Link { item, update, relation, reason, at });
            }
        }
        Ok(links)
    }

    /// The nearest of the freshly ended items, then of the slot, of affected domains, of all; all older than the session.
    fn linkable<'s>(
        &mut self,
        after: &'s Store,
        update: &Update,
        fresh: &[String],
    ) -> Result<Vec<&'s Item>, Stop> {
        let (query, at, affected) = (update.searched(true), self.at.index, self.affected.clone());
        let mut chosen: Vec<&Item> = Vec::new();
        type OfGroup<'a> = &'a dyn Fn(&Item) -> bool;
        let groups: [(OfGroup<'_>, usize); 4] = [
            (&|item| fresh.contains(&item.id), MOST),
            (&|item| item.slot == update.slot, MOST),
            (&|item| affected.contains(&item.slot.domain()), MOST),
            (&|_| true, GLOBAL),
        ];
        for (place, (of_group, most)) in groups.into_iter().enumerate() {
            let known = |item: &Item| chosen.iter().any(|known| known.id == item.id);
            // As in the public code, already chosen items of the slot still count towards the limit.
            let free = |item: &Item| place == 1 || !known(item);
            let older = after.stale().filter(|item| item.created.index < at);
            let group: Vec<&Item> = older.filter(|item| of_group(item) && free(item)).collect();
            let most = most.min(MOST - chosen.len());
            let nearest = self.asker.nearest(group, |item| item.searched(true), &query, most)?;
            let new: Vec<&Item> =
                nearest.into_iter().map(|(item, _)| item).filter(|item| !known(item)).collect();
            chosen.extend(new);
        }
        Ok(chosen)
    }
}
