//! Extrapolates prefill time from a shorter measured prefill (`run --estimate`).
//!
//! Model: n tokens take a n + b n^2 seconds; matrix products are linear in n, attention is quadratic. Windowed layers only reduce b.

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillFit {
    pub a: f64,
    /// Seconds per token and preceding token, halved.
    pub b: f64,
    /// Var(a), Var(b), Cov(a, b).
    covariance: [f64; 3],
}

impl PrefillFit {
    /// Non-negative least-squares fit to chunks `(tokens before, tokens after, seconds)`.
    pub fn of(chunks: &[(usize, usize, f64)]) -> Option<Self> {
        // A chunk from m to n gives seconds = a (n - m) + b (n^2 - m^2).
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

    /// Seconds to prefill `n` tokens after `before` cached ones.
    pub fn seconds(&self, before: usize, n: usize) -> f64 {
        let (x, y) = terms(before, n);
        self.a * x + self.b * y
    }

    /// Standard error of [`Self::seconds`] from the residuals of the fit.
    pub fn error(&self, before: usize, n: usize) -> f64 {
        let ((x, y), [aa, bb, ab]) = (terms(before, n), self.covariance);
        (aa * x * x + bb * y * y + 2.0 * ab * x * y).max(0.0).sqrt()
    }
}

fn terms(before: usize, n: usize) -> (f64, f64) {
    let (m, e) = (before as f64, (before + n) as f64);
    (e - m, e * e - m * m)
}

/// Line through two points with slope >= 0: seconds of a decode step by context length.
pub fn rising(from: (usize, f64), to: (usize, f64), at: usize) -> f64 {
    let slope = if to.0 > from.0 { ((to.1 - from.1) / (to.0 - from.0) as f64).max(0.0) } else { 0.0 };
    // The longer measurement is more reliable.
    (to.1 + slope * (at as f64 - to.0 as f64)).max(0.0)
}
