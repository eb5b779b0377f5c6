//! The query's attention over the history, with cases aligned at their evidence.
//!
//! Cases differ in how many sessions they keep and where old and new lie, so a mean over cases needs places that mean the
//! same in each: old, new, the sessions beside them, and thirds of the stretches before, between and after. A place's
//! value in a case is the mean over its sessions there; a case without a session in a place is left out of that place.
//! Where one session is beside both old and new it counts in both places.

use super::{Example, Group, Lens, Scale, SessionMass};
use crate::prompt::SpanRole;

/// A place in the aligned history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A third (0, 1, 2) of the sessions before the one just before old.
    Before(u8),
    /// The session just before old.
    BeforeOld,
    /// The old session.
    Old,
    /// The session just after old.
    AfterOld,
    /// A third of the sessions between those beside old and new.
    Between(u8),
    /// The session just before new.
    BeforeNew,
    /// The new session.
    New,
    /// The session just after new.
    AfterNew,
    /// A third of the sessions after the one just after new.
    After(u8),
}

impl Place {
    /// In the order of the history.
    pub const ALL: [Place; 15] = [
        Place::Before(0),
        Place::Before(1),
        Place::Before(2),
        Place::BeforeOld,
        Place::Old,
        Place::AfterOld,
        Place::Between(0),
        Place::Between(1),
        Place::Between(2),
        Place::BeforeNew,
        Place::New,
        Place::AfterNew,
        Place::After(0),
        Place::After(1),
        Place::After(2),
    ];

    /// As tables write it.
    pub fn key(self) -> String {
        match self {
            Place::Before(third) => format!("before_{}", third + 1),
            Place::BeforeOld => "old_minus_1".to_owned(),
            Place::Old => "old".to_owned(),
            Place::AfterOld => "old_plus_1".to_owned(),
            Place::Between(third) => format!("between_{}", third + 1),
            Place::BeforeNew => "new_minus_1".to_owned(),
            Place::New => "new".to_owned(),
            Place::AfterNew => "new_plus_1".to_owned(),
            Place::After(third) => format!("after_{}", third + 1),
        }
    }
}

/// A group's mean strip.
#[derive(Debug, Clone, PartialEq)]
pub struct Strip {
    /// Whose.
    pub group: Group,
    /// Mass or density.
    pub scale: Scale,
    /// Cases in it.
    pub n: usize,
    /// By place: how many cases have a session there, and the mean over them by layer (`None` without cases).
    pub cells: Vec<(Place, usize, Option<Vec<f64>>)>,
}

impl Lens {
    /// The mean strip of a group: over its cases, each the mean of its probes.
    pub fn strip(&self, group: &Group, scale: Scale) -> Strip {
        let cases = self.by_case(group);
        let layers = self.layers.len();
        let cells = Place::ALL.into_iter().map(|place| {
            let by_case = cases.values().filter_map(|examples| {
                let here: Vec<Vec<f64>> = examples.iter().filter_map(|e| at_place(e, place, scale)).collect();
                super::group::mean_by_layer(here.iter().map(Vec::as_slice), layers)
            });
            let by_case: Vec<Vec<f64>> = by_case.collect();
            let mean = super::group::mean_by_layer(by_case.iter().map(Vec::as_slice), layers);
            (place, by_case.len(), mean)
        });
        Strip { group: group.clone(), scale, n: cases.len(), cells: cells.collect() }
    }
}

/// The mean over an example's sessions at a place, by layer.
fn at_place(example: &Example, place: Place, scale: Scale) -> Option<Vec<f64>> {
    let sessions = &example.sessions;
    let of_role = |role| sessions.iter().position(|s| s.role == Some(role));
    let (old, new) = (of_role(SpanRole::Old)?, of_role(SpanRole::New)?);
    let range = |from: usize, to: usize| sessions.get(from..to).unwrap_or(&[]);
    let plain = |at: Option<usize>| match at.and_then(|at| sessions.get(at)) {
        Some(session) if session.role.is_none() => std::slice::from_ref(session),
        _ => &[],
    };
    let here: &[SessionMass] = match place {
        Place::Before(part) => third(range(0, old.saturating_sub(1)), part),
        Place::BeforeOld => plain(old.checked_sub(1)),
        Place::Old => range(old, old + 1),
        Place::AfterOld => plain(Some(old + 1)),
        Place::Between(part) => third(range(old + 2, new.saturating_sub(1)), part),
        Place::BeforeNew => plain(new.checked_sub(1)),
        Place::New => range(new, new + 1),
        Place::AfterNew => plain(Some(new + 1)),
        Place::After(part) => third(range(new + 2, sessions.len()), part),
    };
    let curves = here.iter().map(|session| match scale {
        Scale::Mass => session.mass.as_slice(),
        Scale::Density => session.density.as_slice(),
    });
    super::group::mean_by_layer(curves, example.layers.len())
}

/// One third of a stretch; where it does not divide evenly each session still falls in exactly one third.
fn third(sessions: &[SessionMass], part: u8) -> &[SessionMass] {
    let (part, count) = (usize::from(part), sessions.len());
    sessions.get(count * part / 3..count * (part + 1) / 3).unwrap_or(&[])
}
