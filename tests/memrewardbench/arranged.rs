//! Arrangements of pairs: orders, notes without tags, questions with a subset of their constraints.

use palimpsest::benchmarks::memrewardbench::{Order, Variant, parse_setting};
use palimpsest::case::{Case, Evidence};

use super::parquet_file::Row;
use super::{BENCHMARK, case, row, sample};

fn text(case: &Case, index: usize) -> &str {
    let segment = case.history.segments.iter().find(|segment| segment.index == index).unwrap();
    &segment.turns[0].content
}

fn letters(case: &Case) -> Vec<(usize, &str)> {
    case.history.segments.iter().map(|segment| (segment.index, &*segment.turns[0].role)).collect()
}

fn places<'a>(case: &'a Case, role: &'a str) -> impl Iterator<Item = &'a Evidence> {
    case.evidence.iter().filter(move |evidence| evidence.role == role)
}

/// Texts of all pieces with a role.
fn pieces<'a>(case: &'a Case, role: &'a str) -> Vec<&'a str> {
    let of = |evidence: &'a Evidence| {
        let whole = text(case, evidence.place.segment);
        evidence.place.bytes.as_ref().map_or(whole, |bytes| &whole[bytes.clone()])
    };
    places(case, role).map(of).collect()
}

#[test]
fn every_setting_says_an_order_and_a_variant() {
    let settings = BENCHMARK.settings;
    assert_eq!(settings.len(), 21);
    let parsed: Vec<(Order, Variant)> = settings.iter().map(|one| parse_setting(one.name).unwrap()).collect();
    for order in Order::ALL {
        for (variant, _) in Variant::ALL {
            assert!(parsed.contains(&(order, variant)));
        }
    }
    assert_eq!(parse_setting("random-density-50"), Some((Order::Random, Variant::Density(50))));
    for other in ["", "first", "random-", "chosen-first-density-10", "chosen-first-repeat-2"] {
        assert_eq!(parse_setting(other), None, "{other}");
    }
    assert_eq!(BENCHMARK.default_settings, ["chosen-first", "rejected-first"]);
}

#[test]
fn an_order_moves_trajectories_and_letters_and_leaves_indices_and_texts() {
    let case = case(&row(3));
    let chosen_first = (BENCHMARK.arrange)(&case, "chosen-first", 0);
    let rejected_first = (BENCHMARK.arrange)(&case, "rejected-first", 0);
    assert_eq!(letters(&chosen_first), [(0, ""), (1, "A"), (2, "B")]);
    assert_eq!(letters(&rejected_first), [(0, ""), (2, "A"), (1, "B")]);
    for arranged in [&chosen_first, &rejected_first] {
        assert_eq!(text(arranged, 1), row(3).chosen);
        assert_eq!(text(arranged, 2), row(3).rejected);
        assert_eq!(pieces(arranged, "only_chosen"), ["step 1: hall"]);
        assert_eq!(pieces(arranged, "only_rejected"), ["step 1: nothing"]);
        assert_eq!(places(arranged, "chosen").next().unwrap().place.segment, 1);
        assert_eq!(
            (&arranged.id, &arranged.labels, &arranged.probes),
            (&case.id, &case.labels, &case.probes)
        );
    }
    assert_eq!(pieces(&rejected_first, "first"), [row(3).rejected]);
    assert_eq!(pieces(&rejected_first, "second"), [row(3).chosen]);
    // About as long as a trajectory, at the question's end.
    let block = pieces(&chosen_first, "block")[0];
    assert_eq!(block.len(), (row(3).chosen.len() + row(3).rejected.len()) / 2);
    assert!(row(3).question.ends_with(block));
    // An unknown setting changes nothing.
    assert_eq!((BENCHMARK.arrange)(&case, "full", 0), case);
    // An ordered pair can be reordered.
    assert_eq!((BENCHMARK.arrange)(&rejected_first, "chosen-first", 0), chosen_first);
}

#[test]
fn the_random_order_is_that_of_the_seed_and_the_pair_and_about_half_of_each() {
    let first =
        |index: i64, seed: u64| letters(&(BENCHMARK.arrange)(&case(&row(index)), "random", seed))[1].0 == 1;
    let orders: Vec<bool> = (0..200).map(|index| first(index, 0)).collect();
    assert_eq!(orders, (0..200).map(|index| first(index, 0)).collect::<Vec<_>>());
    let chosen = orders.iter().filter(|first| **first).count();
    assert!((75..=125).contains(&chosen), "{chosen}");
    let other: Vec<bool> = (0..200).map(|index| first(index, 1)).collect();
    assert!((50..=150).contains(&orders.iter().zip(&other).filter(|(a, b)| a == b).count()));
    for (index, &chosen_first) in orders.iter().enumerate() {
        let expected = Order::Random.chosen_first(&index.to_string(), 0);
        assert_eq!(chosen_first, expected, "{index}");
    }
}

#[test]
fn notes_lose_their_tags_and_nothing_else_and_other_settings_nothing() {
    let mut changed = 0;
    for case in sample() {
        let plain = (BENCHMARK.arrange)(&case, "chosen-first", 0);
        let bare = (BENCHMARK.arrange)(&case, "chosen-first-untagged", 0);
        if !case.labels["subtask"].starts_with("A-Mem") {
            assert_eq!(plain, bare, "{}", case.id);
            continue;
        }
        changed += 1;
        for index in [1, 2] {
            assert!(text(&plain, index).contains("Tags: "));
            let without: Vec<&str> =
                text(&plain, index).lines().filter(|line| !line.starts_with("Tags: ")).collect();
            assert_eq!(text(&bare, index).lines().collect::<Vec<_>>(), without);
        }
        assert_eq!(text(&plain, 0), text(&bare, 0));
        let differing: Vec<&str> =
            ["only_chosen", "only_rejected"].into_iter().flat_map(|role| pieces(&bare, role)).collect();
        assert!(
            !differing.is_empty() && differing.iter().all(|piece| !piece.contains("Tags: ")),
            "{differing:?}"
        );
    }
    assert_eq!(changed, 4);
}

#[test]
fn questions_keep_so_much_of_their_constraints_and_trajectories_stay() {
    let cases: Vec<Case> = sample();
    let at = |case: &Case, density: u32| (BENCHMARK.arrange)(case, &format!("random-density-{density}"), 5);
    for case in &cases {
        let whole = (BENCHMARK.arrange)(case, "random", 5);
        assert_eq!(at(case, 100), whole, "{}", case.id);
        let lengths: Vec<usize> =
            [0, 25, 50, 75, 100].map(|density| text(&at(case, density), 0).len()).to_vec();
        if case.labels["task"] != "Long-form_Generation" {
            assert!(lengths.iter().all(|length| *length == lengths[4]), "{}", case.id);
            continue;
        }
        assert!(lengths.windows(2).all(|pair| pair[0] < pair[1]), "{}: {lengths:?}", case.id);
        for density in [0, 50] {
            let thinned = at(case, density);
            assert_eq!((text(&thinned, 1), text(&thinned, 2)), (text(&whole, 1), text(&whole, 2)));
        }
    }
    let routes = cases.iter().find(|case| text(case, 0).contains("You can travel from")).unwrap();
    let count = |density: u32| text(&at(routes, density), 0).matches("You can travel from").count();
    assert_eq!([0, 25, 50, 75, 100].map(count), [0, 2, 4, 6, 8]);
}

#[test]
fn a_pair_of_long_lines_without_anything_in_common_is_all_alone() {
    let row = Row { chosen: "é one".to_owned(), rejected: "\n\n two \n".to_owned(), ..row(1) };
    let case = case(&row);
    assert_eq!((pieces(&case, "only_chosen"), pieces(&case, "only_rejected")), (vec!["é one"], vec!["two"]));
}
