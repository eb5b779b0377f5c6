//! Threshold of a drop from control sets ([`palimpsest_data::statistics::control::equal_sets`]).

/// False positive rate of a threshold.
pub const LEVEL: f64 = 0.05;

/// Minimum number of controls for [`LEVEL`].
pub const CONTROLS: usize = 19;

/// The drop that a further random set exceeds with probability at most [`LEVEL`], for any distribution: the ceil((n + 1) (1 -
/// [`LEVEL`]))-th smallest of n controls (split conformal prediction). `None` below [`CONTROLS`].
pub fn threshold(controls: &[f64]) -> Option<f64> {
    let mut ascending: Vec<f64> = controls.iter().map(|drop| drop.abs()).collect();
    ascending.sort_by(f64::total_cmp);
    // Epsilon against rounding at exactly 19 controls.
    let rank = ((controls.len() + 1) as f64 * (1.0 - LEVEL) - 1e-9).ceil() as usize;
    ascending.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_the_rank_that_a_further_set_exceeds_in_one_of_twenty_cases() {
        let of = |n: usize| threshold(&(1..=n).map(|at| -(at as f64)).collect::<Vec<_>>());
        assert_eq!((of(0), of(12), of(18)), (None, None, None));
        assert_eq!((of(19), of(39), of(40)), (Some(19.0), Some(38.0), Some(39.0)));
        // Exchangeability: each of n + 1 values is equally likely to be the new one.
        for n in 19..80 {
            let limit = of(n).unwrap();
            let above = (1..=n + 1).filter(|rank| {
                let controls: Vec<f64> = (1..=n + 1).filter(|at| at != rank).map(|at| at as f64).collect();
                *rank as f64 > threshold(&controls).unwrap()
            });
            assert!(above.count() as f64 / (n + 1) as f64 <= LEVEL + 1e-12, "{n}: {limit}");
        }
    }
}
