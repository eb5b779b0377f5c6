//! R6 and R7: whether to go ahead with a plan, and what its answer must and must not do.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::shapes::{array, object, one_of, text};
use super::super::store::Store;
use super::parse::{Parsed, Query};
use super::verify::Verdict;

/// Decisive items, blocking ones, supporting ones, and facts.
const DECISIVE: usize = 2;
const BLOCKING: usize = 2;
const SUPPORTING: usize = 1;
const FACTS: usize = 4;

/// The next step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Course {
    /// As asked.
    Proceed,
    /// With changes.
    Adjust,
    /// Not at all.
    Block,
    /// After a question to the user.
    Ask,
}

/// The grounds of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Grounding {
    /// The next step.
    pub decision: Course,
    /// Items that decide it.
    pub decisive: Vec<String>,
    /// Items that stand against it.
    pub blocking: Vec<String>,
    /// Items that support it.
    pub supporting: Vec<String>,
    /// Points that an answer should mention.
    pub facts: Vec<String>,
}

/// The bounds of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Constraints {
    /// Duties.
    pub must: Vec<String>,
    /// Prohibitions.
    pub must_not: Vec<String>,
    /// Open points.
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

/// R6. Ids that the verdict does not hold are dropped: a decisive or supporting item is usable, a blocking one is any that it names.
///
/// # Errors
/// [`Unreachable`]; a [`Fault`] inside.
pub fn ground(
    asker: &mut Asker<'_>,
    store: &Store,
    query: Query<'_>,
    parsed: &Parsed,
    verdict: &Verdict,
) -> Result<Result<Grounding, Fault>, Unreachable> {
    let mut data = basis(store, query, verdict);
    data["goal"] = json!(parsed.goal);
    data["options"] = json!(parsed.options);
    let reply = asker.ask::<Grounding>(Step::Ground, &data, &grounding_shape())?;
    Ok(reply.map(|mut grounding| {
        let named = [&verdict.usable, &verdict.blocked, &verdict.outdated, &verdict.historical];
        for (list, most) in [(&mut grounding.decisive, DECISIVE), (&mut grounding.supporting, SUPPORTING)] {
            list.retain(|id| verdict.usable.contains(id));
            list.truncate(most);
        }
        grounding.blocking.retain(|id| named.iter().any(|list| list.contains(id)));
        grounding.blocking.truncate(BLOCKING);
        grounding.facts.truncate(FACTS);
        grounding
    }))
}

/// R7.
///
/// # Errors
/// [`Unreachable`]; a [`Fault`] inside.
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
