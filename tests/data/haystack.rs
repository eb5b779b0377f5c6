//! Assembling histories.

use palimpsest::benchmarks::stale::haystack::{Distractor, HaystackError, MAX_SESSIONS, Scenario, assemble};
use palimpsest::benchmarks::stale::write_stale;
use palimpsest::case::{Case, Turn};
use proptest::prelude::*;
use serde_json::json;

use super::{check, session_of};

fn turns(text: &str) -> Vec<Turn> {
    vec![Turn::new("user", text), Turn::new("assistant", format!("Noted: {text}"))]
}

fn pool(n: usize) -> Vec<Distractor> {
    (0..n)
        .map(|i| Distractor { topic: format!("topic {i}"), turns: turns(&format!("distractor {i}")) })
        .collect()
}

fn scenario(uid: &str, gap_days: u32, query_gap_days: u32) -> Scenario {
    serde_json::from_value(json!({
        "uid": uid, "type": "T2", "category": "Routine", "attribute": "bedtime",
        "M_old": "old", "M_new": "new", "explanation": "why",
        "gap_days": gap_days, "query_gap_days": query_gap_days,
        "old_session": turns("the old session"), "new_session": turns("the new session"),
        "probing_queries": {"dim1_query": "a?", "dim2_query": "b?", "dim3_query": "c"},
    }))
    .unwrap()
}

fn days_between(case: &Case, from: usize, to: Option<usize>) -> i32 {
    let sessions = &case.history.segments;
    let end = to.map_or(case.history.query_time.unwrap(), |to| sessions[to].time.unwrap());
    (end.date() - sessions[from].time.unwrap().date()).get_days()
}

#[test]
fn a_seed_gives_the_same_case_every_time_and_another_seed_another_case() {
    let build = |seed| assemble(&scenario("s", 40, 9), &pool(30), seed, 20).unwrap();
    assert_eq!(build(3), build(3));
    assert_ne!(build(3).history, build(4).history);
}

#[test]
fn scenarios_draw_from_streams_of_their_own() {
    let build = |uid| assemble(&scenario(uid, 40, 9), &pool(30), 0, 20).unwrap();
    assert_ne!(build("a").history, build("b").history);
}

#[test]
fn what_seed_0_assembles_never_changes() {
    let case = assemble(&scenario("pinned", 40, 9), &pool(12), 0, 8).unwrap();
    let lines: Vec<String> =
        case.history.segments.iter().map(|s| format!("{} {}", s.time.unwrap(), s.turns[0].content)).collect();
    // Computed independently from the algorithm in the module's documentation.
    assert_eq!(
        lines,
        [
            "2025-04-08T21:12:29 distractor 11",
            "2025-04-11T12:50:10 the old session",
            "2025-04-21T08:40:32 distractor 10",
            "2025-04-28T14:04:28 distractor 8",
            "2025-05-04T20:13:40 distractor 0",
            "2025-05-15T10:51:33 distractor 2",
            "2025-05-21T12:24:29 the new session",
            "2025-05-26T10:30:59 distractor 1",
        ]
    );
    assert_eq!(case.history.query_time.unwrap().to_string(), "2025-05-30T13:12:19");
}

#[test]
fn a_history_longer_than_the_pool_uses_all_of_it_and_nothing_twice_in_a_row() {
    let case = assemble(&scenario("s", 300, 30), &pool(7), 1, 60).unwrap();
    let sessions = &case.history.segments;
    assert!(sessions.windows(2).all(|pair| pair[0].turns != pair[1].turns));
    for distractor in pool(7) {
        let times = sessions.iter().filter(|session| session.turns == distractor.turns).count();
        assert!((8..=9).contains(&times), "{}: {times}", distractor.topic);
    }
}

#[test]
fn the_longest_history_still_has_increasing_times_within_the_shortest_gaps() {
    let case = assemble(&scenario("s", 1, 1), &pool(3), 0, MAX_SESSIONS).unwrap();
    assert!(case.history.segments.windows(2).all(|pair| pair[0].time < pair[1].time));
    assert!(case.history.segments.last().unwrap().time < case.history.query_time);
}

#[test]
fn what_cannot_be_assembled_is_named() {
    let build = |gap, query_gap, pool_size, sessions| {
        assemble(&scenario("s", gap, query_gap), &pool(pool_size), 0, sessions).unwrap_err()
    };
    assert!(matches!(build(9, 9, 9, 1), HaystackError::Sessions(1)));
    assert!(matches!(build(9, 9, 9, MAX_SESSIONS + 1), HaystackError::Sessions(_)));
    assert!(matches!(build(9, 9, 0, 3), HaystackError::Pool { needed: 1, pool: 0 }));
    assert!(matches!(build(9, 9, 1, 4), HaystackError::Pool { needed: 2, pool: 1 }));
    assert!(matches!(build(0, 9, 9, 5), HaystackError::Gap { field: "gap_days", days: 0, .. }));
    assert!(matches!(build(9, u32::MAX, 9, 5), HaystackError::Gap { field: "query_gap_days", .. }));
}

proptest! {
    #[test]
    fn whatever_the_length(
        sessions in 2usize..70, seed in any::<u64>(), gap in 1u32..400, query_gap in 1u32..60, pool_size in 2usize..40,
    ) {
        let scenario = scenario("some", gap, query_gap);
        let case = assemble(&scenario, &pool(pool_size), seed, sessions).unwrap();
        let history = &case.history.segments;
        let (old, new) = (session_of(&case, "old"), session_of(&case, "new"));
        prop_assert_eq!(history.len(), sessions);
        prop_assert!(old < new);
        if sessions >= 3 {
            prop_assert!(new - old >= 2);
        }
        if sessions >= 5 {
            prop_assert!(old >= 1 && new + 1 < sessions, "a distractor on either side of each");
        }
        prop_assert_eq!(&history[old].turns, &scenario.old_session);
        prop_assert_eq!(&history[new].turns, &scenario.new_session);
        prop_assert_eq!(days_between(&case, old, Some(new)), gap as i32);
        prop_assert_eq!(days_between(&case, new, None), query_gap as i32);
        prop_assert!(history.windows(2).all(|pair| pair[0].time < pair[1].time && pair[0].turns != pair[1].turns));
        prop_assert!(history.last().unwrap().time < case.history.query_time);
        prop_assert!(history.iter().all(|session| (8..22).contains(&session.time.unwrap().hour())));
        if sessions - 2 <= pool_size {
            let texts: std::collections::BTreeSet<_> = history.iter().map(|s| &s.turns[0].content).collect();
            prop_assert_eq!(texts.len(), sessions, "without replacement while the pool lasts");
        }
        let mut text = Vec::new();
        write_stale(&mut text, [&case]).unwrap();
        prop_assert!(check(text.as_slice()).is_sound());
    }
}
