//! What must hold for: statistics, against established libraries and the published tables.
use palimpsest::ground::numbers::quantile;
use palimpsest::lens::Resampling;
use palimpsest::lens::band::Estimate;
use palimpsest::statistics::agreement::Agreement;
use palimpsest::statistics::holm::holm;
use palimpsest::statistics::kappa::{Weights, confusion, kappa};
use palimpsest::statistics::lasso::{lasso, r2};
use palimpsest::statistics::mcnemar::mcnemar;
use palimpsest::statistics::paired::paired_bootstrap;
use palimpsest::statistics::rank::{ranks, spearman};
use palimpsest::statistics::ridge::Ridge;
use palimpsest::statistics::spread::{Spread, mean};
use palimpsest::statistics::{stratified_bootstrap, wilson};
use serde_json::Value;

/// Made by scripts/statistics_reference.py; the versions stand in it.
fn reference() -> Value {
    serde_json::from_str(include_str!("fixtures/statistics.json")).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn wilson_intervals_equal_statsmodels() {
    let reference = reference();
    let rows = reference["wilson"].as_array().unwrap();
    assert!(rows.len() >= 20);
    for row in rows {
        let (k, n) = (row["successes"].as_u64().unwrap() as usize, row["trials"].as_u64().unwrap() as usize);
        let ours = wilson(k, n, row["level"].as_f64().unwrap()).unwrap();
        assert!((ours.low - row["low"].as_f64().unwrap()).abs() < 1e-9, "{row}");
        assert!((ours.high - row["high"].as_f64().unwrap()).abs() < 1e-9, "{row}");
    }
}

#[test]
fn wilson_is_absent_where_it_has_no_meaning() {
    assert_eq!(wilson(0, 0, 0.95), None);
    assert_eq!(wilson(3, 2, 0.95), None);
    assert_eq!(wilson(1, 2, 1.0), None);
    assert_eq!(wilson(1, 2, f64::NAN), None);
}

#[test]
fn quantiles_equal_numpy() {
    let reference = reference();
    let sorted = floats(&reference["quantile"]["sorted"]);
    let q = floats(&reference["quantile"]["q"]);
    for (q, expected) in q.iter().zip(floats(&reference["quantile"]["expected"])) {
        assert!((quantile(&sorted, *q) - expected).abs() < 1e-12);
    }
    assert!(quantile(&[], 0.5).is_nan());
}

/// A (rows, columns) array of the reference.
fn matrix(value: &Value) -> ndarray::Array2<f64> {
    let rows: Vec<Vec<f64>> = value.as_array().unwrap().iter().map(floats).collect();
    let columns = rows[0].len();
    ndarray::Array2::from_shape_vec((rows.len(), columns), rows.concat()).unwrap()
}

/// Two independent bootstraps agree up to the noise of their draws: 2% of the band's width.
fn assert_bands_agree(ours: &[Estimate], scipy: &Value) {
    let expected: Vec<_> = floats(&scipy["low"]).into_iter().zip(floats(&scipy["high"])).collect();
    assert_eq!(ours.len(), expected.len());
    for (estimate, (l, h)) in ours.iter().zip(expected) {
        let (low, high) = estimate.band.unwrap();
        let tolerance = 0.02 * (h - l);
        assert!((low - l).abs() < tolerance && (high - h).abs() < tolerance, "{low} {high} against {l} {h}");
    }
}

#[test]
fn the_bands_of_the_figures_agree_with_scipy_within_monte_carlo_error() {
    let reference = reference();
    let of_means = &reference["bootstrap_mean"];
    assert_bands_agree(&Resampling::new(40, 20_000, 1).means(&matrix(&of_means["values"])), of_means);
    let of_ratios = &reference["bootstrap_ratio"];
    let (numerator, denominator) = (matrix(&of_ratios["numerator"]), matrix(&of_ratios["denominator"]));
    assert_bands_agree(&Resampling::new(40, 20_000, 1).ratios(&numerator, &denominator), of_ratios);
}

#[test]
fn bands_are_the_same_for_the_same_seed_and_move_with_another() {
    let values = ndarray::Array2::from_shape_fn((12, 1), |(i, _)| (i * i) as f64);
    let band = |seed| Resampling::new(12, 500, seed).means(&values)[0].band;
    assert_eq!(band(3), band(3));
    assert_ne!(band(3), band(4));
}

#[test]
fn resampling_keeps_to_the_strata() {
    // Each stratum is constant, so a draw that mixed them would move the statistic.
    let strata = vec![vec![0.0; 5], vec![1.0; 3]];
    let interval = stratified_bootstrap(
        &strata,
        |sample| {
            assert_eq!(sample.iter().map(Vec::len).collect::<Vec<_>>(), [5, 3]);
            mean(&sample.iter().flatten().map(|x| **x).collect::<Vec<f64>>())
        },
        200,
        9,
    )
    .unwrap();
    assert_eq!((interval.low, interval.high), (0.375, 0.375));
    assert_eq!(stratified_bootstrap::<f64>(&[], |_| None, 10, 0), None);
}

fn counts(value: &Value) -> Vec<usize> {
    floats(value).iter().map(|x| *x as usize).collect()
}

#[test]
fn exact_mcnemar_equals_statsmodels_and_scipy() {
    let reference = reference();
    let rows = reference["mcnemar"].as_array().unwrap();
    assert!(rows.len() >= 10);
    for row in rows {
        let [b, c] = ["b", "c"].map(|name| row[name].as_u64().unwrap() as usize);
        let ours = mcnemar(b, c);
        for other in ["p", "binomtest"] {
            // Relative, so that small p-values are held to it too.
            let expected = row[other].as_f64().unwrap();
            assert!((ours - expected).abs() < 1e-9 * expected, "{ours} against {other} of {row}");
        }
    }
    // By hand: 2 (C(10,0) + C(10,1)) / 2^10, and 2 / 2^5.
    assert!((mcnemar(1, 9) - 22.0 / 1024.0).abs() < 1e-12 && (mcnemar(0, 5) - 2.0 / 32.0).abs() < 1e-12);
    assert_eq!((mcnemar(0, 0), mcnemar(5, 5)), (1.0, 1.0));
    // Its definition, summed term by term in whole numbers.
    for (b, c) in (0..12_u64).flat_map(|b| (0..12_u64).map(move |c| (b, c))) {
        let n = b + c;
        let choose = |k: u64| (0..k).fold(1_u64, |product, i| product * (n - i) / (i + 1));
        let tail: u64 = (0..=b.min(c)).map(choose).sum();
        let expected = (2.0 * tail as f64 / (1_u64 << n) as f64).min(1.0);
        assert!((mcnemar(b as usize, c as usize) - expected).abs() < 1e-12, "{b} {c}");
    }
}

#[test]
fn holm_equals_statsmodels() {
    let reference = reference();
    for row in reference["holm"].as_array().unwrap() {
        let (ours, expected) = (holm(&floats(&row["p"])), floats(&row["adjusted"]));
        assert_eq!(ours.len(), expected.len());
        for (ours, expected) in ours.iter().zip(expected) {
            assert!((ours - expected).abs() < 1e-9, "{row}");
        }
    }
}

#[test]
fn kappa_plain_and_quadratic_equals_statsmodels_and_scikit_learn() {
    let reference = reference();
    for row in reference["kappa"].as_array().unwrap() {
        let table: Vec<Vec<usize>> = row["table"].as_array().unwrap().iter().map(counts).collect();
        for (weights, name) in [(Weights::Plain, "plain"), (Weights::Quadratic, "quadratic")] {
            let ours = kappa(&table, weights).unwrap();
            assert!((ours - row[name].as_f64().unwrap()).abs() < 1e-9, "{name} of {row}");
        }
        // The table of its own pairs is itself.
        let pairs = table.iter().enumerate().flat_map(|(i, row)| {
            row.iter().enumerate().flat_map(move |(j, count)| std::iter::repeat_n((i, j), *count))
        });
        assert_eq!(confusion(pairs, table.len()), table);
    }
    assert_eq!(kappa(&[] as &[[usize; 0]], Weights::Plain), None);
    assert_eq!(kappa(&[[1, 2]], Weights::Plain), None, "not square");
    assert_eq!(kappa(&[[7, 0], [0, 0]], Weights::Quadratic), None, "chance explains all");
    assert_eq!(confusion([(0, 0), (2, 0), (1, 5)], 2), [[1, 0], [0, 0]]);
}

#[test]
fn mean_and_standard_deviation_equal_numpy() {
    let reference = reference();
    for row in reference["spread"].as_array().unwrap() {
        let ours = Spread::of(&floats(&row["numbers"])).unwrap();
        assert!((ours.mean - row["mean"].as_f64().unwrap()).abs() < 1e-9, "{row}");
        assert_eq!(ours.sd.is_some(), row["sd"].is_f64());
        let expected = row["sd"].as_f64().unwrap_or_default();
        assert!((ours.sd.unwrap_or_default() - expected).abs() < 1e-9, "{row}");
    }
    assert_eq!(Spread::of(&[]), None);
}

#[test]
fn the_paired_bootstrap_agrees_with_scipy_within_monte_carlo_error() {
    let reference = reference();
    let [first, second] = ["first", "second"].map(|name| floats(&reference["paired"][name]));
    let of_units = |units: &[Vec<&f64>]| mean(&units.iter().flatten().map(|x| **x).collect::<Vec<f64>>());
    let interval = |first: &[f64], second: &[f64]| {
        let pairs = vec![first.iter().copied().zip(second.iter().copied()).collect::<Vec<_>>()];
        paired_bootstrap(&pairs, of_units, 20_000, 1).unwrap()
    };
    let ours = interval(&first, &second);
    let [low, high] = ["low", "high"].map(|name| reference["paired"][name].as_f64().unwrap());
    // Two independent bootstraps agree up to the noise of their draws: 2% of the width.
    let tolerance = 0.02 * (high - low);
    assert!(
        (ours.low - low).abs() < tolerance && (ours.high - high).abs() < tolerance,
        "{ours:?} {low} {high}"
    );
    // The same draws the other way round.
    let swapped = interval(&second, &first);
    assert!((swapped.low + ours.high).abs() < 1e-9 && (swapped.high + ours.low).abs() < 1e-9);
    // What both sides share cancels whole, which unpaired draws would not do.
    let shifted: Vec<f64> = first.iter().map(|x| x + 1.5).collect();
    let constant = interval(&shifted, &first);
    assert!((constant.low - 1.5).abs() < 1e-9 && (constant.high - 1.5).abs() < 1e-9);
    assert_eq!(paired_bootstrap::<f64>(&[], |_| None, 10, 0), None);
}

#[test]
fn paired_resampling_keeps_to_the_strata() {
    let strata = vec![vec![(1.0, 0.0); 5], vec![(0.0, 0.0); 3]];
    let of_units = |units: &[Vec<&f64>]| {
        assert_eq!(units.iter().map(Vec::len).collect::<Vec<_>>(), [5, 3]);
        mean(&units.iter().flatten().map(|x| **x).collect::<Vec<f64>>())
    };
    let interval = paired_bootstrap(&strata, of_units, 200, 3).unwrap();
    assert_eq!((interval.low, interval.high), (0.625, 0.625));
}

#[test]
fn agreement_equals_scikit_learn() {
    for row in reference()["agreement"].as_array().unwrap() {
        let counts = counts(&row["counts"]);
        let ours = Agreement {
            true_positive: counts[0],
            false_positive: counts[1],
            false_negative: counts[2],
            true_negative: counts[3],
        };
        for (name, value) in [
            ("kappa", ours.kappa()),
            ("precision", ours.precision()),
            ("recall", ours.recall()),
            ("f1", ours.f1()),
        ] {
            assert!((value.unwrap() - row[name].as_f64().unwrap()).abs() < 1e-12, "{name} of {row}");
        }
    }
}

#[test]
fn table_7_follows_from_its_counts() {
    // STALE, table 7: (TP, FP, FN, TN) as its percentages determine them, then what it prints.
    #[rustfmt::skip]
    let rows = [
        ("Overall", [99, 2, 8, 131], ["240", "95.83", "0.9152", "98.02", "92.52", "95.19", "1.50", "7.48"]),
        ("SR",      [51, 1, 0, 28],  ["80", "98.75", "0.9728", "98.08", "100.00", "99.03", "3.45", "0.00"]),
        ("PR",      [13, 1, 1, 65],  ["80", "97.50", "0.9134", "92.86", "92.86", "92.86", "1.52", "7.14"]),
        ("IPA",     [35, 0, 7, 38],  ["80", "91.25", "0.8261", "100.00", "83.33", "90.91", "0.00", "16.67"]),
        ("Type I",  [56, 1, 3, 60],  ["120", "96.67", "0.9333", "98.25", "94.92", "96.55", "1.64", "5.08"]),
        ("Type II", [43, 1, 5, 71],  ["120", "95.00", "0.8944", "97.73", "89.58", "93.48", "1.39", "10.42"]),
    ];
    let percent = |x: Option<f64>| format!("{:.2}", 100.0 * x.unwrap());
    for (name, [tp, fp, fn_, tn], printed) in rows {
        let a = Agreement { true_positive: tp, false_positive: fp, false_negative: fn_, true_negative: tn };
        let ours = [
            a.n().to_string(),
            percent(a.agreement()),
            format!("{:.4}", a.kappa().unwrap()),
            percent(a.precision()),
            percent(a.recall()),
            percent(a.f1()),
            percent(a.false_positive_rate()),
            percent(a.false_negative_rate()),
        ];
        assert_eq!(ours, printed.map(str::to_owned), "{name}");
    }
    // The dimensions make up the whole, and so do the types.
    for parts in [&rows[1..4], &rows[4..6]] {
        for i in 0..4 {
            assert_eq!(parts.iter().map(|(_, counts, _)| counts[i]).sum::<usize>(), rows[0].1[i]);
        }
    }
}

#[test]
fn agreement_is_absent_rather_than_nan() {
    let none = Agreement::default();
    assert_eq!(
        (none.n(), none.agreement(), none.kappa(), none.precision(), none.f1()),
        (0, None, None, None, None)
    );
    // Both always say yes: chance explains everything.
    let always = Agreement::count([(true, true), (true, true)]);
    assert_eq!((always.agreement(), always.kappa(), always.false_positive_rate()), (Some(1.0), None, None));
}

#[test]
fn rank_correlations_equal_scipys() {
    let reference = reference();
    let rows = reference["spearman"].as_array().unwrap();
    assert!(rows.len() >= 4);
    for row in rows {
        let ours = spearman(&floats(&row["first"]), &floats(&row["second"])).unwrap();
        assert!((ours - row["rho"].as_f64().unwrap()).abs() < 1e-12, "{row}");
    }
    assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0]), [3.5, 2.0, 3.5, 1.0]);
    // Of what does not vary, of two things, and of what is absent nothing is said.
    assert_eq!(spearman(&[1.0, 1.0, 1.0], &[1.0, 2.0, 3.0]), None);
    assert_eq!(spearman(&[1.0, 2.0], &[1.0, 2.0]), None);
    assert_eq!(spearman(&[1.0, 2.0, f64::NAN, 3.0], &[1.0, 2.0, 0.0, 3.0]), Some(1.0));
}

#[test]
fn ridge_regressions_equal_scikit_learns() {
    let reference = reference();
    let rows = reference["ridge"].as_array().unwrap();
    assert!(rows.len() >= 4);
    for row in rows {
        let x = matrix(&row["x"]);
        let y = ndarray::Array1::from(floats(&row["y"]));
        let ours = Ridge::fit(&x, &y, row["penalty"].as_f64().unwrap()).unwrap();
        for (ours, theirs) in ours.weights.iter().zip(floats(&row["weights"])) {
            assert!((ours - theirs).abs() < 1e-9, "{ours} is not {theirs}");
        }
        assert!((ours.intercept - row["intercept"].as_f64().unwrap()).abs() < 1e-9);
        let said = ours.predict(x.row(0));
        assert!((said - (x.row(0).dot(&ours.weights) + ours.intercept)).abs() < 1e-12);
    }
    assert_eq!(Ridge::fit(&ndarray::Array2::zeros((0, 2)), &ndarray::Array1::zeros(0), 1.0), None);
    assert_eq!(
        Ridge::fit(&ndarray::Array2::from_elem((3, 2), f64::NAN), &ndarray::Array1::zeros(3), 1.0),
        None
    );
}

#[test]
fn the_lasso_equals_scikit_learn() {
    let reference = reference();
    let fits = reference["lasso"].as_array().unwrap();
    let mut zeros = 0;
    for fit in fits {
        let bits =
            |row: &Value| row.as_str().unwrap().chars().map(|c| f64::from(u8::from(c == '1'))).collect();
        let x: Vec<Vec<f64>> = fit["x"].as_array().unwrap().iter().map(bits).collect();
        let (y, alpha) = (floats(&fit["y"]), fit["alpha"].as_f64().unwrap());
        let (found, weights) = (lasso(&x, &y, alpha), floats(&fit["weights"]));
        assert_eq!(found.weights.len(), weights.len());
        for (weight, expected) in found.weights.iter().zip(&weights) {
            assert!((weight - expected).abs() < 1e-6, "{weight} is not {expected}");
            assert_eq!(*weight == 0.0, *expected == 0.0, "{weight} is not {expected}");
            zeros += usize::from(*weight == 0.0);
        }
        assert!((found.intercept - fit["intercept"].as_f64().unwrap()).abs() < 1e-6);
        assert!((r2(&found, &x, &y).unwrap() - fit["r2"].as_f64().unwrap()).abs() < 1e-6);
    }
    assert!(zeros > 10 && fits.len() == 4);
    assert_eq!(lasso(&[], &[], 0.1).weights, [0.0; 0]);
    assert_eq!(
        r2(&lasso(&[vec![1.0], vec![0.0]], &[2.0, 2.0], 0.1), &[vec![1.0], vec![0.0]], &[2.0, 2.0]),
        None
    );
}
