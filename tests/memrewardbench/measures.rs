//! Effects of position and of content, from the masses of two orders.

use std::collections::BTreeMap;

use palimpsest::benchmarks::measure::{Amount, Judged, KeySpan, LayerSpans, RowAt, Scale, Seen};

use super::BENCHMARK;

/// Measures of one order: masses of the first and second trajectory, 20 and 40 tokens long.
fn measured(roles: [&str; 2], paid: [f64; 2]) -> BTreeMap<&'static str, Option<f64>> {
    let key = |label: &str, role: &str, start: usize, tokens: usize, overlay: bool| KeySpan {
        label: label.to_owned(),
        role: Some(role.to_owned()),
        overlay,
        start,
        tokens,
    };
    let keys = [
        key("question[0]", "question", 0, 40, false),
        key("question[0].turn[0][9..39]", "block", 10, 30, true),
        key("a", roles[0], 40, 20, false),
        key("b", roles[1], 60, 40, false),
        key("a.turn[0]", "first", 42, 16, true),
    ];
    let mass = [0.2, 0.06, paid[0], paid[1], 0.01];
    let share = [0.4, 0.3, 0.2, 0.4, 0.16];
    let noise = |share: f64| Amount { mass: 0.2 * share, density: 0.2 };
    let noise = [(2, noise(0.2)), (3, noise(0.4))];
    let row =
        |role: &'static str| RowAt { role, nth: 0, start: 100, mass: &mass, share: &share, noise: &noise };
    let rows = [row("generation"), row("second")];
    let at = LayerSpans { keys: &keys, rows: &rows, scale: Scale::Mass };
    BENCHMARK.lens.measures.iter().map(|measure| (measure.key, (measure.of)(&at))).collect()
}

#[test]
fn a_preference_for_a_place_shows_in_one_measure_and_one_for_a_text_in_the_other() {
    let mean = |key: &str, both: [[f64; 2]; 2]| {
        let first = measured(["chosen", "rejected"], both[0])[key].unwrap();
        let second = measured(["rejected", "chosen"], both[1])[key].unwrap();
        (first + second) / 2.0
    };
    let near =
        |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
    // Three quarters to the first position, whatever is there.
    let place = [[0.3, 0.1], [0.3, 0.1]];
    near(mean("position_effect", place), 0.25);
    near(mean("first_part", place), 0.75);
    near(mean("content_effect", place), 0.0);
    // Three quarters to the chosen text, wherever it is.
    let content = [[0.3, 0.1], [0.1, 0.3]];
    near(mean("position_effect", content), 0.0);
    near(mean("content_effect", content), 0.25);
    near(mean("chosen_part", content), 0.75);
    near(mean("lift", place), 0.4 / (0.2 * 0.6));
    near(mean("second_to_first", place), 0.01);
    // Without a verdict there is no such row.
    assert_eq!(measured(["chosen", "rejected"], [0.3, 0.1])["position_effect_verdict"], None);
}

#[test]
fn examples_are_grouped_by_what_both_orders_said() {
    let judged = |chosen: Option<bool>, rejected: Option<bool>| {
        let of = |correct| Judged { correct, ..Judged::default() };
        let judged = BTreeMap::from([
            ("chosen-first".to_owned(), of(chosen)),
            ("rejected-first".to_owned(), of(rejected)),
        ]);
        let none = BTreeMap::new();
        let labels = BTreeMap::from([("task".to_owned(), "Long-form_Generation".to_owned())]);
        let grouping = BENCHMARK.lens.groupings.iter().find(|grouping| grouping.key == "task").unwrap();
        (grouping.of)(&Seen { labels: &labels, facets: &none, condition: None, judged: &judged }).unwrap().1
    };
    assert_eq!(judged(Some(true), Some(true)), "chosen in both orders");
    assert_eq!(judged(Some(false), Some(false)), "rejected in both orders");
    assert_eq!(judged(Some(true), Some(false)), "always the first");
    assert_eq!(judged(Some(false), Some(true)), "always the second");
    assert_eq!(judged(Some(false), None), "a verdict is missing");
}
