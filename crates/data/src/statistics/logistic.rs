//! Logistic regression on one predictor, and scores of held-out probabilities.

/// p = 1 / (1 + exp(-(intercept + slope z))) with z = (x - centre) / scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logistic {
    centre: f64,
    scale: f64,
    intercept: f64,
    slope: f64,
}

/// Maximum Newton steps; two parameters need fewer than ten.
const STEPS: usize = 50;

impl Logistic {
    /// Standard normal prior on the slope, so that separable outcomes converge; `None` if all outcomes are equal.
    pub fn fit(x: &[f64], y: &[bool]) -> Option<Self> {
        let n = x.len() as f64;
        if !y.contains(&true) || !y.contains(&false) {
            return None;
        }
        let centre = x.iter().sum::<f64>() / n;
        let variance = x.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / n;
        let scale = if variance > 0.0 { variance.sqrt() } else { 1.0 };
        let (mut intercept, mut slope) = (0.0, 0.0);
        for _ in 0..STEPS {
            // Gradient and Hessian of the penalised negative log-likelihood.
            let (mut g0, mut g1, mut h00, mut h01, mut h11) = (0.0, slope, 0.0, 0.0, 1.0);
            for (x, y) in x.iter().zip(y) {
                let z = (x - centre) / scale;
                let p = sigmoid(intercept + slope * z);
                let residual = p - f64::from(u8::from(*y));
                let weight = p * (1.0 - p);
                g0 += residual;
                g1 += residual * z;
                h00 += weight;
                h01 += weight * z;
                h11 += weight * z * z;
            }
            let determinant = h00 * h11 - h01 * h01;
            if determinant <= 0.0 {
                break;
            }
            let (d0, d1) = ((h11 * g0 - h01 * g1) / determinant, (h00 * g1 - h01 * g0) / determinant);
            // Cap the step length against overshooting.
            let length = (d0 * d0 + d1 * d1).sqrt().max(1.0);
            (intercept, slope) = (intercept - d0 / length, slope - d1 / length);
            if d0.abs().max(d1.abs()) < 1e-10 {
                break;
            }
        }
        Some(Logistic { centre, scale, intercept, slope })
    }

    pub fn probability(&self, x: f64) -> f64 {
        sigmoid(self.intercept + self.slope * (x - self.centre) / self.scale)
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Leave-one-group-out predictions; the base rate if the other groups' outcomes are all equal.
pub fn held_out<G: PartialEq>(x: &[f64], y: &[bool], groups: &[G]) -> Vec<f64> {
    let of = |at: usize| {
        let others = (0..x.len()).filter(|other| groups[*other] != groups[at]);
        let (others_x, others_y): (Vec<f64>, Vec<bool>) = others.map(|other| (x[other], y[other])).unzip();
        match Logistic::fit(&others_x, &others_y) {
            Some(fit) => fit.probability(x[at]),
            None => share(&others_y).unwrap_or(0.5),
        }
    };
    (0..x.len()).map(of).collect()
}

/// Leave-one-group-out share of true outcomes, the baseline.
pub fn base_rates<G: PartialEq>(y: &[bool], groups: &[G]) -> Vec<f64> {
    let of = |at: usize| {
        let others = (0..y.len()).filter(|other| groups[*other] != groups[at]);
        share(&others.map(|other| y[other]).collect::<Vec<_>>()).unwrap_or(0.5)
    };
    (0..y.len()).map(of).collect()
}

fn share(y: &[bool]) -> Option<f64> {
    (!y.is_empty()).then(|| y.iter().filter(|y| **y).count() as f64 / y.len() as f64)
}

/// Brier score: mean squared error of probabilities; 0 is best.
pub fn brier(p: &[f64], y: &[bool]) -> f64 {
    let squares = p.iter().zip(y).map(|(p, y)| (p - f64::from(u8::from(*y))).powi(2));
    squares.sum::<f64>() / p.len().max(1) as f64
}

/// Area under the ROC curve, ties counted half; `None` if all outcomes are equal.
pub fn auc(x: &[f64], y: &[bool]) -> Option<f64> {
    let of = |outcome: bool| x.iter().zip(y).filter(move |(_, y)| **y == outcome).map(|(x, _)| *x);
    let pairs = of(true).count() * of(false).count();
    let wins = of(true).flat_map(|a| of(false).map(move |b| (a, b))).map(|(a, b)| match a.total_cmp(&b) {
        std::cmp::Ordering::Greater => 1.0,
        std::cmp::Ordering::Equal => 0.5,
        std::cmp::Ordering::Less => 0.0,
    });
    (pairs > 0).then(|| wins.sum::<f64>() / pairs as f64)
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    pub foretold: f64,
    pub came: f64,
    pub count: usize,
}

/// Reliability diagram with `count` equal-width bins; empty bins are left out.
pub fn reliability(p: &[f64], y: &[bool], count: usize) -> Vec<Bin> {
    let place = |p: f64| ((p * count as f64) as usize).min(count.saturating_sub(1));
    let bin = |nth: usize| {
        let of: Vec<(f64, bool)> =
            p.iter().copied().zip(y.iter().copied()).filter(|(p, _)| place(*p) == nth).collect();
        let n = of.len();
        (n > 0).then(|| Bin {
            foretold: of.iter().map(|(p, _)| p).sum::<f64>() / n as f64,
            came: of.iter().filter(|(_, y)| *y).count() as f64 / n as f64,
            count: n,
        })
    };
    (0..count).filter_map(bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::draw::Draws;

    #[test]
    fn a_fit_is_where_the_gradient_is_nothing() {
        let mut draws = Draws::new("logistic", 0, "");
        for n in [6, 40, 300] {
            let x: Vec<f64> = (0..n).map(|_| draws.index(1000) as f64 / 100.0).collect();
            let y: Vec<bool> = x.iter().map(|x| draws.index(10) as f64 > *x).collect();
            let Some(fit) = Logistic::fit(&x, &y) else { continue };
            let loss = |intercept: f64, slope: f64| {
                let of = Logistic { intercept, slope, ..fit };
                let each = x.iter().zip(&y).map(|(x, y)| {
                    let p = of.probability(*x);
                    -(if *y { p } else { 1.0 - p }).ln()
                });
                each.sum::<f64>() + slope * slope / 2.0
            };
            let best = loss(fit.intercept, fit.slope);
            for (a, b) in [(1e-3, 0.0), (-1e-3, 0.0), (0.0, 1e-3), (0.0, -1e-3)] {
                assert!(loss(fit.intercept + a, fit.slope + b) >= best - 1e-12);
            }
        }
        // Separable outcomes have a fit, a constant predictor gives the base rate, constant outcomes give none.
        assert!(Logistic::fit(&[0.0, 1.0], &[false, true]).unwrap().probability(1.0) > 0.5);
        let flat = Logistic::fit(&[2.0; 4], &[true, true, true, false]).unwrap();
        assert!((flat.probability(2.0) - 0.75).abs() < 1e-9);
        assert_eq!(Logistic::fit(&[0.0, 1.0], &[true, true]), None);
    }

    #[test]
    fn what_is_held_out_has_no_part_in_its_own_probability() {
        let (x, y) = ([0.0, 1.0, 2.0, 3.0, 9.0, 9.0], [false, false, true, true, false, false]);
        let groups = [0, 0, 1, 1, 2, 2];
        let p = held_out(&x, &y, &groups);
        let turned = held_out(&x, &[false, false, true, true, true, true], &groups);
        assert!(p[4] == turned[4] && p[5] == turned[5] && p[4] > 0.5);
        assert_eq!(base_rates(&y, &groups), [0.5, 0.5, 0.0, 0.0, 0.5, 0.5]);
    }

    #[test]
    fn scores_are_their_definitions() {
        let (p, y) = ([0.1, 0.4, 0.4, 0.9], [false, true, false, true]);
        assert!((brier(&p, &y) - (0.01 + 0.36 + 0.16 + 0.01) / 4.0).abs() < 1e-12);
        assert_eq!(auc(&p, &y), Some(3.5 / 4.0));
        assert_eq!(auc(&p, &[true; 4]), None);
        let bins = reliability(&p, &y, 5);
        assert_eq!(bins.iter().map(|bin| bin.count).collect::<Vec<_>>(), [1, 2, 1]);
        assert!((bins[1].came, (bins[1].foretold - 0.4).abs() < 1e-12) == (0.5, true));
        assert_eq!(reliability(&[1.0], &[true], 5)[0].count, 1);
    }
}
