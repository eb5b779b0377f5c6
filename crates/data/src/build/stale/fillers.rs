//! Sessions of the pool that may stand in a row's haystack.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::terms::{FACTS, SIDES, Size, pool};
use crate::benchmarks::stale::{FEWEST, TOLD};
use crate::build::pool::PoolSession;
use crate::build::{Row, RowError, Rows, Setting};
use crate::case::Turn;
use crate::case::check::near::{ALIKE, Shingles, pairs};
use crate::case::check::words::{content_words, part_said};
use crate::case::draw::Draws;
use crate::construct::session::USER;

/// Adds `candidates`, sessions of the pool in a seeded order, and `needed`, how many sessions and tokens of them the haystack takes. Settings:
/// `quotas`, shares by source; `offer`, how many times as many to list as are needed (2); `values`, fields of texts that no session may say;
/// `texts`, true for `{id, tokens, user}` with the user's turns, which a filter asks about, in place of ids.
///
/// Left out are sessions that tell a statement or say a value, that resemble another one, and that `data check` would find fault with.
pub fn candidates(setting: &Setting<'_>, row: &Row) -> Rows {
    let (needed, tokens) = match Size::of(setting)? {
        Size::Sessions(sessions) => (sessions.saturating_sub(2), 0),
        Size::Tokens(tokens) => (0, tokens),
    };
    let offer: f64 = setting.given("offer")?.unwrap_or(2.0);
    let values: Vec<String> = setting.given("values")?.unwrap_or_default();
    let is_with_texts = setting.given("texts")?.unwrap_or(false);
    let facts = FACTS.iter().map(|fact| row.text(fact).map(content_words));
    let facts: Vec<BTreeSet<String>> = facts.collect::<Result<_, _>>()?;
    let values = values.iter().filter_map(|value| row.text(value).ok()).map(content_words);
    let values: Vec<BTreeSet<String>> = values.filter(|words| !words.is_empty()).collect();
    let mut sets: Vec<Vec<u64>> = Vec::new();
    for side in SIDES {
        sets.extend(row.given::<Vec<Turn>>(side)?.map(|turns| shingles(&turns)));
    }
    let evidence = sets.len();
    let (mut found, mut counted): (Vec<&PoolSession>, usize) = (Vec::new(), 0);
    for session in order(setting, &mut setting.draws(&row.id, 0))? {
        if found.len() as f64 >= offer * needed as f64 && counted as f64 >= offer * tokens as f64 {
            break;
        }
        if session.is_timeless() && !tells(session, &facts, &values) {
            counted += session.tokens(setting.count).map_err(RowError::fault)?;
            sets.push(shingles(&session.turns));
            found.push(session);
        }
    }
    let alike: BTreeSet<usize> = pairs(&sets, ALIKE).into_iter().map(|pair| pair.second).collect();
    let kept = found.iter().enumerate().filter(|(nth, _)| !alike.contains(&(nth + evidence)));
    let listed = kept.map(|(_, session)| {
        let by_user = session.turns.iter().filter(|turn| turn.role == USER).map(|turn| &turn.content);
        Ok(match is_with_texts {
            true => json!({
                "id": session.id,
                "tokens": session.tokens(setting.count).map_err(RowError::fault)?,
                "user": by_user.collect::<Vec<_>>(),
            }),
            false => json!(session.id),
        })
    });
    let listed: Vec<Value> = listed.collect::<Result<_, RowError>>()?;
    let needed = json!({"sessions": needed, "tokens": tokens});
    Ok(vec![row.copy().with(json!({"candidates": listed, "needed": needed}))])
}

fn shingles(turns: &[Turn]) -> Vec<u64> {
    let texts: Vec<&str> = turns.iter().map(|turn| turn.content.as_str()).collect();
    Shingles::of(&texts.join("\n")).pairs
}

fn tells(session: &PoolSession, facts: &[BTreeSet<String>], values: &[BTreeSet<String>]) -> bool {
    session.turns.iter().any(|turn| {
        let said = content_words(&turn.content);
        let fact = |fact: &BTreeSet<String>| fact.len() >= FEWEST && part_said(fact, &said) >= TOLD;
        facts.iter().any(fact) || values.iter().any(|value| value.is_subset(&said))
    })
}

/// All sessions in a drawn order; with quotas those of the named sources, each as often as its share says as long as it lasts.
fn order<'a>(setting: &Setting<'a>, draws: &mut Draws) -> Result<Vec<&'a PoolSession>, RowError> {
    let mut all: Vec<&PoolSession> = pool(setting).sessions.iter().collect();
    draws.shuffle(&mut all);
    let Some(quotas) = setting.given::<BTreeMap<String, f64>>("quotas")? else { return Ok(all) };
    let mut sources: Vec<(f64, f64, std::vec::IntoIter<&PoolSession>)> = Vec::new();
    for (name, share) in quotas {
        let of: Vec<&PoolSession> = all.iter().copied().filter(|session| session.source == name).collect();
        if of.is_empty() || share <= 0.0 {
            let known: BTreeSet<&str> = all.iter().map(|session| session.source.as_str()).collect();
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            let remedy = format!("name a source of the pool ({known}), with a share above 0");
            return Err(RowError::Fault(format!("the quota {name:?} = {share}; {remedy}")));
        }
        sources.push((share, 0.0, of.into_iter()));
    }
    let mut ordered = Vec::new();
    // The source that is farthest behind its share comes next.
    while let Some(next) = (0..sources.len()).min_by(|a, b| {
        let due = |at: usize| (sources[at].1 + 1.0) / sources[at].0;
        due(*a).total_cmp(&due(*b))
    }) {
        sources[next].1 += 1.0;
        match sources[next].2.next() {
            Some(session) => ordered.push(session),
            None => drop(sources.remove(next)),
        }
    }
    Ok(ordered)
}
