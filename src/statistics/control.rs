//! The control of an effect: that of random text of equal length.
//!
//! Effects of a few random stretches are known, of several lengths. A session is compared with those of about its own length by their
//! median: one stretch that happens to hold what decided the answer does not move it.

/// Stretches whose median is taken, at least.
pub const NEAREST: usize = 5;

/// The control at `length` tokens by the lengths and effects of a pool of stretches: the median effect of the [`NEAREST`] stretches whose
/// length's logarithm is nearest, and of all that are as near as the last of them. Effects that are not finite are left out; `None` where
/// none is left. Of an even number of effects the median is the mean of the middle two.
pub fn control_for(length: usize, pool: &[(usize, f64)]) -> Option<f64> {
    let log = |tokens: usize| (tokens.max(1) as f64).ln();
    let known = pool.iter().filter(|(_, effect)| effect.is_finite());
    let mut known: Vec<(f64, f64)> =
        known.map(|&(tokens, effect)| ((log(tokens) - log(length)).abs(), effect)).collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    let reach = known.get(NEAREST - 1).or(known.last())?.0;
    let mut near: Vec<f64> =
        known.into_iter().take_while(|(far, _)| *far <= reach).map(|(_, effect)| effect).collect();
    near.sort_by(f64::total_cmp);
    let middle = near.len() / 2;
    Some(if near.len() % 2 == 1 { near[middle] } else { near[middle - 1].midpoint(near[middle]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_is_the_median_of_the_stretches_of_about_the_length() {
        // Effects that grow with the length, a thousandth a token.
        let pool: Vec<(usize, f64)> = (1..=12).map(|nth| (100 * nth, 0.1 * nth as f64)).collect();
        // Nearest in ratio to 500: 500, 600, 400, 700, 800; then 300.
        assert_eq!(control_for(500, &pool), Some(0.1 * 6.0));
        assert_eq!(control_for(1, &pool), Some(0.1 * 3.0));
        assert_eq!(control_for(100_000, &pool), Some(0.1 * 10.0));
        // A stretch that holds what decided the answer does not move it: the third largest of five becomes the next.
        let mut struck = pool.clone();
        struck[4].1 = 22.0;
        assert_eq!(control_for(500, &struck), Some(0.1 * 7.0));
        // As plainly: the definition over all orders of the pool.
        struck.rotate_left(5);
        assert_eq!(control_for(500, &struck), Some(0.1 * 7.0));
    }

    #[test]
    fn equally_near_stretches_all_count_and_what_is_not_finite_does_not() {
        let equal: Vec<(usize, f64)> = (0..8).map(|nth| (50, f64::from(nth))).collect();
        assert_eq!(control_for(50, &equal), Some(3.5));
        assert_eq!(control_for(900, &equal), Some(3.5));
        let few = [(10, 1.0), (20, f64::NAN), (30, 4.0), (0, f64::INFINITY)];
        assert_eq!(control_for(10, &few), Some(2.5));
        assert_eq!(control_for(10, &few[..2]), Some(1.0));
        assert_eq!((control_for(10, &few[1..2]), control_for(10, &[])), (None, None));
    }
}
