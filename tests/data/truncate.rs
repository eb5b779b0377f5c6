//! Truncation policies, each against a plain definition.

use std::collections::BTreeSet;

use jiff::ToSpan;
use jiff::civil::date;
use palimpsest::case::draw::Draws;
use palimpsest::case::truncate::{
    Middle, Phases, TruncateError, Truncated, Truncation, truncate, truncate_phases, truncate_plain,
};
use palimpsest::case::{History, Segment, Turn};
use proptest::prelude::*;

fn history(sessions: usize) -> History {
    let session = |index: usize| Segment {
        kind: "session".to_owned(),
        index,
        time: Some(date(2025, 1, 1).at(9, 0, 0, 0).checked_add((index as i64).hours()).unwrap()),
        turns: vec![Turn::new("user", format!("session {index}"))],
    };
    History { segments: (0..sessions).map(session).collect(), query_time: None }
}

fn evidence(old: usize, new: usize) -> [usize; 2] {
    [old, new]
}

fn kept(truncated: &Truncated) -> Vec<usize> {
    truncated.history.segments.iter().map(|session| session.index).collect()
}

#[test]
fn a_history_that_fits_is_left_as_it_is() {
    let whole = history(6);
    let done = truncate(&whole, &evidence(1, 3), &[10; 6], 5, 65, 0).unwrap();
    assert_eq!(done, Truncated { history: whole, dropped: vec![], dropped_neighbours: vec![], tokens: 65 });
}

#[test]
fn evidence_and_neighbours_stay_and_the_rest_is_spread_over_the_time_line() {
    // Room for three of the fourteen others: both ends of the time line and the middle of the longest stretch.
    let done = truncate(&history(20), &evidence(5, 12), &[10; 20], 0, 90, 0).unwrap();
    let kept = kept(&done);
    assert!([4, 5, 6, 11, 12, 13].iter().all(|i| kept.contains(i)), "{kept:?}");
    assert!(kept.contains(&19) && kept.contains(&0) && kept.contains(&16), "{kept:?}");
    assert_eq!((kept.len(), done.dropped.len(), done.tokens), (9, 11, 90));
}

#[test]
fn evidence_at_the_ends_has_one_neighbour() {
    let done = truncate(&history(6), &evidence(0, 5), &[1; 6], 0, 4, 0).unwrap();
    assert_eq!(kept(&done), [0, 1, 4, 5]);
    assert_eq!(done.dropped, [2, 3]);
}

#[test]
fn what_cannot_fit_is_an_error_with_the_numbers_and_the_remedy() {
    let error = truncate(&history(8), &evidence(1, 4), &[100; 8], 50, 200, 0).unwrap_err();
    assert_eq!(
        error,
        TruncateError::DoesNotFit { segments: vec![1, 4], evidence: 200, fixed: 50, budget: 200 }
    );
    let text = error.to_string();
    for part in ["1, 4", "200 tokens", "prompt 50", "50 more", "--context"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let done = truncate(&history(8), &evidence(1, 4), &[100; 8], 50, 250, 0).unwrap();
    assert_eq!((kept(&done), done.tokens), (vec![1, 4], 250));
}

#[test]
fn neighbours_come_first_one_of_each_evidence_before_the_second_of_any_and_those_that_go_are_named() {
    for seed in 0..20 {
        let of = |budget| truncate(&history(20), &evidence(5, 12), &[10; 20], 0, budget, seed).unwrap();
        let two = kept(&of(40));
        let beside = |e: usize, kept: &[usize]| kept.iter().filter(|i| i.abs_diff(e) == 1).count();
        assert_eq!((two.len(), beside(5, &two), beside(12, &two)), (4, 1, 1), "{two:?}");
        let gone: Vec<usize> = [4, 6, 11, 13].into_iter().filter(|i| !two.contains(i)).collect();
        assert_eq!(of(40).dropped_neighbours, gone);
        assert_eq!(kept(&of(60)), [4, 5, 6, 11, 12, 13]);
        assert_eq!(of(60).dropped_neighbours, Vec::<usize>::new());
    }
    // Random choice between two neighbours.
    let first = |seed| kept(&truncate(&history(20), &evidence(5, 12), &[10; 20], 0, 30, seed).unwrap());
    let all: BTreeSet<Vec<usize>> = (0..40).map(first).collect();
    assert_eq!(all.len(), 4, "{all:?}");
}

#[test]
fn one_long_segment_does_not_end_the_filling() {
    // A neighbour and a distractor that never fit.
    let mut cost = [10; 20];
    (cost[4], cost[19]) = (500, 500);
    let done = truncate(&history(20), &evidence(5, 12), &cost, 0, 180, 0).unwrap();
    assert_eq!((done.dropped.as_slice(), done.dropped_neighbours.as_slice()), (&[4, 19][..], &[4][..]));
    assert_eq!(done.tokens, 180);
}

#[test]
fn budgets_are_not_nested_where_costs_differ() {
    // The larger budget fits the costly end of the time line, then nothing else.
    let cost = [10, 10, 10, 10, 10, 10, 100];
    let of = |budget| kept(&truncate(&history(7), &evidence(0, 1), &cost, 0, budget, 0).unwrap());
    assert_eq!((of(60), of(130)), (vec![0, 1, 2, 3, 4, 5], vec![0, 1, 2, 6]));
}

#[test]
fn numbers_too_large_to_add_are_an_error_and_no_overflow() {
    let error = truncate(&history(3), &evidence(0, 2), &[usize::MAX; 3], usize::MAX, usize::MAX - 1, 0);
    assert!(matches!(error, Err(TruncateError::DoesNotFit { .. })));
    assert!(!error.unwrap_err().to_string().is_empty());
}

#[test]
fn wrong_arguments_are_named() {
    let costs = truncate(&history(3), &evidence(0, 2), &[1; 2], 0, 9, 0).unwrap_err();
    assert_eq!(costs, TruncateError::Costs { costs: 2, segments: 3 });
    assert_eq!(
        truncate(&history(3), &evidence(0, 3), &[1; 3], 0, 9, 0).unwrap_err(),
        TruncateError::NoSuchSegment(3)
    );
}

#[test]
fn plain_truncation_cuts_one_gap_into_the_middle_whatever_is_evidence() {
    let of = |cost: &[usize], budget| truncate_plain(&history(cost.len()), cost, 5, budget);
    let cut = of(&[10; 10], 65).unwrap();
    assert_eq!((kept(&cut), cut.tokens), (vec![0, 1, 2, 7, 8, 9], 65));
    assert_eq!((cut.dropped, cut.dropped_neighbours), (vec![3, 4, 5, 6], vec![]));
    // Half of the room is for the beginning; unused room goes to the end, and vice versa.
    assert_eq!(kept(&of(&[40, 10, 10, 10, 10, 10], 45).unwrap()), [2, 3, 4, 5]);
    assert_eq!(kept(&of(&[10, 10, 10, 10, 10, 40], 45).unwrap()), [0, 1, 2, 3]);
    assert_eq!(
        kept(&of(&[10, 10, 10, 10, 40], 65).unwrap()),
        [0, 1, 2, 3],
        "the last needs 40 of the 30 left"
    );
    assert_eq!(kept(&of(&[10, 10, 10, 10, 40], 75).unwrap()), [0, 1, 2, 4]);
    let whole = of(&[10; 4], 45).unwrap();
    assert_eq!((kept(&whole).len(), whole.dropped.len(), whole.tokens), (4, 0, 45));

    let nothing = of(&[30, 1, 30], 25).unwrap_err();
    assert_eq!(nothing, TruncateError::NothingFits { first: 30, last: 30, fixed: 5, budget: 25 });
    assert!(nothing.to_string().contains("raise --context"), "{nothing}");
    assert!(matches!(of(&[1; 3], 4), Err(TruncateError::DoesNotFit { fixed: 5, budget: 4, .. })));
    assert!(matches!(truncate_plain(&history(3), &[1; 2], 0, 9), Err(TruncateError::Costs { .. })));
    assert!(of(&[usize::MAX; 3], usize::MAX).is_err());
}

fn phases(
    cost: &[usize],
    anchors: (usize, usize),
    budget: usize,
    seed: u64,
) -> Result<Truncated, TruncateError> {
    let ends = (Some(anchors.0), Some(anchors.1), 2);
    truncate_phases(&history(cost.len()), ends, cost, (5, budget), (seed, "case probe"))
}

#[test]
fn in_phases_two_go_from_the_head_then_two_from_the_tail_then_some_between() {
    let of = |anchors, budget| phases(&[10; 10], anchors, budget, 0).map(|cut| cut.dropped);
    assert_eq!(of((4, 6), 105), Ok(vec![]));
    assert_eq!(of((4, 6), 95), Ok(vec![0]));
    assert_eq!(of((4, 6), 85), Ok(vec![0, 1]));
    assert_eq!(of((4, 6), 75), Ok(vec![0, 1, 9]));
    assert_eq!(of((4, 6), 65), Ok(vec![0, 1, 8, 9]));
    assert_eq!(of((4, 6), 55), Ok(vec![0, 1, 5, 8, 9]));
    // Nothing else can go: neither the evidence nor the sessions left before the first and after the last.
    let error = of((4, 6), 45).unwrap_err();
    assert_eq!(error, TruncateError::StillTooLong { tokens: 55, budget: 45 });
    assert!(error.to_string().contains("at least that many or give --truncation evidence"), "{error}");
    assert_eq!(of((0, 9), 95).map(|dropped| dropped.len()), Ok(1), "neither end can go");
    assert_eq!(of((1, 8), 85), Ok(vec![0, 9]));
    // Some of those between are sampled, by seed and name.
    let drawn: BTreeSet<Vec<usize>> =
        (0..40).map(|seed| phases(&[10; 10], (1, 8), 75, seed).unwrap().dropped).collect();
    assert_eq!(drawn, (2..8).map(|between| vec![0, between, 9]).collect());
    let near = phases(&[10; 6], (1, 4), 45, 0).unwrap();
    assert_eq!((near.dropped, near.dropped_neighbours), (vec![0, 5], vec![0, 5]));
    assert!(matches!(
        truncate_phases(&history(3), (None, None, 2), &[1; 2], (0, 9), (0, "")),
        Err(TruncateError::Costs { .. })
    ));
}

#[test]
fn a_middle_leaves_two_ends_in_their_proportion() {
    let middle = Middle { from: 131_072, first: 65_536, last: 65_531 };
    assert_eq!(middle.ends(131_071, 200_000), None);
    assert_eq!(middle.ends(131_072, 200_000), Some((65_536, 65_531)), "at that length whatever the context");
    assert_eq!(middle.ends(131_071, 131_070), Some((65_536, 65_531)), "131,067 fit");
    assert_eq!(middle.ends(5_000, 4_000), Some((2_001, 1_999)), "scaled: 4,000 x 65,531 / 131,067 = 1,999.9");
    assert_eq!(middle.ends(4_000, 4_000), None);
    assert_eq!(middle.ends(10, 0), Some((0, 0)));
}

#[test]
fn a_way_knows_its_budget_and_its_words() {
    let of = Truncation::Phases(Phases { first: "a", last: "b", ends: 2, context: 128_000, reserved: 512 });
    assert_eq!(of.budget(200_000, 2048), 128_000 - 2048 - 512);
    assert_eq!(of.budget(4096, 1024), 4096 - 1024 - 512);
    assert_eq!(Truncation::Plain.budget(200_000, 1024), 198_976);
    let middle = Truncation::Middle(Middle { from: 1, first: 1, last: 1 });
    let names = [Truncation::Evidence, Truncation::Plain, of, middle].map(Truncation::name);
    assert_eq!(names, ["evidence", "plain", "authors", "authors"]);
    // Old runs have this word in their identity.
    assert_eq!(Truncation::Evidence.policy(), "evidence-preserving truncation");
}

prop_compose! {
    fn any_case()(
        cost in prop::collection::vec(0usize..400, 2..40),
        a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>(),
        fixed in 0usize..200, budget in 0usize..9000, more in 0usize..3000, seed in any::<u64>(),
    ) -> (Vec<usize>, usize, usize, usize, usize, usize, u64) {
        let (a, b) = (a.index(cost.len() - 1), b.index(cost.len() - 1));
        (cost, a.min(b), a.max(b) + 1, fixed, budget, budget + more, seed)
    }
}

proptest! {
    #[test]
    fn plain_truncation_is_its_definition(case in any_case()) {
        let (cost, _, _, fixed, budget, _, _) = case;
        let n = cost.len();
        let sum = |range: std::ops::Range<usize>| cost[range].iter().sum::<usize>();
        let Some(room) = budget.checked_sub(fixed) else { return Ok(()) };
        // The longest beginning in half of the room; the longest end in the rest; the longest beginning in what remains.
        let half = (0..=n).rev().find(|&head| sum(0..head) <= room / 2).unwrap();
        let tail = (half..=n).find(|&tail| sum(0..half) + sum(tail..n) <= room).unwrap();
        let head = (0..=tail).rev().find(|&head| sum(0..head) + sum(tail..n) <= room).unwrap();
        let expected: Vec<usize> = (0..head).chain(tail..n).collect();
        match truncate_plain(&history(n), &cost, fixed, budget) {
            Ok(cut) => {
                prop_assert_eq!(kept(&cut), expected.clone());
                prop_assert_eq!(cut.tokens, fixed + expected.iter().map(|&i| cost[i]).sum::<usize>());
                prop_assert!(cut.dropped.iter().all(|i| !expected.contains(i)));
                prop_assert_eq!(cut.dropped.len() + expected.len(), n);
            }
            Err(_) => prop_assert!(expected.is_empty(), "{:?}", expected),
        }
    }

    #[test]
    fn phases_are_taken_one_segment_after_the_other(case in any_case()) {
        let (cost, old, new, _, budget, _, seed) = case;
        let mut left: Vec<usize> = (0..cost.len()).collect();
        let tokens = |left: &[usize]| 5 + left.iter().map(|&i| cost[i]).sum::<usize>();
        for _ in 0..2 {
            if tokens(&left) > budget && left[0] != old {
                left.remove(0);
            }
        }
        for _ in 0..2 {
            if tokens(&left) > budget && left[left.len() - 1] != new {
                left.pop();
            }
        }
        let mut between: Vec<usize> = (old + 1..new).collect();
        Draws::new("palimpsest truncation phases 1", seed, "case probe").shuffle(&mut between);
        for gone in between {
            if tokens(&left) > budget {
                left.retain(|i| *i != gone);
            }
        }
        match phases(&cost, (old, new), budget, seed) {
            Ok(cut) => prop_assert_eq!((kept(&cut), cut.tokens), (left.clone(), tokens(&left))),
            Err(error) => {
                prop_assert_eq!(error, TruncateError::StillTooLong { tokens: tokens(&left), budget });
                prop_assert!(tokens(&left) > budget);
            }
        }
    }

    #[test]
    fn whatever_the_costs(case in any_case()) {
        let (cost, old, new, fixed, budget, larger, seed) = case;
        let (whole, evidence) = (history(cost.len()), evidence(old, new));
        let stays: BTreeSet<usize> = evidence.into_iter().collect();
        let needed: usize = stays.iter().map(|&i| cost[i]).sum();
        let result = truncate(&whole, &evidence, &cost, fixed, budget, seed);
        prop_assert_eq!(&result, &truncate(&whole, &evidence, &cost, fixed, budget, seed), "the same every time");
        let Ok(done) = result else {
            prop_assert!(needed + fixed > budget, "it is an error only if the evidence does not fit");
            return Ok(());
        };
        let kept = kept(&done);
        // It fits, and the token count is that of the kept sessions.
        prop_assert!(done.tokens <= budget);
        prop_assert_eq!(done.tokens, fixed + kept.iter().map(|&i| cost[i]).sum::<usize>());
        // Evidence stays; kept and dropped partition the history in order, sessions unchanged.
        prop_assert!(stays.iter().all(|i| kept.contains(i)));
        let mut all: Vec<usize> = kept.iter().chain(&done.dropped).copied().collect();
        prop_assert!(kept.is_sorted() && done.dropped.is_sorted());
        all.sort_unstable();
        prop_assert_eq!(all, (0..cost.len()).collect::<Vec<_>>());
        prop_assert!(done.history.segments.iter().all(|session| *session == whole.segments[session.index]));
        // Minimal: no dropped session fits beside the kept ones.
        prop_assert!(done.dropped.iter().all(|&i| done.tokens + cost[i] > budget));
        // Dropped neighbours are named.
        let beside = |i: usize| !stays.contains(&i) && (i.abs_diff(old) == 1 || i.abs_diff(new) == 1);
        let gone: Vec<usize> = done.dropped.iter().copied().filter(|&i| beside(i)).collect();
        prop_assert_eq!(&done.dropped_neighbours, &gone);
        // No other segment replaces a neighbour: without the others it would not fit either.
        let only: Vec<usize> = kept.iter().copied().filter(|&i| stays.contains(&i) || beside(i)).collect();
        let near: usize = only.iter().map(|&i| cost[i]).sum();
        prop_assert!(gone.iter().all(|&i| fixed + near + cost[i] > budget));
        // With equal costs, a larger budget keeps a superset.
        let even = vec![100; cost.len()];
        let of = |budget| truncate(&whole, &evidence, &even, fixed, budget, seed);
        if let (Ok(narrow), Ok(wide)) = (of(budget), of(larger)) {
            let wide: BTreeSet<usize> = wide.history.segments.iter().map(|session| session.index).collect();
            prop_assert!(narrow.history.segments.iter().all(|session| wide.contains(&session.index)));
        }
        // Idempotent: a truncated history that fits is unchanged.
        let costs: Vec<usize> = kept.iter().map(|&i| cost[i]).collect();
        let again = truncate(&done.history, &evidence, &costs, fixed, budget, seed).unwrap();
        prop_assert_eq!(again.history, done.history);
    }
}
