//! Names of roles, twins and labels.

pub const TITLE: &str = "Dose";
pub const SESSION: &str = "session";
pub const QUESTION: &str = "question";

pub const ITEM: &str = "item";
pub const TWIN: &str = "twin";
/// Label and factor: the varied factor's name.
pub const SWEEP: &str = "sweep";

pub const CURRENT: &str = "current";
pub const STALE: &str = "stale";
pub const ABSENT: &str = "absent";
/// Field and note: expected kind, [`CURRENT`] or [`NO_VALUE`].
pub const EXPECTS: &str = "expects";
pub const PREFIX: &str = "prefix";
pub const NO_VALUE: &str = "none";
/// The answer names a value elsewhere than at its beginning.
pub const OTHER_ANSWER: &str = "other";

/// States the first value, or restates it before the update.
pub const OLD: &str = "old";
/// Intermediate value of a chain.
pub const MID: &str = "mid";
/// States or restates the current value.
pub const NEW: &str = "new";
/// Another person's attribute.
pub const LURE: &str = "lure";
/// After `new`; mentions the old value as past.
pub const ECHO: &str = "echo";

/// Sentences of an update that returns to the first value without naming it.
pub const AS_AT_FIRST: &str = "as at first";

pub const ROLES: [&str; 5] = [OLD, MID, NEW, LURE, ECHO];

/// Twin kinds. Update twins are named by order (`ab`, `ba`), others `kind-order`; [`BLIND`] has no order.
pub const UPDATE: &str = "update";
/// Neutral session instead of the update.
pub const NO_UPDATE: &str = "no-update";
/// Neutral session instead of the old one.
pub const NO_OLD: &str = "no-old";
/// Another person's update instead.
pub const OTHER: &str = "other";
/// Update with another template.
pub const PARAPHRASE: &str = "paraphrase";
/// Neutral sessions instead of both.
pub const BLIND: &str = "blind";

/// Parses a twin's name into kind and order.
///
/// ```
/// use palimpsest_data::benchmarks::dose::terms::{NO_UPDATE, UPDATE, twin};
/// assert_eq!(twin("ab"), Some((UPDATE, "ab")));
/// assert_eq!(twin("no-update-ba"), Some((NO_UPDATE, "ba")));
/// ```
pub fn twin(name: &str) -> Option<(&'static str, &'static str)> {
    let order = |text: &str| ["ab", "ba"].into_iter().find(|order| *order == text);
    if let Some(order) = order(name) {
        return Some((UPDATE, order));
    }
    if name == BLIND {
        return Some((BLIND, ""));
    }
    let (kind, rest) = name.rsplit_once('-')?;
    let kind = [NO_UPDATE, NO_OLD, OTHER, PARAPHRASE].into_iter().find(|known| *known == kind)?;
    Some((kind, order(rest)?))
}
