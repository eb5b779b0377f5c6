//! What the analysis looks at: which of two trajectories the attention goes to, by place and by content.
//!
//! Both orders of a pair are put together: the mean over them of what the first one gets of both shows a preference for a place
//! (.5 is none), that of what the chosen one gets a preference for a text. Whatever the model prefers, the same two texts stand in
//! both places.

use super::orders::Order;
use super::terms::{
    CHOSEN, CTX_LENGTH, FIRST, LAST, Length, ONLY_CHOSEN, ONLY_REJECTED, REJECTED, SECOND, SUBTASK, Setting,
    TASK, Task,
};
use crate::benchmarks::VERDICT;
use crate::benchmarks::measure::{Axis, Grouping, LayerSpans, Measure, Scale, Seen};

/// The two orders.
const BOTH: &[&str] = &["chosen-first", "rejected-first"];
const TRAJECTORIES: [&str; 2] = [CHOSEN, REJECTED];
/// No preference.
const EVEN: Option<f64> = Some(0.5);
const SHARES: Axis = Axis::Linear(0.3, 0.7);

/// The numbers, in the order of their panels.
pub(super) const MEASURES: &[Measure] = &[
    Measure {
        key: "first_share",
        label: "the first of both, by the last position",
        about: "what the trajectory that is shown first gets of what both get from the prompt's last position, over both orders; above .5 \
                is a preference for the first place",
        scales: &Scale::ALL,
        reference: EVEN,
        axis: SHARES,
        paired: BOTH,
        heads: true,
        of: |at| at.first_of(LAST, TRAJECTORIES),
    },
    Measure {
        key: "chosen_share",
        label: "the chosen of both, by the last position",
        about: "what the chosen trajectory gets of what both get from the prompt's last position, over both orders; above .5 is a \
                preference for the better text",
        scales: &Scale::ALL,
        reference: EVEN,
        axis: SHARES,
        paired: BOTH,
        heads: true,
        of: |at| at.balance(LAST, &[CHOSEN], &[REJECTED]),
    },
    Measure {
        key: "verdict_first_share",
        label: "the first of both, by the verdict's position",
        about: "the same as the first measure, of the position that predicted the verdict's letter",
        scales: &Scale::ALL,
        reference: EVEN,
        axis: SHARES,
        paired: BOTH,
        heads: false,
        of: |at| at.first_of(VERDICT, TRAJECTORIES),
    },
    Measure {
        key: "verdict_chosen_share",
        label: "the chosen of both, by the verdict's position",
        about: "the same as the second measure, of the position that predicted the verdict's letter",
        scales: &Scale::ALL,
        reference: EVEN,
        axis: SHARES,
        paired: BOTH,
        heads: false,
        of: |at| at.balance(VERDICT, &[CHOSEN], &[REJECTED]),
    },
    Measure {
        key: "only_chosen_share",
        label: "lines of the chosen one alone",
        about: "of what the lines get that one trajectory has alone, those of the chosen one, from the prompt's last position, over both \
                orders",
        scales: &Scale::ALL,
        reference: EVEN,
        axis: SHARES,
        paired: BOTH,
        heads: false,
        of: |at| at.balance(LAST, &[ONLY_CHOSEN], &[ONLY_REJECTED]),
    },
    Measure {
        key: "trajectories_lift",
        label: "both trajectories over the end of the task",
        about: "what both trajectories get from the prompt's last position over what as long a stretch at the end of the task gets",
        scales: &[Scale::Density],
        reference: Some(1.0),
        axis: Axis::Logarithmic,
        paired: BOTH,
        heads: false,
        of: evidence_lift,
    },
    Measure {
        key: "second_reads_first",
        label: "the second trajectory to the first",
        about: "what the tokens of the trajectory that is shown second pay to the first one, over both orders",
        scales: &Scale::ALL,
        reference: None,
        axis: Axis::Linear(0.0, 0.1),
        paired: BOTH,
        heads: false,
        of: |at| at.total(SECOND, &[FIRST]),
    },
];

/// What both trajectories get over the end of the task, which stands in for each of them.
pub(super) fn evidence_lift(at: &LayerSpans<'_>) -> Option<f64> {
    at.lift(LAST, &TRAJECTORIES)
}

/// How examples are told apart.
pub(super) const GROUPINGS: &[Grouping] = &[
    Grouping {
        key: "orders",
        label: "the verdicts of both orders",
        of: |seen| Some((String::new(), orders(seen).to_owned())),
    },
    Grouping { key: "task", label: "task", of: task },
    Grouping { key: "length", label: "length of context", of: length },
];

/// Which trajectory was preferred in both orders, or which place.
fn orders(seen: &Seen<'_>) -> &'static str {
    let right = |order: Order| seen.under(order.name()).and_then(|judged| judged.correct);
    match (right(Order::ChosenFirst), right(Order::RejectedFirst)) {
        (Some(true), Some(true)) => "chosen in both orders",
        (Some(false), Some(false)) => "rejected in both orders",
        (Some(true), Some(false)) => "the first in both orders",
        (Some(false), Some(true)) => "the second in both orders",
        _ => "not read in both orders",
    }
}

fn task(seen: &Seen<'_>) -> Option<(String, String)> {
    let task = seen.labels.get(TASK).and_then(|name| Task::parse(name))?;
    let setting = seen.labels.get(SUBTASK).and_then(|name| Setting::parse(name))?;
    Some((task.name().replace('_', " "), setting.name().to_owned()))
}

fn length(seen: &Seen<'_>) -> Option<(String, String)> {
    let length = seen.labels.get(CTX_LENGTH).and_then(|name| Length::parse(name))?;
    Some((String::new(), length.name().to_owned()))
}
