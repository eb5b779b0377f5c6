//! The names that specs can use: kinds, makers, checks.

pub use super::kind::{Check, Kind, Made, Maker, Published};

pub const KINDS: [Kind; 4] =
    [super::stale::KIND, super::subtlememory::KIND, super::knowme::KIND, super::memrewardbench::KIND];

/// A kind by its name.
pub fn kind(name: &str) -> Option<Kind> {
    KINDS.into_iter().find(|known| known.name == name)
}

/// A maker of the kind, or one that all kinds have.
pub fn maker(kind: &str, name: &str) -> Option<Maker> {
    makers(kind).find(|(known, _)| *known == name).map(|(_, found)| found)
}

/// A check of the kind, or one that all kinds have.
pub fn check(kind: &str, name: &str) -> Option<Check> {
    checks(kind).find(|(known, _)| *known == name).map(|(_, found)| found)
}

pub fn makers(kind: &str) -> impl Iterator<Item = (&'static str, Maker)> {
    let own = self::kind(kind).map_or(&[][..], |kind| kind.makers);
    own.iter().chain(super::makers::MAKERS).copied()
}

pub fn checks(kind: &str) -> impl Iterator<Item = (&'static str, Check)> {
    let own = self::kind(kind).map_or(&[][..], |kind| kind.checks);
    own.iter().chain(super::checks::CHECKS).copied()
}
