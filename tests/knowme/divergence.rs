//! Equation 2 with exact fractions.

use std::collections::BTreeSet;

use palimpsest::benchmarks::knowme::divergence::{Facts, Fraction, Step};

fn facts(source: u32, common: u32, output: u32) -> Facts {
    Facts { source, common, output }
}

#[test]
fn worked_numbers_come_out_to_the_printed_digit() {
    let value = |source, common, output| facts(source, common, output).divergence().unwrap().value();
    assert_eq!(format!("{:.2}", value(10, 9, 10)), "0.10");
    assert_eq!(format!("{:.4}", value(14, 13, 13)), "0.0286");
    assert_eq!(format!("{:.4}", value(13, 12, 12)), "0.0308");
    assert_eq!(facts(19, 19, 20).divergence(), Fraction::new(3, 100));
    assert_eq!(facts(10, 9, 10).divergence(), Fraction::new(1, 10));
}

#[test]
fn a_threshold_is_passed_exactly_and_exceeded_strictly() {
    assert_eq!(Step::Instantiation.revises(facts(14, 13, 13)), Some(false));
    assert_eq!(Step::Instantiation.revises(facts(13, 12, 12)), Some(true));
    // 0.6 / 20 in binary is greater than 0.03, which would revise.
    assert_eq!(Step::Instantiation.revises(facts(19, 19, 20)), Some(false));
    assert_eq!(Step::Extraction.revises(facts(11, 11, 12)), Some(false));
    assert_eq!(Step::Extraction.revises(facts(10, 10, 11)), Some(true));
    assert_eq!(Step::Realignment.revises(facts(5, 5, 5)), Some(false));
    assert_eq!(Step::Realignment.revises(facts(1_000_000_000, 999_999_999, 999_999_999)), Some(true));
}

#[test]
fn a_share_of_nothing_is_nothing_and_impossible_counts_are_no_count() {
    let zero = Fraction::new(0, 1);
    assert_eq!(facts(0, 0, 0).divergence(), zero);
    assert_eq!(facts(0, 0, 4).divergence(), Fraction::new(3, 5));
    assert_eq!(facts(4, 0, 0).divergence(), Fraction::new(2, 5));
    assert_eq!((facts(3, 4, 5).divergence(), facts(5, 4, 3).divergence()), (None, None));
    assert_eq!((Fraction::new(0, 0), Fraction::new(1, 0)), (zero, None));
}

#[test]
fn sets_are_counted_and_fractions_ordered_as_numbers_are() {
    let set = |facts: &[&'static str]| facts.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(Facts::of(&set(&["a", "b", "c"]), &set(&["b", "c", "d", "e"])), facts(3, 2, 4));
    let fractions = |n: u32, d: u32| Fraction::new(n, d).unwrap();
    for (a, b) in (0..12).flat_map(|a| (1..12).map(move |b| (a, b))) {
        for (c, d) in (0..12).flat_map(|c| (1..12).map(move |d| (c, d))) {
            assert_eq!(fractions(a, b).cmp(&fractions(c, d)), (a * d).cmp(&(c * b)), "{a}/{b} {c}/{d}");
        }
    }
    let huge = facts(u32::MAX, u32::MAX - 1, u32::MAX).divergence().unwrap();
    assert!(huge > fractions(0, 1) && huge < fractions(1, u32::MAX - 1));
}
