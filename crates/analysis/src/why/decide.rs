//! Decides the label from readings. Pure: no files, no model. In order:
//!
//! 1. `right`: the verdict is correct. Without a verdict: `undecided`.
//! 2. `misjudged`: the answer names only the current value, and the verdict is wrong.
//! 3. `undecided`: the history has no newer evidence.
//! 4. `not shown`: none of it is in the context.
//! 5. `not read`: blocking it changes the number no more than random sets of equal size.
//! 6. `overridden`: blocking the older evidence, or part of it (its certificate), flips the answer, and at most one in twenty random sets
//!    of equal size does.
//! 7. `carried`: it does not flip and the blocking effect is within the controls, but removing the older evidence flips it, beyond removals
//!    of equal size, which do not flip it. If the blocking effect exceeds the controls: `overridden`.
//! 8. `undecided`: everything else, with the reason.

use super::controls::CONTROLS;
use palimpsest_data::ground::words::counted;
use palimpsest_run::runs::why_rows::{Compared, Label};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Presence {
    #[default]
    Absent,
    /// The history has some, the context none; with the reason.
    Lost(String),
    /// Unknown or not separable, with the reason.
    Unclear(String),
    Shown,
}

/// Known facts about an answer; `None` if not measured. Readings are made lazily, in decision order.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub correct: Option<bool>,
    pub names_current: bool,
    pub newer: Presence,
    pub older: Presence,
    /// Why no reading is possible.
    pub unread: Option<String>,
    pub blocked_newer: Option<Compared>,
    /// Why a flip cannot be detected.
    pub cannot_turn: Option<String>,
    /// True if the certificate is older evidence only, and random sets of its size do not flip the answer.
    pub certified: bool,
    /// Effect of blocking the older evidence, and whether the answer flipped.
    pub blocked_older: Option<(Compared, bool)>,
    pub removed_older: Option<(Compared, bool)>,
    /// Control sets asked for.
    pub controls: usize,
    /// Tokens of the newer and the older evidence.
    pub tokens: [usize; 2],
}

/// Reason of an answer without a verdict.
pub const NO_VERDICT: &str = "it has no verdict";

/// Says how many controls an effect has and needs, and why it has fewer.
fn too_few(effect: &Compared, tokens: usize, asked: usize) -> String {
    let needed = format!("{CONTROLS} that are needed to tell an effect from that of random text");
    if effect.controls >= asked {
        return format!("--controls {asked} is fewer than the {needed}");
    }
    let (drawn, stretches) = match effect.controls {
        0 => ("no controls".to_owned(), "no stretch"),
        n => (counted(n, "control"), "too few stretches"),
    };
    format!("{drawn} of the {needed}: the history has {stretches} of {tokens} tokens outside the evidence")
}

/// Returns the label and its reason; `None` if a reading is needed first.
pub fn decide(facts: &Facts) -> Option<(Label, String)> {
    let label = |label: Label, why: &str| Some((label, why.to_owned()));
    let undecided = |why: &str| label(Label::Undecided, why);
    match facts.correct {
        Some(true) => return label(Label::Right, "the verdict calls it correct"),
        None => return undecided(NO_VERDICT),
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
    let [newer_tokens, older_tokens] = facts.tokens;
    let newer = facts.blocked_newer?;
    match newer.is_beyond() {
        None => return undecided(&too_few(&newer, newer_tokens, facts.controls)),
        Some(false) => {
            let why = "hiding the newer evidence changes no more than hiding random text of its size";
            return label(Label::NoEffect, why);
        }
        Some(true) => {}
    }
    let has_effect = |why: &str| undecided(&format!("the newer evidence has an effect{why}"));
    if let Some(why) = &facts.cannot_turn {
        return has_effect(&format!("; {why}"));
    }
    match &facts.older {
        Presence::Shown => {}
        Presence::Absent | Presence::Lost(_) => {
            return has_effect(", and no older evidence is shown that could override it");
        }
        Presence::Unclear(why) => return has_effect(&format!("; {why}")),
    }
    if facts.certified {
        let why = "the newer evidence has an effect, and hiding the older evidence of the certificate turns the answer";
        return label(Label::Overridden, why);
    }
    let (older, turned) = facts.blocked_older?;
    if turned && !older.turns_by_chance() {
        let why = "the newer evidence has an effect, and hiding the older evidence turns the answer";
        return label(Label::Overridden, why);
    }
    let (removed, turned) = facts.removed_older?;
    if !turned {
        return has_effect(", and neither hiding nor removing the older evidence turns the answer");
    }
    if removed.turns_by_chance() {
        return undecided(
            "removing the older evidence turns the answer, and so does removing random text of its size",
        );
    }
    match (older.is_beyond(), removed.is_beyond()) {
        (None, _) => undecided(&too_few(&older, older_tokens, facts.controls)),
        (_, None) => undecided(&too_few(&removed, older_tokens, facts.controls)),
        (Some(true), Some(_)) => label(
            Label::Overridden,
            "the newer evidence has an effect, and removing the older evidence turns the answer",
        ),
        (Some(false), Some(true)) => label(
            Label::Carried,
            "hiding the older evidence changes no more than random text, and removing it turns the answer: later positions hold it",
        ),
        (Some(false), Some(false)) => undecided(
            "removing the older evidence turns the answer, by no more than removing random text changes it",
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
        decide(facts).unwrap().0
    }

    #[test]
    fn readings_are_asked_for_one_by_one_and_only_where_the_label_needs_them() {
        let mut facts = wrong();
        assert_eq!(decide(&facts), None);
        facts.blocked_newer = Some(of(BEYOND));
        assert_eq!(decide(&facts), None);
        facts.blocked_older = Some((of(WITHIN), false));
        assert_eq!(decide(&facts), None);
        facts.removed_older = Some((of(BEYOND), true));
        assert_eq!(label(&facts), Label::Carried);
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
        assert_eq!(read(WITHIN, BEYOND, true, BEYOND, true), Label::NoEffect);
        assert_eq!(read(FEWER, BEYOND, true, BEYOND, true), Label::Undecided);
        assert_eq!(read(BEYOND, BEYOND, true, WITHIN, false), Label::Overridden);
        assert_eq!(read(BEYOND, BEYOND, false, BEYOND, true), Label::Overridden);
        assert_eq!(read(BEYOND, WITHIN, false, BEYOND, true), Label::Carried);
        assert_eq!(read(BEYOND, WITHIN, false, WITHIN, true), Label::Undecided);
        assert_eq!(read(BEYOND, WITHIN, false, BEYOND, false), Label::Undecided);
        assert_eq!(read(BEYOND, FEWER, false, FEWER, true), Label::Undecided);
        // Fewer controls than asked for: the history is too short.
        let none = Compared { drop: 5.0, threshold: None, controls: 0, flips: 0 };
        let why = |controls| {
            let facts = Facts { blocked_newer: Some(none), tokens: [14, 9], controls, ..wrong() };
            decide(&facts).unwrap().1
        };
        assert_eq!(
            why(19),
            "no controls of the 19 that are needed to tell an effect from that of random text: the history has no stretch of 14 tokens \
             outside the evidence"
        );
        let few =
            "--controls 0 is fewer than the 19 that are needed to tell an effect from that of random text";
        assert_eq!(why(0), few);
        // A flip that random sets cause too does not count; a certificate of older evidence does.
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
        // No older session, or flips cannot be detected.
        for facts in [
            Facts { older: Presence::Absent, blocked_newer: Some(of(BEYOND)), ..wrong() },
            Facts { cannot_turn: Some("no".to_owned()), blocked_newer: Some(of(BEYOND)), ..wrong() },
        ] {
            assert_eq!(label(&facts), Label::Undecided);
        }
    }
}
