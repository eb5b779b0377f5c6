//! The times of a history: their order, and what texts say of days beside them.

use std::collections::BTreeSet;

use rayon::prelude::*;

use super::calendar::misfits;
use crate::data::finding::{Check, Finding, Gold};
use crate::data::{Case, Segment};

pub(super) static TIME_ORDER: Check = Check::warning(
    "time-order",
    "segments whose time sorts before that of the one above them: by date, or because they have none",
);
pub(super) static NO_TIME: Check =
    Check::warning("no-time", "segments without a time in a history that has times");
pub(super) static DAY_WORDS: Check = Check::warning(
    "day-words",
    "words for days or months that do not fit the date beside them or the time of their text",
);

/// Findings of all of these checks in a case; of the order of its times where `ordered`.
pub(super) fn all(case: &Case, golds: &[Gold], ordered: bool) -> Vec<Finding> {
    let mut found = if ordered { order(case) } else { Vec::new() };
    found.extend(day_words(case, golds));
    found
}

fn order(case: &Case) -> Vec<Finding> {
    let segments = &case.history.segments;
    let mut found = Vec::new();
    let (before, behind) = (segments.iter(), segments.iter().skip(1));
    for (above, segment) in before.zip(behind) {
        let kind = &segment.kind;
        let what = match (above.time, segment.time) {
            (Some(above), Some(time)) if time < above => format!("{kind} of {time} below one of {above}"),
            (Some(above), None) => format!("{kind} without a time below one of {above}"),
            _ => continue,
        };
        found.push(Finding::new(&TIME_ORDER, &case.id, what).at([segment.index]));
    }
    if segments.iter().any(|segment| segment.time.is_some()) {
        let undated = segments.iter().filter(|segment| segment.time.is_none());
        found.extend(undated.map(|segment| {
            let what = format!("{} without a time", segment.kind);
            Finding::new(&NO_TIME, &case.id, what).at([segment.index])
        }));
    }
    found
}

fn day_words(case: &Case, golds: &[Gold]) -> Vec<Finding> {
    let mut found = Vec::new();
    let of_segment = |segment: &Segment| {
        let said: BTreeSet<String> =
            segment.turns.iter().flat_map(|turn| misfits(&turn.content, segment.time)).collect();
        let index = segment.index;
        said.into_iter()
            .map(move |what| Finding::new(&DAY_WORDS, &case.id, what).at([index]))
            .collect::<Vec<_>>()
    };
    found.par_extend(case.history.segments.par_iter().flat_map_iter(of_segment));
    for (at, probe) in case.probes.iter().enumerate() {
        let texts = golds.get(at).into_iter().flat_map(|gold| &gold.texts);
        let said: BTreeSet<String> = misfits(&probe.query, case.history.query_time)
            .into_iter()
            .chain(texts.flat_map(|text| misfits(text, None)))
            .collect();
        found.extend(
            said.into_iter().map(|what| Finding::new(&DAY_WORDS, &case.id, what).of([probe.id.as_str()])),
        );
    }
    found
}
