//! Prefill time predicted from a shorter prefill.

use palimpsest::runs::forecast::{PrefillFit, rising};

#[test]
fn exact_times_give_the_exact_coefficients_and_no_error() {
    let (a, b) = (2e-3, 3e-8);
    let time = |n: usize| a * n as f64 + b * (n * n) as f64;
    let chunks: Vec<_> =
        (0..9).map(|i| (i * 512, (i + 1) * 512, time((i + 1) * 512) - time(i * 512))).collect();
    let fit = PrefillFit::of(&chunks).unwrap();
    assert!((fit.a / a - 1.0).abs() < 1e-6 && (fit.b / b - 1.0).abs() < 1e-6, "{fit:?}");
    assert!((fit.seconds(0, 150_000) / time(150_000) - 1.0).abs() < 1e-6);
    let rest = time(30_100) - time(30_000);
    assert!((fit.seconds(30_000, 100) / rest - 1.0).abs() < 1e-6);
    assert!(fit.error(0, 150_000) < 1e-5 * time(150_000));
}

#[test]
fn scatter_gives_the_standard_error_of_statsmodels() {
    // python -c 'import numpy as np, statsmodels.api as sm; n=np.arange(1,7)*1000.; m=n-1000
    // x=np.c_[n-m, n*n-m*m]; t=np.array([1.0,1.2,1.3,1.6,1.7,2.1]); r=sm.OLS(t,x).fit(); p=np.array([2e4,4e8])
    // print(r.params, r.params@p, np.sqrt(p@r.cov_params()@p))'
    let times = [1.0, 1.2, 1.3, 1.6, 1.7, 2.1];
    let chunks: Vec<_> = times.iter().enumerate().map(|(i, t)| (i * 1000, (i + 1) * 1000, *t)).collect();
    let fit = PrefillFit::of(&chunks).unwrap();
    let close = |x: f64, y: f64| assert!((x / y - 1.0).abs() < 1e-8, "{x} is not {y}");
    close(fit.a, 0.000_857_619_047_619_047_7);
    close(fit.b, 1.042_857_142_857_143_3e-7);
    close(fit.seconds(0, 20_000), 58.866_666_666_666_69);
    close(fit.error(0, 20_000), 2.832_689_002_366_301);
}

#[test]
fn no_coefficient_is_below_zero_and_one_chunk_is_a_rate() {
    let falling = PrefillFit::of(&[(0, 10, 3.0), (10, 20, 2.0), (20, 30, 1.0)]).unwrap();
    assert!((falling.a - 0.2).abs() < 1e-12 && falling.b == 0.0, "{falling:?}");
    assert_eq!(PrefillFit::of(&[(0, 10, 3.0)]).unwrap().seconds(0, 20), 6.0);
    assert_eq!((PrefillFit::of(&[]), PrefillFit::of(&[(5, 5, 1.0)])), (None, None));
}

#[test]
fn a_line_rises_or_is_flat() {
    assert_eq!(rising((10, 1.0), (20, 2.0), 40), 4.0);
    assert_eq!(rising((10, 2.0), (20, 1.0), 40), 1.0);
    assert_eq!(rising((10, 2.0), (10, 3.0), 40), 3.0);
}
