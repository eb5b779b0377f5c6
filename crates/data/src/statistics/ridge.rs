//! Ridge regression, primal or dual, whichever is smaller.

use ndarray::{Array1, Array2, ArrayView1, Axis};

#[derive(Debug, Clone, PartialEq)]
pub struct Ridge {
    pub weights: Array1<f64>,
    pub intercept: f64,
}

impl Ridge {
    /// Minimises sum (y - x w - b)^2 + `penalty` sum w^2; `x` is (samples, features), unscaled. `None` if singular, empty or not finite.
    pub fn fit(x: &Array2<f64>, y: &Array1<f64>, penalty: f64) -> Option<Self> {
        let (things, features) = x.dim();
        if things == 0 || things != y.len() {
            return None;
        }
        let (mean_x, mean_y) = (x.mean_axis(Axis(0))?, y.mean()?);
        let (x, y) = (x - &mean_x, y - mean_y);
        let weights = if features <= things {
            solve(x.t().dot(&x), x.t().dot(&y), penalty)?
        } else {
            // Dual form: w = x^T (x x^T + penalty)^-1 y.
            x.t().dot(&solve(x.dot(&x.t()), y, penalty)?)
        };
        let intercept = mean_y - mean_x.dot(&weights);
        (weights.iter().all(|w| w.is_finite()) && intercept.is_finite())
            .then_some(Ridge { weights, intercept })
    }

    pub fn predict(&self, features: ArrayView1<'_, f64>) -> f64 {
        features.dot(&self.weights) + self.intercept
    }
}

/// Solves (a + penalty I) w = b by Cholesky; a + penalty I must be positive definite.
fn solve(mut a: Array2<f64>, mut b: Array1<f64>, penalty: f64) -> Option<Array1<f64>> {
    let n = b.len();
    a.diag_mut().iter_mut().for_each(|x| *x += penalty);
    for j in 0..n {
        let row = a.row(j).to_owned();
        let pivot = a[[j, j]] - (0..j).map(|k| row[k] * row[k]).sum::<f64>();
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        let pivot = pivot.sqrt();
        a[[j, j]] = pivot;
        for i in j + 1..n {
            let dot: f64 = a.row(i).iter().zip(&row).take(j).map(|(x, y)| x * y).sum();
            a[[i, j]] = (a[[i, j]] - dot) / pivot;
        }
    }
    for i in 0..n {
        let dot: f64 = (0..i).map(|k| a[[i, k]] * b[k]).sum();
        b[i] = (b[i] - dot) / a[[i, i]];
    }
    for i in (0..n).rev() {
        let dot: f64 = (i + 1..n).map(|k| a[[k, i]] * b[k]).sum();
        b[i] = (b[i] - dot) / a[[i, i]];
    }
    Some(b)
}
