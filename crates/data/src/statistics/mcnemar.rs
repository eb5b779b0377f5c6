//! McNemar's exact test of two systems on the same questions.

use statrs::distribution::{Binomial, DiscreteCDF};

/// Two-sided p-value for `b` and `c` discordant questions: min(1, 2 P(X <= min(b, c))), X ~ Binomial(b + c, 1/2); 1 if there are none.
pub fn mcnemar(b: usize, c: usize) -> f64 {
    // 1/2 is a valid probability.
    let Ok(null) = Binomial::new(0.5, (b + c) as u64) else { return 1.0 };
    if b == c { 1.0 } else { (2.0 * null.cdf(b.min(c) as u64)).min(1.0) }
}
