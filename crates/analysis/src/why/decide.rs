//! The label that readings establish, in a fixed order of decisions. Pure: it reads no file and asks no model.
//!
//! 1. `right`: the verdict calls the answer correct. Without a verdict: `undecided`.
//! 2. `misjudged`: it names the current value and no other value of its question, and the verdict calls it wrong.
//! 3. `undecided`: the history has no newer evidence.
//! 4. `not shown`: none of it is in the context.
//! 5. `not read`: with it blocked the number changes by no more than under random sets of equal size.
//! 6. `overridden`: the answer turns with the older evidence blocked, or a part of it (its certificate), and under at most one of twenty
//!    random sets of equal size.
//! 7. `carried`: it does not, and blocking the older evidence is within its controls, but removing it turns the answer, beyond removals of
//!    equal size and where these do not turn it too. Where blocking it is beyond them: `overridden`.
//! 8. `undecided`: all else, with the reason.

use palimpsest_run::runs::why_rows::{Compared, Label};

/// Presence of evidence in an answer's context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Presence {
    #[default]
    Absent,
    /// There is some, and none of it is in the context, for this reason.
    Lost(String),
    /// It cannot be told or not be separated, for this reason.
    Unclear(String),
    /// At least some of it is.
    Shown,
}

/// The facts known of an answer. Readings are made in the order in which decisions need them: `None` of those that were not made.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The verdict; `None` without one.
    pub correct: Option<bool>,
    /// The answer's text names the current value and no other.
    pub names_current: bool,
    pub newer: Presence,
    pub older: Presence,
    /// Why no reading can be made, where none can.
    pub unread: Option<String>,
    pub blocked_newer: Option<Compared>,
    /// Why the answer cannot be seen to turn, where it cannot.
    pub cannot_turn: Option<String>,
    /// True if the answer's certificate is older evidence alone, and random sets of its size do not turn the answer.
    pub certified: bool,
    /// Effect of blocking the older evidence, and whether the answer turned.
    pub blocked_older: Option<(Compared, bool)>,
    pub removed_older: Option<(Compared, bool)>,
}

/// A reading that a decision needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacking {
    BlockedNewer,
    BlockedOlder,
    RemovedOlder,
}

const FEW: &str = "too few controls to tell an effect from that of random text";

/// The label of an answer, with the reason in a sentence; or the reading that is needed first.
pub fn decide(facts: &Facts) -> Result<(Label, String), Lacking> {
    let label = |label: Label, why: &str| Ok((label, why.to_owned()));
    let undecided = |why: &str| label(Label::Undecided, why);
    match facts.correct {
        Some(true) => return label(Label::Right, "the verdict calls it correct"),
        None => return undecided("it has no verdict"),
        Some(false) => {}
    }
    if facts.names_current {
        return label(Label::Misjudged, "it names the current value, and the verdict calls it wrong");
    }
    match &facts.newer {
        Presence::Absent => return undecided("the history has no newer evidence"),
        Presence::Lost(why) => return label(Label::NotShown, why),
        Presence::Unclear(why) => return undecided(why),
        Presence::Shown => {}
    }
    if let Some(why) = &facts.unread {
        return undecided(why);
    }
    match facts.blocked_newer.ok_or(Lacking::BlockedNewer)?.is_beyond() {
        None => return undecided(FEW),
        Some(false) => {
            let why = "blocking the newer evidence changes no more than blocking random text of its size";
            return label(Label::NotRead, why);
        }
        Some(true) => {}
    }
    let read = |why: &str| undecided(&format!("the newer evidence is read{why}"));
    if let Some(why) = &facts.cannot_turn {
        return read(&format!("; {why}"));
    }
    match &facts.older {
        Presence::Shown => {}
        Presence::Absent | Presence::Lost(_) => {
            return read(", and no older evidence is shown that could override it");
        }
        Presence::Unclear(why) => return read(&format!("; {why}")),
    }
    if facts.certified {
        let why = "the newer evidence is read, and with older evidence blocked, which the certificate names, the answer turns";
        return label(Label::Overridden, why);
    }
    let (older, turned) = facts.blocked_older.ok_or(Lacking::BlockedOlder)?;
    if turned && !older.turns_by_chance() {
        let why = "the newer evidence is read, and with the older one blocked the answer turns";
        return label(Label::Overridden, why);
    }
    let (removed, turned) = facts.removed_older.ok_or(Lacking::RemovedOlder)?;
    if !turned {
        return read(", and the answer turns neither with the older one blocked nor with it removed");
    }
    if removed.turns_by_chance() {
        return undecided(
            "the answer turns without the older evidence, and as often without random text of its size",
        );
    }
    match (older.is_beyond(), removed.is_beyond()) {
        (None, _) | (_, None) => undecided(FEW),
        (Some(true), Some(_)) => label(
            Label::Overridden,
            "the newer evidence is read, and with the older one removed the answer turns",
        ),
        (Some(false), Some(true)) => label(
            Label::Carried,
            "blocking the older evidence changes no more than random text, and with it removed the answer turns: later positions hold it",
        ),
        (Some(false), Some(false)) => undecided(
            "the answer turns with the older evidence removed, by no more than removing random text changes",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Effect = (f64, Option<f64>);
    const BEYOND: Effect = (-2.0, Some(1.0));
    const WITHIN: Effect = (1.0, Some(1.0));
    const FEWER: Effect = (5.0, None);

    fn of((drop, threshold): Effect) -> Compared {
        Compared { drop, threshold, controls: 19, flips: 0 }
    }

    fn wrong() -> Facts {
        let (newer, older) = (Presence::Shown, Presence::Shown);
        Facts { correct: Some(false), newer, older, ..Facts::default() }
    }

    fn label(facts: &Facts) -> Label {
        decide(facts).unwrap_or_else(|lacking| panic!("{lacking:?}")).0
    }

    #[test]
    fn readings_are_asked_for_one_by_one_and_only_where_the_label_needs_them() {
        let mut facts = wrong();
        assert_eq!(decide(&facts), Err(Lacking::BlockedNewer));
        facts.blocked_newer = Some(of(BEYOND));
        assert_eq!(decide(&facts), Err(Lacking::BlockedOlder));
        facts.blocked_older = Some((of(WITHIN), false));
        assert_eq!(decide(&facts), Err(Lacking::RemovedOlder));
        facts.removed_older = Some((of(BEYOND), true));
        assert_eq!(label(&facts), Label::Carried);
        // Nothing is read of what the verdict, the words or the context decide.
        for (facts, expected) in [
            (
                Facts { correct: Some(true), names_current: true, newer: Presence::Absent, ..wrong() },
                Label::Right,
            ),
            (
                Facts { names_current: true, newer: Presence::Lost("no".to_owned()), ..wrong() },
                Label::Misjudged,
            ),
            (Facts { newer: Presence::Lost("no".to_owned()), ..wrong() }, Label::NotShown),
            (Facts { correct: None, names_current: true, ..wrong() }, Label::Undecided),
            (Facts { newer: Presence::Absent, ..wrong() }, Label::Undecided),
            (Facts { newer: Presence::Unclear("no".to_owned()), ..wrong() }, Label::Undecided),
            (Facts { unread: Some("no".to_owned()), ..wrong() }, Label::Undecided),
        ] {
            assert_eq!(label(&facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn every_outcome_of_the_readings_has_one_label() {
        let read = |newer, older, turned, removed, turned_removed| {
            label(&Facts {
                blocked_newer: Some(of(newer)),
                blocked_older: Some((of(older), turned)),
                removed_older: Some((of(removed), turned_removed)),
                ..wrong()
            })
        };
        assert_eq!(read(WITHIN, BEYOND, true, BEYOND, true), Label::NotRead);
        assert_eq!(read(FEWER, BEYOND, true, BEYOND, true), Label::Undecided);
        assert_eq!(read(BEYOND, BEYOND, true, WITHIN, false), Label::Overridden);
        assert_eq!(read(BEYOND, BEYOND, false, BEYOND, true), Label::Overridden);
        assert_eq!(read(BEYOND, WITHIN, false, BEYOND, true), Label::Carried);
        assert_eq!(read(BEYOND, WITHIN, false, WITHIN, true), Label::Undecided);
        assert_eq!(read(BEYOND, WITHIN, false, BEYOND, false), Label::Undecided);
        assert_eq!(read(BEYOND, FEWER, false, FEWER, true), Label::Undecided);
        // A turn that random sets bring about as well is none; a certificate of older evidence is one.
        let by_chance = |effect| Compared { flips: 1, ..of(effect) };
        let chance = |blocked: bool, certified: bool| {
            label(&Facts {
                certified,
                blocked_newer: Some(of(BEYOND)),
                blocked_older: Some((by_chance(WITHIN), blocked)),
                removed_older: Some((by_chance(BEYOND), true)),
                ..wrong()
            })
        };
        assert_eq!([chance(true, false), chance(false, false)], [Label::Undecided; 2]);
        assert_eq!(chance(false, true), Label::Overridden);
        // Without an older session, or where nothing can be seen to turn.
        for facts in [
            Facts { older: Presence::Absent, blocked_newer: Some(of(BEYOND)), ..wrong() },
            Facts { cannot_turn: Some("no".to_owned()), blocked_newer: Some(of(BEYOND)), ..wrong() },
        ] {
            assert_eq!(label(&facts), Label::Undecided);
        }
    }
}
