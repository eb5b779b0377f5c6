//! R6 and R7: whether to go ahead with a plan, and what its answer must and must not do.
//!
//! R6 may name the items that the verdict finds usable or R4 recovered, but none that is blocked or history. Going ahead on no ground at all is a BLOCK
//! where the premise is unsafe, else a question; with nothing to ground a plan on, no model is asked.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::shapes::{array, object, one_of, text};
use super::super::store::Store;
use super::parse::{Parsed, Query};
use super::retrieve::Hit;
use super::stop::{Stop, readable};
use super::verify::{Premise, Verdict};
use crate::ground::order::unique;

/// Decisive items, blocking ones, supporting ones, and facts.
const DECISIVE: usize = 2;
const BLOCKING: usize = 2;
const SUPPORTING: usize = 1;
const FACTS: usize = 4;

/// The next step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Course {
    Proceed,
    Adjust,
    Block,
    /// After a question to the user.
    Ask,
}

/// The grounds of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Grounding {
    pub decision: Course,
    pub decisive: Vec<String>,
    pub blocking: Vec<String>,
    pub supporting: Vec<String>,
    pub facts: Vec<String>,
}

/// The bounds of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Constraints {
    pub must: Vec<String>,
    pub must_not: Vec<String>,
    pub open: Vec<String>,
}

/// The shape of R6's replies.
pub fn grounding_shape() -> Value {
    object([
        ("decision", one_of(&["PROCEED", "ADJUST", "BLOCK", "ASK"])),
        ("decisive", array(text(), DECISIVE)),
        ("blocking", array(text(), BLOCKING)),
        ("supporting", array(text(), SUPPORTING)),
        ("facts", array(text(), FACTS)),
    ])
}

/// The shape of R7's replies.
pub fn constraints_shape() -> Value {
    let lines = || array(text(), 4);
    object([("must", lines()), ("must_not", lines()), ("open", lines())])
}

/// R6.
pub fn ground(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    parsed: &Parsed,
    verdict: &Verdict,
    recovered: &[Hit],
) -> Result<Grounding, Stop> {
    let nothing = verdict.usable.is_empty() && recovered.is_empty() && verdict.unknown_slots.is_empty();
    let mut grounding = Grounding {
        decision: Course::Ask,
        decisive: Vec::new(),
        blocking: Vec::new(),
        supporting: Vec::new(),
        facts: Vec::new(),
    };
    if nothing {
        return Ok(grounding);
    }
    let explains = |id: &&String| !verdict.usable.contains(id) && store.item(id).is_some();
    let explaining: Vec<&String> = recovered.iter().map(|hit| &hit.id).filter(explains).collect();
    let mut data = basis(store, query, verdict);
    if let Some(former) = data["not_current"].as_array_mut() {
        let items = explaining.iter().filter_map(|id| store.item(id));
        former.extend(items.map(|item| json!({ "id": item.id, "value": item.value })));
    }
    data["goal"] = json!(parsed.goal);
    data["options"] = json!(parsed.options);
    grounding = readable(asker.ask::<Grounding>(Step::Ground, &data, &grounding_shape()))?;
    let refused = |id: &String| verdict.blocked.contains(id) || verdict.historical.contains(id);
    let Grounding { decision, decisive, blocking, supporting, facts } = &mut grounding;
    for (list, most) in
        [(&mut *decisive, DECISIVE), (&mut *blocking, BLOCKING), (&mut *supporting, SUPPORTING)]
    {
        *list = unique(list.drain(..));
        list.retain(|id| (verdict.usable.contains(id) || explaining.contains(&id)) && !refused(id));
        list.truncate(most);
    }
    let refused = verdict.blocked.iter().chain(&verdict.historical).filter_map(|id| store.item(id));
    let refused: Vec<String> = refused.map(|item| plain(&item.value)).collect();
    let repeats = |fact: &String| {
        let fact = plain(fact);
        refused.iter().any(|old| fact.contains(old) || old.contains(&fact))
    };
    facts.retain(|fact| !fact.trim().is_empty() && !repeats(fact));
    facts.truncate(FACTS);
    let groundless = [&*decisive, blocking, supporting, facts].iter().all(|list| list.is_empty());
    if groundless && matches!(decision, Course::Proceed | Course::Adjust) {
        let unsafe_premise = verdict.status == Premise::Outdated || !verdict.premise_safe;
        *decision = if unsafe_premise { Course::Block } else { Course::Ask };
    }
    Ok(grounding)
}

/// A text but for case and spaces.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// R7.
pub fn constrain(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    verdict: &Verdict,
    grounding: Option<&Grounding>,
) -> Result<Result<Constraints, Fault>, Unreachable> {
    let mut data = basis(store, query, verdict);
    data["course"] = json!(grounding.map(|grounding| course(grounding.decision)));
    asker.ask(Step::Constraints, &data, &constraints_shape())
}

/// The next step, in words.
pub fn course(course: Course) -> &'static str {
    match course {
        Course::Proceed => "go ahead as asked",
        Course::Adjust => "go ahead with changes",
        Course::Block => "do not go ahead",
        Course::Ask => "ask the user first",
    }
}

/// The grounds of a verdict, as both prompts show them.
fn basis(store: &Store, query: Query<'_>, verdict: &Verdict) -> Value {
    let items = |lists: &[&Vec<String>]| {
        let items = lists.iter().copied().flatten().filter_map(|id| store.item(id));
        items.map(|item| json!({ "id": item.id, "value": item.value })).collect::<Vec<_>>()
    };
    json!({
        "query": query.text,
        "premise_safe": verdict.premise_safe,
        "usable": items(&[&verdict.usable]),
        "not_current": items(&[&verdict.outdated, &verdict.blocked, &verdict.historical]),
        "facts": verdict.facts.iter().map(|fact| &fact.text).collect::<Vec<_>>(),
        "unknown": verdict.unknown_slots,
    })
}
