//! The words of the benchmark: roles of sessions, twins, and labels.

pub const TITLE: &str = "Dose";
pub const SESSION: &str = "session";
pub const QUESTION: &str = "question";

pub const ITEM: &str = "item";
pub const TWIN: &str = "twin";
/// Label of a case and factor: the name of the factor that is varied.
pub const SWEEP: &str = "sweep";

pub const CURRENT: &str = "current";
pub const STALE: &str = "stale";
/// Field and note of a probe: other values of the set.
pub const ABSENT: &str = "absent";
/// Field and note of a probe: the kind of value that a right answer names, [`CURRENT`] or [`NO_VALUE`].
pub const EXPECTS: &str = "expects";
pub const PREFIX: &str = "prefix";
pub const NO_VALUE: &str = "none";
/// An answer that names a value of the set elsewhere than at its beginning.
pub const OTHER_ANSWER: &str = "other";

/// The session that states the value first, and those that state it again before it is replaced.
pub const OLD: &str = "old";
/// A session of a chain between the first value and the last.
pub const MID: &str = "mid";
/// The session that states the current value, and those that state it again.
pub const NEW: &str = "new";
/// A session with the same attribute of another person.
pub const LURE: &str = "lure";
/// A session after `new` that speaks of the old value as past.
pub const ECHO: &str = "echo";

pub const ROLES: [&str; 5] = [OLD, MID, NEW, LURE, ECHO];

/// Kinds of twins. The name of a twin is the order of its values (`ab`, `ba`) for an update, else its kind, a hyphen and the order;
/// [`BLIND`] has no order.
pub const UPDATE: &str = "update";
/// A neutral session in the place of the update: the first value still holds.
pub const NO_UPDATE: &str = "no-update";
/// A neutral session in the place of the old one.
pub const NO_OLD: &str = "no-old";
/// Somebody else's update in the place of the update.
pub const OTHER: &str = "other";
/// The update by another template.
pub const PARAPHRASE: &str = "paraphrase";
/// Neutral sessions in the places of both.
pub const BLIND: &str = "blind";

/// The kind and the order of values of a twin's name; `None` where it is no twin's.
///
/// ```
/// use palimpsest::benchmarks::dose::terms::{NO_UPDATE, UPDATE, twin};
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
