//! Judge attention by position and by content. Pairs are asked in both orders: averaged over them, the excess over one half of the first
//! trajectory is the position effect, that of the better one the content effect.

use super::terms::{CHOSEN, FIRST, LENGTH, ONLY_CHOSEN, ONLY_REJECTED, REJECTED, SECOND, TASK, VERDICT};
use crate::benchmarks::{Axis, GENERATION, Grouping, Measure, Seen};

const ORDERS: [&str; 2] = ["chosen-first", "rejected-first"];
const BOTH: [&str; 2] = [CHOSEN, REJECTED];

const SHARE: Measure = Measure { axis: Axis::Linear(0.3, 0.7), ..Measure::SHARE };

/// Excess over one half, over both orders.
const EFFECT: Measure = Measure {
    reference: Some(0.0),
    axis: Axis::Linear(-0.05, 0.05),
    unit: ["share less", "one half"],
    paired: &ORDERS,
    ..SHARE
};

pub(super) const MEASURES: [Measure; 11] = [
    Measure {
        key: "position_effect",
        label: "position effect, generation prompt",
        about: "the first trajectory's part in the generation prompt's attention to both, less one half, mean over both orders",
        heads: true,
        of: |at| Some(at.first_of(GENERATION, BOTH)? - 0.5),
        ..EFFECT
    },
    Measure {
        key: "content_effect",
        label: "content effect, generation prompt",
        about: "the chosen trajectory's part in the generation prompt's attention to both, less one half, mean over both orders",
        heads: true,
        of: |at| Some(at.balance(GENERATION, &[CHOSEN], &[REJECTED])? - 0.5),
        ..EFFECT
    },
    Measure {
        key: "position_effect_verdict",
        label: "position effect, verdict",
        about: "the same from the position that predicted the verdict's letter",
        of: |at| Some(at.first_of(VERDICT, BOTH)? - 0.5),
        ..EFFECT
    },
    Measure {
        key: "content_effect_verdict",
        label: "content effect, verdict",
        about: "the same from the position that predicted the verdict's letter",
        of: |at| Some(at.balance(VERDICT, &[CHOSEN], &[REJECTED])? - 0.5),
        ..EFFECT
    },
    Measure {
        key: "first_part",
        label: "first of both, generation prompt",
        about: "the first trajectory's part in the generation prompt's attention to both",
        of: |at| at.first_of(GENERATION, BOTH),
        ..SHARE
    },
    Measure {
        key: "chosen_part",
        label: "chosen of both, generation prompt",
        about: "the chosen trajectory's part in the attention to both",
        of: |at| at.balance(GENERATION, &[CHOSEN], &[REJECTED]),
        ..SHARE
    },
    Measure {
        key: "first_part_verdict",
        label: "first of both, verdict",
        about: "the first trajectory's part, from the position that predicted the verdict's letter",
        of: |at| at.first_of(VERDICT, BOTH),
        ..SHARE
    },
    Measure {
        key: "chosen_part_verdict",
        label: "chosen of both, verdict",
        about: "the chosen trajectory's part, from the position that predicted the verdict's letter",
        of: |at| at.balance(VERDICT, &[CHOSEN], &[REJECTED]),
        ..SHARE
    },
    Measure {
        key: "alone_part",
        label: "chosen, lines of one alone",
        about: "the part of the chosen trajectory's lines in the attention to lines that only one trajectory has",
        of: |at| at.balance(GENERATION, &[ONLY_CHOSEN], &[ONLY_REJECTED]),
        ..SHARE
    },
    Measure {
        key: "lift",
        label: "lift over the question's end",
        about: "attention to both trajectories over their attention at the density of the question's end",
        reference: Some(1.0),
        axis: Axis::Logarithmic,
        of: |at| at.lift(GENERATION, &BOTH),
        ..SHARE
    },
    Measure {
        key: "second_to_first",
        label: "second trajectory to the first",
        about: "attention of the second trajectory to the first one, which stands before it",
        reference: None,
        axis: Axis::Linear(0.0, 0.1),
        of: |at| at.total(SECOND, &[FIRST]),
        ..SHARE
    },
];

pub(super) const GROUPINGS: [Grouping; 3] = [
    Grouping {
        key: "orders",
        label: "pattern of verdicts over both orders",
        of: |seen| Some((String::new(), verdicts(seen)?)),
    },
    Grouping {
        key: "task",
        label: "task, and change of the verdict with the order",
        of: |seen| Some((seen.labels.get(TASK)?.replace('_', " "), verdicts(seen)?)),
    },
    Grouping {
        key: "length",
        label: "length, and change of the verdict with the order",
        of: |seen| Some((seen.facets.get(LENGTH)?.clone(), verdicts(seen)?)),
    },
];

fn verdicts(seen: &Seen<'_>) -> Option<String> {
    let [first, second] = ORDERS.map(|order| seen.under(order).and_then(|judged| judged.correct));
    let word = match (first, second) {
        (Some(true), Some(true)) => "chosen in both orders",
        (Some(false), Some(false)) => "rejected in both orders",
        (Some(true), Some(false)) => "always the first",
        (Some(false), Some(true)) => "always the second",
        _ => "a verdict is missing",
    };
    Some(word.to_owned())
}
