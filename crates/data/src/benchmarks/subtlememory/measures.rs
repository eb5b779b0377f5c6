//! Attention measures: both sides of a conflict, all parts of a set, the sufficient one.

use std::collections::BTreeMap;

use super::settings::{DEFAULT, FULL, ORACLE, PERFECT, SOFT};
use super::terms::{CONFLICT_EARLY, CONFLICT_LATE, RELATION, SELECTED, SUBTYPE, TARGET};
use crate::benchmarks::{Grouping, LayerSpans, Measure, QUERY, Scale, Seen};

const CONFLICT: [&str; 2] = [CONFLICT_EARLY, CONFLICT_LATE];
const TARGETS: [&str; 2] = [TARGET, SELECTED];

pub(super) const MEASURES: [Measure; 8] = [
    Measure {
        key: "balance",
        label: "balance of a conflict",
        about: "the part of the later side in the attention to both sides of a conflict",
        of: balance,
        ..Measure::SHARE
    },
    Measure {
        key: "imbalance",
        label: "imbalance of a conflict",
        about: "distance of the balance beta from one half, as |2 beta - 1|",
        reference: Some(0.0),
        of: |at| Some((2.0 * balance(at)? - 1.0).abs()),
        ..Measure::SHARE
    },
    Measure {
        key: "joint_lift",
        label: "joint lift of a conflict",
        about: "attention to both sides of a conflict over attention to their noise baselines",
        of: |at| at.lift(QUERY, &CONFLICT),
        ..Measure::LIFT
    },
    Measure {
        key: "reconciliation",
        label: "the later sessions' look back",
        about: "attention of later target sessions to the earlier ones of their set over noise baselines; no question changes it",
        of: |at| at.lift(CONFLICT_LATE, &[CONFLICT_EARLY]).or_else(|| at.look_back(TARGET)),
        ..Measure::LIFT
    },
    Measure {
        key: "target_lift",
        label: "lift of the targets",
        about: "attention to the target sessions of a set without conflict over attention to their noise baselines",
        of: |at| at.lift(QUERY, &TARGETS),
        ..Measure::LIFT
    },
    Measure {
        key: "least",
        label: "the least target",
        about: "attention to the target session with least attention",
        scales: &[Scale::Density],
        of: |at| at.least(QUERY, &TARGETS),
        ..Measure::LIFT
    },
    Measure {
        key: "greatest",
        label: "the greatest target",
        about: "attention to the target session with most attention",
        scales: &[Scale::Density],
        of: |at| at.greatest(QUERY, &TARGETS),
        ..Measure::LIFT
    },
    Measure {
        key: "evenness",
        label: "evenness of the targets",
        about: "entropy of the target sessions' parts over the logarithm of their number; 1 if all are equal",
        reference: Some(1.0),
        of: |at| at.evenness(QUERY, &TARGETS),
        ..Measure::SHARE
    },
];

fn balance(at: &LayerSpans<'_>) -> Option<f64> {
    at.balance(QUERY, &[CONFLICT_LATE], &[CONFLICT_EARLY])
}

pub(super) const GROUPINGS: [Grouping; 2] = [
    Grouping {
        key: "relation",
        label: "relation, subtype and verdict",
        of: |seen| Some((kind(seen.facets)?, seen.verdict().to_owned())),
    },
    Grouping {
        key: "waterfall",
        label: "relation, subtype and cell of the waterfall",
        of: |seen| Some((kind(seen.facets)?, cell(seen)?.to_owned())),
    },
];

fn kind(facets: &BTreeMap<String, String>) -> Option<String> {
    let relation = facets.get(RELATION)?;
    let subtype = facets.get(SUBTYPE).filter(|subtype| *subtype != relation);
    Some(subtype.map_or(relation.clone(), |subtype| format!("{relation}, {}", subtype.replace('_', " "))))
}

/// Waterfall cell (section 4). `oracle` stands in for a missing `perfect` (equal for whole-session memories), `full` for `default`.
fn cell(seen: &Seen<'_>) -> Option<&'static str> {
    let soft = seen.condition.is_some_and(|condition| condition.ends_with(SOFT));
    let right = |setting: &str| match soft {
        true => seen.under(&format!("{setting}{SOFT}"))?.correct,
        false => seen.under(setting)?.correct,
    };
    let oracle = right(ORACLE)?;
    let preserved = oracle && right(PERFECT).unwrap_or(oracle);
    Some(match (oracle, preserved, right(DEFAULT), right(FULL)) {
        (false, _, Some(true), _) => "right by default alone",
        (false, _, None, Some(true)) => "right on the whole history alone",
        (false, _, None, None) => return None,
        (false, ..) => "wrong under oracle",
        (true, false, ..) => "not preserved",
        (true, true, Some(false), _) => "not retrieved",
        (true, true, Some(true), _) => "kept and found",
        (true, true, None, Some(false)) => "not found in the whole history",
        (true, true, None, Some(true)) => "found in the whole history",
        (true, true, None, None) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::Judged;

    fn of(condition: &str, verdicts: &[(&str, bool)]) -> Option<&'static str> {
        let judged = verdicts.iter().map(|(condition, right)| {
            ((*condition).to_owned(), Judged { correct: Some(*right), ..Judged::default() })
        });
        let (judged, none) = (judged.collect(), BTreeMap::new());
        cell(&Seen { labels: &none, facets: &none, condition: Some(condition), judged: &judged })
    }

    #[test]
    fn a_question_falls_at_the_first_step_at_which_it_is_wrong() {
        let all = |oracle, perfect, default| {
            of("default", &[("oracle", oracle), ("perfect", perfect), ("default", default)])
        };
        assert_eq!(all(false, true, false), Some("wrong under oracle"));
        assert_eq!(all(false, false, true), Some("right by default alone"));
        assert_eq!(all(true, false, true), Some("not preserved"));
        assert_eq!(all(true, true, false), Some("not retrieved"));
        assert_eq!(all(true, true, true), Some("kept and found"));
    }

    #[test]
    fn oracle_stands_for_perfect_and_the_whole_history_for_retrieval_within_one_wording() {
        assert_eq!(of("full", &[("oracle", true), ("full", false)]), Some("not found in the whole history"));
        assert_eq!(
            of("full", &[("oracle", false), ("full", true)]),
            Some("right on the whole history alone")
        );
        assert_eq!(of("default", &[("oracle", true), ("default", true)]), Some("kept and found"));
        let both = [("oracle-soft", true), ("default-soft", false), ("oracle", false), ("default", true)];
        assert_eq!(of("default-soft", &both), Some("not retrieved"));
        assert_eq!(of("default", &both), Some("right by default alone"));
        assert_eq!(of("oracle", &[("oracle", true)]), None, "there is no last step");
    }
}
