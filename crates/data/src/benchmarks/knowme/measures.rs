//! Attention measures: evidence, the ends of a duration, thoughts versus observable fields.

use super::task::Task;
use super::terms::{ANCHOR_END, ANCHOR_START, BEST, EVIDENCE, EXPECTS, INNER, OUTER, TASK, TYPE};
use crate::benchmarks::{Grouping, Measure, QUERY, Scale};

pub(super) const MEASURES: [Measure; 5] = [
    Measure {
        key: "lift",
        label: "lift of the evidence",
        about: "attention to the evidence events over attention to their noise baselines",
        of: |at| at.lift(QUERY, &[EVIDENCE]),
        ..Measure::LIFT
    },
    Measure {
        key: "least",
        label: "the least event",
        about: "attention to the evidence event with least attention",
        scales: &[Scale::Density],
        of: |at| at.least(QUERY, &[EVIDENCE]),
        ..Measure::LIFT
    },
    Measure {
        key: "anchor_lift",
        label: "lift of both anchors (T3)",
        about: "attention to both ends of a duration over attention to their noise baselines",
        of: |at| at.lift(QUERY, &[ANCHOR_START, ANCHOR_END]),
        ..Measure::LIFT
    },
    Measure {
        key: "anchor_balance",
        label: "end of both anchors (T3)",
        about: "the part of the end of a duration in the attention to both ends",
        of: |at| at.balance(QUERY, &[ANCHOR_END], &[ANCHOR_START]),
        ..Measure::SHARE
    },
    Measure {
        key: "inner_balance",
        label: "thought of both (T6, T7)",
        about: "the part of the inner thought in the attention to it and to the fields that others could have witnessed",
        of: |at| at.balance(QUERY, &[INNER], &[OUTER]),
        ..Measure::SHARE
    },
];

pub(super) const GROUPINGS: [Grouping; 2] = [BY_SCORE, BY_TYPE];

/// Full marks on T2 require abstention (section 4.4); its other questions have a row of their own.
const BY_SCORE: Grouping = Grouping {
    key: "task",
    label: "task and score (full marks; on T2, abstained)",
    of: |seen| {
        let task = seen.facets.get(TASK)?;
        let full = seen.here().and_then(|judged| judged.score).map(|score| score == f64::from(BEST));
        let word = match full {
            Some(true) => "full marks",
            Some(false) => "below full marks",
            None => "not scored",
        };
        let row = seen.facets.get(EXPECTS).map_or_else(|| task.clone(), |wants| format!("{task} {wants}"));
        Some((row, word.to_owned()))
    },
};

/// Trigger kind (T5), duration or order (T3); types that repeat the task are skipped.
const BY_TYPE: Grouping = Grouping {
    key: "type",
    label: "task and type",
    of: |seen| {
        let task = Task::named(seen.facets.get(TASK)?)?;
        let kind = seen.facets.get(TYPE).filter(|kind| *kind != task.title)?;
        Some((task.id.to_owned(), kind.replace('_', " ")))
    },
};
