//! Agreement of the scores of one answer's sessions with their exact effects. All inputs are finite; tied scores count as in random order.

use palimpsest_data::ground::numbers::quantile;

/// Outliers lie more than so many interquartile ranges above the upper quartile (Tukey 1977).
pub const FENCE: f64 = 1.5;

/// Effects above Q3 + 1.5 (Q3 - Q1) over the sessions of one answer; quartiles by linear interpolation.
pub fn outliers(effects: &[f64]) -> Vec<bool> {
    let mut ascending = effects.to_vec();
    ascending.sort_unstable_by(f64::total_cmp);
    let (low, high) = (quantile(&ascending, 0.25), quantile(&ascending, 0.75));
    effects.iter().map(|effect| *effect > high + FENCE * (high - low)).collect()
}

/// Groups of sessions with equal scores, highest first.
fn ranked(scores: &[f64]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    // `==`, so that 0.0 and -0.0 are tied.
    order.chunk_by(|&a, &b| scores[a] == scores[b]).map(<[usize]>::to_vec).collect()
}

/// Average precision, sum over thresholds of (R_n - R_(n-1)) P_n, tied sessions within one threshold, as scikit-learn's
/// `average_precision_score`. `None` without positives.
pub fn average_precision(scores: &[f64], positive: &[bool]) -> Option<f64> {
    let all = positive.iter().filter(|is| **is).count();
    let (mut taken, mut found, mut sum) = (0, 0, 0.0);
    for group in ranked(scores) {
        let own = group.iter().filter(|at| positive[**at]).count();
        taken += group.len();
        found += own;
        sum += own as f64 * found as f64 / taken as f64;
    }
    (all > 0).then(|| sum / all as f64)
}

/// Sum of the exact effects of the `k` sessions with the highest scores. Of a group of ties that does not fit, its mean for each place left.
pub fn top_drop(scores: &[f64], effects: &[f64], k: usize) -> f64 {
    let (mut left, mut sum) = (k, 0.0);
    for group in ranked(scores) {
        let taken = group.len().min(left);
        let own: f64 = group.iter().map(|at| effects[*at]).sum();
        sum += own * taken as f64 / group.len() as f64;
        left -= taken;
    }
    sum
}

/// The session with the largest effect among those whose effect is above 0 and above their control; the first of equal ones.
pub fn decisive(effects: &[f64], controls: &[Option<f64>]) -> Option<usize> {
    let above = |at: &usize| effects[*at] > controls[*at].unwrap_or(0.0).max(0.0);
    let most = |best: usize, at: usize| if effects[at] > effects[best] { at } else { best };
    (0..effects.len()).filter(above).reduce(most)
}

/// Chance that session `at` has the highest score.
pub fn is_first(scores: &[f64], at: usize) -> f64 {
    match ranked(scores).first() {
        Some(group) if group.contains(&at) => 1.0 / group.len() as f64,
        _ => 0.0,
    }
}

/// Sums of the scores of the sessions that each subset holds: the linear datamodel's predictions.
pub fn predictions(scores: &[f64], subsets: &[Vec<bool>]) -> Vec<f64> {
    let sum =
        |holds: &Vec<bool>| holds.iter().zip(scores).filter(|(is, _)| **is).map(|(_, score)| score).sum();
    subsets.iter().map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All orders of `scores`, highest first, with ties in every order.
    fn orders(scores: &[f64]) -> Vec<Vec<usize>> {
        fn longer(left: &[usize]) -> Vec<Vec<usize>> {
            if left.is_empty() {
                return vec![Vec::new()];
            }
            let with = |&at: &usize| {
                let rest: Vec<usize> = left.iter().copied().filter(|other| *other != at).collect();
                longer(&rest).into_iter().map(move |mut order| {
                    order.insert(0, at);
                    order
                })
            };
            left.iter().flat_map(with).collect()
        }
        let all: Vec<usize> = (0..scores.len()).collect();
        let falls = |order: &Vec<usize>| order.windows(2).all(|pair| scores[pair[0]] >= scores[pair[1]]);
        longer(&all).into_iter().filter(falls).collect()
    }

    #[test]
    fn ties_count_as_the_mean_over_all_their_orders() {
        let effects = [0.5, -0.25, 2.0, 0.0, 1.0];
        for scores in [[1.0, 1.0, 1.0, 1.0, 1.0], [3.0, 0.0, 3.0, -0.0, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0]] {
            let all = orders(&scores);
            let mean = |of: &dyn Fn(&Vec<usize>) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
            for k in 1..=6 {
                let expected = mean(&|order| order.iter().take(k).map(|at| effects[*at]).sum());
                assert!((top_drop(&scores, &effects, k) - expected).abs() < 1e-12, "{scores:?}, {k}");
            }
            for at in 0..5 {
                let expected = mean(&|order| f64::from(u8::from(order[0] == at)));
                assert!((is_first(&scores, at) - expected).abs() < 1e-12, "{scores:?}, {at}");
            }
        }
    }

    #[test]
    fn the_decisive_session_beats_its_control_and_zero() {
        let some = |all: [f64; 3]| all.map(Some);
        assert_eq!(decisive(&[0.5, 0.4, 0.1], &some([0.6, 0.1, 0.0])), Some(1));
        assert_eq!(decisive(&[0.5, 0.5, 0.1], &[None; 3]), Some(0));
        assert_eq!(decisive(&[-0.1, 0.0, -0.2], &some([-1.0, -1.0, -1.0])), None);
    }

    #[test]
    fn an_outlier_lies_beyond_tukeys_fence() {
        // Quartiles 1 and 3, fence 6.
        assert_eq!(outliers(&[0.0, 1.0, 2.0, 3.0, 6.0]), [false; 5]);
        assert_eq!(outliers(&[6.1, 1.0, 2.0, 3.0, 0.0]), [true, false, false, false, false]);
        assert_eq!(outliers(&[1.0; 4]), [false; 4]);
        assert_eq!(average_precision(&[1.0, 2.0], &[false, false]), None);
        // Ranks 2 and 3 of 4: (1/2 + 2/3) / 2.
        let found = average_precision(&[4.0, 3.0, 2.0, 1.0], &[false, true, true, false]).unwrap();
        assert!((found - 7.0 / 12.0).abs() < 1e-12);
        assert_eq!(average_precision(&[0.0; 4], &[false, true, true, false]), Some(0.5));
    }

    #[test]
    fn a_subset_is_worth_the_scores_that_it_holds() {
        let subsets = vec![vec![true, false, true], vec![false; 3], vec![true; 3]];
        assert_eq!(predictions(&[1.0, 2.0, 4.0], &subsets), [5.0, 0.0, 7.0]);
    }
}
