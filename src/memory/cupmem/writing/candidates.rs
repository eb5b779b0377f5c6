//! W2: spans become candidates, one current proposition each, in a slot of the schema.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::schema::Slot;
use super::super::shapes::{array, clamped, object, one_of, share, text};
use super::super::store::{Item, Kind, Moment, Note, Store, Strength, Update};
use super::spans::{Grade, Span, hinted, listed};

/// Candidates of a session in the paper's variant: a bound of ours. The public code has none.
const MOST: usize = 8;

/// The way in which a candidate follows from its spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    Explicit,
    Inferred,
}

#[derive(Debug, Deserialize)]
struct Reply {
    candidates: Vec<Found>,
}

#[derive(Debug, Deserialize)]
struct Found {
    domain: String,
    slot: String,
    value: String,
    source: Origin,
    kind: Kind,
    confidence: f64,
    spans: Vec<String>,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    let candidate = object([
        ("domain", text()),
        ("slot", text()),
        ("value", text()),
        ("source", one_of(&["explicit", "inferred"])),
        ("kind", one_of(&["observed", "upstream"])),
        ("confidence", share()),
        ("spans", array(text(), 8)),
    ]);
    object([("candidates", array(candidate, MOST))])
}

/// The accepted candidates of a session, as updates, and a note for each that was found.
pub fn find(
    asker: &mut Asker<'_>,
    store: &Store,
    at: &Moment,
    spans: &[Span],
    notes: &mut Vec<Note>,
) -> Result<Result<Vec<Update>, Fault>, Unreachable> {
    let domains = hinted(spans);
    let known = store.active().filter(|item| domains.contains(&item.slot.domain()));
    let is_code = asker.settings.is_code();
    let (former, unknown) = not_current(store, |slot| is_code && domains.contains(&slot.domain()));
    let data = json!({
        "spans": listed(spans),
        "known": known.map(in_slot).collect::<Vec<_>>(),
        "former": former,
        "unknown": unknown,
    });
    let reply: Reply = match asker.ask(Step::Candidates, &data, &reply_shape())? {
        Ok(reply) => reply,
        Err(fault) => return Ok(Err(fault)),
    };
    let mut updates: Vec<Update> = Vec::new();
    let most = if is_code { usize::MAX } else { MOST };
    for found in reply.candidates.into_iter().take(most) {
        let value = found.value.trim().to_owned();
        let outcome = accept(&found, spans, is_code).and_then(|(slot, evidence)| {
            let said = |update: &Update| update.slot == slot && same(&update.value, &value);
            let twice = !is_code && updates.iter().any(said);
            if twice { Err("it stands there twice") } else { Ok((slot, evidence)) }
        });
        let id = format!("update-{}", store.updates.len() + updates.len());
        notes.push(Note {
            step: Step::Candidates,
            about: format!("{}.{}: {value}", found.domain, found.slot),
            decision: outcome.as_ref().map_or("dropped".to_owned(), |_| id.clone()),
            reason: outcome.as_ref().err().copied().unwrap_or_default().to_owned(),
        });
        if let Ok((slot, of)) = outcome {
            updates.push(Update {
                id,
                slot,
                value,
                kind: found.kind,
                confidence: clamped(found.confidence),
                at: at.clone(),
                evidence: of.iter().map(|span| span.evidence.clone()).collect(),
                item: None,
            });
        }
    }
    Ok(Ok(updates))
}

/// A candidate's slot and spans, or why it is dropped. The paper gives no cut by confidence.
fn accept<'a>(
    found: &Found,
    spans: &'a [Span],
    is_code: bool,
) -> Result<(Slot, Vec<&'a Span>), &'static str> {
    if found.value.trim().is_empty() {
        return Err("it says nothing");
    }
    let slot = match is_code {
        true => Slot::of_pair(&found.domain, &found.slot),
        false => Slot::named(&found.domain, &found.slot),
    };
    let slot = slot.ok_or("the schema has no such slot")?;
    let of: Vec<&Span> = spans.iter().filter(|span| found.spans.contains(&span.id)).collect();
    if of.is_empty() {
        return Err("it names no span");
    }
    if is_code {
        let needed = needed(found.source, found.kind, &of).ok_or("it rests on weak support alone")?;
        if clamped(found.confidence) < needed {
            return Err("its confidence is too low for its evidence");
        }
    }
    Ok((slot, of))
}

/// The confidence that a candidate needs by its evidence; `None` where none is enough.
fn needed(source: Origin, kind: Kind, of: &[&Span]) -> Option<f64> {
    let changes = of.iter().any(|span| span.change > Grade::None);
    if source == Origin::Explicit || of.iter().any(|span| span.is_state) {
        Some(0.45)
    } else if of.iter().any(|span| span.strength == Grade::Strong) || (kind == Kind::Upstream && changes) {
        Some(0.55)
    } else if of.iter().filter(|span| span.strength >= Grade::Medium).count() >= 2 {
        Some(0.60)
    } else {
        None
    }
}

/// Are two propositions the same but for case and spaces?
pub fn same(a: &str, b: &str) -> bool {
    let words = |text: &str| text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>();
    words(a) == words(b)
}

/// An item as prompts show it.
pub fn in_slot(item: &Item) -> Value {
    json!({
        "id": item.id,
        "slot": item.slot,
        "value": item.value,
        "weak": item.strength == Strength::Weak,
    })
}

/// Archived items and standing markers of some slots, as the code's prompts show them.
pub fn not_current(store: &Store, of: impl Fn(&Slot) -> bool) -> (Vec<Value>, Vec<Value>) {
    let former = store.stale().filter(|item| of(&item.slot)).map(in_slot);
    let unknown = store.standing().filter(|marker| of(&marker.slot));
    let unknown = unknown.map(|marker| json!({ "slot": marker.slot, "value": marker.reason }));
    (former.collect(), unknown.collect())
}

/// Updates as prompts show them.
pub fn updates_listed(updates: &[Update]) -> Value {
    let listed = |update: &Update| {
        let words: Vec<&str> = update.evidence.iter().map(|e| e.text.as_str()).collect();
        json!({ "id": update.id, "slot": update.slot, "value": update.value, "evidence": words })
    };
    updates.iter().map(listed).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::store::Evidence;
    use super::*;

    #[test]
    fn weaker_evidence_needs_more_confidence() {
        let span = |is_state, strength, change| {
            let evidence = Evidence { session: "s".into(), turns: vec![], text: String::new() };
            Span::for_test(evidence, is_state, strength, change)
        };
        let state = span(true, Grade::Weak, Grade::None);
        let strong = span(false, Grade::Strong, Grade::None);
        let medium = span(false, Grade::Medium, Grade::None);
        let weak = span(false, Grade::Weak, Grade::None);
        let changing = span(false, Grade::Weak, Grade::Weak);
        let of = |source, kind, spans: &[&Span]| needed(source, kind, spans);
        assert_eq!(of(Origin::Explicit, Kind::Observed, &[&weak]), Some(0.45));
        assert_eq!(of(Origin::Inferred, Kind::Observed, &[&weak, &state]), Some(0.45));
        assert_eq!(of(Origin::Inferred, Kind::Observed, &[&strong]), Some(0.55));
        assert_eq!(of(Origin::Inferred, Kind::Upstream, &[&changing]), Some(0.55));
        assert_eq!(of(Origin::Inferred, Kind::Observed, &[&changing]), None);
        assert_eq!(of(Origin::Inferred, Kind::Observed, &[&medium, &medium]), Some(0.60));
        assert_eq!(of(Origin::Inferred, Kind::Observed, &[&medium]), None);
        assert_eq!(of(Origin::Inferred, Kind::Observed, &[&weak, &weak]), None);
    }
}
