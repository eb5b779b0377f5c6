//! Pure counts, against the paper's values.

use std::collections::BTreeSet;

use palimpsest::benchmarks::Share;
use palimpsest::benchmarks::subtlememory::counts::{Stages, discordant, points, stages};
use palimpsest::statistics::kappa::{Weights, kappa};
use palimpsest::statistics::mcnemar::mcnemar;

use super::percent;

fn ratio(count: usize, of: usize) -> Option<f64> {
    Share { count, of }.share()
}

/// Ids from `from` on.
fn ids(from: usize, count: usize) -> BTreeSet<usize> {
    (from..from + count).collect()
}

/// Stages of `questions` questions, with `outside` correct by default outside S_P.
fn waterfall(questions: usize, [oracle, preserved, retrieved]: [usize; 3], outside: usize) -> Stages {
    let perfect = ids(0, preserved);
    // Correct by default: part of S_P, and some of the rest, which may be correct under perfect retrieval but not under oracle.
    let default: BTreeSet<usize> = ids(0, retrieved).into_iter().chain(ids(preserved, outside)).collect();
    stages(&ids(0, questions), &ids(0, oracle), &perfect, &default)
}

fn shares(stages: &Stages) -> (String, String) {
    (percent(stages.preserved, stages.oracle), percent(stages.retrieved, stages.preserved))
}

#[test]
fn accuracy_is_over_questions_to_the_printed_digit() {
    let oracle = [(299, 361, "82.83"), (742, 784, "94.64"), (259, 377, "68.70")];
    for (right, of, printed) in oracle {
        assert_eq!(percent(right, of), printed);
    }
    assert_eq!(percent(299 + 742 + 259, 1522), "85.41");
    // The mean over relations differs.
    let macro_average: f64 =
        oracle.iter().map(|(right, of, _)| ratio(*right, *of).unwrap()).sum::<f64>() / 3.0;
    assert_eq!(format!("{:.2}", 100.0 * macro_average), "82.06");
    assert_eq!((291 + 704 + 157, percent(291 + 704 + 157, 1522)), (1152, "75.69".to_owned()));
    assert_eq!(percent(127, 141), "90.07");
    assert_eq!(
        (percent(0, 0), percent(1, 8), percent(0, 3)),
        ("-".to_owned(), "12.50".to_owned(), "0.00".to_owned())
    );
    assert_eq!(percent(1, 3200), "0.03", "0.03125 is rounded down, and a half of the last digit up");
    assert_eq!(percent(1, 20_000), "0.01");
}

#[test]
fn the_waterfall_of_a_mem_is_as_printed_and_its_product_is_no_accuracy() {
    let all = waterfall(1522, [1300, 274 + 724 + 217, 193 + 633 + 156], 1065 - 982);
    assert_eq!((all.preserved, all.retrieved, all.default), (1215, 982, 1065));
    assert_eq!(shares(&all), ("93.46".to_owned(), "80.82".to_owned()));
    assert_eq!((percent(982, 1522), percent(all.default, 1522)), ("64.52".to_owned(), "69.97".to_owned()));
    assert_eq!(all.outside(), 83);
    let product = all.oracle as f64 / 1522.0
        * ratio(all.preserved, all.oracle).unwrap()
        * ratio(all.retrieved, all.preserved).unwrap();
    assert!((product - 982.0 / 1522.0).abs() < 1e-12);
}

#[test]
fn the_stages_of_other_systems_are_as_printed() {
    let openclaw = waterfall(377, [259, 184, 63], 0);
    assert_eq!(shares(&openclaw), ("71.04".to_owned(), "34.24".to_owned()));
    let memobase = waterfall(1522, [1300, 508, 384], 0);
    assert_eq!(shares(&memobase), ("39.08".to_owned(), "75.59".to_owned()));
}

#[test]
fn more_can_be_right_by_default_than_under_perfect_retrieval() {
    // Mem0 + OpenClaw on contradictory sets: 259 correct under oracle, 74 under perfect retrieval, 71 under both, 172 by default.
    let oracle = ids(0, 259);
    let perfect: BTreeSet<usize> = ids(0, 71).into_iter().chain(ids(300, 3)).collect();
    let default: BTreeSet<usize> = ids(0, 51).into_iter().chain(ids(100, 121)).collect();
    assert_eq!(
        (percent(perfect.len(), 377), percent(default.len(), 377)),
        ("19.63".to_owned(), "45.62".to_owned())
    );
    let stages = stages(&ids(0, 377), &oracle, &perfect, &default);
    assert_eq!((stages.retrieved, stages.outside()), (51, 121));
    assert_eq!(shares(&stages), ("27.41".to_owned(), "71.83".to_owned()));
}

#[test]
fn shares_of_nothing_are_absent() {
    let none = waterfall(10, [0, 0, 0], 4);
    assert_eq!(
        (ratio(none.preserved, none.oracle), ratio(none.retrieved, none.preserved), none.outside()),
        (None, None, 4)
    );
    let lost = waterfall(10, [5, 0, 0], 0);
    assert_eq!(
        (ratio(lost.preserved, lost.oracle), ratio(lost.retrieved, lost.preserved)),
        (Some(0.0), None)
    );
}

#[test]
fn differences_come_from_counts_and_not_from_printed_numbers() {
    assert_eq!((points(215.0 / 1522.0), points(164.0 / 1522.0)), ("+14.13".to_owned(), "+10.78".to_owned()));
    let printed = |text: String| text.parse::<f64>().unwrap();
    let of_prints = printed(percent(1300, 1522)) - printed(percent(1300 - 215, 1522));
    assert_eq!(format!("{of_prints:.2}"), "14.12");
    assert_eq!(
        (points(0.0), points(-0.00001), points(-0.5)),
        ("+0.00".to_owned(), "+0.00".to_owned(), "-50.00".to_owned())
    );
}

#[test]
fn discordant_questions_are_those_that_one_side_alone_gets_right() {
    let (b, c) = discordant(&ids(0, 10), &ids(9, 10));
    assert_eq!((b, c), (9, 9));
    let (b, c) = discordant(&ids(0, 10), &ids(9, 2));
    assert_eq!((b, c), (9, 1));
    assert!((mcnemar(b, c) - 0.021484375).abs() < 1e-12);
}

/// 225 ratings of five answers to 45 questions: four disagreements give the printed kappa, .963.
#[test]
fn the_printed_agreement_with_people_is_four_disagreements() {
    let of =
        |wrong: usize, right: usize| kappa(&[[right, 2], [2, 225 - right - wrong]], Weights::Plain).unwrap();
    // The margins are not printed; .963 lies between the values for a balanced and an uneven split.
    assert!((of(4, 111) - 0.9644).abs() < 5e-4, "{}", of(4, 111));
    assert!(of(4, 85) < 0.9633 && of(4, 85) > 0.962, "{}", of(4, 85));
}
