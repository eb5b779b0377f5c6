//! The roles whose attention and effects are compared, and their nouns.

use crate::lens::{Curve, Example, Group, LayerKind, Lens, Scale, Series, Statistic, Target};
use palimpsest_data::benchmarks::Side;
use palimpsest_data::ground::words::plural;

/// A compared role: its attention curve and its noun, singular or plural.
pub(super) struct Role {
    pub curve: Curve,
    pub name: String,
    /// `old one`, after a role of the same noun.
    pub short: String,
    pub many: bool,
}

impl Role {
    pub fn short(&self, verb: [&str; 2]) -> String {
        format!("the {} {}", self.short, verb[usize::from(self.many)])
    }

    pub fn full(&self, verb: [&str; 2]) -> String {
        format!("the {} {}", self.name, verb[usize::from(self.many)])
    }

    /// Effects are of one session each.
    pub fn hidden(&self, name: &str) -> String {
        if self.many { format!("one of the {name}") } else { format!("the {name}") }
    }
}

/// The layers that are averaged: those that see the whole prompt, or the first kind present.
pub(super) fn kind_of(lens: &Lens) -> LayerKind {
    lens.layer_kinds().first().map_or(LayerKind::Softmax, |(kind, _)| *kind)
}

pub(super) fn roles(lens: &Lens) -> Vec<Role> {
    let kind = kind_of(lens);
    let has = |curve: &Curve| mean_of(lens, *curve, Target::Signal).mean_over(kind).is_some();
    let mut sets = compared(lens);
    let last = sets.pop().unwrap_or_default().into_iter().filter(has).collect();
    let set = sets.into_iter().find(|set| !set.is_empty() && set.iter().all(has)).unwrap_or(last);
    set.into_iter().map(|curve| role(lens, curve)).collect()
}

/// Mean mass of a curve, or of its noise baseline, over all groups.
pub(super) fn mean_of(lens: &Lens, curve: Curve, target: Target) -> Series {
    lens.series(&Group::all(), Statistic::Mean(curve, target), Scale::Mass)
}

/// Curves that may be compared, best first: the benchmark's ratio, the sides of a conflict, its evidence, everything that the viewer sees.
fn compared(lens: &Lens) -> Vec<Vec<Curve>> {
    let spec = &lens.benchmark.lens;
    let from = spec.viewer();
    let to = |role: &&str| lens.curves.iter().copied().find(|curve| curve.from == from && curve.to == *role);
    let side = |side: Side| {
        let mut roles = spec.sides.iter().filter(|(_, known)| *known == side);
        roles.find_map(|(role, _)| to(role))
    };
    let pair = |[a, b]: [Side; 2]| Some(vec![side(a)?, side(b)?]);
    let ratio = spec.ratio.map(|(over, under)| vec![over, under]);
    let pairs = [[Side::Newer, Side::Older], [Side::Right, Side::Wrong]].map(pair);
    let evidence = spec.evidence.map(|(_, roles)| roles.iter().filter_map(to).collect());
    let all = lens.curves.iter().copied().filter(|curve| curve.from == from).collect();
    [ratio].into_iter().chain(pairs).chain([evidence, Some(all)]).flatten().collect()
}

fn role(lens: &Lens, curve: Curve) -> Role {
    let playing = |example: &Example| {
        example.segments.iter().filter(|segment| segment.role.as_deref() == Some(curve.to)).count()
    };
    let role = curve.to.replace('_', " ");
    // Evidence inside a segment is no segment of its own.
    match lens.examples.iter().map(playing).max().unwrap_or(0) {
        0 => Role { curve, name: format!("{role} text"), short: format!("{role} text"), many: false },
        1 => Role {
            curve,
            name: format!("{role} {}", lens.segment),
            short: format!("{role} one"),
            many: false,
        },
        _ => Role {
            curve,
            name: format!("{role} {}", plural(lens.segment)),
            short: format!("{role} ones"),
            many: true,
        },
    }
}
