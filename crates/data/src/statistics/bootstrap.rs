//! Stratified percentile bootstrap of the mean of binary outcomes or their paired differences.
//! Computes the exact distribution of the resampled sum: no sampling, no seed.

use super::{Interval, LEVEL};

/// Interval at [`LEVEL`] of the mean over `strata`, `[strata][units]`, of units 0, 1 or -1. `None` without units or for other values.
pub fn percentile(strata: &[&[f64]]) -> Option<Interval> {
    let n: usize = strata.iter().map(|units| units.len()).sum();
    // Probability of each sum, from -n to n.
    let mut sums = vec![0.0; 2 * n + 1];
    *sums.get_mut(n)? = 1.0;
    let mut drawn = 0;
    for units in strata {
        let share =
            |value: f64| units.iter().filter(|unit| **unit == value).count() as f64 / units.len() as f64;
        let (down, same, up) = (share(-1.0), share(0.0), share(1.0));
        if !units.is_empty() && (down + same + up - 1.0).abs() > 1e-9 {
            return None;
        }
        for _ in *units {
            drawn += 1;
            let before = sums.clone();
            for (at, sum) in sums.iter_mut().enumerate().take(n + drawn + 1).skip(n - drawn) {
                let of = |place: Option<usize>| place.and_then(|at| before.get(at)).copied().unwrap_or(0.0);
                *sum = up * of(at.checked_sub(1)) + same * of(Some(at)) + down * of(Some(at + 1));
            }
        }
    }
    let quantile = |level: f64| {
        let mut below = 0.0;
        let at = sums.iter().position(|probability| {
            below += probability;
            // Tolerance: rounding must not move an end by a whole unit.
            below > level - 1e-9
        });
        at.map(|at| (at as f64 - n as f64) / n as f64)
    };
    let tail = (1.0 - LEVEL) / 2.0;
    (n > 0).then_some(Interval { low: quantile(tail)?, high: quantile(1.0 - tail)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::draw::Draws;

    fn stratum(counts: [usize; 3]) -> Vec<f64> {
        [1.0, 0.0, -1.0].into_iter().zip(counts).flat_map(|(value, n)| vec![value; n]).collect()
    }

    fn ends(strata: &[[usize; 3]]) -> (f64, f64) {
        let strata: Vec<Vec<f64>> = strata.iter().map(|counts| stratum(*counts)).collect();
        let interval = percentile(&strata.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        (interval.low, interval.high)
    }

    #[test]
    fn few_answers_have_the_percentiles_of_the_binomial_distribution() {
        // P(0 of 4) = P(4 of 4) = 1/16.
        assert_eq!(ends(&[[2, 2, 0]]), (0.0, 1.0));
        // P(0 of 6) = 1/64 = 0.0156, P(at most 1) = 7/64.
        assert_eq!(ends(&[[3, 3, 0]]), (1.0 / 6.0, 5.0 / 6.0));
        assert_eq!((ends(&[[5, 0, 0]]), ends(&[[0, 5, 0]])), ((1.0, 1.0), (0.0, 0.0)));
        assert_eq!(ends(&[[4, 0, 0], [2, 2, 0]]), (0.5, 1.0));
        assert_eq!(ends(&[[1, 0, 1]]), (-1.0, 1.0));
        assert_eq!(percentile(&[]), None);
        assert_eq!(percentile(&[&[0.5, 1.0]]), None);
    }

    /// Compares with 10,000 seeded resamples.
    #[test]
    fn the_ends_are_those_of_resampling() {
        let strata = [[40, 20, 5], [90, 12, 0], [10, 30, 24]];
        let (low, high) = ends(&strata);
        let units: Vec<Vec<f64>> = strata.iter().map(|counts| stratum(*counts)).collect();
        let n: usize = units.iter().map(Vec::len).sum();
        let mut draws = Draws::new("bootstrap", 1, "");
        let mut means: Vec<f64> = (0..10_000)
            .map(|_| {
                let drawn = |of: &Vec<f64>| (0..of.len()).map(|_| of[draws.index(of.len())]).sum::<f64>();
                units.iter().map(drawn).sum::<f64>() / n as f64
            })
            .collect();
        means.sort_by(f64::total_cmp);
        let unit = 1.001 / n as f64;
        assert!((means[249] - low).abs() < unit && (means[9749] - high).abs() < unit, "{low} {high}");
    }
}
