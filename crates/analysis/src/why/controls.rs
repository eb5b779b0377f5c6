//! The drop that few control sets ([`palimpsest_data::statistics::control::equal_sets`]) exceed.

/// Share of random sets that may exceed a threshold.
pub const LEVEL: f64 = 0.05;

/// The fewest controls by whose ranks a drop can be told from a random set's at [`LEVEL`].
pub const CONTROLS: usize = 19;

/// The absolute drop that a further random set exceeds with a chance of at most [`LEVEL`], whatever the distribution: of n controls the
/// ceil((n + 1) (1 - [`LEVEL`]))-th smallest (split conformal prediction). `None` where that is more than there are, below [`CONTROLS`].
pub fn threshold(controls: &[f64]) -> Option<f64> {
    let mut ascending: Vec<f64> = controls.iter().map(|drop| drop.abs()).collect();
    ascending.sort_by(f64::total_cmp);
    // A hair below, so that 19 controls are 19 and not 20 by rounding.
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
        // By definition: of n + 1 exchangeable numbers each is the new one as often as any other.
        for n in 19..80 {
            let limit = of(n).unwrap();
            let above = (1..=n + 1).filter(|rank| {
                // The new one has this rank; the controls are the others.
                let controls: Vec<f64> = (1..=n + 1).filter(|at| at != rank).map(|at| at as f64).collect();
                *rank as f64 > threshold(&controls).unwrap()
            });
            assert!(above.count() as f64 / (n + 1) as f64 <= LEVEL + 1e-12, "{n}: {limit}");
        }
    }
}
