//! Settings of pairs: trajectory order and text variants. The random order depends only on seed and case.

use std::ops::Range;

use super::terms::{
    BLOCK, CHOSEN, FIRST, ONLY_CHOSEN, ONLY_REJECTED, QUESTION, REJECTED, SECOND, Setting, TRAJECTORY, Task,
};
use super::{constraints, difference, tags};
use crate::benchmarks::{Context, Setting as Asked};
use crate::case::draw::Draws;
use crate::case::{Case, Evidence, History, Location, Segment, Turn};

pub(super) const LETTERS: [&str; 2] = ["A", "B"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    ChosenFirst,
    RejectedFirst,
    Random,
}

impl Order {
    pub const ALL: [Order; 3] = [Order::ChosenFirst, Order::RejectedFirst, Order::Random];

    pub fn name(self) -> &'static str {
        match self {
            Order::ChosenFirst => "chosen-first",
            Order::RejectedFirst => "rejected-first",
            Order::Random => "random",
        }
    }

    pub fn chosen_first(self, case: &str, seed: u64) -> bool {
        match self {
            Order::ChosenFirst => true,
            Order::RejectedFirst => false,
            Order::Random => Draws::new("order of trajectories", seed, case).below(2) == 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    Plain,
    Untagged,
    /// Long-form questions keep this percentage of their constraints.
    Density(u32),
}

impl Variant {
    pub const ALL: [(Variant, &'static str); 7] = [
        (Variant::Plain, ""),
        (Variant::Untagged, "-untagged"),
        (Variant::Density(0), "-density-0"),
        (Variant::Density(25), "-density-25"),
        (Variant::Density(50), "-density-50"),
        (Variant::Density(75), "-density-75"),
        (Variant::Density(100), "-density-100"),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(variant, _)| *variant == self).map_or("", |(_, name)| name)
    }
}

pub fn parse(setting: &str) -> Option<(Order, Variant)> {
    Order::ALL.into_iter().find_map(|order| {
        let rest = setting.strip_prefix(order.name())?;
        Variant::ALL.into_iter().find(|(_, name)| *name == rest).map(|(variant, _)| (order, variant))
    })
}

macro_rules! settings {
    ($($name:literal: $about:literal),* $(,)?) => {
        &[$(Asked { name: $name, about: $about, context: Context::Whole }),*]
    };
}

pub(super) const SETTINGS: &[Asked] = settings![
    "chosen-first": "the better trajectory is agent A",
    "rejected-first": "the better trajectory is agent B",
    "random": "either is agent A, drawn by the seed and the pair",
    "chosen-first-untagged": "chosen-first; notes of A-Mem without their tags",
    "rejected-first-untagged": "rejected-first; notes of A-Mem without their tags",
    "random-untagged": "random; notes of A-Mem without their tags",
    "chosen-first-density-0": "chosen-first; long-form questions without their constraints",
    "chosen-first-density-25": "chosen-first; the first quarter of the constraints of long-form questions",
    "chosen-first-density-50": "chosen-first; the first half of the constraints of long-form questions",
    "chosen-first-density-75": "chosen-first; the first three quarters of the constraints of long-form questions",
    "chosen-first-density-100": "chosen-first; all constraints of long-form questions",
    "rejected-first-density-0": "rejected-first; long-form questions without their constraints",
    "rejected-first-density-25": "rejected-first; the first quarter of the constraints of long-form questions",
    "rejected-first-density-50": "rejected-first; the first half of the constraints of long-form questions",
    "rejected-first-density-75": "rejected-first; the first three quarters of the constraints of long-form questions",
    "rejected-first-density-100": "rejected-first; all constraints of long-form questions",
    "random-density-0": "random; long-form questions without their constraints",
    "random-density-25": "random; the first quarter of the constraints of long-form questions",
    "random-density-50": "random; the first half of the constraints of long-form questions",
    "random-density-75": "random; the first three quarters of the constraints of long-form questions",
    "random-density-100": "random; all constraints of long-form questions",
];

const QUESTION_INDEX: usize = 0;
const CHOSEN_INDEX: usize = 1;
const REJECTED_INDEX: usize = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub question: String,
    pub chosen: String,
    pub rejected: String,
}

impl Pair {
    fn of(case: &Case) -> Option<Self> {
        let text = |index: usize| {
            let segment = case.history.segments.iter().find(|segment| segment.index == index)?;
            Some(segment.turns.first()?.content.clone())
        };
        Some(Pair {
            question: text(QUESTION_INDEX)?,
            chosen: text(CHOSEN_INDEX)?,
            rejected: text(REJECTED_INDEX)?,
        })
    }

    pub fn shown(&self, chosen_first: bool) -> (History, Vec<Evidence>) {
        let segment = |kind: &str, index, role: &str, text: &str| Segment {
            kind: kind.to_owned(),
            index,
            time: None,
            turns: vec![Turn::new(role, text)],
        };
        let mut trajectories = [(CHOSEN_INDEX, &self.chosen), (REJECTED_INDEX, &self.rejected)];
        if !chosen_first {
            trajectories.reverse();
        }
        let [first, second] = trajectories.map(|(index, _)| index);
        let mut segments = vec![segment(QUESTION, QUESTION_INDEX, "", &self.question)];
        let lettered = trajectories.into_iter().zip(LETTERS);
        segments.extend(lettered.map(|((index, text), letter)| segment(TRAJECTORY, index, letter, text)));
        (History { segments, query_time: None }, self.evidence(first, second))
    }

    fn evidence(&self, first: usize, second: usize) -> Vec<Evidence> {
        let part = |role: &str, segment, bytes: Option<Range<usize>>| Evidence {
            role: role.to_owned(),
            place: Location { segment, turn: Some(0), bytes },
        };
        let mut evidence = vec![
            Evidence::segment(QUESTION, QUESTION_INDEX),
            Evidence::segment(CHOSEN, CHOSEN_INDEX),
            Evidence::segment(REJECTED, REJECTED_INDEX),
            part(BLOCK, QUESTION_INDEX, Some(self.block())),
            part(FIRST, first, None),
            part(SECOND, second, None),
        ];
        let (chosen, rejected) = difference::alone(&self.chosen, &self.rejected);
        evidence.extend(chosen.into_iter().map(|bytes| part(ONLY_CHOSEN, CHOSEN_INDEX, Some(bytes))));
        evidence.extend(rejected.into_iter().map(|bytes| part(ONLY_REJECTED, REJECTED_INDEX, Some(bytes))));
        evidence
    }

    /// End of the question, as long as the mean trajectory.
    fn block(&self) -> Range<usize> {
        let shown = self.question.trim_end().len();
        let length = (self.chosen.trim().len() + self.rejected.trim().len()) / 2;
        let lead = self.question.len() - self.question.trim_start().len();
        let mut start = shown.saturating_sub(length.max(1)).max(lead);
        while !self.question.is_char_boundary(start) {
            start -= 1;
        }
        start..shown
    }
}

/// Applies a setting; unknown settings return the case unchanged.
pub(super) fn arrange(case: &Case, setting: &str, seed: u64) -> Case {
    let (Some((order, variant)), Some(mut pair)) = (parse(setting), Pair::of(case)) else {
        return case.clone();
    };
    let of = case.labels.get(super::terms::SUBTASK).and_then(|name| Setting::parse(name));
    match variant {
        Variant::Untagged if of.is_some_and(Setting::has_tags) => {
            pair.chosen = tags::untagged(&pair.chosen);
            pair.rejected = tags::untagged(&pair.rejected);
        }
        Variant::Density(percent) if of.is_some_and(|of| of.task() == Task::Generation) => {
            pair.question = constraints::thinned(&pair.question, percent);
        }
        _ => {}
    }
    let (history, evidence) = pair.shown(order.chosen_first(&case.id, seed));
    Case { history, evidence, ..case.clone() }
}
