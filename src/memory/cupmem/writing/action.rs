//! An action on the store, as steps propose it and arbitration keeps it.

use super::super::model::Step;
use super::super::schema::Slot;
use super::super::store::Update;

/// A kind of action, in the order in which one beats the next on the same item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// Archive the target; the value has its place.
    Replace,
    Invalidate,
    Refine,
    Add,
    Weaken,
    /// Mark the slot unknown, and archive its default or the target.
    Unknown,
}

/// An action.
#[derive(Debug, Clone, PartialEq)]
pub struct Action {
    pub act: Act,
    pub slot: Slot,
    pub target: Option<String>,
    /// The updates that it rests on; a value is the first one's.
    pub updates: Vec<String>,
    /// The value of a replacement that is not the update's own.
    pub value: Option<String>,
    /// From 0 to 1.
    pub confidence: f64,
    /// How particular it is; greater is more. In the paper's variant 2 where the decision names its target, 1 where the target is a hint's, 0
    /// without target; in the code's 3 with a target, 2 with a value, 1 with a reason alone.
    pub specificity: u8,
    pub step: Step,
    pub reason: String,
}

impl Action {
    /// An action of W3 for an update.
    pub fn of_update(act: Act, update: &Update, target: Option<String>, reason: String) -> Self {
        Action {
            act,
            slot: update.slot.clone(),
            specificity: if target.is_some() { 2 } else { 0 },
            target,
            updates: vec![update.id.clone()],
            value: None,
            confidence: update.confidence,
            step: Step::LocalUpdate,
            reason,
        }
    }

    /// Does it write a state that evidence states?
    pub fn is_grounded_update(&self) -> bool {
        matches!(self.act, Act::Replace | Act::Refine | Act::Add)
    }
}
