//! R4: looks again where an answer would have no basis.
//!
//! Two searches by the basis sought, among the entries that are not current and among all, and of each a model says which entries would change the
//! answer. Those that do join the evidence: active items are usable, stale ones history, markers make their slots unknown.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::shapes::{array, object, text};
use super::super::store::Store;
use super::parse::{Parsed, Query};
use super::retrieve::{Entry, Hit, bundles, entries, nearest, not_current};
use super::verify::{Verdict, with_facts};

/// Entries of the first search, and of the second.
const NOT_CURRENT: usize = 5;
const OF_ALL: usize = 8;

#[derive(Debug, Deserialize)]
struct Reply {
    keep: Vec<String>,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    object([("keep", array(text(), OF_ALL)), ("reason", text())])
}

/// Adds to the evidence and to the verdict.
///
/// # Errors
/// [`Unreachable`]; a [`Fault`] inside.
pub fn recover(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    parsed: &Parsed,
    hits: &mut Vec<Hit>,
    mut verdict: Verdict,
) -> Result<Result<Verdict, Fault>, Unreachable> {
    let sought = format!("{}\n{}", parsed.basis, query.text);
    for (pool, most) in [(not_current(store), NOT_CURRENT), (entries(store), OF_ALL)] {
        let found = nearest(asker, pool, sought.trim(), most)?;
        if found.is_empty() {
            continue;
        }
        let data = json!({
            "query": query.text,
            "basis": parsed.basis,
            "bundles": bundles(store, &found, false),
            "ids": found.iter().map(|hit| &hit.id).collect::<Vec<_>>(),
        });
        let reply: Reply = match asker.ask(Step::Recover, &data, &reply_shape())? {
            Ok(reply) => reply,
            Err(fault) => return Ok(Err(fault)),
        };
        for hit in found.into_iter().filter(|hit| reply.keep.contains(&hit.id)) {
            join(store, &hit.id, &mut verdict);
            if !hits.iter().any(|known| known.id == hit.id) {
                hits.push(hit);
            }
        }
    }
    Ok(Ok(with_facts(verdict, store)))
}

fn join(store: &Store, id: &str, verdict: &mut Verdict) {
    let entry = entries(store).into_iter().find(|entry| entry.id() == id);
    let (list, name) = match entry {
        None => return,
        Some(Entry::Marker(marker)) => (&mut verdict.unknown_slots, marker.slot.to_string()),
        // A verdict against an item stands.
        Some(Entry::Item(item)) if item.is_active() => {
            if verdict.blocked.contains(&item.id) || verdict.outdated.contains(&item.id) {
                return;
            }
            (&mut verdict.usable, item.id.clone())
        }
        Some(Entry::Item(item)) => (&mut verdict.historical, item.id.clone()),
    };
    if !list.contains(&name) {
        list.push(name);
    }
}
