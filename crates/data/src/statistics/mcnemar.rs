//! McNemar's exact test: whether two systems that answered the same questions differ in how many they get right.

use statrs::distribution::{Binomial, DiscreteCDF};

/// The two-sided p-value of `b` questions that only the first gets right and `c` that only the second does.
///
/// Under the null hypothesis each of the b + c is as likely to fall to either side:
/// p = min(1, 2 P(X <= min(b, c))), X binomial with b + c trials of 1/2; 1 without any.
pub fn mcnemar(b: usize, c: usize) -> f64 {
    // 1/2 is a probability, so this never fails.
    let Ok(null) = Binomial::new(0.5, (b + c) as u64) else { return 1.0 };
    if b == c { 1.0 } else { (2.0 * null.cdf(b.min(c) as u64)).min(1.0) }
}
