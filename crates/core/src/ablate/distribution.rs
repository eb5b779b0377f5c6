//! Truncated token distributions and their KL divergence.

/// Maximum probability of the truncated tail.
const REST: f64 = 1e-6;

/// Histogram bins of one e-fold each below the top token, used to find the tail.
const FOLDS: usize = 128;

/// A position's top tokens, with the tail, at most [`REST`], as one outcome. Full distributions of a long answer would take gigabytes.
#[derive(Debug)]
pub(super) struct Distribution {
    /// (token, logit)
    tokens: Vec<(u32, f32)>,
    log_sum: f64,
    rest: f64,
}

impl Distribution {
    /// From logits (vocab) with log-sum-exp `log_sum`.
    pub(super) fn of(logits: &[f32], log_sum: f64) -> Self {
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let fold = |x: f32| ((greatest - x).max(0.0) as usize).min(FOLDS - 1);
        let mut sums = [0.0; FOLDS];
        for &x in logits {
            sums[fold(x)] += (f64::from(x) - log_sum).exp();
        }
        let mut rest = 0.0;
        let mut kept = FOLDS;
        while kept > 1 && rest + sums[kept - 1] <= REST {
            kept -= 1;
            rest += sums[kept];
        }
        let tokens = (0u32..).zip(logits.iter().copied()).filter(|(_, x)| fold(*x) < kept).collect();
        Distribution { tokens, log_sum, rest }
    }

    /// KL divergence of `logits` from this distribution, in nats. Too small by at most [`REST`] times the divergence within the tail.
    pub(super) fn divergence(&self, logits: &[f32], log_sum: f64) -> f64 {
        let (mut sum, mut held) = (0.0, 0.0);
        for &(token, x) in &self.tokens {
            let log_p = f64::from(x) - self.log_sum;
            let log_q = logits.get(token as usize).map_or(f64::NEG_INFINITY, |&y| f64::from(y) - log_sum);
            sum += log_p.exp() * (log_p - log_q);
            held += log_q.exp();
        }
        if self.rest > 0.0 {
            // Guard against a tail of rounding errors.
            let other = (1.0 - held).max(f64::EPSILON);
            sum += self.rest * (self.rest / other).ln();
        }
        sum.max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::log_sum_exp;

    fn plain(p: &[f32], q: &[f32]) -> f64 {
        let log = |x: &[f32]| -> Vec<f64> {
            let all: f64 = x.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            x.iter().map(|&x| f64::from(x) - all).collect()
        };
        log(p).iter().zip(log(q)).map(|(p, q)| p.exp() * (p - q)).sum()
    }

    #[test]
    fn divergences_without_the_least_likely_tokens_are_those_of_all() {
        // Linear congruential generator (Numerical Recipes); upper bits.
        let mut state = 7u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        for spread in [1.0, 10.0, 40.0] {
            let mut logits = || -> Vec<f32> { (0..5000).map(|_| spread * draw()).collect() };
            let (p, q) = (logits(), logits());
            let near: Vec<f32> = p.iter().zip(&q).map(|(p, q)| p + 0.01 * q).collect();
            let kept = Distribution::of(&p, log_sum_exp(&p));
            for other in [&p, &q, &near] {
                let (found, expected) = (kept.divergence(other, log_sum_exp(other)), plain(&p, other));
                assert!((found - expected).abs() < 1e-4, "{spread}: {found} is not {expected}");
            }
            assert!(kept.divergence(&p, log_sum_exp(&p)) < 1e-9);
            assert_eq!(kept.tokens.len() < 4000, spread == 40.0, "{spread}: {}", kept.tokens.len());
        }
    }
}
