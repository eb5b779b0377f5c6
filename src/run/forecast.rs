//! Seconds of a prefill of some length, from a measured shorter one.
//!
//! Pure arithmetic, used by `run --estimate`. The time of a prefill of n tokens is taken to be a n + b n^2: matrix products cost the
//! same for every token, and attention costs more the more tokens come before. Layers with a window only make b smaller.

/// The time of a prefill, fitted to one that was measured chunk by chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillFit {
    pub a: f64,
    /// Seconds a token and token before it, by half.
    pub b: f64,
    /// Variances of `a` and `b`, and their covariance.
    covariance: [f64; 3],
}

impl PrefillFit {
    /// The least-squares fit of chunks, each given by the tokens before it, the tokens after it, and its seconds. Neither
    /// coefficient is below 0. `None` without chunks, or where they have no tokens.
    pub fn of(chunks: &[(usize, usize, f64)]) -> Option<Self> {
        // Each chunk from m to n gives one equation: seconds = a (n - m) + b (n^2 - m^2).
        let rows: Vec<(f64, f64, f64)> = chunks
            .iter()
            .map(|&(m, n, seconds)| {
                let (m, n) = (m as f64, n as f64);
                (n - m, n * n - m * m, seconds)
            })
            .collect();
        let sum = |of: &dyn Fn(&(f64, f64, f64)) -> f64| rows.iter().map(of).sum::<f64>();
        let (xx, xy, yy) = (sum(&|r| r.0 * r.0), sum(&|r| r.0 * r.1), sum(&|r| r.1 * r.1));
        let (xt, yt) = (sum(&|r| r.0 * r.2), sum(&|r| r.1 * r.2));
        if xx <= 0.0 {
            return None;
        }
        let determinant = xx * yy - xy * xy;
        let free = rows.len() > 1 && determinant > 1e-9 * xx * yy;
        let (mut a, mut b) = (xt / xx, 0.0);
        if free {
            (a, b) = ((xt * yy - yt * xy) / determinant, (yt * xx - xt * xy) / determinant);
            if b < 0.0 {
                (a, b) = (xt / xx, 0.0);
            } else if a < 0.0 {
                (a, b) = (0.0, yt / yy);
            }
        }
        let squares = sum(&|r| (r.2 - a * r.0 - b * r.1).powi(2));
        let covariance = if free && rows.len() > 2 {
            let variance = squares / (rows.len() - 2) as f64;
            [yy, xx, -xy].map(|x| variance * x / determinant)
        } else {
            [0.0; 3]
        };
        Some(PrefillFit { a, b, covariance })
    }

    /// Seconds of a prefill of `n` tokens after `before` others.
    pub fn seconds(&self, before: usize, n: usize) -> f64 {
        let (x, y) = terms(before, n);
        self.a * x + self.b * y
    }

    /// The standard error of [`Self::seconds`] by the scatter of the chunks around the fit.
    pub fn error(&self, before: usize, n: usize) -> f64 {
        let ((x, y), [aa, bb, ab]) = (terms(before, n), self.covariance);
        (aa * x * x + bb * y * y + 2.0 * ab * x * y).max(0.0).sqrt()
    }
}

fn terms(before: usize, n: usize) -> (f64, f64) {
    let (m, e) = (before as f64, (before + n) as f64);
    (e - m, e * e - m * m)
}

/// A straight line through two points, rising or flat: the seconds of a decode step over the context before it.
pub fn rising(from: (usize, f64), to: (usize, f64), at: usize) -> f64 {
    let slope = if to.0 > from.0 { ((to.1 - from.1) / (to.0 - from.0) as f64).max(0.0) } else { 0.0 };
    // The longer measurement is the surer one.
    (to.1 + slope * (at as f64 - to.0 as f64)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
