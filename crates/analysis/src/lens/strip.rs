//! The query's attention over the history, with cases aligned at their evidence.
//!
//! Cases differ in length and evidence position, so means use aligned places: the anchors
//! ([`LensSpec::anchors`](palimpsest_data::benchmarks::LensSpec::anchors)), the segments beside them, and thirds of the stretches between.
//! A case's value at a place is the mean over its segments there; a segment beside two anchors counts twice.

use std::ops::Range;

use super::layers::mean_by_layer;
use super::{Example, Group, Lens, Scale};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AlignedPlace {
    /// A third (0, 1, 2) of the segments before the given anchor, excluding those beside anchors; `before` = number of anchors means after
    /// the last.
    Stretch {
        before: usize,
        third: u8,
    },
    Before(usize),
    Anchor(usize),
    After(usize),
}

impl AlignedPlace {
    pub fn all(anchors: usize) -> Vec<Self> {
        let thirds = |before| [0, 1, 2].map(|third| Self::Stretch { before, third });
        let around =
            |at: usize| thirds(at).into_iter().chain([Self::Before(at), Self::Anchor(at), Self::After(at)]);
        (0..anchors).flat_map(around).chain(thirds(anchors)).collect()
    }

    /// Segments at this place, given the segments' roles; `None` if an anchor is missing. `holds_nothing`: true for segments that contain
    /// no evidence.
    pub(super) fn segments(
        self,
        roles: &[Option<&str>],
        holds_nothing: impl Fn(usize) -> bool,
        anchors: &[&str],
    ) -> Option<Range<usize>> {
        let of_role = |anchor: &&str| roles.iter().position(|role| *role == Some(*anchor));
        let at: Vec<usize> = anchors.iter().map(of_role).collect::<Option<_>>()?;
        let plain = |at: Option<usize>| match at {
            Some(at) if roles.get(at) == Some(&None) && holds_nothing(at) => at..at + 1,
            _ => 0..0,
        };
        Some(match self {
            Self::Stretch { before, third: part } => {
                let from = before.checked_sub(1).and_then(|last| at.get(last)).map_or(0, |last| last + 2);
                let to = at.get(before).map_or(roles.len(), |next| next.saturating_sub(1));
                third(from..to, part)
            }
            Self::Before(anchor) => plain(at.get(anchor)?.checked_sub(1)),
            Self::Anchor(anchor) => *at.get(anchor)?..at.get(anchor)? + 1,
            Self::After(anchor) => plain(Some(at.get(anchor)? + 1)),
        })
    }

    /// Table key: `before_1`, `old_minus_1`, `old`, `old_plus_1`, `between_1`, ..., `after_3`.
    pub fn key(self, anchors: &[&str]) -> String {
        let name = |at: usize| anchors.get(at).copied().unwrap_or_default();
        match self {
            Self::Stretch { before: 0, third } => format!("before_{}", third + 1),
            Self::Stretch { before, third } if before == anchors.len() => {
                format!("after_{}", third + 1)
            }
            Self::Stretch { third, .. } if anchors.len() == 2 => format!("between_{}", third + 1),
            Self::Stretch { before, third } => {
                format!("between_{}_{}_{}", name(before - 1), name(before), third + 1)
            }
            Self::Before(at) => format!("{}_minus_1", name(at)),
            Self::Anchor(at) => name(at).to_owned(),
            Self::After(at) => format!("{}_plus_1", name(at)),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Strip {
    pub group: Group,
    pub scale: Scale,
    pub n: usize,
    pub cells: AlignedCells,
}

pub type AlignedCells = Vec<(AlignedPlace, usize, Option<Vec<f64>>)>;

/// Mean over units at each place; each unit is the mean of its members with a value.
pub(super) fn aligned<'a, T: 'a>(
    units: impl Iterator<Item = &'a Vec<T>> + Clone,
    (anchors, layers): (&[&str], usize),
    at_place: impl Fn(&T, AlignedPlace) -> Option<Vec<f64>>,
) -> AlignedCells {
    let of_place = |place: AlignedPlace| {
        let of_unit = |members: &Vec<T>| {
            mean_by_layer(members.iter().filter_map(|member| at_place(member, place)), layers)
        };
        let of_units: Vec<Vec<f64>> = units.clone().filter_map(of_unit).collect();
        (place, of_units.len(), mean_by_layer(of_units.iter(), layers))
    };
    AlignedPlace::all(anchors.len()).into_iter().map(of_place).collect()
}

impl Lens {
    /// Mean strip of a group over cases; each case is the mean of its probes.
    pub fn strip(&self, group: &Group, scale: Scale) -> Strip {
        let (cases, anchors) = (self.by_unit(group), self.benchmark.lens.anchors);
        let at_place = |example: &&Example, place| at_place(example, anchors, place, scale);
        let cells = aligned(cases.values(), (anchors, self.layers.len()), at_place);
        Strip { group: group.clone(), scale, n: cases.len(), cells }
    }
}

fn at_place(example: &Example, anchors: &[&str], place: AlignedPlace, scale: Scale) -> Option<Vec<f64>> {
    let segments = &example.segments;
    let roles: Vec<Option<&str>> = segments.iter().map(|segment| segment.role.as_deref()).collect();
    let holds_nothing = |at: usize| segments.get(at).is_some_and(|segment| segment.holds.is_none());
    let here = place.segments(&roles, holds_nothing, anchors)?;
    let curves = segments.get(here).unwrap_or(&[]).iter().map(|segment| segment.values(scale));
    mean_by_layer(curves, example.layers.len())
}

fn third(stretch: Range<usize>, part: u8) -> Range<usize> {
    let (part, count) = (usize::from(part), stretch.len());
    stretch.start + count * part / 3..stretch.start + count * (part + 1) / 3
}
