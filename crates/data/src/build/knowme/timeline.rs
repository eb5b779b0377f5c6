//! Module C: a stack of times that follows memories within memories.

use jiff::civil::DateTime;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::build::row::object;
use crate::build::{Found, Row, RowError, Rows, Setting, With};

pub(super) const FORMAT: &str = "%Y-%m-%d %H:%M:%S";

/// A model's operation on the stack for a unit. A `POP` without a time returns to the time of the layer below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    pub action: Action,
    pub time: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Action {
    /// The time goes on. The first sets the present.
    Maintain,
    /// A memory that later units go on with.
    Push,
    /// Back from it.
    Pop,
    /// A passing memory: the unit stays in the present.
    Transient,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub time: DateTime,
    /// Layers of time, the present among them.
    pub depth: usize,
    /// Of a passing memory, when it was; of a `PUSH`, when it came to mind.
    pub other: Option<DateTime>,
}

/// The unit's time, or the rule that the operation breaks.
fn step(stack: &mut Vec<DateTime>, operation: &Operation) -> Result<Placed, &'static str> {
    let given = operation.time.as_deref().map(|text| DateTime::strptime(FORMAT, text.trim()));
    let given = given.transpose().map_err(|_| "a time is no YYYY-MM-DD HH:MM:SS")?;
    let needed = || given.ok_or("an operation has no time");
    let Some(top) = stack.last().copied() else {
        if operation.action != Action::Maintain {
            return Err("the first operation is no MAINTAIN");
        }
        stack.push(needed()?);
        return Ok(Placed { time: needed()?, depth: 1, other: None });
    };
    let below = stack.len().checked_sub(2).map(|at| stack[at]);
    let (time, other) = match operation.action {
        Action::Maintain => (needed()?, None),
        Action::Push => (needed()?, Some(top)),
        Action::Pop => (given.unwrap_or(below.ok_or("POP at the base")?), None),
        Action::Transient => (top, Some(needed()?)),
    };
    match operation.action {
        Action::Maintain if time < top => return Err("MAINTAIN goes back in time"),
        Action::Push if time >= top => return Err("PUSH goes to no earlier time"),
        Action::Pop if below > Some(time) => return Err("POP goes behind the time that it returns to"),
        Action::Push => {}
        Action::Maintain | Action::Transient => stack.truncate(stack.len() - 1),
        Action::Pop => stack.truncate(stack.len() - 2),
    }
    stack.push(time);
    Ok(Placed { time, depth: stack.len(), other })
}

/// Where operations put their units, or the first that breaks a rule, with the rule.
pub fn placed(operations: &[Operation]) -> Result<Vec<Placed>, (usize, &'static str)> {
    let mut stack = Vec::new();
    let all = operations.iter().enumerate();
    all.map(|(at, operation)| step(&mut stack, operation).map_err(|rule| (at, rule))).collect()
}

/// Holds the operation in the fields `action` and `time` against those so far, the list `operations`.
pub(super) fn check(_: &Setting<'_>, _: &With, row: &Row) -> Found {
    let mut all: Vec<Operation> = row.given("operations")?.unwrap_or_default();
    let Ok(operation) = Operation::deserialize(&Value::Object(row.fields.clone())) else {
        return Ok(Some("there is no operation".to_owned()));
    };
    all.push(operation);
    Ok(placed(&all).err().map(|(_, rule)| rule.to_owned()))
}

/// Rows of the units in `rows` by the operations in `operations`, in the order of the telling, with `id` (the place in the telling), `order`
/// (the place in time), `timestamp`, `depth`, and `trigger_time` of a memory or `related_time` of a passing one.
pub(super) fn timeline(_: &Setting<'_>, row: &Row) -> Rows {
    let (units, operations) = (row.list("rows")?, row.read::<Vec<Operation>>("operations")?);
    if units.len() != operations.len() {
        let found = format!("{} operations for {} units", operations.len(), units.len());
        return Err(RowError::Rejected(found));
    }
    let all = placed(&operations)
        .map_err(|(at, rule)| RowError::Rejected(format!("operation {}: {rule}", at + 1)))?;
    let mut by_time: Vec<usize> = (0..all.len()).collect();
    by_time.sort_by_key(|at| all[*at].time);
    let mut order = vec![0; all.len()];
    by_time.iter().enumerate().for_each(|(place, at)| order[*at] = place);
    let written = |time: DateTime| json!(time.strftime(FORMAT).to_string());
    let made = |(at, unit): (usize, &Value)| {
        let (Placed { time, depth, other }, operation) = (&all[at], &operations[at]);
        let fields = json!({
            "id": at, "order": order[at], "timestamp": written(*time), "depth": depth, "operation": operation.action,
        });
        let mut made = row.part(at, object(unit.clone())).with(fields);
        let name = if operation.action == Action::Push { "trigger_time" } else { "related_time" };
        made.fields.extend(other.map(|other| (name.to_owned(), written(other))));
        made
    };
    Ok(units.iter().enumerate().map(made).collect())
}
