//! W4: domains whose former defaults a change makes unsafe, beside those that it touches directly.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::schema::domain;
use super::super::shapes::{array, clamped, object, share, text};
use super::super::store::{Note, Update};
use super::candidates::updates_listed;
use super::spans::{Span, listed};

/// Affected domains of a session.
pub const MOST: usize = 3;

#[derive(Debug, Deserialize)]
struct Reply {
    affected: Vec<Found>,
}

#[derive(Debug, Deserialize)]
struct Found {
    domain: String,
    reason: String,
    confidence: f64,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    let affected = object([("domain", text()), ("reason", text()), ("confidence", share())]);
    object([("affected", array(affected, MOST))])
}

/// The affected domains, in the paper's variant the surest first, and a note for each that was found.
pub fn find(
    asker: &mut Asker<'_>,
    updates: &[Update],
    spans: &[Span],
    direct: &[&'static str],
    notes: &mut Vec<Note>,
) -> Result<Result<Vec<&'static str>, Fault>, Unreachable> {
    let data = json!({ "updates": updates_listed(updates), "spans": listed(spans), "direct": direct });
    let mut reply: Reply = match asker.ask(Step::Affected, &data, &reply_shape())? {
        Ok(reply) => reply,
        Err(fault) => return Ok(Err(fault)),
    };
    if !asker.settings.is_code() {
        reply.affected.sort_by(|a, b| clamped(b.confidence).total_cmp(&clamped(a.confidence)));
    }
    let mut kept: Vec<&'static str> = Vec::new();
    for found in reply.affected {
        let outcome = match domain(&found.domain) {
            None => Err("the schema has no such domain"),
            Some(_) if asker.settings.is_code() && found.reason.trim().is_empty() => Err("it has no reason"),
            Some(domain) if direct.contains(&domain) => Err("it is touched directly"),
            Some(domain) if kept.contains(&domain) => Err("it stands there twice"),
            Some(_) if kept.len() == MOST => Err("a session affects three at most"),
            Some(domain) => Ok(domain),
        };
        let (decision, why) = match outcome {
            Ok(_) => ("affected", found.reason),
            Err(why) => ("dropped", why.to_owned()),
        };
        notes.push(Note {
            step: Step::Affected,
            about: found.domain,
            decision: decision.to_owned(),
            reason: why,
        });
        kept.extend(outcome.ok());
    }
    Ok(Ok(kept))
}
