//! R4: looks again where an answer may lack its basis.
//!
//! Two searches by the probe and its proposition, among the entries that are not current and by their words alone among all, and of each a model says
//! which entries would change the answer. Of what it keeps five bundles of different slots are taken, those that are not current first; their active
//! items are usable unless the verdict blocks them, and the rest explains.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::Asker;
use super::super::model::Step;
use super::super::shapes::{array, object, text};
use super::super::store::Store;
use super::parse::{Parsed, Query, lines};
use super::retrieve::{Hit, bundles, entries, entry, nearest, not_current, primary};
use super::stop::{Stop, readable};
use super::verify::Verdict;
use crate::ground::order::unique;

/// Entries of the first search, and of the second.
const NOT_CURRENT: usize = 5;
const OF_ALL: usize = 8;
/// Bundles that are taken.
const TAKEN: usize = 5;

#[derive(Debug, Deserialize)]
struct Reply {
    keep: Vec<String>,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    object([("keep", array(text(), OF_ALL)), ("reason", text())])
}

/// Adds to the verdict's usable items. What is kept and taken, best first.
pub fn recover(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    parsed: &Parsed,
    verdict: &mut Verdict,
) -> Result<Vec<Hit>, Stop> {
    let sought = lines([query.text, &parsed.proposition]);
    let mut kept: Vec<Hit> = Vec::new();
    for (pool, most, named) in [(not_current(store), NOT_CURRENT, true), (entries(store), OF_ALL, false)] {
        let found = nearest(asker, pool, &sought, most, named)?;
        if found.is_empty() {
            continue;
        }
        let data = json!({
            "query": query.text,
            "basis": parsed.basis,
            "premise_safe": verdict.premise_safe,
            "bundles": bundles(store, &found, false),
            "ids": found.iter().map(|hit| &hit.id).collect::<Vec<_>>(),
        });
        let reply: Reply = readable(asker.ask(Step::Recover, &data, &reply_shape()))?;
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
        if !slots.contains(&entry.slot()) && taken.len() < TAKEN {
            slots.push(entry.slot());
            taken.push(hit);
        }
        if taken.len() == TAKEN {
            break;
        }
    }
    Ok(taken)
}
