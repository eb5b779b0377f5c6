//! Statistics against established libraries and the published tables.
use palimpsest::ground::numbers::quantile;
use palimpsest::lens::Numbers;
use palimpsest::lens::band::Estimate;
use palimpsest::statistics::agreement::Agreement;
use palimpsest::statistics::bounded::{Stratum, adjusted_mean};
use palimpsest::statistics::holm::holm;
use palimpsest::statistics::kappa::{Weights, confusion, kappa};
use palimpsest::statistics::lasso::{lasso, r2};
use palimpsest::statistics::mcnemar::mcnemar;
use palimpsest::statistics::rank::spearman;
use palimpsest::statistics::ridge::Ridge;
use palimpsest::statistics::spread::Spread;
use palimpsest::statistics::{means, wilson};
use serde_json::Value;

/// Made by tests/reference/statistics_reference.py, which records the versions.
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
fn ratios_of_any_sign_hold_what_students_t_does_not_refuse_and_nothing_where_the_second_mean_may_be_zero() {
    use palimpsest::statistics::means::{signed_ratio, t_quantile};
    let (over, under) = ([0.4, -0.1, 0.9, 0.3, 0.7], [1.1, 0.8, 1.6, 0.9, 1.2]);
    let interval = signed_ratio(&over, &under).unwrap();
    let t = |r: f64| {
        let apart: Vec<f64> = over.iter().zip(&under).map(|(a, b)| a - r * b).collect();
        let mean = apart.iter().sum::<f64>() / 5.0;
        let variance = apart.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4.0;
        mean / (variance / 5.0).sqrt()
    };
    let bound = t_quantile(4.0).unwrap();
    assert!((t(interval.low) - bound).abs() < 1e-6 && (t(interval.high) + bound).abs() < 1e-6);
    let ratio = over.iter().sum::<f64>() / under.iter().sum::<f64>();
    assert!(interval.low < ratio && ratio < interval.high);
    assert_eq!(signed_ratio(&over, &[1.0, -1.0, 0.5, -0.6, 0.2]), None);
    assert_eq!(signed_ratio(&[1.0], &[2.0]), None);
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

fn columns(value: &Value) -> Vec<Vec<f64>> {
    matrix(value).columns().into_iter().map(|column| column.to_vec()).collect()
}

#[test]
fn bands_of_masses_and_of_ratios_equal_scipy_and_numpy() {
    let reference = reference();
    let ends =
        |of: &Value| -> Vec<(f64, f64)> { floats(&of["low"]).into_iter().zip(floats(&of["high"])).collect() };
    let close = |ours: &[Estimate], expected: Vec<(f64, f64)>| {
        assert_eq!(ours.len(), expected.len());
        for (estimate, (l, h)) in ours.iter().zip(expected) {
            let (low, high) = estimate.band.unwrap();
            assert!(
                (low / l - 1.0).abs() < 1e-9 && (high / h - 1.0).abs() < 1e-9,
                "{low} {high} against {l} {h}"
            );
        }
    };
    let means = |of: &Value, numbers: Numbers| -> Vec<Estimate> {
        columns(&of["values"]).into_iter().map(|column| Estimate::mean(column, numbers)).collect()
    };
    let masses = &reference["masses"];
    close(&means(masses, Numbers::Positive), ends(masses));
    let signed = &reference["signed"];
    for (estimate, (l, h)) in means(signed, Numbers::Signed).iter().zip(ends(signed)) {
        let (low, high) = estimate.band.unwrap();
        assert!((low - l).abs() < 1e-9 && (high - h).abs() < 1e-9, "{low} {high} against {l} {h}");
    }
    let ratio = &reference["ratio"];
    let pairs = columns(&ratio["numerator"]).into_iter().zip(columns(&ratio["denominator"]));
    let ratios = pairs.map(|(over, under)| {
        Estimate::ratio(over.into_iter().zip(under), palimpsest::statistics::means::ratio)
    });
    close(&ratios.collect::<Vec<_>>(), ends(ratio));
}

#[test]
fn adjusted_intervals_equal_statsmodels_t_of_the_sample_with_one_more_at_either_bound() {
    let reference = reference();
    let rows = reference["adjusted"].as_array().unwrap();
    assert!(rows.len() >= 6);
    for row in rows {
        let [low, high] = ["lowest", "highest"].map(|bound| row[bound].as_f64().unwrap());
        let ours =
            adjusted_mean(&[Stratum { weight: 1.0, units: floats(&row["units"]) }], (low, high)).unwrap();
        let [l, h] = ["low", "high"].map(|end| row[end].as_f64().unwrap());
        assert!((ours.low - l).abs() < 1e-9 && (ours.high - h).abs() < 1e-9, "{ours:?} against {row}");
    }
}

#[test]
fn strata_are_summed_by_their_plain_definition_and_a_single_unit_has_no_interval() {
    let strata = [
        Stratum { weight: 0.7, units: vec![0.0, 1.0, 0.5, 1.0] },
        Stratum { weight: 0.3, units: vec![1.0, 1.0] },
    ];
    // A unit at 0 and one at 1, as weighted pseudo-observations.
    let (mut mean, mut variance) = (0.0, 0.0);
    for Stratum { weight, units } in &strata {
        let mut weighted: Vec<(f64, f64)> = units.iter().map(|x| (1.0, *x)).collect();
        weighted.extend([(*weight, 0.0), (*weight, 1.0)]);
        let n: f64 = weighted.iter().map(|(w, _)| w).sum();
        let own = weighted.iter().map(|(w, x)| w * x).sum::<f64>() / n;
        let squares: f64 = weighted.iter().map(|(w, x)| w * (x - own).powi(2)).sum();
        mean += weight * own;
        variance += weight * weight * squares / (n - 1.0) / n;
    }
    // Student's quantile, 6 + 2 - 2 degrees of freedom.
    let half = 2.446_911_851 * f64::sqrt(variance);
    let ours = adjusted_mean(&strata, (0.0, 1.0)).unwrap();
    assert!((ours.low - (mean - half)).abs() < 1e-8 && (ours.high - f64::min(mean + half, 1.0)).abs() < 1e-8);
    let one = |weight| Stratum { weight, units: vec![1.0] };
    assert_eq!(adjusted_mean(&[one(1.0)], (0.0, 1.0)), None);
    assert_eq!(adjusted_mean(&[one(0.5), one(0.5)], (0.0, 1.0)), None);
    assert_eq!(adjusted_mean(&[], (0.0, 1.0)), None);
    assert_eq!(
        (means::positive(&[0.3]), means::signed(&[0.3]), means::ratio(&[1.0], &[2.0])),
        (None, None, None)
    );
}

#[test]
fn differences_of_pairs_lie_by_the_published_intervals_and_agree_with_the_exact_test() {
    let interval = |b: usize, c: usize, n: usize| {
        let units = [vec![1.0; b], vec![-1.0; c], vec![0.0; n - b - c]].concat();
        adjusted_mean(&[Stratum { weight: 1.0, units }], (-1.0, 1.0)).unwrap()
    };
    // Newcombe 1998 (method 10) and Tango 1998 on airway reactivity, b = 12 and c = 2 of 50, as printed.
    for (low, high) in [(0.0569, 0.3404), (0.0611, 0.3447)] {
        let ours = interval(12, 2, 50);
        assert!((ours.low - low).abs() < 0.02 && (ours.high - high).abs() < 0.02, "{ours:?}");
    }
    // For all counts, an interval that excludes 0 has a p-value of at most 0.0655.
    for n in 2..=60 {
        for b in 0..=n {
            for c in 0..=b.min(n - b) {
                let ours = interval(b, c, n);
                assert!(ours.high > ours.low);
                assert!(ours.low <= 0.0 || mcnemar(b, c) < 0.0655, "{b} {c} of {n}: {ours:?}");
            }
        }
    }
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
            // Relative, so that small p-values are tested too.
            let expected = row[other].as_f64().unwrap();
            assert!((ours - expected).abs() < 1e-9 * expected, "{ours} against {other} of {row}");
        }
    }
    // By hand: 2 (C(10,0) + C(10,1)) / 2^10, and 2 / 2^5.
    assert!((mcnemar(1, 9) - 22.0 / 1024.0).abs() < 1e-12 && (mcnemar(0, 5) - 2.0 / 32.0).abs() < 1e-12);
    assert_eq!((mcnemar(0, 0), mcnemar(5, 5)), (1.0, 1.0));
    // Its definition, summed term by term in integers.
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
    // STALE, table 7: (TP, FP, FN, TN) determined by its percentages, then the printed values.
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
    // The dimensions add up to the whole, and so do the types.
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
    // Both always say yes: agreement is entirely by chance.
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
    // Undefined for constants, for two points, and for missing values.
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
